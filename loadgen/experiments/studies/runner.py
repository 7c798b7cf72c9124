"""Studies: experiments that are not grids of `sim.model` scenarios. Each gives pieces of work, and draws what they
come to.

A piece is a plain function of plain arguments, so that it runs on any core and its result is kept under a fingerprint;
an interrupted study loses only the pieces that were being run.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.experiments.claims import Verdict
from loadgen.experiments.results import sources
from loadgen.experiments.spec import Claim
from loadgen.plot import PlotError
from loadgen.sim.sweep import leave_signals_to_the_parent, stopping

STUDIES = {
    "whittle_finite": "loadgen.experiments.studies.whittle:FINITE",
    "whittle_blocking": "loadgen.experiments.studies.whittle:BLOCKING",
    "partial": "loadgen.experiments.studies.partial:PARTIAL",
    "hamacher": "loadgen.experiments.studies.no_regret:HAMACHER",
    "stability": "loadgen.experiments.studies.no_regret:STABILITY",
    "multiqueue": "loadgen.experiments.studies.multiqueue:MULTIQUEUE",
    "drift": "loadgen.experiments.studies.drift:DRIFTING",
    "sept": "loadgen.experiments.studies.sept:SEPT",
    "lcp": "loadgen.experiments.studies.lcp:LCP",
    "reorder": "loadgen.experiments.studies.reorder:REORDER",
    "curve": "loadgen.experiments.studies.curve:CURVE",
}
Result = dict[str, Any]
Results = Mapping[str, Result]
Told = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """name: unique in its study. work: a function of a module, called with `given`; its answer is JSON."""

    name: str
    work: Callable[..., Result]
    given: dict[str, Any]


class Study(Protocol):
    """One of them. name: of its files."""

    name: str
    title: str

    def pieces(self, size: str, seed: int) -> list[Piece]:
        """quick: seconds; full: as in print."""
        ...

    def tables(self, results: Results) -> list[Table]: ...
    def rows(self, results: Results) -> list[dict[str, Any]]:
        """Flat, for a CSV."""
        ...

    def verdicts(self, results: Results, size: str) -> list[Verdict]: ...
    def draw(self, results: Results, path: Path) -> None:
        """Raises PlotError without matplotlib."""
        ...


def find(name: str) -> Study | None:
    """The study of this name."""
    if name not in STUDIES:
        return None
    module, _, attribute = STUDIES[name].partition(":")
    found: Study = getattr(importlib.import_module(module), attribute)
    return found


def run(study: Study, size: str, seed: int, folder: Path, jobs: int, told: Told) -> dict[str, Result]:
    """Every piece that is not kept in the folder already, on so many cores (0: all). Raises KeyboardInterrupt as it
    comes."""
    path = folder / "pieces.jsonl"
    pieces = study.pieces(size, seed)
    if len({piece.name for piece in pieces}) < len(pieces):
        raise ConfigError(f"{study.name}: two pieces have the same name")
    kept, marks = _kept(path), {piece.name: _mark(piece) for piece in pieces}
    found = {piece.name: kept[marks[piece.name]] for piece in pieces if marks[piece.name] in kept}
    told(len(found), len(pieces), "")
    missing = [piece for piece in pieces if piece.name not in found]
    processes = min(jobs or os.cpu_count() or 1, max(1, len(missing)))
    workers = ProcessPoolExecutor(processes, initializer=leave_signals_to_the_parent)
    with stopping(workers) as pool, path.open("a") as file:
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            file.write("\n")  # behind a line that was cut off as it was written
        waiting: dict[Future[Result], Piece] = {pool.submit(piece.work, **piece.given): piece for piece in missing}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                piece = waiting.pop(future)
                found[piece.name] = future.result()
                file.write(json.dumps({"mark": marks[piece.name], "result": found[piece.name]}) + "\n")
                file.flush()
                told(len(found), len(pieces), piece.name)
    return {piece.name: found[piece.name] for piece in pieces}


def _kept(path: Path) -> dict[str, Result]:
    found = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off as it was written; it is run again
            entry = json.loads(line)
            found[entry["mark"]] = entry["result"]
    return found


def _mark(piece: Piece) -> str:
    """Equal for equal work by equal code: the study's own file, and all that may run in one."""
    file = inspect.getsourcefile(piece.work)
    code = (Path(file).read_bytes() if file else b"") + sources().encode()
    work = json.dumps([piece.work.__qualname__, piece.given], sort_keys=True).encode()
    return hashlib.sha256(code + work).hexdigest()[:16]


def write(study: Study, results: Results, verdicts: Sequence[Verdict], folder: Path) -> None:
    """rows.csv and verdicts.json."""
    rows = study.rows(results)
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    said = [{"claim": verdict.claim.says, "holds": verdict.holds, "saw": verdict.saw} for verdict in verdicts]
    (folder / "verdicts.json").write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def verdict(says: str, holds: bool | None, saw: str) -> Verdict:
    """Of a claim that a study judges by itself."""
    return Verdict(Claim(says=says, check="study"), None if holds is None else bool(holds), saw)


def canvas(width: float, height: float, columns: int = 1) -> tuple[Any, ...]:
    """An empty picture and its axes, in one row. Raises PlotError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'lased-dispatcher[plot]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    made = figure.subplots(1, columns, squeeze=False)[0]
    for axes in made:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure, *made


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error."""
    n = len(values)
    mean = sum(values) / n
    return mean, (sum((value - mean) ** 2 for value in values) / (n - 1) / n) ** 0.5 if n > 1 else 0.0
