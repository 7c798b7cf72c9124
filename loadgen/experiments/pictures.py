"""Draws the pictures of experiments: means with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dispatcher.errors import ConfigError
from loadgen import plot
from loadgen.experiments.claims import above_optimum, difference_map, windowed_share
from loadgen.experiments.results import Floats, Measured, Results, interval, student
from loadgen.experiments.spec import Spec
from loadgen.plot import COLOURS, PlotError, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_FROM_RATIO = 30.0  # a panel whose final regrets differ by more than this factor gets a logarithmic axis
LINE_STYLES = ("-", "--", "-.", ":")


def draw(spec: Spec, results: Results, path: Path) -> None:
    """Write the experiment's picture.

    Raises PlotError without matplotlib, without scipy if the picture needs it, and if `drawing` does not fit the axes.
    """
    figure = plot.figure()
    try:
        {"curves": curves, "heat": heat, "dots": dots, "shares": shares}[spec.picture](spec, results, figure)
    except ImportError as error:
        raise PlotError(f"this picture needs scipy: pip install 'lased-dispatcher[theory]' ({error})") from error
    except LookupError as error:
        raise PlotError(f"the experiment's [drawing] does not fit its axes: {error}") from error
    figure.suptitle(spec.title, fontsize=12)
    plot.save(figure, path)


def arrivals_axis(axes: Axes) -> None:
    """Label the horizontal axis with arrivals: 1k, 1M and so on."""
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel("arrivals")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def curves(spec: Spec, results: Results, figure: Figure) -> None:
    """Draw the regret by arrivals, with a panel for each load.

    Below each panel is the mean number in system, with that of SED and the optimum.
    """
    panels, lines = spec.drawing.get("panels"), spec.drawing["lines"]
    names = results.axis(panels) if panels else [""]
    wedge = spec.drawing.get("wedge")
    columns = len(names) + bool(wedge)
    figure.set_size_inches(3.9 * max(columns, 2), 6.4)
    grid = figure.subplots(2, columns, squeeze=False, height_ratios=(3, 2))
    for name, upper, lower in zip(names, grid[0], grid[1], strict=False):
        cells = results.where(**({panels: name} if panels else {}))
        _regret(upper, cells, lines)
        upper.set_title(f"{panels} {name}" if panels else "", fontsize=10)
        _in_system(lower, cells, lines)
    grid[0][0].set_ylabel("wrong decisions so far")
    grid[1][0].set_ylabel("mean number in system")
    if wedge:
        _wedge(grid[0][-1], results.cells[0].cell.scenario.mu, wedge)
        grid[1][-1].set_axis_off()


def _regret(axes: Axes, cells: Sequence[Measured], lines: str) -> None:
    final = []
    for cell, colour, style in zip(cells, cycle(COLOURS), cycle(LINE_STYLES), strict=False):
        final.append(_band(axes, cell, cell["curve"], colour, style, lines))
    if min(final) > 0 and max(final) > LOG_FROM_RATIO * min(final):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    arrivals_axis(axes)
    if cells[0].cell.scenario.log:
        axes.set_xscale("log")
    axes.legend(fontsize=8)
    plain(axes)


def _band(axes: Axes, cell: Measured, values: Floats, colour: str, style: str, lines: str) -> float:
    """Draw the mean of the values by arrivals with its 95 % band, and return the last mean."""
    mean, half = interval(values)
    axes.plot(cell.arrivals, mean, color=colour, linestyle=style, label=cell.cell.labels[lines])
    axes.fill_between(cell.arrivals, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
    return float(mean[-1])


def _in_system(axes: Axes, cells: Sequence[Measured], lines: str) -> None:
    for x, (cell, colour) in enumerate(zip(cells, cycle(COLOURS), strict=False)):
        mean, half = interval(cell["mean_in_system"])
        axes.errorbar(x, mean, half, fmt="o", color=colour, capsize=3)
    axes.set_xticks(range(len(cells)), [cell.cell.labels[lines] for cell in cells])
    axes.set_xlim(-0.6, len(cells) - 0.4)
    levels = _levels(cells[0])
    for level, style, name in levels:
        axes.axhline(level, color="black", linewidth=0.9, linestyle=style, label=name)
    if levels:
        axes.legend(fontsize=8)
    plain(axes)


def _levels(cell: Measured) -> list[tuple[float, str, str]]:
    """Return the exact mean number in system of SED and of the optimum, with line style and label.

    The list is empty if they cannot be calculated.
    """
    scenario = cell.cell.scenario
    # The chain assumes exponential services, Poisson arrivals and constant rates.
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
    """Draw the states in which SED with the guesses and SED with the true rates choose different pools."""
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
    axes.set_title("states with different choices", fontsize=10)
    axes.legend(fontsize=8, loc="lower right")


def heat(spec: Spec, results: Results, figure: Figure) -> None:
    """Draw maps of mean differences in regret, with a row of maps for each difference.

    The colour scale is logarithmic in both directions from zero.
    """
    from matplotlib.colors import SymLogNorm

    differences = spec.drawing["differences"]
    maps = results.axis(spec.drawing["maps"])
    figure.set_size_inches(4.2 * len(maps) + 1, 4.1 * len(differences))
    grid = figure.subplots(len(differences), len(maps), squeeze=False, sharex=True, sharey=True)
    for part, row in zip(differences, grid, strict=True):
        values = [difference_map(results, spec.drawing, name, part) for name in maps]
        # The scale is the same in both directions, so that white means no difference. It needs a range above 0.
        reach = max(1.0, *(float(np.abs(value).max()) for value in values))
        norm = SymLogNorm(linthresh=min(10.0, reach / 2), vmin=-reach, vmax=reach)
        for name, axes, value in zip(maps, row, values, strict=True):
            image = axes.imshow(value, origin="lower", cmap="RdBu_r", norm=norm, aspect="auto")
            for (y, x), number in np.ndenumerate(value):
                # Both ends of the colour map are dark.
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
    """Draw one metric of every cell with its 95 % interval, with a panel for each entry of the axis `panels`."""
    panels, metric = spec.drawing["panels"], spec.drawing["metric"]
    names = results.axis(panels)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    most = max(len(results.where(**{panels: name})) for name in names)
    figure.set_size_inches(2.2 + 3.4 * columns, 0.6 + rows * (0.8 + 0.28 * most))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(names) :]:  # the last row may have more places than panels
        axes.set_axis_off()
    for name, axes in zip(names, grid.flat, strict=False):
        cells = results.where(**{panels: name})
        labels = [" ".join(label for axis, label in cell.cell.labels.items() if axis != panels) for cell in cells]
        for y, cell in enumerate(cells):
            if metric == "above_optimum":
                mean, half = (100 * value for value in above_optimum(cell, results))
                half *= student(len(cell.seeds)) if len(cell.seeds) > 1 else 0
            else:
                mean, half = (float(value) for value in interval(cell[metric]))
            axes.errorbar(mean, y, xerr=half, fmt="o", color=COLOURS[0], capsize=2, markersize=4)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_title(name if panels == "scene" else f"{panels} {name}", fontsize=10)
        axes.set_xlabel(spec.drawing.get("label", metric.replace("_", " ")))
        if spec.drawing.get("log"):
            # A regret can be 0, which a plain logarithmic axis cannot show.
            right = axes.get_xlim()[1]
            axes.set_xscale("symlog", linthresh=10)
            axes.set_xlim(0, 1.5 * right)
        plain(axes)


def shares(spec: Spec, results: Results, figure: Figure) -> None:
    """Draw the share of one pool over time, with a panel for each entry of the axis `panels`.

    Horizontal lines show the share that SED with the true rates gives the pool, before and after the change.
    """
    from loadgen.sim import theory

    panels, lines, change = spec.drawing["panels"], spec.drawing["lines"], spec.drawing["recovery"]
    pool = change["pool"]
    names = results.axis(panels)
    figure.set_size_inches(4.2 * len(names), 3.8)
    grid = figure.subplots(1, len(names), squeeze=False, sharey=True)
    for name, axes in zip(names, grid[0], strict=True):
        cells = results.where(**{panels: name})
        for cell, colour, style in zip(cells, cycle(COLOURS), cycle(LINE_STYLES), strict=False):
            _band(axes, cell, windowed_share(cell, pool), colour, style, lines)
        scenario = results.cells[0].cell.scenario
        for rates, style in ((scenario.mu, ":"), (change["rates"], "-")):
            system = theory.System(scenario.lam, tuple(rates))
            level = theory.chain(system, theory.sed(system)).shares[pool - 1]
            text = ", ".join(f"{rate:g}" for rate in rates)
            axes.axhline(level, color="black", linewidth=0.8, linestyle=style, label=f"SED, rates {text}")
        axes.set_title(name, fontsize=10)
        arrivals_axis(axes)
        plain(axes)
    grid[0][0].set_ylabel(f"share of pool {pool}")
    grid[0][-1].legend(fontsize=8)
