"""Everything that the pictures share: colours, figures and files. Only this module creates matplotlib figures."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind readers can distinguish the first seven. The last two are for pictures with more lines than that.
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#000000",
    "#999999",
    "#666600",
)
VERDICT_COLOURS = {"valid": "#00674a", "valid with warnings": "#8a5a00", "invalid": "#a3260e"}
DOTS_PER_INCH = 130


class PlotError(Exception):
    """A picture cannot be drawn, for example because matplotlib is not installed."""


def figure(figsize: tuple[float, float] | None = None) -> Figure:
    """Return an empty matplotlib figure.

    figsize: width and height in inches; None if the caller sets the size later.
    Raises PlotError without matplotlib.
    """
    try:
        # A figure without pyplot needs no display and is not kept after its use.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'lased-dispatcher[plot]'") from error
    return Figure(figsize=figsize, layout="constrained")


def plain(axes: Axes) -> None:
    """Remove the frame at the top and at the right, and add a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def save(picture: Figure, path: Path) -> None:
    """Write the figure to a file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=DOTS_PER_INCH)


def svg(draw: Callable[[Axes], None], figsize: tuple[float, float]) -> str:
    """Return a picture as an SVG element for an HTML page; equal data give equal text.

    draw: fills the axes. figsize: width and height in inches. Raises PlotError without matplotlib.
    """
    picture = figure(figsize)  # raises PlotError before the next import can fail
    import matplotlib

    # Without a fixed salt and date every run would write other element names and another time stamp.
    with matplotlib.rc_context({"svg.hashsalt": "lased", "font.size": 9}):
        axes = picture.subplots()
        draw(axes)
        plain(axes)
        if axes.get_yscale() == "log":
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")  # labels at minor ticks would overlap in these low pictures
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
        text = io.StringIO()
        picture.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
