"""From stamps to numbers. PURE."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.records import Records

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
SHORTFALL = 0.99  # achieved over offered below which a run did not offer what it claims
LATE_P99 = 0.005  # seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """What `attack --json` prints. Times in seconds; latency counts from the intended time of sending."""

    sent: int
    completed: int
    failed: int
    duration: float
    offered_rate: float
    achieved_rate: float
    latency: dict[str, float | None]
    service: dict[str, float | None]
    lateness_p99: float | None
    by_pool: dict[str, int]
    status: dict[str, int]
    errors: dict[str, int]
    verdict: str
    warnings: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def distribution(times: NDArray[np.float64]) -> dict[str, float | None]:
    """mean, percentiles (the smallest value with that share at or below it) and max; all None if empty.

    >>> distribution(np.array([1.0, 2.0, 3.0]))["p50"]
    2.0
    """
    if not len(times):
        return dict.fromkeys(("mean", *PERCENTILES, "max"))
    ordered, n = np.sort(times), len(times)
    at = {name: max(0, math.ceil(n * share / 100 - 1e-9) - 1) for name, share in PERCENTILES.items()}
    return {
        "mean": float(times.mean()),
        **{name: float(ordered[i]) for name, i in at.items()},
        "max": float(ordered[-1]),
    }


def summarize(records: Records, rate: float, duration: float) -> Summary:
    """rate: requests a second that were meant. duration: seconds of the schedule; less if it was cut short."""
    sent = len(records.lateness)
    completed = int(records.completed.sum())
    last = float(np.nanmax(records.done)) if completed else duration
    late = distribution(records.lateness)["p99"]
    codes = Counter(str(status) if status else "none" for status in records.status[~np.isnan(records.sent)].tolist())
    achieved = sent / max(duration, float(np.nanmax(records.sent)) if sent else 0.0)
    warnings = _warnings(sent, completed, achieved, sent / duration, late)
    return Summary(
        sent=sent,
        completed=completed,
        failed=sent - completed,
        duration=max(duration, last),
        offered_rate=rate,
        achieved_rate=achieved,
        latency=distribution(records.response),
        service=distribution(records.service),
        lateness_p99=late,
        by_pool=dict(sorted(Counter(pool for pool in records.pools if pool).items())),
        status=dict(sorted(codes.items())),
        errors=dict(sorted(records.errors.items())),
        verdict="invalid" if not completed or any("offered" in w for w in warnings) else
                "valid with warnings" if warnings else "valid",
        warnings=warnings,
    )  # fmt: skip


def _warnings(sent: int, completed: int, achieved: float, planned: float, late: float | None) -> list[str]:
    warnings = []
    if not completed:
        warnings.append("no request was answered well")
    elif completed < sent:
        warnings.append(f"{sent - completed} of {sent} requests failed")
    if sent and achieved < SHORTFALL * planned:
        warnings.append(f"only {achieved:.1f} of {planned:.1f} requests a second were offered: too much for one core")
    if late is not None and late > LATE_P99:
        warnings.append(f"1 % of requests left over {late * 1e3:.1f} ms late: latency includes that")
    return warnings
