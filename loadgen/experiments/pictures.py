"""Pictures of experiments, by matplotlib (the extra `plot`): means with 95 % bands, fit to print."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dispatcher.errors import ConfigError
from loadgen.experiments.claims import above_optimum, difference_map, windowed_share
from loadgen.experiments.results import Measured, Results, interval, student
from loadgen.experiments.spec import Spec
from loadgen.plot import COLOURS, PlotError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DECADES = 30.0  # a panel whose final regrets differ by more than this factor gets a logarithmic axis
LINES = ("-", "--", "-.", ":")


def draw(spec: Spec, results: Results, path: Path) -> None:
    """The experiment's picture. Raises PlotError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'lased-dispatcher[plot]'") from error
    figure = Figure(layout="constrained")
    try:
        {"curves": curves, "heat": heat, "dots": dots, "shares": shares}[spec.picture](spec, results, figure)
    except ImportError as error:
        raise PlotError(f"this one needs scipy: pip install 'lased-dispatcher[theory]' ({error})") from error
    except LookupError as error:
        raise PlotError(f"the experiment's [drawing] does not fit its axes: {error}") from error
    figure.suptitle(spec.title, fontsize=12)
    figure.savefig(path, dpi=150)


def over_arrivals(axes: Axes) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel("arrivals")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def curves(spec: Spec, results: Results, figure: Figure) -> None:
    """Regret over arrivals, a panel for each load; below, the mean number in system beside SED's and the optimum."""
    panels, lines = spec.drawing.get("panels"), spec.drawing["lines"]
    names = results.axis(panels) if panels else [""]
    wedge = spec.drawing.get("wedge")
    columns = len(names) + bool(wedge)
    figure.set_size_inches(3.9 * max(columns, 2), 6.4)
    grid = figure.subplots(2, columns, squeeze=False, height_ratios=(3, 2))
    for name, upper, under in zip(names, grid[0], grid[1], strict=False):
        here = results.where(**({panels: name} if panels else {}))
        _regret(upper, here, lines)
        upper.set_title(f"{panels} {name}" if panels else "", fontsize=10)
        _in_system(under, here, lines)
    grid[0][0].set_ylabel("wrong decisions so far")
    grid[1][0].set_ylabel("mean number in system")
    if wedge:
        _wedge(grid[0][-1], results.cells[0].cell.scenario.mu, wedge)
        grid[1][-1].set_axis_off()


