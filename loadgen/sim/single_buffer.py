"""Pools that hold one request: slots, accept or reject, and the policies that learn from that alone.

In each slot a queue with requests sends one to a server. A server whose buffer is empty takes one of those sent to it
(of several senders' a random one), the rest stay at the head of their queues; then every full buffer is emptied with
chance μ_i, one that was filled in this slot, too. So exactly one chance lies between an acceptance and the next
possible one, and a server that always gets a request takes it at rate μ_i.

The service's own policies decide, one for each queue; they hear of acceptance and nothing else, and their clock is the
slot. Sources: *Learning in Strategic Queuing Systems with Small Buffers*, *Learning in Strategic Queuing with Geometric
Recharge: From Bandits to Systems*, *Stability and Learning in Strategic Queuing Systems*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dispatcher import registry
from dispatcher.core.fleet import Fleet
from dispatcher.core.policy import FleetView, Policy
from dispatcher.core.rng import stream
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, PoolSpec, Ticket

WORST_RATIO = 0.770163492004  # of H to what any policy may take, over all pools


@dataclass(frozen=True, slots=True)
class Scene:
    """mu: chance a slot that a full buffer is emptied. lam: chance of an arrival, a queue; none: one queue that is
    never empty. later: other rates from the middle on. windows: parts that are counted apart, an even number."""

    mu: tuple[float, ...]
    slots: int
    lam: tuple[float, ...] = ()
    later: tuple[float, ...] = ()
    windows: int = 20


@dataclass(frozen=True, slots=True)
class Run:
    """accepted, sent: by window, of all queues. regret: of a queue that is never empty, by how many more requests the
    best single server would have taken in slots in which its buffer was empty, of the second half. backlog: at each
    window's end, all queues. slope: by which it grows a slot in the second half. mean_backlog: over the slots of that.
    """

    accepted: tuple[int, ...]
    sent: tuple[int, ...]
    regret: float
    backlog: tuple[int, ...]
    slope: float
    mean_backlog: float


def hamacher(mu: Sequence[float]) -> float:
    """H = S/(1 + S), S = Σ μ/(1 − μ): the share that a never empty queue gets accepted without regret, and below which
    load it is stable.

    >>> round(hamacher((0.5, 0.5)), 6), round(hamacher((0.3, 0.2)), 6), hamacher((1.0, 0.2))
    (0.666667, 0.404255, 1.0)
    """
    if max(mu) == 1:
        return 1.0
    odds = math.fsum(rate / (1 - rate) for rate in mu)
    return odds / (1 + odds)


def bound(mu: Sequence[float]) -> float:
    """P = 1 − Π (1 − μ): more than that nobody gets accepted, whatever he knows."""
    return 1 - math.prod(1 - rate for rate in mu)


def equalising(mu: Sequence[float]) -> tuple[float, ...]:
    """The mix of independent draws under which every server is as often empty: zero regret, acceptance H."""
    odds = [rate / (1 - rate) for rate in mu]
    return tuple(each / math.fsum(odds) for each in odds)


def accepted_by_mix(mu: Sequence[float], mix: Sequence[float]) -> float:
    """The share accepted of a never empty queue that draws servers independently.

    >>> round(accepted_by_mix((0.5, 0.3), equalising((0.5, 0.3))), 6) == round(hamacher((0.5, 0.3)), 6)
    True
    """
    return math.fsum(x * rate / (rate + x * (1 - rate)) for rate, x in zip(mu, mix, strict=True) if x)


def boundary(queues: int, servers: int, total: float) -> float:
    """λ* of a queue, where n of them draw uniformly from m equal servers of Σ μ = `total`: stable below, not above.

    >>> round(boundary(4, 100, 4.0), 6), round(boundary(8, 10, 2.0), 6)
    (0.506297, 0.217171)
    """
    mu = total / servers
    met = 1 - (1 - 1 / servers) ** queues
    return servers * met * mu / (queues * (mu + met * (1 - mu)))


class Ucb1:
    """UCB1, to be looked at only: it is no no-regret learner here, for it hammers a server that it has just filled."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tries: list[int] = []
        self._taken: list[float] = []
        self._t = 0

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self._t += 1
        if self._t <= len(self._names):
            return Decision(self._names[self._t - 1], memo=self._t - 1)
        wide = 2 * math.log(self._t)
        scores = [won / n + math.sqrt(wide / n) for won, n in zip(self._taken, self._tries, strict=True)]
        i = max(range(len(scores)), key=scores.__getitem__)
        return Decision(self._names[i], memo=i)

    def learn(self, done: Completion, fleet: FleetView) -> None:
        i = done.ticket.decision.memo
        assert isinstance(i, int)
        self._tries[i] += 1
        self._taken[i] += bool(done.accepted)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            self._names.append(change.spec.id)
            self._tries.append(0)
            self._taken.append(0.0)


