"""Computes the report of `loadgen theory hamacher`: the share of requests that pools of capacity one accept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.sim.single_buffer import WORST_RATIO, bound, equalising, hamacher


def report(rates: Sequence[float], lam: float | None) -> dict[str, Any]:
    """Return what `theory --json` prints.

    rates: by pool; without lam the probability that a full buffer empties in a slot, with lam services a second.
    lam: attempts a second at random instants. Then μ/(1 − μ) of a pool is its rate/lam.
    Raises ConfigError.
    """
    if lam is not None and not 0 < lam < math.inf:
        raise ConfigError(f"--lam must be positive, not {lam:g}")
    if not rates or not all(0 < rate < math.inf and (rate <= 1 or lam is not None) for rate in rates):
        unit = "services a second, above 0"
        if lam is None:
            unit = "probabilities per slot, above 0 and at most 1; for services a second add --lam"
        raise ConfigError(f"--rates must be {unit}")
    mu = list(rates) if lam is None else [rate / (rate + lam) for rate in rates]
    h, p = hamacher(mu), bound(mu)
    return {
        "rates": list(rates),
        "lam": lam,
        "mu": mu,
        "hamacher": h,
        "bound": p if lam is None else None,  # the bound holds for attempts whose instants are chosen, not random
        "ratio": h / p if lam is None else None,
        "least_ratio": WORST_RATIO,
        # A pool that is always empty accepts everything, so the others get nothing.
        "mix": list(equalising(mu)) if max(mu) < 1 else [1 / mu.count(1.0) if rate == 1 else 0.0 for rate in mu],
        "attempts": 1 / h,
    }


def table(report: dict[str, Any]) -> Table:
    """Return the report as a table."""
    unit = "a slot" if report["lam"] is None else f"a second, {report['lam']:g} attempts a second"
    title = f"One request a pool; rates {', '.join(f'{rate:g}' for rate in report['rates'])} {unit}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("H, accepted without regret", f"{report['hamacher']:.6f}")
    if report["bound"] is not None:
        table.add_row("P, upper bound of every policy", f"{report['bound']:.6f}")
        table.add_row("H/P, at least 0.770163", f"{report['ratio']:.6f}")
    table.add_row("attempts per accepted request", f"{report['attempts']:.4f}")
    table.add_row("shares that give H, %", " ".join(f"{100 * share:.2f}" for share in report["mix"]))
    return table