def _regret(axes: Axes, here: Sequence[Measured], lines: str) -> None:
    final = []
    for one, colour, style in zip(here, cycle(COLOURS), cycle(LINES), strict=False):
        mean, half = interval(one["curve"])
        axes.plot(one.arrivals, mean, color=colour, linestyle=style, label=one.cell.labels[lines])
        axes.fill_between(one.arrivals, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
        final.append(float(mean[-1]))
    if min(final) > 0 and max(final) > DECADES * min(final):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    over_arrivals(axes)
    if here[0].cell.scenario.log:
        axes.set_xscale("log")
    axes.legend(fontsize=8)
    plain(axes)


def _in_system(axes: Axes, here: Sequence[Measured], lines: str) -> None:
    for x, (one, colour) in enumerate(zip(here, cycle(COLOURS), strict=False)):
        mean, half = interval(one["mean_in_system"])
        axes.errorbar(x, mean, half, fmt="o", color=colour, capsize=3)
    axes.set_xticks(range(len(here)), [one.cell.labels[lines] for one in here])
    axes.set_xlim(-0.6, len(here) - 0.4)
    levels = _levels(here[0])
    for level, style, name in levels:
        axes.axhline(level, color="black", linewidth=0.9, linestyle=style, label=name)
    if levels:
        axes.legend(fontsize=8)
    plain(axes)


def _levels(one: Measured) -> list[tuple[float, str, str]]:
    """The exact mean number in system of SED, and the least possible, where they can be calculated."""
    scenario = one.cell.scenario
    if len(scenario.mu) > 2 or scenario.service != "exp" or scenario.process != "poisson" or any(scenario.profiles):
        return []
    try:
        from loadgen.sim import theory

        system = theory.System(scenario.lam, scenario.mu, scenario.servers)
        steady, best = theory.chain(system, theory.sed(system)), theory.optimum(system)
    except (ImportError, ConfigError):  # scipy is missing, or there is no steady state
        return []
    return [(steady.mean_in_system, ":", "SED, exactly"), (best.mean_in_system, "-", "optimum")]


def _wedge(axes: Axes, mu: Sequence[float], guess: Sequence[float], side: int = 60) -> None:
    """The states in which SED on the guesses and SED on the true rates disagree."""
    q = np.arange(side)
    first, second = np.meshgrid(q + 1, q + 1, indexing="ij")
    differ = (first * guess[1] <= second * guess[0]) != (first * mu[1] <= second * mu[0])
    axes.imshow(differ.T, origin="lower", cmap="Greys", vmin=0, vmax=1.2, extent=(-0.5, side - 0.5, -0.5, side - 0.5))
    axes.plot(q, (q + 1) * mu[1] / mu[0] - 1, color=COLOURS[0], linewidth=0.6, label="SED's boundary")
    axes.plot(q, (q + 1) * guess[1] / guess[0] - 1, color=COLOURS[1], linewidth=0.6, linestyle="--", label="ESED's")
    axes.set_xlim(-0.5, side - 0.5)
    axes.set_ylim(-0.5, side - 0.5)
    axes.set_xlabel("q₁")
    axes.set_ylabel("q₂")
    axes.set_title("where they disagree", fontsize=10)
    axes.legend(fontsize=8, loc="lower right")


def heat(spec: Spec, results: Results, figure: Figure) -> None:
    """Maps of mean differences in regret, on a symmetric logarithmic scale around zero; a row for each difference."""
    from matplotlib.colors import SymLogNorm

    differences = spec.drawing["differences"]
    maps = results.axis(spec.drawing["maps"])
    figure.set_size_inches(4.2 * len(maps) + 1, 4.1 * len(differences))
    grid = figure.subplots(len(differences), len(maps), squeeze=False, sharex=True, sharey=True)
    for part, row in zip(differences, grid, strict=True):
        values = [difference_map(results, spec.drawing, name, part) for name in maps]
        reach = max(1.0, *(float(np.abs(value).max()) for value in values))
        norm = SymLogNorm(linthresh=min(10.0, reach / 2), vmin=-reach, vmax=reach)
        for name, axes, value in zip(maps, row, values, strict=True):
            image = axes.imshow(value, origin="lower", cmap="RdBu_r", norm=norm, aspect="auto")
            for (y, x), number in np.ndenumerate(value):
                colour = "white" if abs(norm(number) - 0.5) > 0.33 else "black"
                axes.text(x, y, f"{number:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
            axes.set_title(name, fontsize=10)
            for axis, labels in (
                (axes.xaxis, results.axis(spec.drawing["across"])),
                (axes.yaxis, results.axis(spec.drawing["down"])),
            ):
                axis.set_ticks(range(len(labels)), labels)
            axes.set_xlabel("load ρ")
        row[0].set_ylabel("initial guess of the ratio")
        figure.colorbar(image, ax=list(row), label=f"regret of {part['first']}\n− {part['second']}", shrink=0.9)


def dots(spec: Spec, results: Results, figure: Figure) -> None:
    """One metric of every cell with its 95 % interval; a panel for each entry of `panels`, three abreast."""
    panels, metric = spec.drawing["panels"], spec.drawing["metric"]
    names = results.axis(panels)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    most = max(len(results.where(**{panels: name})) for name in names)
    figure.set_size_inches(2.2 + 3.4 * columns, 0.6 + rows * (0.8 + 0.28 * most))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(names) :]:
        axes.set_axis_off()
    for name, axes in zip(names, grid.flat, strict=False):
        here = results.where(**{panels: name})
        labels = [" ".join(label for axis, label in one.cell.labels.items() if axis != panels) for one in here]
        for y, one in enumerate(here):
            if metric == "above_optimum":
                mean, half = (100 * value for value in above_optimum(one, results))
                half *= student(len(one.seeds)) if len(one.seeds) > 1 else 0
            else:
                mean, half = (float(value) for value in interval(one[metric]))
            axes.errorbar(mean, y, xerr=half, fmt="o", color=COLOURS[0], capsize=2, markersize=4)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_title(name if panels == "scene" else f"{panels} {name}", fontsize=10)
        axes.set_xlabel(spec.drawing.get("label", metric.replace("_", " ")))
        if spec.drawing.get("log"):
            right = axes.get_xlim()[1]
            axes.set_xscale("symlog", linthresh=10)
            axes.set_xlim(0, 1.5 * right)
        plain(axes)


def shares(spec: Spec, results: Results, figure: Figure) -> None:
    """The share of one pool over time, a panel for each entry of `panels`, beside what SED with true rates gives it."""
    from loadgen.sim import theory

    panels, lines, back = spec.drawing["panels"], spec.drawing["lines"], spec.drawing["recovery"]
    pool = back["pool"]
    names = results.axis(panels)
    figure.set_size_inches(4.2 * len(names), 3.8)
    grid = figure.subplots(1, len(names), squeeze=False, sharey=True)
    for name, axes in zip(names, grid[0], strict=True):
        for one, colour, style in zip(results.where(**{panels: name}), cycle(COLOURS), cycle(LINES), strict=False):
            mean, half = interval(windowed_share(one, pool))
            axes.plot(one.arrivals, mean, color=colour, linestyle=style, label=one.cell.labels[lines])
            axes.fill_between(one.arrivals, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
        scenario = results.cells[0].cell.scenario
        for rates, style in ((scenario.mu, ":"), (back["rates"], "-")):
            system = theory.System(scenario.lam, tuple(rates))
            level = theory.chain(system, theory.sed(system)).shares[pool - 1]
            told = ", ".join(f"{rate:g}" for rate in rates)
            axes.axhline(level, color="black", linewidth=0.8, linestyle=style, label=f"SED, rates {told}")
        axes.set_title(name, fontsize=10)
        over_arrivals(axes)
        plain(axes)
    grid[0][0].set_ylabel(f"share of pool {pool}")
    grid[0][-1].legend(fontsize=8)
