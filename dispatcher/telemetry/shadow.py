"""Shadow policies: each decides about every live request, but its decision is only counted and scored.

A shadow policy sees the states that the active policy causes, and learns from the requests that the active policy
routes. Its decisions are therefore judged one by one; only a simulation shows how the system would behave under it. A
shadow policy that wants forced trials does not get them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from dispatcher.core.fleet import Fleet
from dispatcher.core.policy import FleetView, Policy, Recorder, as_policy
from dispatcher.core.regret import RegretMeter
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Ticket


class Shadow(Recorder):
    """One shadow policy with its counts. An error of the policy is counted and harms no request.

    name: the configured name of the policy.
    fleet: the router's fleet.
    """

    def __init__(self, name: str, policy: Policy, fleet: FleetView) -> None:
        self.name = name
        self.policy = as_policy(policy)
        self.fleet = fleet
        self.meter = RegretMeter(policy)
        self._request_joined = self.policy.request_joined
        self.decisions: Counter[str] = Counter()  # by pool
        self.disagreements = 0
        self.faults = 0

    def __repr__(self) -> str:
        return f"<Shadow {self.name}: {self.disagreements} of {self.decisions.total()} decisions differ>"

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        try:
            own = self.policy.choose(job, fleet, now)
            fleet[own.pool]  # raises KeyError unless the pool is open
            if self._request_joined is not None:
                self._request_joined(fleet[decision.pool], now)
        except Exception:  # noqa: BLE001 - the policy may be any code, and it must not break a request
            self.faults += 1
            return
        self.decisions[own.pool] += 1
        self.disagreements += own.pool != decision.pool
        self.meter.chosen(job, own, fleet, now)

    def completed(self, done: Completion, fleet: FleetView) -> None:
        ticket = done.ticket
        if ticket.decision.memo is not None:  # the memo belongs to the active policy, and this one cannot read it
            without_memo = Ticket(ticket.job, replace(ticket.decision, memo=None), ticket.routed_at, ticket.pool)
            without_memo.in_flight_before = ticket.in_flight_before
            without_memo.timing_discarded = ticket.timing_discarded
            done = replace(done, ticket=without_memo)
        try:
            self.policy.learn(done, fleet)
        except Exception:  # noqa: BLE001 - as above
            self.faults += 1

    def changed(self, change: Change, now: float) -> None:
        try:
            self.policy.adapt(change, self.fleet)
        except Exception:  # noqa: BLE001 - as above
            self.faults += 1
        self.meter.changed(change, now)


class Shadows(Recorder):
    """All shadow policies as one recorder. The set may change while the router runs."""

    def __init__(self) -> None:
        self._shadows: list[Shadow] = []

    def all(self) -> list[Shadow]:
        return list(self._shadows)

    def replace(self, policies: Mapping[str, Policy], fleet: Fleet) -> None:
        """Use exactly these shadow policies from now on. A name that was there before keeps its policy and counts."""
        current = {shadow.name: shadow for shadow in self._shadows}
        self._shadows = [current.get(name) or self._start(name, policy, fleet) for name, policy in policies.items()]

    def _start(self, name: str, policy: Policy, fleet: Fleet) -> Shadow:
        shadow = Shadow(name, policy, fleet)
        for pool in fleet.pools:
            shadow.changed(Added(pool.spec), 0.0)
        return shadow

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        for shadow in self._shadows:
            shadow.chosen(job, decision, fleet, now)

    def completed(self, done: Completion, fleet: FleetView) -> None:
        for shadow in self._shadows:
            shadow.completed(done, fleet)

    def changed(self, change: Change, now: float) -> None:
        for shadow in self._shadows:
            shadow.changed(change, now)
