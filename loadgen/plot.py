"""Pictures, by matplotlib (the extra `plot`). Each function writes one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadgen.demo import Run, Scene

# told apart by colour-blind readers too
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#000000",
)


class PlotError(Exception):
    """Pictures cannot be made here."""


def demo_picture(scene: Scene, runs: Sequence[Run], path: Path) -> None:
    """Regret of each policy, and what each believed of the pools, over time. Raises PlotError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'lased-dispatcher[plot]'") from error
    figure = Figure(figsize=(10, 4.2 + 2.6), layout="constrained")
    axes = figure.subplot_mosaic([["regret"] * len(runs), [run.policy for run in runs]], height_ratios=(4.2, 3.4))
    regret = axes["regret"]
    for run, colour in zip(runs, COLOURS, strict=False):
        times = np.array([row["time"] for row in run.rows])
        count = np.cumsum(run.wrong)
        regret.step(times - times[0], count, where="post", color=colour, label=f"{run.policy}: {count[-1]}")
    regret.set_ylim(bottom=0)
    regret.set_xlabel("seconds")
    regret.set_xlim(0, scene.duration)
    regret.set_ylabel("wrong decisions so far")
    told = ", ".join(f"{pool.guess:g} a second for a pool of {pool.rate:g}" for pool in scene.pools)
    regret.set_title(f"Regret at {scene.lam:g} requests a second; the dispatcher was told {told}", fontsize=11)
    regret.legend(title="regret in all")
    for run in runs:
        axis = axes[run.policy]
        at = [sample.at for sample in run.samples]
        for i, (pool, colour) in enumerate(zip(scene.pools, COLOURS[2:], strict=False)):
            believed = [sample.state["pools"][i] for sample in run.samples]
            axis.plot(at, [pool["estimate"] for pool in believed], color=colour, label=f"{pool.name}, estimate")
            low, high = zip(*((p["interval"][0], p["interval"][1] or np.nan) for p in believed), strict=True)
            axis.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.axhline(pool.rate, color=colour, linestyle="--", linewidth=1, label=f"{pool.name}, true rate")
        axis.legend(fontsize=8, ncols=2, loc="upper right")
        axis.set_xlim(0, scene.duration)
        axis.set_ylim(-3, 1.6 * max(pool.rate for pool in scene.pools))
        axis.set_title(f"{run.policy}: what it believes, with 95 % intervals", fontsize=10)
        axis.set_xlabel("seconds")
        axis.set_ylabel("services a second")
    for axis in axes.values():
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
