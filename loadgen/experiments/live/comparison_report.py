"""Shows the results of a live comparison: a table for each load, JSON, CSV, and a picture of paired ratios."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from loadgen import plot
from loadgen.experiments.live.comparison import METRICS, Comparison, SystemResult, at_rate
from loadgen.experiments.results import Floats, interval
from loadgen.experiments.sim_comparison import difference
from loadgen.plot import PlotError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE_METRICS = {"mean_response": "mean", "p99_response": "p99"}


def table(comparison: Comparison, results: Sequence[SystemResult], lam: float) -> Table:
    """Return the table of one load, with a row for each system.

    Differences are to the first system, paired by round, in percent of it.
    """
    systems = at_rate(results, lam)
    first = systems[0]
    rates = " and ".join(f"{pool.rate:g}" for pool in comparison.pools)
    title = (
        f"load {lam / comparison.capacity:.2g}: {lam:g} requests a second to pools of {rates}, "
        f"{comparison.rounds} rounds of {comparison.requests:,}; 95 % intervals"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("system", no_wrap=True)
    for label in TABLE_METRICS.values():
        table.add_column(f"{label}, ms", justify="right")
        table.add_column(f"to {first.system.label}", justify="right")
    table.add_column("to the fast", justify="right")
    table.add_column("regret", justify="right")
    fastest = int(np.argmax([pool.rate for pool in comparison.pools]))
    for result in systems:
        cells = []
        for metric in TABLE_METRICS:
            mean, half = (float(value) * 1e3 for value in interval(result[metric]))
            cells += [f"{mean:.2f} ± {half:.2f}", "" if result is first else percent(result, first, metric)]
        regret = result["regret"].mean()
        share = result["shares"].mean(axis=0)[fastest]
        table.add_row(result.system.label, *cells, f"{share:.1%}", "" if np.isnan(regret) else f"{regret:.1f}")
    return table


def percent(result: SystemResult, first: SystemResult, metric: str) -> str:
    """Return the paired difference with its interval, in percent of the first system's mean."""
    gap = difference(result, first, metric)
    half = "" if gap.half is None else f" ± {100 * gap.half / float(first[metric].mean()):.1f}"
    return f"{100 * gap.part:+.1f}{half} %"


def as_json(comparison: Comparison, results: Sequence[SystemResult]) -> dict[str, Any]:
    """Return what `compare --backend live --json` prints."""
    return {
        "first": comparison.systems[0].label,
        "rounds": comparison.rounds,
        "requests": comparison.requests,
        "warmup": comparison.warmup,
        "seed": comparison.seed,
        "pools": [{"rate": pool.rate, "guess": pool.guess, "servers": pool.servers} for pool in comparison.pools],
        "loads": [_load(comparison, at_rate(results, lam), lam) for lam in comparison.lams],
    }


def _load(comparison: Comparison, results: Sequence[SystemResult], lam: float) -> dict[str, Any]:
    first = results[0]
    systems, differences = {}, {}
    for result in results:
        label = result.system.label
        measured = [metric for metric in METRICS if not np.isnan(result[metric]).any()]
        shares = result["shares"].mean(axis=0).tolist()
        systems[label] = {metric: _mean(result, metric) for metric in measured} | {"shares": shares}
        if result is not first:
            both = [metric for metric in measured if not np.isnan(first[metric]).any()]
            differences[label] = {metric: difference(result, first, metric).as_json() for metric in both}
    return {"load": lam / comparison.capacity, "lam": lam, "systems": systems, "differences": differences}


def _mean(result: SystemResult, metric: str) -> dict[str, float]:
    mean, half = (float(value) for value in interval(result[metric]))
    return {"mean": mean, "half": half}


def write_rows(comparison: Comparison, results: Sequence[SystemResult], path: Path) -> None:
    """Write a CSV file with a row for each run of a system."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        shares = [f"share_{pool.name}" for pool in comparison.pools]
        writer.writerow(["system", "lam", "seed", *METRICS, *shares])
        for result in results:
            for j in range(comparison.rounds):
                values = [f"{result[metric][j]:.9g}" for metric in METRICS] + [f"{s:.6g}" for s in result["shares"][j]]
                writer.writerow([result.system.label, f"{result.lam:g}", comparison.seed + j, *values])


def draw(comparison: Comparison, results: Sequence[SystemResult], path: Path) -> None:
    """Write a picture of the times of each system relative to the first, with a panel for each load and metric.

    Ratios are paired by round. Intervals are 95 % intervals of the geometric mean.
    Raises PlotError without matplotlib or without a second system.
    """
    n, first = len(comparison.systems) - 1, comparison.systems[0].label
    if not n:
        raise PlotError("there is only one system")
    figure = plot.figure((11, len(comparison.lams) * (0.9 + 0.32 * n) + 0.4))
    grid = figure.subplots(len(comparison.lams), len(TABLE_METRICS), squeeze=False, sharey="row", sharex="col")
    for row, lam in zip(grid, comparison.lams, strict=True):
        reference, *others = at_rate(results, lam)
        for (metric, label), axes in zip(TABLE_METRICS.items(), row, strict=True):
            for y, other in enumerate(others):
                _ratio(axes, y, other[metric] / reference[metric], plot.COLOURS[1 if other.system.balancer else 0])
            axes.axvline(1.0, color="black", linewidth=0.9)
            axes.set_yticks(range(n), [other.system.label for other in others])
            axes.set_ylim(n - 0.5, -0.5)
            level = float(reference[metric].mean()) * 1e3
            axes.set_title(
                f"load {lam / comparison.capacity:.2g}: {label} response; {first} {level:.1f} ms", fontsize=10
            )
            plot.plain(axes)
    for axes in grid[-1]:
        axes.set_xlabel(f"times that of {first}")
    plot.save(figure, path)


def _ratio(axes: Axes, y: int, ratios: Floats, colour: str) -> None:
    # The mean of logarithms treats a ratio and its inverse alike.
    mean, half = (float(value) for value in interval(np.log(ratios)))
    middle, low, high = (float(np.exp(value)) for value in (mean, mean - half, mean + half))
    axes.plot(ratios, [y + 0.2] * len(ratios), ".", color="grey", alpha=0.4, markersize=4)
    axes.errorbar(middle, y, xerr=[[middle - low], [high - middle]], fmt="o", color=colour, capsize=3)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
