"""A policy on trial: asked at every decision, never followed. What it would have done is counted and scored.

It sees the states that the policy in force brings about and learns from the requests that this one routes. So its
decisions are judged one by one in real states; how the system would fare under it is for a simulation to say. A
learner that wants to explore does not get its trials.
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
    """name: as configured. fleet: the router's. The policy's faults are counted and harm no request."""

    def __init__(self, name: str, policy: Policy, fleet: FleetView) -> None:
        self.name = name
        self.policy = as_policy(policy)
        self.fleet = fleet
        self.meter = RegretMeter(policy)
        self._request_joined = self.policy.request_joined
        self.decisions: Counter[str] = Counter()
        self.disagreements = 0
        self.faults = 0

    def __repr__(self) -> str:
        return f"<Shadow {self.name}: {self.disagreements} of {self.decisions.total()} otherwise>"

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        try:
            own = self.policy.choose(job, fleet, now)
            fleet[own.pool]  # an open one
            if self._request_joined is not None:
                self._request_joined(fleet[decision.pool], now)
        except Exception:  # noqa: BLE001 - a stranger's code, and only on trial
            self.faults += 1
            return
        self.decisions[own.pool] += 1
        self.disagreements += own.pool != decision.pool
        self.meter.chosen(job, own, fleet, now)

    def completed(self, done: Completion, fleet: FleetView) -> None:
        ticket = done.ticket
        if ticket.decision.memo is not None:  # the note of another policy
            bare = Ticket(ticket.job, replace(ticket.decision, memo=None), ticket.routed_at, ticket.pool)
            bare.in_flight_before, bare.timing_discarded = ticket.in_flight_before, ticket.timing_discarded
            done = replace(done, ticket=bare)
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
    """All policies on trial, as one recorder: they may change while the router runs."""

    def __init__(self) -> None:
        self._shadows: list[Shadow] = []

    def all(self) -> list[Shadow]:
        return list(self._shadows)

    def replace(self, policies: Mapping[str, Policy], fleet: Fleet) -> None:
        """Try these from now on; one that is on trial already goes on, with its counts."""
        there = {shadow.name: shadow for shadow in self._shadows}
        self._shadows = [there.get(name) or self._begin(name, policy, fleet) for name, policy in policies.items()]

    def _begin(self, name: str, policy: Policy, fleet: Fleet) -> Shadow:
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
