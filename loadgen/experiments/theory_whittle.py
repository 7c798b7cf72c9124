"""The tables of `loadgen theory whittle_finite | whittle_blocking`: the index of a server by its age and last
backlog."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table

from dispatcher.errors import ConfigError
from dispatcher.policies.partial_information import whittle_index as whittle
from dispatcher.policies.partial_information.queue_estimate import expected_left

WHAT = ("whittle_finite", "whittle_blocking")


def report(what: str, capacity: int, rate: float, beta: float, ages: int) -> dict[str, Any]:
    """What `theory --json` prints. Raises ConfigError."""
    if not 0 < rate < math.inf:
        raise ConfigError(f"--rate must be positive, not {rate:g}")
    found: dict[str, Any] = {"model": what, "capacity": capacity, "rate": rate, "beta": beta}
    if what == "whittle_finite":
        steps = range(1, ages + 1)
        return found | {
            "ages": list(steps),
            "expected_left": [expected_left(capacity, rate * tau) for tau in steps],
            "index": [whittle.finite(tau, capacity, rate, beta) for tau in steps],
        }
    if capacity * ((capacity + 7 * math.sqrt(capacity) + 18) / rate + 2) > 200_000:
        raise ConfigError("--rate is too small for this --capacity: the table would have over 200,000 entries")
    made = whittle.blocking(capacity, rate, beta)
    shown = min(ages, made.indices.shape[1])
    return found | {
        "ages": list(range(1, shown + 1)),
        "index": {str(q): made.indices[q - 1, :shown].tolist() for q in range(1, capacity + 1)},
        "breakpoints": made.breakpoints.tolist(),
        "indexable": made.is_indexable,
    }


def table(found: dict[str, Any]) -> Table:
    """For people; a row an age."""
    beta = "average reward" if found["beta"] == 1 else f"β = {found['beta']:g}"
    made = Table(title=f"K = {found['capacity']}, μ = {found['rate']:g} a slot, {beta}", title_justify="left")
    made.add_column("age", justify="right")
    columns = {"left": found["expected_left"], "index": found["index"]} if "expected_left" in found else {
        f"index, last seen {q}": row for q, row in found["index"].items()
    }  # fmt: skip
    for name in columns:
        made.add_column(name, justify="right")
    for i, age in enumerate(found["ages"]):
        made.add_row(str(age), *(f"{column[i]:.6f}" for column in columns.values()))
    return made
