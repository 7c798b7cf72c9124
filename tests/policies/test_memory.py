"""Forgetting, and pools that have become fast while they were not used: case F2 of the field, and its kind."""

import heapq
from random import Random

import pytest

from dispatcher import registry
from dispatcher.core.memory import LastUse, half_life, unused_after
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Job, Outcome, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.estimators.discounted import Discounted
from dispatcher.estimators.mean import Mean

LEARNERS = ("curve", "lased", "greedy", "optimistic", "nq", "partial_sed")


def shares(policy, speed, rate, requests, seed=1):
    """The pool of each request. speed: services per second, by pool ("a" or "b") and the number of the request."""
    router = Router(registry.create(policy, stream(seed, "policy")))
    for pool in "ab":
        router.apply(Added(PoolSpec(pool)), 0.0)
    rng, free, ends, chosen, now = Random(seed), {"a": 0.0, "b": 0.0}, [], [], 0.0
    for j in range(requests):
        now += rng.expovariate(rate)
        while ends and ends[0][0] <= now:
            end, _, ticket, work = heapq.heappop(ends)
            router.complete(ticket, end, Outcome.OK, work)
        ticket = router.route(Job(j), now)
        pool = ticket.pool.id
        work = rng.expovariate(speed(pool, j))
        free[pool] = max(now, free[pool]) + work
        heapq.heappush(ends, (free[pool], j, ticket, work))
        chosen.append(pool)
    return chosen


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("policy", "slow", "within"),
    [(policy, 0.01, 2000) for policy in LEARNERS]
    + [(policy, 0.1, 2000) for policy in ("curve", "greedy", "optimistic", "nq", "partial_sed")],
)
def test_a_pool_that_has_become_the_fastest_gets_its_share(policy, slow, within, seed):
    """Pool b is slow at first, as after a cold start, and then twice as fast as a. The load is low.

    A pool that looks much slower is not used, and a single trial shows that it has changed. LASED uses one that looks
    ten times slower at times; its estimate then follows the few observations slowly.
    """
    change = 40

    def speed(pool, j):
        return 40.0 if pool == "a" else 80.0 * (slow if j < change else 1.0)

    chosen = shares(policy, speed, rate=2.0, requests=change + within + 500, seed=seed)
    later = chosen[change + within :]
    fair = 0.8 if policy == "partial_sed" else 0.9  # at this load nearly every request finds b idle
    assert later.count("b") / len(later) >= fair


@pytest.mark.parametrize("policy", ["curve", "greedy", "optimistic"])  # the others have trials of their own
def test_a_pool_that_stays_slow_costs_one_request_in_1750(policy):
    chosen = shares(policy, lambda pool, j: 40.0 if pool == "a" else 1.0, rate=2.0, requests=12_000)
    assert chosen[2000:].count("b") <= 12


def test_without_forgetting_a_starved_pool_stays_starved():
    policy = registry.create("greedy", Random(1), {"memory": -1})
    assert policy.memory == -1
    fresh, old = registry.create("greedy", Random(1)), 10**6
    for each in (policy, fresh):
        router = Router(each)
        for pool in "ab":
            router.apply(Added(PoolSpec(pool)), 0.0)
        each.observe("a", 1.0)
        each._requests = old
        each.observe("a", 3.0)
    assert policy.means["a"].rate == pytest.approx(0.5)
    assert fresh.means["a"].rate == pytest.approx(1 / 3.0)


def test_fading_halves_the_weight_and_keeps_the_mean():
    for mean in (Mean(guess=1.0), Discounted(guess=1.0, factor=0.9)):
        for x in (1.0, 2.0, 6.0):
            mean.learn_one(x)
        weight, rate = mean.weight, mean.rate
        mean.fade(0.5)
        assert mean.weight == pytest.approx(weight / 2)
        assert mean.rate == pytest.approx(rate)


def test_pools_by_last_use():
    last = LastUse()
    for request, pool in enumerate("abcab", start=1):
        last.use(pool, request)
    assert list(last.unused(0, 5)) == ["c", "a"]
    last.discard("c")
    assert list(last.unused(0, 6)) == ["a", "b"]
    assert list(last.unused(10, 6)) == []


def test_automatic_memory_grows_with_the_number_of_pools():
    assert half_life(0, 2) == 5000
    assert half_life(0, 100) == 50_000
    assert half_life(700, 100) == 700
    assert half_life(-1, 2) == float("inf")
    assert unused_after(5000) == 1750


@pytest.mark.parametrize("policy", ["curve", "lased", "optimistic"])
@pytest.mark.parametrize("memory", [-2, 1, 9, 10**10])
def test_a_memory_out_of_range_is_refused_in_one_line(policy, memory):
    with pytest.raises(ConfigError, match="memory must be from 10 to 1,000,000,000 requests") as refused:
        registry.create(policy, Random(1), {"memory": memory})
    assert "\n" not in str(refused.value)
