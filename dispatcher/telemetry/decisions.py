"""Records of routing decisions, the same in a live service and in a simulation.

Regret, reports and figures are computed from them.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatcher.core.policy import BasePolicy, FleetView, PoolView, Recorder
from dispatcher.core.regret import Cause, RegretMeter
from dispatcher.core.types import Decision, Job, Phase
from dispatcher.telemetry.writer import LineWriter


@dataclass(slots=True)
class DecisionRecord:
    """One decision and the state in which it was made. It is never changed; it is not frozen because that is slow.

    n: number of the decision, from 1.
    time: seconds on the router's clock.
    pools: names of the open pools, in fleet order.
    in_flight: requests in flight, by pool in the same order, before this request.
    pool: the chosen pool.
    phase: whether the choice was a forced trial.
    cause: why the decision was wrong; None if it was right or the true rates are unknown.
    regret: number of wrong decisions so far, including this one.
    episode: number of the episode.
    rates: estimated services per second and server, in the order of `pools`.
    scores: scores, of which the lowest wins, in the order of `pools`; empty for other policies.
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

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that `json` can write."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"rates": list(map(float, self.rates)), "scores": list(map(float, self.scores))}


class DecisionLog(Recorder):
    """Makes a record of each decision and keeps the last ones in memory.

    policy: the policy that decides.
    meter: the regret meter; it must stand before this recorder in the router.
    keep: number of records to keep; None keeps all, as a simulation needs it.
    """

    def __init__(self, policy: BasePolicy, meter: RegretMeter, keep: int | None = None) -> None:
        self._policy = policy
        self._pools: tuple[PoolView, ...] = ()
        self._names: tuple[str, ...] = ()
        self._meter = meter
        self.records: deque[DecisionRecord] = deque(maxlen=keep)
        self.count = 0
        self.routed: Counter[str] = Counter()  # decisions by pool

    def switched(self, policy: BasePolicy, now: float) -> None:
        self._policy = policy

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self.count += 1
        self.routed[decision.pool] += 1
        pools = fleet.pools
        if pools is not self._pools:  # the fleet makes a new tuple at each change, so the names can be kept
            self._pools, self._names = pools, tuple(pool.id for pool in pools)
        policy, meter = self._policy, self._meter
        record = DecisionRecord(
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
        self.records.append(record)


class DecisionFile(Recorder):
    """Writes each decision as a JSON line to a file. Raises OSError if the file cannot be opened.

    log: makes the records; it must stand before this recorder in the router.
    """

    def __init__(self, path: Path, log: DecisionLog) -> None:
        self._log = log
        self.writer = LineWriter[DecisionRecord](
            lambda: path.open("w", encoding="utf-8"), lambda record: json.dumps(record.to_json())
        )

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self.writer.put(self._log.records[-1])
