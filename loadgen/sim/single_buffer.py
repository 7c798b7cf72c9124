"""Simulates pools that hold one request each, in slots. The policies learn from acceptance and rejection alone.

In each slot every queue that has requests sends one to a server. A server whose buffer is empty takes one of those sent
to it, at random if there are several. The others stay at the heads of their queues. Then each full buffer is emptied
with probability μ_i, also if it was filled in this slot. So a server that gets a request in every slot takes requests
at rate μ_i.

The policies are those of the live service, one for each queue. They observe acceptance only, and their clock counts
slots. There is no Router, because requests that are rejected stay in their queues and are not in flight.

Sources: *Learning in Strategic Queuing Systems with Small Buffers*; *Learning in Strategic Queuing with Geometric
Recharge: From Bandits to Systems*; *Stability and Learning in Strategic Queuing Systems*.
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
from workers.spec import parse_spec

WORST_RATIO = 0.770163492004  # the least ratio H/P over all rates (see `hamacher` and `bound`)


@dataclass(frozen=True, slots=True)
class BufferScenario:
    """Describes the servers and the queues.

    mu: the probability that a full buffer is emptied in a slot, by server.
    slots: the length of the run.
    lam: the probability of an arrival in a slot, by queue. Empty for one queue that always has a request.
    later: the values of `mu` in the second half; empty if they do not change.
    windows: the number of windows of equal length that are counted separately. It must be even, because the second half
        of the windows is evaluated.
    """

    mu: tuple[float, ...]
    slots: int
    lam: tuple[float, ...] = ()
    later: tuple[float, ...] = ()
    windows: int = 20


@dataclass(frozen=True, slots=True)
class BufferResult:
    """What one run yields.

    accepted, sent: requests of all queues, by window.
    regret: for a queue that always has a request, in the second half. It is the number of slots in which the buffer of
        the best single server was empty, minus the requests that were accepted.
    backlog: requests in all queues at the end of each window.
    slope: the growth of the backlog per slot in the second half.
    mean_backlog: the mean over the slots of the second half.
    """

    accepted: tuple[int, ...]
    sent: tuple[int, ...]
    regret: float
    backlog: tuple[int, ...]
    slope: float
    mean_backlog: float


def hamacher(mu: Sequence[float]) -> float:
    """Return H = S/(1 + S) with S = Σ μ/(1 − μ).

    H is the share of its requests that a queue gets accepted without regret, if it always has one. A queue with
    arrivals is stable below this load.

    >>> round(hamacher((0.5, 0.5)), 6), round(hamacher((0.3, 0.2)), 6), hamacher((1.0, 0.2))
    (0.666667, 0.404255, 1.0)
    """
    if max(mu) == 1:  # a server that is always empty again takes everything
        return 1.0
    odds = math.fsum(rate / (1 - rate) for rate in mu)
    return odds / (1 + odds)


def bound(mu: Sequence[float]) -> float:
    """Return P = 1 − Π (1 − μ): the largest share that any policy gets accepted."""
    return 1 - math.prod(1 - rate for rate in mu)


def equalising(mu: Sequence[float]) -> tuple[float, ...]:
    """Return the probabilities of independent draws under which all servers are empty equally often.

    This mix has no regret, and the share accepted is H.
    """
    odds = [rate / (1 - rate) for rate in mu]
    return tuple(odd / math.fsum(odds) for odd in odds)


def accepted_by_mix(mu: Sequence[float], mix: Sequence[float]) -> float:
    """Return the share accepted for a queue that always has a request and draws servers independently.

    >>> round(accepted_by_mix((0.5, 0.3), equalising((0.5, 0.3))), 6) == round(hamacher((0.5, 0.3)), 6)
    True
    """
    return math.fsum(x * rate / (rate + x * (1 - rate)) for rate, x in zip(mu, mix, strict=True) if x)


def boundary(queues: int, servers: int, total: float) -> float:
    """Return the arrival rate λ* of a queue below which it is stable, and above which it is not.

    All of the `queues` draw uniformly from `servers` equal servers with Σ μ = `total`.

    >>> round(boundary(4, 100, 4.0), 6), round(boundary(8, 10, 2.0), 6)
    (0.506297, 0.217171)
    """
    mu = total / servers
    asked = 1 - (1 - 1 / servers) ** queues  # the probability that a server gets a request in a slot
    return servers * asked * mu / (queues * (mu + asked * (1 - mu)))


class Ucb1:
    """UCB1, for comparison only. Its regret grows here, because it sends on to a server that it has just filled."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._tries: list[int] = []
        self._taken: list[float] = []
        self._t = 0

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self._t += 1
        if self._t <= len(self._names):  # first each server once, so that all have a mean
            return Decision(self._names[self._t - 1], memo=self._t - 1)
        spread = 2 * math.log(self._t)
        scores = [taken / n + math.sqrt(spread / n) for taken, n in zip(self._taken, self._tries, strict=True)]
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


def make_policy(text: str, mu: Sequence[float], rng: Random) -> Policy:
    """Make a policy from its name and options, as in `exp3_ix/window=0`, and add the servers to it.

    The name is that of a registered policy, or `ucb1`, or `mix` for draws in the equalising mix of the true rates.
    Raises ValueError or ConfigError.
    """
    name, options = parse_spec(text, "policy", "/")
    if name == "ucb1":
        policy: Policy = Ucb1()
    else:
        policy = registry.create("weighted_random" if name == "mix" else name, rng, options)
    # The equalising mix is proportional to μ/(1 − μ), and `weighted_random` draws in proportion to the guesses.
    guesses = [rate / (1 - rate) for rate in mu] if name == "mix" else [1 / len(mu)] * len(mu)
    fleet = Fleet()
    for i, guess in enumerate(guesses):
        spec = PoolSpec(str(i), guess=guess)
        fleet.add(spec)
        policy.adapt(Added(spec), fleet)
    return policy


