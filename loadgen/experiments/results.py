"""Holds what an experiment measured: the replications of each cell as arrays, and their intervals."""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib.util
import inspect
import json
import math
from collections.abc import Mapping, Sequence
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
    """The replications of one cell.

    seeds: one for each of the r replications, in order.
    values: arrays by name: METRICS (r,), curve (r, points), joined (r, points, pools), shares and estimates (r, pools).
        curve is the regret, and joined the requests that each pool got, both counted from the start.
    """

    cell: Cell
    seeds: tuple[int, ...]
    values: dict[str, Floats]

    @classmethod
    def of(cls, cell: Cell, results: Sequence[Result]) -> Measured:
        """Collect the results of all replications."""
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

    @classmethod
    def from_json(cls, cell: Cell, entry: Mapping[str, Any]) -> Measured:
        """Restore what `as_json` returned."""
        values = {name: np.array(column, dtype=float) for name, column in entry["values"].items()}
        return cls(cell, tuple(entry["seeds"]), values)

    def as_json(self) -> dict[str, Any]:
        """Return an object that JSON can represent."""
        values = {name: column.tolist() for name, column in self.values.items()}
        return {"labels": self.cell.labels, "seeds": self.seeds, "values": values}

    def __getitem__(self, name: str) -> Floats:
        if name not in self.values:
            raise ConfigError(f"there is no metric {name!r}; known: {', '.join(self.values)}")
        return self.values[name]

    @property
    def arrivals(self) -> Floats:
        """The number of arrivals at each point of the curve, shape (points,)."""
        return np.array(self.cell.scenario.marks, dtype=float)

    @property
    def half(self) -> int:
        """The index of the curve's point at half of the arrivals."""
        return int(np.searchsorted(self.arrivals, self.cell.scenario.arrivals / 2))


class Results:
    """All cells of an experiment, which can be selected by their labels."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.cells = list(measured)
        self._by_labels = {tuple(sorted(cell.cell.labels.items())): cell for cell in measured}

    def axis(self, name: str) -> list[str]:
        """Return the labels along an axis, in order."""
        return list(dict.fromkeys(measured.cell.labels[name] for measured in self.cells))

    def get(self, **labels: str) -> Measured:
        """Return the cell with exactly these labels. Raises LookupError."""
        measured = self._by_labels.get(tuple(sorted(labels.items())))
        if measured is None:
            raise LookupError(f"there is no cell {labels}")
        return measured

    def where(self, **labels: str) -> list[Measured]:
        """Return all cells that have these labels, and any labels on other axes."""
        return [measured for measured in self.cells if labels.items() <= measured.cell.labels.items()]


def student(n: int, level: float = 0.95) -> float:
    """Return the two-sided quantile of Student's t distribution.

    n: how many values there are, at least 2. level: the probability inside.
    The quantile is exact for 2 and 3 values. Source of the rest: Abramowitz and Stegun, 26.7.5.

    >>> [round(student(n), 2) for n in (2, 3, 5, 20)]
    [12.71, 4.3, 2.77, 2.09]
    """
    z, v = NormalDist().inv_cdf(0.5 + level / 2), n - 1
    # The expansion below converges slowly for few values.
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
    """Return the mean over the first dimension and the half width of its 95 % interval.

    The half width of a single replication is 0.
    """
    mean, error = mean_and_se(values)
    return mean, error * student(len(values)) if len(values) > 1 else error


def mark_of(cell: Cell, seeds: Sequence[int], backend: str, rate: float | None = None) -> str:
    """Return the cell's mark in a checkpoint, which is equal for equal work by equal code.

    backend: sim or live. rate: requests a second of a live run.
    """
    work = asdict(cell.scenario) | {"seeds": [seeds[0], len(seeds)], "backend": backend, "rate": rate}
    code = _source_of(cell.scenario.policy), sources()
    return hashlib.sha256(json.dumps([work, code], sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _source_of(policy: str) -> str:
    """Return a digest of the file that defines a policy; the file may be outside of this package."""
    # A decorator may be defined in another file than the policy.
    file = inspect.getsourcefile(inspect.unwrap(registry.factory(policy)))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


@functools.cache
def sources() -> str:
    """Return a digest of all packages whose code can change a result."""
    digest = hashlib.sha256()
    # A study adds the file of its own work (`Piece.mark`). Most of `loadgen.experiments` only judges and draws.
    for package in ("dispatcher", "workers", "loadgen.sim"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or []:
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def write_rows(results: Results, path: Path) -> None:
    """Write a CSV file with a row for each replication of each cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        axes = list(results.cells[0].cell.labels) if results.cells else []
        writer.writerow([*axes, "lam", "mu", "guess", "arrivals", "seed", *METRICS, "shares", "estimates"])
        for measured in results.cells:
            scenario = measured.cell.scenario
            rates = scenario.lam, _spaced(scenario.mu), _spaced(scenario.guess)
            fixed = [*measured.cell.labels.values(), *rates, scenario.arrivals]
            for r, seed in enumerate(measured.seeds):
                vectors = (_spaced(measured[name][r]) for name in ("shares", "estimates"))
                writer.writerow([*fixed, seed, *(measured[name][r] for name in METRICS), *vectors])


def _spaced(values: Sequence[float] | Floats) -> str:
    return " ".join(f"{value:.9g}" for value in values)
