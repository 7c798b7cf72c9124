"""`p2c_ewma` against the original: a port of the Lua code of ingress-nginx, and its own test cases."""

import math
from random import Random

import pytest

from dispatcher.core.types import Outcome, PoolSpec
from tests.policies.road import Road, live

DECAY_TIME = 10


class Ewma:
    """balancer/ewma.lua: `decay_ewma`, `get_or_update_ewma`, `pick_and_score` and `sync`."""

    def __init__(self, peers):
        self.peers = list(peers)
        self.ewma, self.touched = {}, {}
        self.now = 0.0

    def get_or_update(self, peer, rtt, update):
        ewma = self.ewma.get(peer, 0)
        # an epoch of 0 is half a century ago, so that the first response replaces the average
        td = self.now - self.touched.get(peer, -1e9)
        td = td if td > 0 else 0
        weight = math.exp(-td / DECAY_TIME)
        ewma = ewma * weight + rtt * (1.0 - weight)
        if update:
            self.ewma[peer], self.touched[peer] = ewma, self.now
        return ewma

    def pick_and_score(self, picked):
        lowest, lowest_score = picked[0], self.get_or_update(picked[0], 0, False)
        for peer in picked[1:]:
            score = self.get_or_update(peer, 0, False)
            if score < lowest_score:
                lowest, lowest_score = peer, score
        return lowest

    def sync(self, endpoints):
        average = sum(self.ewma.get(peer, 0) for peer in self.peers) / len(self.peers) if self.peers else 0
        self.ewma, old = {}, self.ewma
        self.touched, touched = {}, self.touched
        for peer in endpoints:
            if peer in old:
                self.ewma[peer], self.touched[peer] = old[peer], touched[peer]
            else:
                self.ewma[peer], self.touched[peer] = average, self.now
        self.peers = list(endpoints)


def picked(dice, peers):
    """The two that the policy draws from the same generator."""
    left = list(peers)
    return [left.pop(int(dice.random() * len(left))) for _ in range(2)]


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("seed", [1, 2])
def test_it_decides_as_the_original(n, seed):
    names = [f"p{i}" for i in range(n)]
    road, original = Road("p2c_ewma", [PoolSpec(name) for name in names], seed=seed), Ewma(names)
    draws = Random(seed)
    chosen = []

    def sent(ticket):
        original.now = road.now
        chosen.append((ticket.pool.id, original.pick_and_score(picked(draws, original.peers))))

    def ended(done):
        original.now = done.finished_at
        original.get_or_update(done.ticket.pool.id, done.finished_at - done.ticket.routed_at, True)

    dice = Random(seed + 100)
    live(road, dice, 2000, sent, ended)
    road.add(PoolSpec("new"))
    original.sync([*names, "new"])
    live(road, dice, 2000, sent, lambda done: None if done.ticket.pool.id not in original.peers else ended(done))
    assert len(chosen) > 1500
    assert [ours for ours, _ in chosen] == [theirs for _, theirs in chosen]
    assert any(ours == "new" for ours, _ in chosen)


def test_the_averages_are_those_of_the_original_s_tests():
    road = Road("p2c_ewma", [PoolSpec(name) for name in "abc"])
    now = 1543238266.0
    road.policy._latency = {"a": (0.2, now - 1), "b": (0.3, now - 5), "c": (1.2, now - 20)}
    assert road.policy.latency("c", now) == pytest.approx(0.16240233988393523723, rel=1e-12)
    kept = math.exp(-5 / 10)
    assert road.policy.latency("b", now, response=0.12) == pytest.approx(0.3 * kept + 0.12 * (1 - kept), rel=1e-12)


def test_a_pool_that_joins_starts_with_the_average():
    road = Road("p2c_ewma", [PoolSpec("a"), PoolSpec("b")])
    road.policy._latency = {"a": (0.2, 99.0), "b": (1.2, 80.0)}
    road.send(at=100.0)
    road.add(PoolSpec("c"))
    assert road.policy.latency("c", 100.0) == pytest.approx(0.7)


def test_the_first_response_of_all_replaces_the_start():
    road = Road("p2c_ewma", [PoolSpec("a")])
    road.end(road.send(at=5.0), at=5.25)
    assert road.policy.latency("a", 5.25) == pytest.approx(0.25)
    assert road.policy.latency("a", 15.25) == pytest.approx(0.25 / math.e)


def test_a_failed_response_counts():
    road = Road("p2c_ewma", [PoolSpec("a")])
    road.end(road.send(at=0.0), at=3.0, outcome=Outcome.TIMED_OUT)
    assert road.policy.latency("a", 3.0) == pytest.approx(3.0)


def test_a_pool_that_left_starts_anew():
    road = Road("p2c_ewma", [PoolSpec("a"), PoolSpec("b")])
    first = road.send(at=0.0)
    road.end(first, at=9.0)
    road.remove(first.pool.id)
    road.add(PoolSpec(first.pool.id))
    assert road.policy.latency(first.pool.id, 9.0) == 0.0, "the other pool has no average yet"
