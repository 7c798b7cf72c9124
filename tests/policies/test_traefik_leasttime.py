"""`traefik_leasttime` against the original: a port of Traefik's Go code, and small cases worked by hand."""

from random import Random

import pytest

from dispatcher.core.types import Outcome, PoolSpec
from tests.policies.road import Road, live

SAMPLE_SIZE = 100


class Server:
    """`namedHandler` of leasttime.go, without its locks."""

    def __init__(self, name, weight, deadline):
        self.name, self.weight, self.deadline = name, weight, deadline
        self.inflight_count = 0
        self.response_times = [0.0] * SAMPLE_SIZE
        self.response_time_idx = 0
        self.response_time_sum = 0.0
        self.sample_count = 0

    def update_response_time(self, ms):
        if self.sample_count < SAMPLE_SIZE:
            self.response_times[self.response_time_idx] = ms
            self.response_time_sum += ms
            self.sample_count += 1
        else:
            old = self.response_times[self.response_time_idx]
            self.response_times[self.response_time_idx] = ms
            self.response_time_sum = self.response_time_sum - old + ms
        self.response_time_idx = (self.response_time_idx + 1) % SAMPLE_SIZE

    def average(self):
        return self.response_time_sum / self.sample_count if self.sample_count else 0.0


class Balancer:
    """`Balancer` of leasttime.go: `Add`, `nextServer` and `selectWRR`."""

    def __init__(self):
        self.handlers = []
        self.cur_deadline = 0.0

    def add(self, name, weight):
        self.cur_deadline += 1 / weight
        self.handlers.append(Server(name, weight, self.cur_deadline))

    def next_server(self, healthy):
        if len(healthy) == 1:
            return healthy[0]
        min_score, candidates = float("inf"), []
        for h in healthy:
            score = (h.average() * (1 + h.inflight_count)) / h.weight
            if score < min_score:
                min_score, candidates = score, [h]
            elif score == min_score:
                candidates.append(h)
        return candidates[0] if len(candidates) == 1 else self.select_wrr(candidates)

    def select_wrr(self, candidates):
        selected, min_deadline = candidates[0], float("inf")
        for h in candidates:
            if h.deadline < min_deadline:
                min_deadline, selected = h.deadline, h
        selected.deadline = min_deadline + 1 / selected.weight
        self.cur_deadline = max(self.cur_deadline, selected.deadline)
        return selected


def milliseconds(seconds):
    """`time.Duration.Milliseconds`: whole nanoseconds, cut to whole milliseconds."""
    return float(round(seconds * 1e9) // 1_000_000)


@pytest.mark.parametrize("weights", [(1, 1), (1, 3, 2), (5, 1, 1, 2)])
@pytest.mark.parametrize("seed", [1, 2])
def test_it_decides_as_the_original(weights, seed):
    specs = [PoolSpec(f"p{i}", guess=float(weight)) for i, weight in enumerate(weights)]
    road, original = Road("traefik_leasttime", specs), Balancer()
    for spec, weight in zip(specs, weights, strict=True):
        original.add(spec.id, weight)
    by_name = {handler.name: handler for handler in original.handlers}
    chosen = []

    def sent(ticket):
        expected = original.next_server(original.handlers)
        chosen.append((ticket.pool.id, expected.name))
        expected.inflight_count += 1

    def ended(done):
        handler = by_name[done.ticket.pool.id]
        handler.inflight_count -= 1
        until = done.first_byte_at
        if until is None and done.outcome is Outcome.OK:
            until = done.finished_at
        if until is not None:
            handler.update_response_time(milliseconds(until - done.ticket.routed_at))

    live(road, Random(seed), 3000, sent, ended)
    assert len(chosen) > 1000
    assert [ours for ours, _ in chosen] == [theirs for _, theirs in chosen]
    assert any(handler.sample_count == SAMPLE_SIZE for handler in original.handlers)


def one(road, pool, seconds, **end):
    """One request to this pool, which takes this long."""
    others = frozenset(other.id for other in road.router.fleet.pools) - {pool}
    at = road.now
    road.end(road.send(at=at, exclude=others), at=at + seconds, **end)


def test_pools_without_data_share_the_requests_by_weight():
    road = Road("traefik_leasttime", [PoolSpec("a", guess=1.0), PoolSpec("b", guess=2.0)])
    # deadlines 1 and 1.5; the winner's moves by 1 or by 0.5, and of equal ones the first pool's counts as earlier
    assert "".join(road.send().pool.id for _ in range(8)) == "ababbabb"


def test_a_pool_without_data_gets_every_request():
    road = Road("traefik_leasttime", [PoolSpec("a"), PoolSpec("b")])
    one(road, "a", 0.05)
    assert [road.send().pool.id for _ in range(5)] == ["b"] * 5


def test_the_score_is_the_mean_times_the_requests():
    road = Road("traefik_leasttime", [PoolSpec("a"), PoolSpec("b")])
    one(road, "a", 0.02)
    one(road, "b", 0.05)
    # a at 20 and 40 against 50; b at 50 against 60; a at 60 and 80 against 100
    assert "".join(road.send().pool.id for _ in range(5)) == "aabaa"


def test_the_first_byte_counts_and_not_the_last():
    road = Road("traefik_leasttime", [PoolSpec("a")])
    one(road, "a", 5.0, first_byte_at=0.01)
    assert road.policy.score(road.router.fleet["a"], 5.0) == 10.0


def test_a_failed_response_counts_and_a_missing_one_does_not():
    road = Road("traefik_leasttime", [PoolSpec("a"), PoolSpec("b")])
    one(road, "a", 1.0, outcome=Outcome.TIMED_OUT)
    assert road.policy.score(road.router.fleet["a"], 1.0) == 0.0
    one(road, "a", 1.0, outcome=Outcome.FAILED, first_byte_at=1.25)
    assert road.policy.score(road.router.fleet["a"], 2.0) == 250.0


def test_what_was_measured_survives_a_removal():
    road = Road("traefik_leasttime", [PoolSpec("a"), PoolSpec("b")])
    ticket = road.send(at=0.0)
    road.remove("a")
    road.end(ticket, at=0.03)
    road.add(PoolSpec("a"))
    assert road.policy.score(road.router.fleet["a"], 1.0) == 30.0


def test_pools_that_come_and_go_do_not_fill_the_memory():
    road = Road("traefik_leasttime", [PoolSpec("a")])
    for i in range(1000):
        road.add(PoolSpec(f"p{i}"))
        road.remove(f"p{i}")
    assert len(road.policy._times) < 300
    assert road.send().pool.id == "a"
