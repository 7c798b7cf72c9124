"""What a live comparison found, as a table for each load, JSON, and a picture of the paired differences."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from loadgen.experiments.live.comparison import METRICS, Contest, Standing, at_rate
from loadgen.experiments.results import Floats, interval
from loadgen.experiments.sim_comparison import difference, difference_json
from loadgen.plot import COLOURS, PlotError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = {"mean_response": "mean", "p99_response": "p99"}


def table(contest: Contest, standings: Sequence[Standing], lam: float) -> Table:
    """A row a system; differences are to the first, paired by round, in percent of it."""
    here = at_rate(standings, lam)
    first = here[0]
    rates = " and ".join(f"{pool.rate:g}" for pool in contest.pools)
    title = (
        f"load {lam / contest.capacity:.2g}: {lam:g} requests a second to pools of {rates}, "
        f"{contest.rounds} rounds of {contest.requests:,}; 95 % intervals"
    )
    made = Table(title=title, title_justify="left")
    made.add_column("system", no_wrap=True)
    for label in SHOWN.values():
        made.add_column(f"{label}, ms", justify="right")
        made.add_column(f"to {first.system.label}", justify="right")
    made.add_column("to the fast", justify="right")
    made.add_column("regret", justify="right")
    fast = int(np.argmax([pool.rate for pool in contest.pools]))
    for one in here:
        cells = []
        for metric in SHOWN:
            mean, half = (float(value) * 1e3 for value in interval(one[metric]))
            cells += [f"{mean:.2f} ± {half:.2f}", "" if one is first else percent(one, first, metric)]
        regret = one["regret"].mean()
        share = one["shares"].mean(axis=0)[fast]
        made.add_row(one.system.label, *cells, f"{share:.1%}", "" if np.isnan(regret) else f"{regret:.1f}")
    return made


def percent(one: Standing, first: Standing, metric: str) -> str:
    """The paired difference, in percent of the first's mean, with its interval."""
    found = difference(one, first, metric)
    half = "" if found.half is None else f" ± {100 * found.half / float(first[metric].mean()):.1f}"
    return f"{100 * found.part:+.1f}{half} %"


def as_json(contest: Contest, standings: Sequence[Standing]) -> dict[str, Any]:
    """What `compare --backend live --json` prints."""
    return {
        "first": contest.systems[0].label,
        "rounds": contest.rounds,
        "requests": contest.requests,
        "warmup": contest.warmup,
        "seed": contest.seed,
        "pools": [{"rate": pool.rate, "guess": pool.guess, "servers": pool.servers} for pool in contest.pools],
        "loads": [_load(contest, at_rate(standings, lam), lam) for lam in contest.lams],
    }


def _load(contest: Contest, here: Sequence[Standing], lam: float) -> dict[str, Any]:
    first = here[0]
    systems, differences = {}, {}
    for one in here:
        label = one.system.label
        known = [metric for metric in METRICS if not np.isnan(one[metric]).any()]
        systems[label] = {metric: _mean(one, metric) for metric in known} | {
            "shares": one["shares"].mean(axis=0).tolist()
        }
        if one is not first:
            both = [metric for metric in known if not np.isnan(first[metric]).any()]
            differences[label] = {metric: difference_json(difference(one, first, metric)) for metric in both}
    return {"load": lam / contest.capacity, "lam": lam, "systems": systems, "differences": differences}


def _mean(one: Standing, metric: str) -> dict[str, float]:
    mean, half = (float(value) for value in interval(one[metric]))
    return {"mean": mean, "half": half}


def write_rows(contest: Contest, standings: Sequence[Standing], path: Path) -> None:
    """A row a turn, CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        shares = [f"share_{pool.name}" for pool in contest.pools]
        writer.writerow(["system", "lam", "seed", *METRICS, *shares])
        for one in standings:
            for j in range(contest.rounds):
                values = [f"{one[metric][j]:.9g}" for metric in METRICS] + [f"{s:.6g}" for s in one["shares"][j]]
                writer.writerow([one.system.label, f"{one.lam:g}", contest.seed + j, *values])


def draw(contest: Contest, standings: Sequence[Standing], path: Path) -> None:
    """Every system's times over the first one's, paired by round, with 95 % intervals of the geometric mean; a row a
    load, a panel a metric. Raises PlotError without matplotlib or a second system."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'lased-dispatcher[plot]'") from error
    n, first = len(contest.systems) - 1, contest.systems[0].label
    if not n:
        raise PlotError("there is only one system")
    figure = Figure(figsize=(11, len(contest.lams) * (0.9 + 0.32 * n) + 0.4), layout="constrained")
    grid = figure.subplots(len(contest.lams), len(SHOWN), squeeze=False, sharey="row", sharex="col")
    for row, lam in zip(grid, contest.lams, strict=True):
        reference, *others = at_rate(standings, lam)
        for (metric, label), axes in zip(SHOWN.items(), row, strict=True):
            for y, one in enumerate(others):
                _ratio(axes, y, one[metric] / reference[metric], COLOURS[1 if one.system.balancer else 0])
            axes.axvline(1.0, color="black", linewidth=0.9)
            axes.set_yticks(range(n), [one.system.label for one in others])
            axes.set_ylim(n - 0.5, -0.5)
            level = float(reference[metric].mean()) * 1e3
            axes.set_title(f"load {lam / contest.capacity:.2g}: {label} response; {first} {level:.1f} ms", fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    for axes in grid[-1]:
        axes.set_xlabel(f"times that of {first}")
    figure.savefig(path, dpi=130)


def _ratio(axes: Axes, y: int, ratios: Floats, colour: str) -> None:
    mean, half = (float(value) for value in interval(np.log(ratios)))
    middle, low, high = (float(np.exp(value)) for value in (mean, mean - half, mean + half))
    axes.plot(ratios, [y + 0.2] * len(ratios), ".", color="grey", alpha=0.4, markersize=4)
    axes.errorbar(middle, y, xerr=[[middle - low], [high - middle]], fmt="o", color=colour, capsize=3)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
