"""What an experiment measured: a cell's replications as arrays, kept on disk as soon as the cell is done.

`cells.jsonl` has a line for each finished cell, under a fingerprint of all that determines it; a run that finds a line
with its fingerprint does not run the cell again. A last line that was cut off is ignored.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib.util
import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher import registry
from dispatcher.errors import ConfigError
from loadgen.experiments.spec import Cell
from loadgen.sim.model import Result
from loadgen.sim.replicate import mean_and_se

Floats = NDArray[np.float64]
METRICS = ("regret", "mean_in_system", "mean_response", "episodes", "explored_episodes")


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell. seeds: of the replications, in order; each value has their number as its first dimension:
    METRICS (r,), curve (r, points), joined (r, points, n), shares and estimates (r, n)."""

    cell: Cell
    seeds: tuple[int, ...]
    values: dict[str, Floats]

    @classmethod
    def of(cls, cell: Cell, results: Sequence[Result]) -> Measured:
        ordered = sorted(results, key=lambda result: result.seed)
        names = {
            **{name: name for name in METRICS},
            "curve": "regret_curve",
            "joined": "joined_curve",
            "shares": "shares",
            "estimates": "estimates",
        }
        values = {name: np.array([getattr(r, field) for r in ordered], dtype=float) for name, field in names.items()}
        return cls(cell, tuple(result.seed for result in ordered), values)

    def __getitem__(self, name: str) -> Floats:
        if name not in self.values:
            raise ConfigError(f"there is no metric {name!r}; known: {', '.join(self.values)}")
        return self.values[name]

    @property
    def arrivals(self) -> Floats:
        """After how many arrivals the points of the curve are; shape (points,)."""
        return np.array(self.cell.scenario.marks, dtype=float)

    @property
    def half(self) -> int:
        """Which point of the curve is at half of the arrivals."""
        return int(np.searchsorted(self.arrivals, self.cell.scenario.arrivals / 2))


class Results:
    """All cells of an experiment, found by their labels."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.cells = list(measured)
        self._by_labels = {tuple(sorted(one.cell.labels.items())): one for one in measured}

    def axis(self, name: str) -> list[str]:
        """The labels along an axis, in order."""
        return list(dict.fromkeys(one.cell.labels[name] for one in self.cells))

    def get(self, **labels: str) -> Measured:
        """The cell with exactly these labels. Raises LookupError."""
        found = self._by_labels.get(tuple(sorted(labels.items())))
        if found is None:
            raise LookupError(f"there is no cell {labels}")
        return found

    def where(self, **labels: str) -> list[Measured]:
        """All cells with these labels."""
        return [one for one in self.cells if labels.items() <= one.cell.labels.items()]


def student(n: int, level: float = 0.95) -> float:
    """The two-sided quantile of Student's t for n ≥ 2 values: exact for 2 and 3, else Abramowitz and Stegun, 26.7.5.

    >>> [round(student(n), 2) for n in (2, 3, 5, 20)]
    [12.71, 4.3, 2.77, 2.09]
    """
    z, v = NormalDist().inv_cdf(0.5 + level / 2), n - 1
    if v == 1:
        return math.tan(math.pi * level / 2)
    if v == 2:
        return level * math.sqrt(2 / (1 - level**2))
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def interval(values: Floats) -> tuple[Any, Any]:
    """Mean over the first dimension, and the half width of its 95 % interval; 0 where there is one replication."""
    mean, error = mean_and_se(values)
    return mean, error * student(len(values)) if len(values) > 1 else error


def fingerprint(cell: Cell, seeds: Sequence[int], backend: str, rate: float | None = None) -> str:
    """Equal for equal work by equal code. rate: of a live run."""
    work = asdict(cell.scenario) | {"seeds": [seeds[0], len(seeds)], "backend": backend, "rate": rate}
    code = _source_of(cell.scenario.policy), sources()
    return hashlib.sha256(json.dumps([work, code], sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _source_of(policy: str) -> str:
    """A digest of the file in which a policy is written, which may be anybody's."""
    file = inspect.getsourcefile(inspect.unwrap(registry.factory(policy)))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


@functools.cache
def sources() -> str:
    """A digest of what can change a result: the packages whose code runs in one."""
    found = hashlib.sha256()
    for package in ("dispatcher", "workers", "loadgen.sim"):
        there = importlib.util.find_spec(package)
        for folder in (there and there.submodule_search_locations) or []:
            for path in sorted(Path(folder).rglob("*.py")):
                found.update(path.read_bytes())
    return found.hexdigest()


class Store:
    """Finished cells in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cells.jsonl"
        self._found: dict[str, dict[str, Any]] = {}
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.is_file() else ""
        self._torn = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                self._found[entry["fingerprint"]] = entry
            except (ValueError, KeyError, TypeError):
                continue  # cut off as it was written; the cell is run again

    def find(self, cell: Cell, mark: str) -> Measured | None:
        entry = self._found.get(mark)
        if entry is None:
            return None
        values = {name: np.array(column, dtype=float) for name, column in entry["values"].items()}
        return Measured(cell, tuple(entry["seeds"]), values)

    def add(self, mark: str, measured: Measured) -> None:
        entry = {
            "fingerprint": mark,
            "labels": measured.cell.labels,
            "seeds": measured.seeds,
            "values": {name: column.tolist() for name, column in measured.values.items()},
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._torn + json.dumps(entry) + "\n")
        self._torn = False


def write_rows(results: Results, path: Path) -> None:
    """A row for each replication of each cell, CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        axes = list(results.cells[0].cell.labels) if results.cells else []
        writer.writerow([*axes, "lam", "mu", "guess", "arrivals", "seed", *METRICS, "shares", "estimates"])
        for one in results.cells:
            scenario = one.cell.scenario
            fixed = [
                *one.cell.labels.values(),
                scenario.lam,
                _spaced(scenario.mu),
                _spaced(scenario.guess),
                scenario.arrivals,
            ]
            for r, seed in enumerate(one.seeds):
                vectors = (_spaced(one[name][r]) for name in ("shares", "estimates"))
                writer.writerow([*fixed, seed, *(one[name][r] for name in METRICS), *vectors])


def _spaced(values: Sequence[float] | Floats) -> str:
    return " ".join(f"{value:.9g}" for value in values)