class Buffers:
    """The servers' buffers, each for one request.

    A full buffer is emptied after a geometric time, which is drawn when it is filled. So the j-th request of a server
    takes its j-th draw, whatever the policy is.
    """

    def __init__(self, mu: Sequence[float], seed: int) -> None:
        self.mu = list(mu)
        self.empty_from = [0] * len(mu)  # the first slot in which it may take something
        self.empty_count = [0] * len(mu)  # slots in which it was empty at sending, up to the last acceptance
        self._work = [stream(seed, f"work/{i}") for i in range(len(mu))]

    def offer(self, i: int, slot: int) -> bool:
        """Offer a request to server i in this slot, and return whether it takes it."""
        since = self.empty_from[i]
        if slot < since:
            return False
        self.empty_count[i] += slot - since + 1
        self.empty_from[i] = slot + self._draw_slots(i)
        return True

    def _draw_slots(self, i: int) -> int:
        mu = self.mu[i]
        return 1 if mu >= 1 else 1 + int(math.log(1 - self._work[i].random()) / math.log1p(-mu))

    def change(self, mu: Sequence[float], slot: int) -> None:
        """Change the rates from this slot on. Full buffers draw a new time, as geometric times have no memory."""
        self.mu = list(mu)
        for i, since in enumerate(self.empty_from):
            if since > slot:
                self.empty_from[i] = slot + self._draw_slots(i)

    def empty_slots(self, slot: int) -> list[int]:
        """Return the number of slots before this one in which each buffer was empty at sending."""
        return [n + max(0, slot - since) for n, since in zip(self.empty_count, self.empty_from, strict=True)]


class _Queues:
    """The queues, each with its own policy.

    waiting: the requests in each queue.
    """

    def __init__(self, name: str, scenario: BufferScenario, seed: int) -> None:
        self._lam = scenario.lam or (1.0,)
        queues = range(len(self._lam))
        self._policies = [make_policy(name, scenario.mu, stream(seed, f"policy/{q}")) for q in queues]
        self._arrivals = [stream(seed, f"arrivals/{q}").random for q in queues]
        self._order = stream(seed, "contest")
        self._fleet, self._job = Fleet(), Job(1)
        for i in range(len(scenario.mu)):
            self._fleet.add(PoolSpec(str(i)))
        # An idle system would start a new episode in each slot; no policy here uses the count.
        self._fleet.open_one(self._fleet["0"])
        self.waiting = [0] * len(self._lam)

    def send(self, slot: int) -> list[tuple[int, Decision]]:
        """Let requests arrive, and return which queues send in this slot, with the servers that they choose."""
        sent = []
        for q, lam in enumerate(self._lam):
            if lam >= 1 or self._arrivals[q]() < lam:
                self.waiting[q] += 1
            if self.waiting[q]:
                sent.append((q, self._policies[q].choose(self._job, self._fleet, float(slot))))
        if len(sent) > 1:
            self._order.shuffle(sent)  # a buffer takes the first that comes, so the order decides
        return sent

    def take_answer(self, q: int, decision: Decision, slot: int, accepted: bool) -> None:
        """Tell queue q whether the server accepted its request."""
        self.waiting[q] -= accepted
        ticket = Ticket(self._job, decision, float(slot), self._fleet[decision.pool])
        done = Completion(ticket, float(slot), None, Outcome.OK, None, accepted)
        self._policies[q].learn(done, self._fleet)


def simulate(name: str, scenario: BufferScenario, seed: int) -> BufferResult:
    """Simulate one run. With equal seeds all policies meet the same arrivals and the same service times.

    name: a policy, as `make_policy` reads it.
    """
    windows = scenario.windows
    if windows % 2 or not 0 < windows <= scenario.slots:
        raise ValueError(f"windows must be even and at most as many as slots, not {windows} of {scenario.slots}")
    queues, buffers = _Queues(name, scenario, seed), Buffers(scenario.mu, seed)
    length = scenario.slots // windows
    slots, half = length * windows, length * (windows // 2)
    accepted, sent, backlog, waited = [0] * windows, [0] * windows, [], 0
    empty_at_half, accepted_at_half = [0] * len(scenario.mu), 0
    for slot in range(slots):
        window = slot // length
        if slot == half:
            if scenario.later:
                buffers.change(scenario.later, slot)
            empty_at_half, accepted_at_half = buffers.empty_slots(slot), sum(accepted)
        decisions = queues.send(slot)
        sent[window] += len(decisions)
        for q, decision in decisions:
            accepts = buffers.offer(int(decision.pool), slot)
            accepted[window] += accepts
            queues.take_answer(q, decision, slot, accepts)
        if slot >= half:
            waited += sum(queues.waiting)
        if slot % length == length - 1:
            backlog.append(sum(queues.waiting))
    empty = buffers.empty_slots(slots)
    best = max(count - before for count, before in zip(empty, empty_at_half, strict=True))
    return BufferResult(
        accepted=tuple(accepted),
        sent=tuple(sent),
        regret=float(best - (sum(accepted) - accepted_at_half)),
        backlog=tuple(backlog),
        slope=(backlog[-1] - backlog[windows // 2 - 1]) / (slots - half),
        mean_backlog=waited / (slots - half),
    )
