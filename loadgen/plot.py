"""The one seam to matplotlib (the extra `plot`): colours, figures and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# These seven colours can be told apart by readers who are colour-blind.
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#000000",
)
DOTS_PER_INCH = 130


class PlotError(Exception):
    """matplotlib is not installed."""


def figure(figsize: tuple[float, float]) -> Any:
    """Return an empty matplotlib `Figure` of this size in inches. Raises PlotError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'lased-dispatcher[plot]'") from error
    return Figure(figsize=figsize, layout="constrained")


def save(picture: Any, path: Path) -> None:
    """Write the figure to a file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=DOTS_PER_INCH)