def policy(text: str, mu: Sequence[float], rng: Random) -> Policy:
    """`exp3_ix/window=0`, any registered policy with its options; `mix`, the equalising mix of who knows the rates;
    `ucb1`."""
    name, *options = text.split("/")
    if name == "ucb1":
        made: Policy = Ucb1()
    else:
        known = "weighted_random" if name == "mix" else name
        made = registry.create(known, rng, dict(option.split("=", 1) for option in options))
    guesses = [rate / (1 - rate) for rate in mu] if name == "mix" else [1 / len(mu)] * len(mu)
    fleet = Fleet()
    for i, guess in enumerate(guesses):
        spec = PoolSpec(str(i), guess=guess)
        fleet.add(spec)
        made.adapt(Added(spec), fleet)
    return made


class Servers:
    """Buffers of one place, looked at when something is sent. A buffer that is full empties after a geometric time that
    is drawn when it is filled: the j-th request of a server takes its j-th draw, whatever the policy."""

    def __init__(self, mu: Sequence[float], seed: int) -> None:
        self.mu = list(mu)
        self.empty_from = [0] * len(mu)  # the first slot in which it may take something
        self.was_empty = [0] * len(mu)  # slots at whose sending it was, up to the last acceptance
        self._dice = [stream(seed, f"work/{i}") for i in range(len(mu))]

    def offer(self, i: int, slot: int) -> bool:
        """Whether it takes a request now."""
        since = self.empty_from[i]
        if slot < since:
            return False
        self.was_empty[i] += slot - since + 1
        self.empty_from[i] = slot + self._time(i)
        return True

    def _time(self, i: int) -> int:
        mu = self.mu[i]
        return 1 if mu >= 1 else 1 + int(math.log(1 - self._dice[i].random()) / math.log1p(-mu))

    def change(self, mu: Sequence[float], slot: int) -> None:
        """Other rates from this slot on; what is in the buffers forgets how long it has been there."""
        self.mu = list(mu)
        for i, since in enumerate(self.empty_from):
            if since > slot:
                self.empty_from[i] = slot + self._time(i)

    def empty_slots(self, slot: int) -> list[int]:
        """How many slots before this one each was empty in, at sending."""
        return [n + max(0, slot - since) for n, since in zip(self.was_empty, self.empty_from, strict=True)]


def simulate(name: str, scene: Scene, seed: int) -> Run:
    """One run; queues of equal seed meet equal arrivals and services."""
    queues = max(1, len(scene.lam))
    policies = [policy(name, scene.mu, stream(seed, f"policy/{q}")) for q in range(queues)]
    arrivals = [stream(seed, f"arrivals/{q}").random for q in range(queues)]
    contest, servers = stream(seed, "contest"), Servers(scene.mu, seed)
    fleet = Fleet()
    for i in range(len(scene.mu)):
        fleet.add(PoolSpec(str(i)))
    fleet.open_one(fleet["0"])  # one in flight stands for what the buffers hold; no learner here counts
    number, job = {str(i): i for i in range(len(scene.mu))}, Job(1)
    if scene.windows % 2 or not 0 < scene.windows <= scene.slots:
        raise ValueError(f"windows must be even and at most as many as slots, not {scene.windows} of {scene.slots}")
    waiting, length = [0] * queues, scene.slots // scene.windows
    half = length * (scene.windows // 2)
    accepted, sends, backlog, waited = [0] * scene.windows, [0] * scene.windows, [], 0
    at_half: tuple[list[int], int] = ([0] * len(scene.mu), 0)
    for slot in range(length * scene.windows):
        if slot == half:
            if scene.later:
                servers.change(scene.later, slot)
            at_half = servers.empty_slots(slot), sum(accepted)
        sent = []
        for q, lam in enumerate(scene.lam or (1.0,)):
            if lam >= 1 or arrivals[q]() < lam:
                waiting[q] += 1
            if waiting[q]:
                sent.append((q, policies[q].choose(job, fleet, float(slot))))
        if len(sent) > 1:
            contest.shuffle(sent)
        for q, decision in sent:
            took = servers.offer(number[decision.pool], slot)
            if took:
                accepted[slot // length] += 1
                waiting[q] -= 1
            ticket = Ticket(job, decision, float(slot), fleet[decision.pool])
            policies[q].learn(Completion(ticket, float(slot), None, Outcome.OK, None, took), fleet)
        sends[slot // length] += len(sent)
        if slot >= half:
            waited += sum(waiting)
        if slot % length == length - 1:
            backlog.append(sum(waiting))
    best = max(now - then for now, then in zip(servers.empty_slots(slot + 1), at_half[0], strict=True))
    regret = best - (sum(accepted) - at_half[1])
    later = slot + 1 - half
    slope = (backlog[-1] - backlog[scene.windows // 2 - 1]) / later
    return Run(tuple(accepted), tuple(sends), float(regret), tuple(backlog), slope, waited / later)
