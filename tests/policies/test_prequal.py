"""`prequal` against a second implementation, written from the paper alone, and against cases worked by hand."""

import math
from random import Random
from statistics import median

import pytest

from dispatcher.core.types import Outcome, PoolSpec
from dispatcher.policies.prequal import Probe
from tests.policies.road import Road, live

R_PROBE, R_REMOVE, SIZE, MAX_AGE, DELTA, Q_RIF, WINDOW = 3, 1, 16, 1.0, 1.0, 0.84, 128


class Paper:
    """Prequal by plain lists, with the defaults of the paper. `random`: the generator that the policy has, too."""

    def __init__(self, names, random):
        self.names, self.random = names, random
        self.in_flight = dict.fromkeys(names, 0)
        self.pool = []  # [name, time, rif, latency, uses left], in the order of their answers
        self.rifs = []
        self.latencies = {name: [] for name in names}  # (rif at arrival, latency), the last one last
        self.removals = 0
        self.probed_at = -math.inf

    def latency(self, name, rif):
        """The median of the last 16 latencies at this RIF, or at the nearest one with any."""
        seen = {tag for tag, _ in self.latencies[name]}
        if not seen:
            return 0.0
        nearest = min(seen, key=lambda tag: (abs(tag - rif), tag))
        return median([y for tag, y in self.latencies[name] if tag == nearest][-16:])

    def uses(self):
        gain = (1 - SIZE / len(self.names)) * R_PROBE - R_REMOVE
        if gain <= 0:
            return math.inf
        return math.floor(max(1, (1 + DELTA) / gain) + self.random.random())

    def probe(self, now):
        self.probed_at = now
        left = list(self.names)
        for name in [left.pop(int(self.random.random() * len(left))) for _ in range(min(R_PROBE, len(left)))]:
            rif = self.in_flight[name]
            self.rifs = [*self.rifs, rif][-WINDOW:]
            self.pool = [entry for entry in self.pool if entry[0] != name]
            self.pool.append([name, now, rif, self.latency(name, rif), self.uses()])
            self.pool = self.pool[-SIZE:]

    def hot(self, entry):
        return entry[2] > sorted(self.rifs)[int(Q_RIF * (len(self.rifs) - 1))]

    def choose(self, now):
        if now - self.probed_at > MAX_AGE:
            self.probe(now)
        self.pool = [entry for entry in self.pool if now - entry[1] <= MAX_AGE]
        if len(self.pool) < 2:
            name = self.names[int(self.random.random() * len(self.names))]
        else:
            cold = [entry for entry in self.pool if not self.hot(entry)]
            entry = min(cold, key=lambda e: (e[3], e[2])) if cold else min(self.pool, key=lambda e: (e[2], e[3]))
            name = entry[0]
            entry[2] += 1
            entry[4] -= 1
            if entry[4] == 0:
                self.pool.remove(entry)
        if self.pool:
            hot = [entry for entry in self.pool if self.hot(entry)]
            worst = max(hot, key=lambda e: (e[2], e[3])) if hot else max(self.pool, key=lambda e: (e[3], e[2]))
            self.pool.remove(worst if self.removals % 2 else self.pool[0])
            self.removals += 1
        found = self.in_flight[name]
        self.in_flight[name] += 1
        self.probe(now)
        return name, found


@pytest.mark.parametrize(("n", "moves"), [(2, 1000), (3, 1000), (30, 1500), (60, 1500)])
@pytest.mark.parametrize("seed", [1, 2])
def test_it_decides_as_the_paper_says(n, moves, seed):
    names = [f"p{i}" for i in range(n)]
    road = Road("prequal", [PoolSpec(name) for name in names], seed=seed)
    paper = Paper(names, Random(seed))
    found, chosen = {}, []

    def sent(ticket):
        name, found[ticket] = paper.choose(road.now)
        chosen.append((ticket.pool.id, name))

    def ended(done):
        ticket = done.ticket
        paper.in_flight[ticket.pool.id] -= 1
        if done.outcome is Outcome.OK:
            paper.latencies[ticket.pool.id].append((found[ticket], done.finished_at - ticket.routed_at))

    live(road, Random(seed + 100), moves, sent, ended)
    assert len(chosen) > 0.4 * moves
    assert [ours for ours, _ in chosen] == [theirs for _, theirs in chosen]


def test_the_limit_of_uses_is_that_of_the_paper():
    policy = Road("prequal", []).policy
    assert policy.uses(100) == pytest.approx(2 / 1.52)
    assert policy.uses(1000) == pytest.approx(1.0, abs=0.03)
    assert policy.uses(24) == math.inf, "the denominator is 0"


