"""Runs studies: experiments that are not grids of scenarios.

A study divides its work into pieces. A piece is a plain function with plain arguments, so it can run on any core. Its
result is kept under a mark, so an interrupted study loses only the pieces that were running.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen import plot
from loadgen.experiments.checkpoint import Checkpoint
from loadgen.experiments.claims import Verdict
from loadgen.experiments.results import sources
from loadgen.experiments.spec import Claim
from loadgen.sim.sweep import sweep

# A study is imported only when it is used, because an import of all would delay every command.
STUDIES = {
    "whittle_finite": "loadgen.experiments.studies.whittle:FINITE",
    "whittle_blocking": "loadgen.experiments.studies.whittle:BLOCKING",
    "partial": "loadgen.experiments.studies.partial:PARTIAL",
    "hamacher": "loadgen.experiments.studies.hamacher:HAMACHER",
    "stability": "loadgen.experiments.studies.stability:STABILITY",
    "multiqueue": "loadgen.experiments.studies.multiqueue:MULTIQUEUE",
    "drift": "loadgen.experiments.studies.drift:DRIFT",
    "sept": "loadgen.experiments.studies.sept:SEPT",
    "lcp": "loadgen.experiments.studies.lcp:LCP",
    "reorder": "loadgen.experiments.studies.reorder:REORDER",
    "curve": "loadgen.experiments.studies.curve:CURVE",
}
Result = dict[str, Any]
Results = Mapping[str, Result]  # by the name of the piece
Progress = Callable[[int, int, str], None]  # called with pieces done, pieces in all, name of the last piece


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a study.

    name: unique in the study.
    work: a function of a module. It returns an object that JSON can represent.
    arguments: keyword arguments of `work`.
    """

    name: str
    work: Callable[..., Result]
    arguments: dict[str, Any]

    @property
    def compiled(self) -> bool:
        """Whether threads can run pieces at the same time: pieces are Python, so they need processes."""
        return False

    @property
    def cost(self) -> float:
        """The time of a piece is not known, so `sweep` never takes a study for small work."""
        return math.inf

    @property
    def mark(self) -> str:
        """A digest of the work and of all code that can change its result."""
        file = inspect.getsourcefile(self.work)
        code = (Path(file).read_bytes() if file else b"") + sources().encode()
        work = json.dumps([self.work.__qualname__, self.arguments], sort_keys=True).encode()
        return hashlib.sha256(code + work).hexdigest()[:16]

    def run(self) -> Result:
        return self.work(**self.arguments)


class Study(Protocol):
    """An experiment that judges and draws its own results. name: the study's name, also in the names of its files."""

    name: str
    title: str

    def pieces(self, size: str, seed: int) -> list[Piece]:
        """Return the work. size: `quick` takes seconds, `full` repeats the published size. seed: of the first run."""
        ...

    def tables(self, results: Results) -> list[Table]: ...
    def rows(self, results: Results) -> list[dict[str, Any]]:
        """Return flat rows with equal keys, for a CSV file."""
        ...

    def verdicts(self, results: Results, size: str) -> list[Verdict]: ...
    def draw(self, results: Results, path: Path) -> None:
        """Write a picture. Raises PlotError without matplotlib."""
        ...


def find(name: str) -> Study | None:
    """Return the study of this name, or None."""
    if name not in STUDIES:
        return None
    module, _, attribute = STUDIES[name].partition(":")
    study: Study = getattr(importlib.import_module(module), attribute)
    return study


def run(study: Study, size: str, seed: int, folder: Path, jobs: int, progress: Progress) -> dict[str, Result]:
    """Run every piece whose result is not in the folder yet, and return all results in the order of the pieces.

    jobs: how many pieces run at a time; 0 for one on each core.
    progress: called at the start and after each piece.
    KeyboardInterrupt is not caught; finished pieces are kept.
    """
    pieces = study.pieces(size, seed)
    if len({piece.name for piece in pieces}) < len(pieces):
        raise ConfigError(f"{study.name}: two pieces have the same name")
    checkpoint = Checkpoint(folder / "pieces.jsonl")
    marks = {piece.name: piece.mark for piece in pieces}
    missing = [piece for piece in pieces if marks[piece.name] not in checkpoint]
    finished = len(pieces) - len(missing)
    progress(finished, len(pieces), "")
    for done, (piece, result) in enumerate(sweep(missing, jobs), finished + 1):
        checkpoint.add(marks[piece.name], {"result": result})
        progress(done, len(pieces), piece.name)
    return {name: checkpoint[mark]["result"] for name, mark in marks.items()}


def write(study: Study, results: Results, verdicts: Sequence[Verdict], folder: Path) -> None:
    """Write rows.csv and verdicts.json into the folder."""
    rows = study.rows(results)
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = json.dumps([verdict.as_json() for verdict in verdicts], indent=1, ensure_ascii=False)
    (folder / "verdicts.json").write_text(text + "\n", encoding="utf-8")


def verdict(says: str, holds: bool | None, evidence: str) -> Verdict:
    """Return the verdict on a claim that the study itself judges. holds: None if the claim was not judged."""
    return Verdict(Claim(says=says, check="study"), None if holds is None else bool(holds), evidence)


def canvas(width: float, height: float, columns: int = 1) -> tuple[Any, ...]:
    """Return an empty figure, and one pair of axes for each column. Sizes are in inches."""
    figure = plot.figure((width, height))
    row = figure.subplots(1, columns, squeeze=False)[0]
    for axes in row:
        plot.plain(axes)
    return figure, *row


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; the error of a single value is 0."""
    n = len(values)
    mean = sum(values) / n
    return mean, (sum((value - mean) ** 2 for value in values) / (n - 1) / n) ** 0.5 if n > 1 else 0.0
