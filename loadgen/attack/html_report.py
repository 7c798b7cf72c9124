"""Writes the report of a run as one HTML page with SVG pictures inside. The page needs no script and no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loadgen.attack.measure import VIEWS, Measures
from loadgen.attack.summary import Summary, Times
from loadgen.attack.summary_text import TIME_COLUMNS, facts, milliseconds, rules
from loadgen.plot import COLOURS, VERDICT_COLOURS, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIEW_LABELS = {
    "response": "response: planned → response",
    "service": "service: sent → response",
    "lateness": "lateness: planned → sent",
}
WIDTH_INCHES = 9
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
       background: #fff; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
.few { color: #767676; } .verdict { font-weight: 600; } svg { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; } li { margin: .2rem 0; } code { overflow-wrap: anywhere; }
"""


def page(summary: Summary, measures: Measures, title: str) -> str:
    """Return the HTML document. Raises PlotError without matplotlib."""
    verdict = escape(summary.verdict).capitalize()
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict" style="color: {VERDICT_COLOURS[summary.verdict]}">{verdict}</p>',
        _list(f"{finding.level}: {finding.says}: {finding.advice}" for finding in summary.findings),
        _list(rules(summary)),
        "<h2>Times</h2>",
        _times(summary),
        "<h2>Counts</h2>",
        _pairs(facts(summary)),
        "<h2>Over the run</h2>",
        svg(lambda axes: _rates(axes, summary), (WIDTH_INCHES, 2.6)),
        svg(lambda axes: _over_time(axes, summary), (WIDTH_INCHES, 2.6)),
        "<h2>By percentile</h2>",
        svg(lambda axes: _percentiles(axes, measures), (WIDTH_INCHES, 3.4)),
        "<h2>Gaps between sends</h2>",
        svg(lambda axes: _gaps(axes, measures, summary), (WIDTH_INCHES, 3.0)),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def write(summary: Summary, measures: Measures, title: str, path: Path) -> None:
    """Write the page to a file. Raises PlotError without matplotlib, and OSError."""
    path.write_text(page(summary, measures, title), encoding="utf-8")


def _list(items: Iterable[str]) -> str:
    lines = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td>{escape(key)}</td><td><code>{escape(value)}</code></td></tr>" for key, value in pairs)
    return f'<div class="scroll"><table>{rows}</table></div>'


def _times(summary: Summary) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *TIME_COLUMNS.values()))
    rows = "".join(
        f"<tr><td>{escape(VIEW_LABELS[view])}</td>{_cells(times, summary.unsupported)}</tr>"
        for view, times in (("response", summary.latency), ("service", summary.service), ("lateness", summary.lateness))
    )
    few = ", ".join(TIME_COLUMNS[name] for name in summary.unsupported)
    note = f'<p class="few">Grey: fewer than ten responses are above {escape(few)}.</p>' if few else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>{note}'


def _cells(times: Times, few: Sequence[str]) -> str:
    return "".join(
        f"<td{' class=few' if name in few else ''}>{escape(milliseconds(getattr(times, name)))}</td>"
        for name in TIME_COLUMNS
    )


def _rates(axes: Axes, summary: Summary) -> None:
    at, width = _grid(summary)
    for name, colour in (("planned", COLOURS[6]), ("sent", COLOURS[0]), ("completed", COLOURS[2])):
        counts = np.array([getattr(interval, name) for interval in summary.intervals]) / width
        style = ":" if name == "planned" else "-"
        axes.step(at, counts, where="post", color=colour, label=name, linewidth=1.2, linestyle=style)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("requests a second")
    axes.set_xlabel("seconds, by the planned instant")
    _warmup(axes, summary)


def _over_time(axes: Axes, summary: Summary) -> None:
    at, width = _grid(summary)
    for name, colour in (("p50", COLOURS[0]), ("p99", COLOURS[1])):
        times = [getattr(interval, name) for interval in summary.intervals]
        values = [np.nan if time is None else time * 1e3 for time in times]
        axes.plot(at + width / 2, values, color=colour, label=f"{name} of the response")
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds")
    axes.set_xlabel("seconds, by the planned instant")
    _warmup(axes, summary)


def _grid(summary: Summary) -> tuple[NDArray[np.float64], float]:
    """Return the begin of each interval and their width, seconds."""
    at = np.array([interval.begin for interval in summary.intervals])
    return at, float(at[1] - at[0]) if len(at) > 1 else max(summary.duration, 1e-9)


def _warmup(axes: Axes, summary: Summary) -> None:
    if warmup := summary.plan["traffic"]["warmup"]:
        axes.axvspan(0, warmup, color="0.9", label="warm-up, not measured")


def _percentiles(axes: Axes, measures: Measures) -> None:
    for view, colour in zip(VIEWS, COLOURS, strict=False):
        histogram = measures.views[view]
        if not histogram.count:
            continue
        # One in x times is above the percentile 1 − 1/x. The axis of x is logarithmic, so it gives the tail room.
        tail = np.geomspace(1.0, max(2.0, float(histogram.count)), 200)
        values = [1e3 * (histogram.percentile(100 * (1 - 1 / x)) or 0.0) for x in tail]
        axes.plot(tail, values, color=colour, label=VIEW_LABELS[view])
    axes.set_xscale("log")
    axes.set_yscale("log")
    marks = [(2, "50 %"), (10, "90 %"), (100, "99 %"), (1000, "99.9 %"), (10_000, "99.99 %"), (100_000, "99.999 %")]
    top = max(2.0, float(measures.views["response"].count))
    axes.set_xticks([x for x, _ in marks if x <= top], [name for x, name in marks if x <= top])
    axes.minorticks_off()
    axes.set_xlabel("percentile")
    axes.set_ylabel("milliseconds")


def _gaps(axes: Axes, measures: Measures, summary: Summary) -> None:
    u, sent, planned = measures.gaps.curves()
    step = slice(None, None, max(1, len(u) // 400))  # 20,000 points in each line would make a page of megabytes
    axes.plot(u[step], planned[step], color=COLOURS[6], linestyle=":", label="as planned")
    axes.plot(u[step], sent[step], color=COLOURS[0], label="as sent")
    if summary.gaps is not None and summary.gaps.against == "law":
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, label="the named law")
    axes.set_xlabel("1 − exp(−gap by the process's own clock)")
    axes.set_ylabel("share of the gaps")
