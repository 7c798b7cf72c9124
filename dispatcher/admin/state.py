"""The snapshot as JSON values, for `/state`, `/explain`, the dashboard and `dispatcher top`."""

from __future__ import annotations

import math
from typing import Any

from dispatcher import __version__
from dispatcher.admin.snapshot import (
    CurveSnapshot,
    EpisodeSnapshot,
    PoolSnapshot,
    RegretSnapshot,
    ShadowSnapshot,
    Snapshot,
)
from dispatcher.core.types import Interval
from dispatcher.telemetry.decisions import DecisionRecord

State = dict[str, Any]


def state_of(snapshot: Snapshot, plane: State | None) -> State:
    """Return the whole snapshot.

    plane: decisions in each state of two pools, or None.
    """
    return {
        **about(snapshot),
        "decisions": snapshot.decisions,
        "draining": snapshot.draining,
        "regret": _regret(snapshot.regret) if snapshot.regret else None,
        "plane": plane,
        "episode": _episode(snapshot.episode),
        "pools": list(map(_pool, snapshot.pools)),
    }


def about(snapshot: Snapshot) -> State:
    """Return version, policy and shadow policies."""
    return {
        "version": __version__,
        "policy": {"name": snapshot.policy, "options": snapshot.options},
        "shadow": list(map(_shadow, snapshot.shadows)),
    }


def decision(record: DecisionRecord, now: float) -> State:
    """Return one decision with the state in which it was made.

    now: seconds on the router's clock.
    """
    pools = zip(record.pools, record.in_flight, map(float, record.rates), strict=True)
    return {
        "n": record.n,
        "seconds_ago": now - record.time,
        "pool": record.pool,
        "phase": record.phase,
        "episode": record.episode,
        "wrong_because_of": record.cause,
        "scores": list(map(float, record.scores)),
        "pools": [{"name": pool, "in_flight": in_flight, "rate": rate} for pool, in_flight, rate in pools],
    }


def _pool(pool: PoolSnapshot) -> State:
    spec, estimate = pool.spec, pool.estimate
    return {
        "name": spec.id,
        "servers": spec.servers,
        "in_flight": pool.in_flight,
        "routed": pool.routed,
        "up": pool.health == "up",
        "verdict": pool.health,
        "routed_to": pool.receives_requests,
        "guess": spec.guess,
        "true_rate": spec.true_rate,
        "estimate": estimate.rate.value if estimate else None,
        "interval": _bounds(estimate.rate) if estimate else [None, None],
        "curve": _curve(estimate.curve) if estimate and estimate.curve else None,
        "observations": estimate.observations if estimate else None,
        "rate_in_use": pool.rate_in_use,
        "probability": pool.probability,
    }


def _curve(curve: CurveSnapshot) -> State:
    intervals = {
        "service_seconds": curve.service_seconds,
        "capacity": curve.capacity,
        "throughput": curve.throughput,
    }
    return {name: {"value": each.value, "interval": _bounds(each)} for name, each in intervals.items()}


def _bounds(interval: Interval) -> list[float | None]:
    """Return the bounds of an interval. JSON has no infinity, so an infinite upper bound becomes None."""
    return [interval.low, interval.high if math.isfinite(interval.high) else None]


def _regret(regret: RegretSnapshot) -> State:
    by_cause = {cause.value: count for cause, count in regret.by_cause.items()}
    return {"total": regret.total, **by_cause, "excess": regret.excess, "oracle": regret.oracle}


def _episode(episode: EpisodeSnapshot) -> State:
    return {
        "number": episode.number,
        "arrivals": episode.arrivals,
        "explored": episode.explored,
        "open_seconds": episode.open_seconds,
    }


def _shadow(shadow: ShadowSnapshot) -> State:
    return {
        "policy": shadow.name,
        "decisions": sum(shadow.decisions.values()),
        "disagreements": shadow.disagreements,
        "regret": sum(shadow.regret.values()) if shadow.regret is not None else None,
        "errors": shadow.errors,
    }
