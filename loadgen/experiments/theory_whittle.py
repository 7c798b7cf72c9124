"""Computes the reports of `loadgen theory whittle_finite` and `whittle_blocking`: tables of Whittle's index."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from dispatcher.errors import ConfigError
from dispatcher.policies.partial_information import whittle_index
from dispatcher.policies.partial_information.queue_estimate import expected_left

MAX_ENTRIES = 200_000  # of an index table


def report_finite(capacity: int, rate: float, beta: float, ages: int) -> dict[str, Any]:
    """Return what `theory whittle_finite --json` prints.

    capacity: jobs that the server holds. rate: services a slot. beta: discount, 1 for the average reward.
    ages: slots since the server was picked, the largest. Raises ConfigError.
    """
    _check(rate)
    steps = range(1, ages + 1)
    return {
        "model": "whittle_finite",
        "capacity": capacity,
        "rate": rate,
        "beta": beta,
        "ages": list(steps),
        "expected_left": [expected_left(capacity, rate * age) for age in steps],
        "index": [whittle_index.finite(age, capacity, rate, beta) for age in steps],
    }


def report_blocking(capacity: int, rate: float, beta: float, ages: int) -> dict[str, Any]:
    """Return what `theory whittle_blocking --json` prints. The arguments are those of `report_finite`."""
    _check(rate)
    # An estimate of the table's size: this is the age at which `whittle_index.blocking` stops by default.
    if capacity * ((capacity + 7 * math.sqrt(capacity) + 18) / rate + 2) > MAX_ENTRIES:
        raise ConfigError(f"--rate is too small for this --capacity: the table would have over {MAX_ENTRIES:,} entries")
    computed = whittle_index.blocking(capacity, rate, beta)
    columns = min(ages, computed.indices.shape[1])
    return {
        "model": "whittle_blocking",
        "capacity": capacity,
        "rate": rate,
        "beta": beta,
        "ages": list(range(1, columns + 1)),
        "index": {str(q): computed.indices[q - 1, :columns].tolist() for q in range(1, capacity + 1)},
        "breakpoints": computed.breakpoints.tolist(),
        "indexable": computed.is_indexable,
    }


def _check(rate: float) -> None:
    if not 0 < rate < math.inf:
        raise ConfigError(f"--rate must be positive, not {rate:g}")


def table(report: dict[str, Any]) -> Table:
    """Return the report as a table with a row for each age."""
    beta = "average reward" if report["beta"] == 1 else f"β = {report['beta']:g}"
    table = Table(title=f"K = {report['capacity']}, μ = {report['rate']:g} a slot, {beta}", title_justify="left")
    table.add_column("age", justify="right")
    if "expected_left" in report:
        columns = {"left": report["expected_left"], "index": report["index"]}
    else:
        columns = {f"index, last seen {q}": row for q, row in report["index"].items()}
    for name in columns:
        table.add_column(name, justify="right")
    for i, age in enumerate(report["ages"]):
        table.add_row(str(age), *(f"{column[i]:.6f}" for column in columns.values()))
    return table
