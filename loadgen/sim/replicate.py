"""Summarises many replications of one scenario, and writes the trace of one."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.telemetry.decisions import DecisionRecord
from loadgen.sim.model import Result, Scenario


def mean_and_se(values: Sequence[float] | NDArray[np.float64]) -> tuple[Any, Any]:
    """Return the mean over the replications and its standard error, which is 0 for a single one.

    values: the first dimension is that of the replications.

    >>> mean, error = mean_and_se([1.0, 3.0])
    >>> float(mean), float(error)
    (2.0, 1.0)
    """
    array = np.asarray(values, dtype=float)
    n = len(array)
    error = array.std(axis=0, ddof=1) / n**0.5 if n > 1 else 0.0 * array[0]  # 0 in the shape of one value
    return array.mean(axis=0), error


def summary(scenario: Scenario, results: Sequence[Result], seed: int) -> dict[str, Any]:
    """Return what `simulate --json` prints: means over the replications.

    seed: the seed of the first replication.
    """
    regret, se = mean_and_se([result.regret for result in results])
    return {
        "policy": scenario.policy,
        "lam": scenario.lam,
        "mu": list(scenario.mu),
        "guess": list(scenario.guess),
        "arrivals": scenario.arrivals,
        "reps": len(results),
        "seed": seed,
        "regret_mean": regret,
        "regret_se": se,
        "regret_curve": np.mean([result.regret_curve for result in results], axis=0).tolist(),
        "mean_in_system": mean_and_se([result.mean_in_system for result in results])[0],
        "mean_response": mean_and_se([result.mean_response for result in results])[0],
        "shares": np.mean([result.shares for result in results], axis=0).tolist(),
        "estimates": np.mean([result.estimates for result in results], axis=0).tolist(),
        "episodes": float(np.mean([result.episodes for result in results])),
        "explored_episodes": float(np.mean([result.explored_episodes for result in results])),
    }


def write_trace(rows: Sequence[DecisionRecord], path: Path) -> None:
    """Write one line per decision: n,time,q1…qn,server,phase,regret,episode,rate1…raten. Servers count from 1."""
    pools = range(1, len(rows[0].pools) + 1) if rows else ()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        states, rates = ([f"{name}{i}" for i in pools] for name in ("q", "rate"))
        writer.writerow(("n", "time", *states, "server", "phase", "regret", "episode", *rates))
        for row in rows:
            server = row.pools.index(row.pool) + 1
            decided = (server, row.phase.value, row.regret, row.episode)
            writer.writerow((row.n, row.time, *row.in_flight, *decided, *row.rates))
