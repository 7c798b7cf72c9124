"""Flat rows: one for each decision, the same live and simulated. Reports, regret and figures are functions of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dispatcher.core.interfaces import FleetView, Learner, Policy, Recorder, Scoring
from dispatcher.core.regret import Cause, RegretMeter
from dispatcher.core.types import Decision, Job, Phase


@dataclass(frozen=True, slots=True)
class Row:
    """One decision, with the state as seen at it.

    n: from 1. time: seconds. pools: the open ones, in fleet order; in_flight, rates and scores: in the same order.
    cause: why it was wrong, None if it was right or the true rates are unknown. regret: cumulative, with this one.
    scores: of an index policy, where the least wins; empty otherwise.
    """

    n: int
    time: float
    pools: tuple[str, ...]
    in_flight: tuple[int, ...]
    pool: str
    phase: Phase
    cause: Cause | None
    regret: int
    episode: int
    rates: tuple[float, ...]
    scores: tuple[float, ...]


class Rows(Recorder):
    """Builds a row of each decision and keeps the last ones. meter: stands before this recorder in the router.

    keep: how many; None keeps all (a simulation), a number bounds memory (the live service).
    """

    def __init__(self, policy: Learner, meter: RegretMeter, keep: int | None = None) -> None:
        self._policy = policy
        self._score = policy.score if isinstance(policy, Scoring) else None
        self._meter = meter
        self.rows: deque[Row] = deque(maxlen=keep)
        self.count = 0

    def switched(self, policy: Policy, now: float) -> None:
        if isinstance(policy, Learner):
            self._policy = policy
            self._score = policy.score if isinstance(policy, Scoring) else None

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self.count += 1
        pools = tuple(pool.id for pool in fleet.pools)
        row = Row(
            n=self.count,
            time=now,
            pools=pools,
            in_flight=tuple(pool.in_flight for pool in fleet.pools),
            pool=decision.pool,
            phase=decision.phase,
            cause=self._meter.last,
            regret=self._meter.total,
            episode=self._policy.episode.number,
            rates=tuple(map(self._policy.rate, pools)),
            scores=tuple(self._score(pool, now) for pool in fleet.pools) if self._score else (),
        )
        self.rows.append(row)
