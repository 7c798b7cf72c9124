"""What the command `attack` shows: the progress of the run, and its result."""

from __future__ import annotations

import sys

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.attack.progress import RunProgress
from loadgen.attack.summary import Summary
from loadgen.attack.summary_text import TIME_COLUMNS, facts, milliseconds, rules

LINE_INTERVAL_SECONDS = 5.0  # between two lines where there is no terminal


def summary_table(summary: Summary) -> Table:
    """Return the times of a run as a table. Percentiles with too few responses are dim."""
    title = f"{summary.completed} of {summary.sent} requests completed, {summary.verdict}"
    table = Table(title=title, title_justify="left")
    for column in ("", *TIME_COLUMNS.values()):
        table.add_column(column, justify="left" if not column else "right")
    for name, times in (("response", summary.latency), ("service", summary.service), ("lateness", summary.lateness)):
        cells = [
            Text(milliseconds(getattr(times, key)), style="dim" if key in summary.unsupported else "")
            for key in TIME_COLUMNS
        ]
        table.add_row(name, *cells)
    return table


def summary_lines(summary: Summary) -> list[str]:
    """Return a line for each finding, each rule of --fail-if and each count."""
    few = ", ".join(TIME_COLUMNS[name] for name in summary.unsupported)
    note = [f"fewer than ten responses above {few}: do not quote these percentiles"] if few else []
    findings = [f"{finding.level}: {finding.says}: {finding.advice}" for finding in summary.findings]
    return [*findings, *rules(summary), *note, *(f"{key}: {value}" for key, value in facts(summary))]


class AttackScreen:
    """Shows a run while it lasts: redrawn on a terminal, as an occasional line elsewhere.

    progress: of the run. seconds: planned length of the traffic.
    """

    def __init__(self, console: Console, progress: RunProgress, seconds: float) -> None:
        self._progress, self._seconds = progress, seconds
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._next_line_at = LINE_INTERVAL_SECONDS
        self._previous = (0.0, 0)  # instant and requests sent at the previous update
        self._p50 = self._p99 = 0.0

    def __enter__(self) -> AttackScreen:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def on_stop(self) -> None:
        """Say that sending has stopped and that the run waits for open requests."""
        _print_line("waiting for open requests; Ctrl-C again ends the run without a result")

    def update(self, at: float) -> None:
        """Show the progress. at: seconds from the start of the schedule."""
        progress, (previous_at, previously_sent) = self._progress, self._previous
        rate = (progress.sent - previously_sent) / max(at - previous_at, 1e-9) if at > 0 else 0.0
        self._previous = (max(at, 0.0), progress.sent)
        if len(progress.latest):
            self._p50, self._p99 = np.percentile(progress.latest, (50, 99)).tolist()
        if self._live:
            self._live.update(self._table(at, rate))
        elif at >= self._next_line_at:
            self._next_line_at += LINE_INTERVAL_SECONDS
            counts = f"{progress.sent} sent, {progress.finished} finished, {progress.in_flight} open"
            _print_line(f"{at:4.0f} s: {counts}")

    def _table(self, at: float, rate: float) -> Group:
        progress = self._progress
        lateness = progress.lateness.total / progress.sent if progress.sent else 0.0
        table = Table(box=None, padding=(0, 2))
        cells = {
            "sent": f"{progress.sent} of {progress.total}",
            "a second": f"{rate:.1f}",
            "open": str(progress.in_flight),
            "failed": str(progress.outcomes["refused"] + progress.outcomes["unanswered"]),
            "dropped": str(progress.dropped),
            "p50": milliseconds(self._p50),
            "p99": milliseconds(self._p99),
            "mean lateness": milliseconds(lateness),
        }
        for name in cells:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_row(*cells.values())
        bar = ProgressBar(total=self._seconds, completed=min(max(at, 0.0), self._seconds), width=60)
        left = max(0.0, self._seconds - max(at, 0.0))
        return Group(table, Columns([bar, Text(f"{left:.0f} s left" if left else "waiting for responses")]))


def _print_line(text: str) -> None:
    # A console of rich would end the program if stderr is a closed pipe.
    print(text, file=sys.stderr, flush=True)  # noqa: T201
