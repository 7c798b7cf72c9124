"""Flat rows: one for each decision, the same live and simulated. Reports, regret and figures are functions of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.core.policy import BasePolicy, FleetView, PoolView, Recorder
from dispatcher.core.regret import Cause, RegretMeter
from dispatcher.core.types import Decision, Job, Phase


@dataclass(slots=True)
class Row:
    """One decision, with the state as seen at it. Not to be changed.

    n: from 1. time: seconds. pools: the open ones, in fleet order; in_flight, rates and scores: in the same order, as
    sequences or arrays. cause: why it was wrong, None if it was right or the true rates are unknown. regret:
    cumulative, with this one. scores: of an index policy, where the least wins; empty otherwise.
    """

    n: int
    time: float
    pools: tuple[str, ...]
    in_flight: Sequence[int]
    pool: str
    phase: Phase
    cause: Cause | None
    regret: int
    episode: int
    rates: Any
    scores: Any

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"rates": list(map(float, self.rates)), "scores": list(map(float, self.scores))}


class Rows(Recorder):
    """Builds a row of each decision and keeps the last ones. meter: stands before this recorder in the router.

    keep: how many; None keeps all (a simulation), a number bounds memory (the live service).
    """

    def __init__(self, policy: BasePolicy, meter: RegretMeter, keep: int | None = None) -> None:
        self._policy = policy
        self._pools: tuple[PoolView, ...] = ()
        self._names: tuple[str, ...] = ()
        self._meter = meter
        self.rows: deque[Row] = deque(maxlen=keep)
        self.count = 0
        self.routed: Counter[str] = Counter()  # by pool

    def switched(self, policy: BasePolicy, now: float) -> None:
        self._policy = policy

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self.count += 1
        self.routed[decision.pool] += 1
        pools = fleet.pools
        if pools is not self._pools:
            self._pools, self._names = pools, tuple(pool.id for pool in pools)
        policy, meter = self._policy, self._meter
        row = Row(
            self.count,
            now,
            self._names,
            tuple([pool.in_flight for pool in pools]),
            decision.pool,
            decision.phase,
            meter.last,
            meter.total,
            policy.episode.number,
            policy.rates(pools),
            policy.scores(pools, now),
        )
        self.rows.append(row)
