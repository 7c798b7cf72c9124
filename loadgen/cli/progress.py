"""Shows the progress of long commands, and explains how to continue an interrupted one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loadgen.cli.app import InterruptedRunError, console, prepare
from loadgen.plot import PlotError

T = TypeVar("T")


def progress_bar(unit: str) -> Progress:
    """Return a progress bar with the remaining time, which is visible only on a terminal. unit: what is counted."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def run_resumable(
    work: Callable[[Callable[[int, int, str], None]], T], folder: Path, name: str, part_noun: str, step_noun: str = ""
) -> T:
    """Run work that keeps finished parts in a folder, with a progress bar, and return its result.

    work: gets a function that it calls with the number of finished parts, of all parts, and the current part.
    folder: is created if necessary. name: of the work. part_noun: the word for parts that are kept, such as `cells`.
    step_noun: the word for what the bar counts, if it differs.
    Raises BackendError if the folder is not writable, InterruptedRunError after Ctrl-C.
    """
    prepare(folder)
    bar = progress_bar(step_noun or part_noun)
    task = bar.add_task(name, total=1)

    def report(done: int, total: int, part: str) -> None:
        bar.update(task, completed=done, total=total, description=f"{name} {part}")

    try:
        with bar:
            return work(report)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise InterruptedRunError(
            f"interrupted; finished {part_noun} are in {folder}; run the same command again to continue"
        ) from None


def try_drawing(draw: Callable[[Path], None], path: Path) -> str | None:
    """Draw a picture, and return its path. Without matplotlib, print the reason and return None."""
    try:
        draw(path)
    except (PlotError, OSError) as error:
        # The results are more important than their picture, so its failure does not end the command.
        console.print(f"no picture: {error}")
        return None
    return str(path)