def test_a_fractional_limit_of_uses_is_right_on_average():
    policy = Road("prequal", []).policy
    n = 4000
    rounded = [policy._rounded(1.316) for _ in range(n)]
    assert set(rounded) == {1, 2}
    assert abs(sum(rounded) / n - 1.316) < 4 * math.sqrt(0.316 * 0.684 / n)


def told(road, pool, found, seconds):
    for _ in range(3):
        road.policy._latencies[pool].add(found, seconds)


def test_the_cold_pool_of_the_least_latency_wins():
    road = Road("prequal", [PoolSpec("slow"), PoolSpec("fast")], q_rif=1.0)
    told(road, "slow", 0, 0.2)
    told(road, "fast", 0, 0.1)
    assert [road.send(at=0.01 * i).pool.id for i in range(4)] == ["fast"] * 4, "none is hot, so latency decides"


def test_at_quantile_0_the_requests_in_flight_decide():
    road = Road("prequal", [PoolSpec("slow"), PoolSpec("fast")], q_rif=0.0, window=2)
    told(road, "slow", 0, 0.2)
    told(road, "fast", 0, 0.1)
    assert [road.send(at=0.01 * i).pool.id for i in range(4)] == ["fast", "slow", "fast", "slow"]


def test_a_hot_pool_is_left_to_a_cold_one():
    road = Road("prequal", [PoolSpec("slow"), PoolSpec("fast")])
    road.policy._hot_above = 3
    slow, fast = Probe("slow", 0.0, 1, 0.2, math.inf), Probe("fast", 0.0, 3, 0.1, math.inf)
    road.policy._pooled = {"slow": slow, "fast": fast}

    def selected():
        return road.policy._select(road.router.fleet).id

    assert selected() == "fast"  # and has 4 now
    assert [selected() for _ in range(3)] == ["slow"] * 3  # up to 4, too
    assert selected() == "fast"  # both are hot, with equal counts, and it has the lesser latency
    assert selected() == "slow"  # 4 against 5


def test_the_requests_of_other_clients_count_while_the_report_is_fresh():
    road = Road("prequal", [PoolSpec("a"), PoolSpec("b")])
    ticket = road.send(at=0.0)
    pool = road.router.fleet[ticket.pool.id]
    road.end(ticket, at=0.1, queue=7)
    assert road.policy.rif(pool, 0.2) == 7
    assert road.policy.rif(pool, 1.2) == 0
    again = road.send(at=0.3, exclude=frozenset({"a", "b"} - {pool.id}))
    assert road.policy.rif(pool, 0.4) == 8
    assert again.decision.memo == 7


def test_probes_end_with_age_and_new_ones_are_made_after_a_pause():
    road = Road("prequal", [PoolSpec("slow"), PoolSpec("fast")])
    told(road, "slow", 0, 0.2)
    told(road, "fast", 0, 0.1)
    for i in range(20):
        road.end(road.send(at=100.0 * i), at=100.0 * i + 0.1)
    assert {decision.pool for decision, _ in road.recording.decisions} == {"fast"}


def test_latencies_survive_a_removal_and_probes_do_not():
    road = Road("prequal", [PoolSpec("a"), PoolSpec("b")])
    told(road, "a", 0, 0.1)
    road.send(at=0.0)
    road.remove("a")
    assert set(road.policy._pooled) == {"b"}
    road.add(PoolSpec("a"))
    assert road.policy._latencies["a"].near(0) == 0.1


def test_a_pool_that_never_answers_gets_few_requests():
    road = Road("prequal", [PoolSpec("dead"), PoolSpec("good")])
    for i in range(2000):
        ticket = road.send(at=0.05 * i)
        if ticket.pool.id == "good":
            road.end(ticket, at=0.05 * i + 0.02)
    stuck = road.router.fleet["dead"].in_flight
    assert stuck < 200, f"{stuck} of 2000 requests went to the pool that never answers"


def test_memory_is_bounded():
    road = Road("prequal", [PoolSpec("a"), PoolSpec("b")])
    for i in range(500):
        road.add(PoolSpec(f"p{i}"))
        road.remove(f"p{i}")
    for i in range(3000):
        road.send(at=0.001 * i)
        road.policy._latencies["a"].add(i, 0.1)
    assert len(road.policy._latencies) < 300
    assert len(road.policy._latencies["a"]._times) == 64
    assert len(road.policy._rifs._sorted) == 128
    assert len(road.policy._pooled) <= 16
