"""Shows the results of experiments as tables in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from loadgen.experiments.claims import Verdict, difference_map, recovery
from loadgen.experiments.results import Results, interval
from loadgen.experiments.spec import Spec


def with_error(mean: float, half: float) -> str:
    """Return a mean and its half width as text, with as many digits as the half width justifies.

    >>> with_error(12.3456, 0.098)
    '12.346 ± 0.098'
    """
    if half <= 0:
        return f"{mean:.5g}"  # a single replication has no interval
    # Two significant digits of the half width: the exponent of 0.098 is -2, so there are three decimals.
    digits = max(0, 1 - int(f"{half:e}".partition("e")[2]))
    return f"{mean:,.{digits}f} ± {half:,.{digits}f}"


def table(spec: Spec, results: Results) -> Table | Group:
    """Return a table with a row for each cell; for heat maps, grids of differences."""
    return grids(spec, results) if spec.picture == "heat" else rows(spec, results)


def rows(spec: Spec, results: Results) -> Table:
    """Return a table of every cell's means with their 95 % intervals."""
    table = Table(title=spec.title, title_justify="left")
    for axis in results.cells[0].cell.labels:
        table.add_column(axis)
    change = spec.drawing.get("recovery")
    columns = ("regret", "in 2nd half", "in system", "response", "share of the last")
    for column in (*columns, *(["right again after"] if change else [])):
        table.add_column(column, justify="right")
    for cell in results.cells:
        curve = cell["curve"]
        late = curve[:, -1] - curve[:, cell.half]
        values = (cell["regret"], late, cell["mean_in_system"], cell["mean_response"], cell["shares"][:, -1])
        texts = [with_error(*map(float, interval(value))) for value in values]
        if change:
            arrivals = recovery(cell, **change)
            texts.append("never" if arrivals == math.inf else f"{arrivals:,.0f} arrivals")
        table.add_row(*cell.cell.labels.values(), *texts)
    return table


def grids(spec: Spec, results: Results) -> Group:
    """Return a grid of mean differences for each map."""
    down, across = spec.drawing["down"], spec.drawing["across"]
    tables = []
    for part in spec.drawing["differences"]:
        for name in results.axis(spec.drawing["maps"]):
            grid = Table(title=f"regret of {part['first']} − {part['second']}, {name}", title_justify="left")
            for label in (f"{down} \\ {across}", *results.axis(across)):
                grid.add_column(label, justify="right")
            values = difference_map(results, spec.drawing, name, part)
            for label, row in zip(results.axis(down), values, strict=True):
                grid.add_row(label, *(f"{value:+.0f}" for value in row))
            tables.append(grid)
    return Group(*tables)


def verdict_lines(verdicts: Sequence[Verdict]) -> Text:
    """Return a line for each claim, with its verdict and the numbers behind it."""
    text = Text()
    marks: dict[bool | None, Any] = {
        True: ("shown    ", "green"),
        False: ("NOT SHOWN", "red"),
        None: ("open     ", "yellow"),
    }
    for verdict in verdicts:
        mark, style = marks[verdict.holds]
        text.append(mark, style=style).append(f"  {verdict.claim.says}\n           {verdict.evidence}\n")
    return text
