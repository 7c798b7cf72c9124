"""Draws the picture of the demonstration: the regret and the estimates of each policy over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadgen import plot
from loadgen.experiments.live.demo import PolicyRun, Scene


def draw(scene: Scene, runs: Sequence[PolicyRun], path: Path) -> None:
    """Draw the regret of each policy and its estimates of the pools. Raises PlotError without matplotlib."""
    figure = plot.figure(figsize=(10, 4.2 + 2.6))
    axes = figure.subplot_mosaic([["regret"] * len(runs), [run.policy for run in runs]], height_ratios=(4.2, 3.4))
    regret = axes["regret"]
    for run, colour in zip(runs, plot.COLOURS, strict=False):
        times = np.array([row["time"] for row in run.rows])
        count = np.cumsum(run.wrong)
        regret.step(times - times[0], count, where="post", color=colour, label=f"{run.policy}: {count[-1]}")
    regret.set_ylim(bottom=0)
    regret.set_xlabel("seconds")
    regret.set_xlim(0, scene.duration)
    regret.set_ylabel("wrong decisions so far")
    guesses = ", ".join(f"{pool.guess:g} a second for a pool of {pool.rate:g}" for pool in scene.pools)
    regret.set_title(f"Regret at {scene.lam:g} requests a second; guesses: {guesses}", fontsize=11)
    regret.legend(title="regret in all")
    for run in runs:
        axis = axes[run.policy]
        at = [sample.at for sample in run.samples]
        for i, (pool, colour) in enumerate(zip(scene.pools, plot.COLOURS[2:], strict=False)):
            states = [sample.state["pools"][i] for sample in run.samples]
            axis.plot(at, [state["estimate"] for state in states], color=colour, label=f"{pool.name}, estimate")
            # Without observations the interval has no upper end, and NaN leaves that part of the band out.
            low, high = zip(*((s["interval"][0], s["interval"][1] or np.nan) for s in states), strict=True)
            axis.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.axhline(pool.rate, color=colour, linestyle="--", linewidth=1, label=f"{pool.name}, true rate")
        axis.legend(fontsize=8, ncols=2, loc="upper right")
        axis.set_xlim(0, scene.duration)
        axis.set_ylim(-3, 1.6 * max(pool.rate for pool in scene.pools))
        axis.set_title(f"{run.policy}: estimates with 95 % intervals", fontsize=10)
        axis.set_xlabel("seconds")
        axis.set_ylabel("services a second")
    for axis in axes.values():
        plot.plain(axis)
    plot.save(figure, path)
