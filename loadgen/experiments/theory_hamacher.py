"""The table of `loadgen theory hamacher`: how much is taken by pools that hold one request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.sim.single_buffer import WORST_RATIO, bound, equalising, hamacher


def report(rates: Sequence[float], lam: float | None) -> dict[str, Any]:
    """What `theory --json` prints. rates: chance a slot that a full buffer is emptied; with lam, tries a second at
    random instants, services a second: μ/(1 − μ) is rate/lam then. Raises ConfigError."""
    if lam is not None and not 0 < lam < math.inf:
        raise ConfigError(f"--lam must be positive, not {lam:g}")
    most = 1.0 if lam is None else math.inf
    if not rates or not all(0 < rate <= most and rate < math.inf for rate in rates):
        of = "chances a slot, above 0 and at most 1" if lam is None else "services a second, above 0"
        raise ConfigError(f"--rates must be {of}{'; for services a second give --lam, too' if lam is None else ''}")
    mu = list(rates) if lam is None else [rate / (rate + lam) for rate in rates]
    h, p = hamacher(mu), bound(mu)
    return {
        "rates": list(rates),
        "lam": lam,
        "mu": mu,
        "hamacher": h,
        "bound": p if lam is None else None,  # of attempts that may be timed; those at random instants may not
        "ratio": h / p if lam is None else None,
        "least_ratio": WORST_RATIO,
        "mix": list(equalising(mu)) if max(mu) < 1 else [(rate == 1 and 1 / mu.count(1.0)) or 0.0 for rate in mu],
        "attempts": 1 / h,
    }


def table(found: dict[str, Any]) -> Table:
    """For people."""
    what = "a slot" if found["lam"] is None else f"a second, {found['lam']:g} tries a second"
    made = Table(title=f"One request a pool; rates {', '.join(f'{rate:g}' for rate in found['rates'])} {what}",
                 title_justify="left", show_header=False)  # fmt: skip
    made.add_row("H, accepted without regret", f"{found['hamacher']:.6f}")
    if found["bound"] is not None:
        made.add_row("P, more than anybody gets", f"{found['bound']:.6f}")
        made.add_row("H/P, never below 0.770163", f"{found['ratio']:.6f}")
    made.add_row("tries a request", f"{found['attempts']:.4f}")
    made.add_row("mix that gets H, %", " ".join(f"{100 * share:.2f}" for share in found["mix"]))
    return made
