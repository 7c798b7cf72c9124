"""What a person sees: live displays and closing tables, by rich. Everything here goes to a console that is given."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.attack.driver import Attack
from loadgen.attack.progress import Watch
from loadgen.attack.summary import Summary
from loadgen.attack.summary_text import SHOWN, facts, milliseconds, rules
from loadgen.cli.demo import Run, Sample, Scene, rate_ratio

PLAIN_EVERY = 5.0  # seconds between two lines where there is no terminal


def summary_table(summary: Summary) -> Table:
    """The result of an attack. Percentiles that too few answers support are dim."""
    title = f"{summary.completed} of {summary.sent} requests answered, {summary.verdict}"
    table = Table(title=title, title_justify="left")
    for column in ("", *SHOWN.values()):
        table.add_column(column, justify="left" if not column else "right")
    for name, times in (("response", summary.latency), ("service", summary.service), ("lateness", summary.lateness)):
        cells = [
            Text(milliseconds(getattr(times, key)), style="dim" if key in summary.unsupported else "") for key in SHOWN
        ]
        table.add_row(name, *cells)
    return table


def summary_lines(summary: Summary) -> list[str]:
    """Findings, thresholds and counts: a line each."""
    few = ", ".join(SHOWN[name] for name in summary.unsupported)
    note = [f"fewer than ten answers above {few}: not to be quoted"] if few else []
    findings = [f"{finding.level}: {finding.says}: {finding.advice}" for finding in summary.findings]
    return [*findings, *rules(summary), *note, *(f"{key}: {value}" for key, value in facts(summary))]


class AttackScreen:
    """A run as it goes, redrawn as it does; a line now and then where there is no terminal."""

    def __init__(self, console: Console, watch: Watch, seconds: float) -> None:
        self._watch, self._seconds = watch, seconds
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._next, self._before = PLAIN_EVERY, (0.0, 0)
        self._recent = (0.0, 0.0, 0.0)

    def __enter__(self) -> AttackScreen:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def stopped(self) -> None:
        """The sending was ended; answers are still awaited."""
        said = "waiting for what is open; Ctrl-C again breaks off, without a result"
        print(said, file=sys.stderr, flush=True)  # noqa: T201

    def looked(self, at: float) -> None:
        watch, (then, sent) = self._watch, self._before
        rate = (watch.sent - sent) / max(at - then, 1e-9) if at > 0 else 0.0
        self._before = (max(at, 0.0), watch.sent)
        if len(watch.latest):
            p50, p99 = np.percentile(watch.latest, (50, 99))
            self._recent = (rate, float(p50), float(p99))
        if self._live:
            self._live.update(self._table(at, rate))
        elif at >= self._next:
            self._next += PLAIN_EVERY
            said = f"{at:4.0f} s: {watch.sent} sent, {watch.over} over, {watch.in_flight} open"
            print(said, file=sys.stderr, flush=True)  # noqa: T201 - rich ends a program whose pipe is broken

    def _table(self, at: float, rate: float) -> Group:
        watch, (_, p50, p99) = self._watch, self._recent
        late = watch.lateness.total / watch.sent if watch.sent else 0.0
        table = Table(box=None, padding=(0, 2))
        cells = {
            "sent": f"{watch.sent} of {watch.total}", "a second": f"{rate:.1f}", "open": str(watch.in_flight),
            "failed": str(watch.outcomes["refused"] + watch.outcomes["unanswered"]), "dropped": str(watch.dropped),
            "p50": milliseconds(p50), "p99": milliseconds(p99), "mean lateness": milliseconds(late),
        }  # fmt: skip
        for name in cells:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_row(*cells.values())
        bar = ProgressBar(total=self._seconds, completed=min(max(at, 0.0), self._seconds), width=60)
        left = max(0.0, self._seconds - max(at, 0.0))
        said = f"{left:.0f} s left" if left else "waiting for answers"
        return Group(table, Columns([bar, Text(said)]))


class Screen(Protocol):
    """Shows a demo while it runs."""

    def __enter__(self) -> Screen: ...
    def __exit__(self, *error: object) -> None: ...
    def watch(self, policy: str, sample: Sample, attack: Attack) -> None: ...


class PlainScreen:
    """A line now and then, for logs and pipes."""

    def __init__(self, scene: Scene, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._policy = ""

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def watch(self, policy: str, sample: Sample, attack: Attack) -> None:
        if policy != self._policy:
            self._policy, self._next = policy, PLAIN_EVERY
        if sample.at >= self._next:
            self._next += PLAIN_EVERY
            ratio, error = rate_ratio(sample.state)
            spread = f" ± {1.96 * error:.2f}" if error else ""
            regret = sample.state["regret"]["total"]
            self._console.print(
                f"{policy} {sample.at:4.0f} s: {attack.sent} sent, regret {regret}, rate ratio {ratio:.2f}{spread}"
            )


class LiveScreen:
    """The pools, what is believed of them, and the regret, redrawn as they change."""

    def __init__(self, scene: Scene, console: Console) -> None:
        self._scene = scene
        self._progress = Progress(TextColumn("{task.description:<8}"), BarColumn(40), TextColumn("{task.fields[said]}"),
                                  TimeRemainingColumn())  # fmt: skip
        self._bars = {
            policy: self._progress.add_task(policy, total=scene.duration, said="") for policy in scene.policies
        }
        self._live = Live(self._progress, console=console, refresh_per_second=8)

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def watch(self, policy: str, sample: Sample, attack: Attack) -> None:
        said = f"{attack.sent} sent, {attack.in_flight} open, regret {sample.state['regret']['total']}"
        self._progress.update(self._bars[policy], completed=min(sample.at, self._scene.duration), said=said)
        self._live.update(
            Group(Panel(self._pools(sample.state), title=f"policy {policy}", expand=False), self._progress)
        )

    def _pools(self, state: Mapping[str, Any]) -> Group:
        table = Table(box=None, padding=(0, 2))
        for column in ("pool", "true", "guess", "estimate", "95 %", "seen", "open"):
            table.add_column(column, justify="left" if column == "pool" else "right", no_wrap=True)
        for pool in state["pools"]:
            low, high = pool["interval"]
            seen = pool["observations"]
            believed = (f"{pool['estimate']:.1f}/s", f"{low:.1f} … {high:.1f}") if seen else ("the guess", "unknown")
            rates = (f"{pool['true_rate']:g}/s", f"{pool['guess']:g}/s")
            table.add_row(pool["name"], *rates, *believed, str(seen), str(pool["in_flight"]))
        ratio, error = rate_ratio(state)
        interval = f" ± {1.96 * error:.2f}" if error else ""
        regret, episode = state["regret"], state["episode"]
        causes = ", ".join(f"{count} by {cause}" for cause, count in regret.items() if cause != "total" and count)
        return Group(
            table,
            Text(f"\nrate ratio {ratio:.2f}{interval}, truly {self._scene.true_ratio:g}"),
            Text(f"regret     {regret['total']} of {state['decisions']} decisions{': ' + causes if causes else ''}"),
            Text(f"episode    {episode['number']}{', exploring' if episode['explored'] else ''}"),
        )


def demo_table(scene: Scene, runs: Sequence[Run]) -> Table:
    """The closing summary."""
    title = f"{scene.lam:g} requests a second for {scene.duration:g} s, the same for both"
    if len(runs) < len(scene.policies) or any(run.ended_early for run in runs):
        title += "; ended early, so do not compare"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    summaries = [run.summary() for run in runs]
    for run in runs:
        table.add_column(run.policy, justify="right")

    def row(label: str, *cells: str) -> None:
        table.add_row(label, *cells)

    row("requests answered", *(str(s["requests"]) for s in summaries))
    row("mean response", *(milliseconds(s["mean_response"]) for s in summaries))
    row("p99 response", *(milliseconds(s["p99_response"]) for s in summaries))
    for pool in scene.pools:
        row(f"share of {pool.name} ({pool.rate:g}/s)", *(f"{s['shares'][pool.name]:.1%}" for s in summaries))
    row(f"rate ratio (truly {scene.true_ratio:g})", *(_ratio(s) for s in summaries))
    row("episodes", *(str(s["episodes"]) for s in summaries))
    row("forced trials", *(str(s["explorations"]) for s in summaries))
    row("regret: wrong decisions", *(str(s["regret"]) for s in summaries))
    row("… in the second half", *(str(s["regret_second_half"]) for s in summaries))
    return table


def _ratio(summary: Mapping[str, Any]) -> str:
    error = summary["rate_ratio_standard_error"]
    return f"{summary['rate_ratio_estimate']:.2f}" + (f" ± {1.96 * error:.2f}" if error else " (never tried)")


def demo_verdict(scene: Scene, runs: Sequence[Run]) -> str:
    """What the numbers of this run say, in a sentence a policy."""
    said = []
    for run in runs:
        summary, n = run.summary(), max(1, len(run.rows))
        error = summary["rate_ratio_standard_error"]
        wrong, late = summary["regret"], summary["regret_second_half"]
        if error and abs(summary["rate_ratio_estimate"] - scene.true_ratio) <= 3 * error and late <= 0.01 * n:
            said.append(f"{run.policy} found out: {wrong} wrong decisions of {n}, {late} in the second half.")
        elif wrong > 0.9 * n:
            said.append(f"{run.policy} never found out: {wrong} wrong decisions of {n}.")
        else:
            said.append(f"{run.policy}: {wrong} wrong decisions of {n}, {late} in the second half.")
    return "\n".join(said)
