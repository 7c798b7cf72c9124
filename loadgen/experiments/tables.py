"""Results as tables for people."""

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
    """The mean and its half width, as precise as that is.

    >>> with_error(12.3456, 0.098)
    '12.346 ± 0.098'
    """
    if half <= 0:
        return f"{mean:.5g}"
    digits = max(0, 1 - int(f"{half:e}".partition("e")[2]))
    return f"{mean:,.{digits}f} ± {half:,.{digits}f}"


def table(spec: Spec, results: Results) -> Table | Group:
    """One row a cell; for heat maps the differences as grids."""
    return grids(spec, results) if spec.picture == "heat" else rows(spec, results)


def rows(spec: Spec, results: Results) -> Table:
    """The means of every cell with their 95 % intervals."""
    made = Table(title=spec.title, title_justify="left")
    axes = list(results.cells[0].cell.labels)
    for axis in axes:
        made.add_column(axis)
    back = spec.drawing.get("recovery")
    shown = ("regret", "in 2nd half", "in system", "response", "share of the last")
    for column in (*shown, *(["right again after"] if back else [])):
        made.add_column(column, justify="right")
    for one in results.cells:
        curve = one["curve"]
        late = curve[:, -1] - curve[:, one.half]
        columns = (one["regret"], late, one["mean_in_system"], one["mean_response"], one["shares"][:, -1])
        cells = [with_error(*map(float, interval(values))) for values in columns]
        if back:
            took = recovery(one, **back)
            cells.append("never" if took == math.inf else f"{took:,.0f} arrivals")
        made.add_row(*one.cell.labels.values(), *cells)
    return made


def grids(spec: Spec, results: Results) -> Group:
    """A grid of mean differences for each map."""
    down, across = spec.drawing["down"], spec.drawing["across"]
    made = []
    for part in spec.drawing["differences"]:
        for name in results.axis(spec.drawing["maps"]):
            grid = Table(title=f"regret of {part['first']} − {part['second']}, {name}", title_justify="left")
            for label in (f"{down} \\ {across}", *results.axis(across)):
                grid.add_column(label, justify="right")
            values = difference_map(results, spec.drawing, name, part)
            for label, row in zip(results.axis(down), values, strict=True):
                grid.add_row(label, *(f"{value:+.0f}" for value in row))
            made.append(grid)
    return Group(*made)


def verdict_lines(verdicts: Sequence[Verdict]) -> Text:
    """A line a claim."""
    text = Text()
    marks: dict[bool | None, Any] = {
        True: ("shown    ", "green"),
        False: ("NOT SHOWN", "red"),
        None: ("open     ", "yellow"),
    }
    for verdict in verdicts:
        mark, style = marks[verdict.holds]
        text.append(mark, style=style).append(f"  {verdict.claim.says}\n           {verdict.saw}\n")
    return text
