"""The rules that people run today, and the classical ones beside them: each does what its head says."""

from collections import Counter
from random import Random

import pytest

from dispatcher import registry
from dispatcher.core.types import Outcome, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.testing import Table


def table(name, *specs, seed=1, **options):
    return Table(registry.create(name, Random(seed), options), specs)


SLOW, FAST = PoolSpec("slow", guess=1.0), PoolSpec("fast", guess=3.0)
EQUAL = [PoolSpec(name) for name in "abc"]


def arrivals(table, n):
    return [table.arrive().pool.id for _ in range(n)]


def test_nq_takes_idle_pools_fastest_first_then_the_shortest_delay():
    assert arrivals(table("nq", SLOW, FAST), 5) == ["fast", "slow", "fast", "fast", "fast"]


def test_nq_learns_the_rates():
    there = table("nq", SLOW, FAST)
    first, second = there.arrive(), there.arrive()
    there.finish(first, service_time=9.0)
    there.finish(second, service_time=0.1)
    assert (first.pool.id, second.pool.id) == ("fast", "slow")
    assert there.arrive().pool.id == "slow", "it turned out to be the faster one"


def test_nq_counts_a_pool_with_a_free_server_as_idle():
    there = table("nq", PoolSpec("slow", servers=2, guess=1.0), PoolSpec("fast", guess=100.0))
    assert arrivals(there, 4) == ["fast", "slow", "slow", "fast"]


def test_jiq_takes_an_idle_pool_while_there_is_one():
    there = table("jiq", *EQUAL)
    assert sorted(arrivals(there, 3)) == ["a", "b", "c"]
    assert there.arrive().decision.probability == pytest.approx(1 / 3)


def test_power_of_d_takes_the_emptier_of_distinct_ones():
    there = table("power_of_d", *EQUAL, d=2)
    chosen = arrivals(there, 300)
    assert max(there.state) - min(there.state) <= 3, "two choices balance; one would be off by tens"
    assert set(chosen) == {"a", "b", "c"}
    assert arrivals(table("power_of_d", *EQUAL, d=9), 3) in ([*p] for p in ("abc", "acb", "bac", "bca", "cab", "cba"))


def test_weighted_random_goes_by_guess_and_servers():
    there = table("weighted_random", SLOW, PoolSpec("wide", servers=3, guess=1.0))
    n = 4000
    chosen = Counter(arrivals(there, n))
    assert abs(chosen["slow"] - n / 4) < 4 * (n * 3 / 16) ** 0.5
    assert {round(d.probability, 9) for d, _ in there.recording.decisions} == {0.25, 0.75}


def test_weighted_round_robin_is_smooth():
    there = table("weighted_round_robin", PoolSpec("a", guess=5.0), PoolSpec("b"), PoolSpec("c"))
    assert "".join(arrivals(there, 14)) == "aabacaa" * 2


def test_nginx_compares_requests_per_weight_and_gives_ties_in_turn():
    # both idle: fast is richer; 0/1 before 1/3; 1/3 and 2/3 before 1/1; 3/3 ties with 1/1, and it is slow's turn
    assert arrivals(table("nginx_least_conn", SLOW, FAST), 5) == ["fast", "slow", "fast", "fast", "slow"]


def test_nginx_gives_a_slow_idle_pool_its_turn_in_proportion():
    there = table("nginx_least_conn", SLOW, FAST)
    chosen = []
    for _ in range(40):
        chosen.append(there.arrive().pool.id)
        there.finish(there.open[0])
    assert Counter(chosen) == {"fast": 30, "slow": 10}


def test_haproxy_puts_an_idle_pool_first_however_slow():
    there = table("haproxy_leastconn", SLOW, FAST)
    assert arrivals(there, 2) == ["slow", "fast"]
    assert arrivals(there, 4) == ["fast", "fast", "fast", "fast"]  # 2/3 … 5/3 against 2/1
    assert there.arrive().pool.id == "slow"  # 6/3 against 2/1: a tie, and slow was filed first


def test_haproxy_gives_ties_in_turn():
    there = table("haproxy_leastconn", *EQUAL)
    chosen = []
    for _ in range(6):
        chosen.append(there.arrive().pool.id)
        there.finish(there.open[0])
    assert "".join(chosen) == "abcabc"


def test_envoy_draws_with_replacement():
    there = table("envoy_least_request", *EQUAL[:2])
    there.arrive()
    busy, n = there.open[0].pool.id, 2000
    again = 0
    for _ in range(n):
        ticket = there.arrive()
        again += ticket.pool.id == busy
        there.finish(ticket)
    assert abs(again - n / 4) < 4 * (n * 3 / 16) ** 0.5, "the busy one is taken when it is drawn twice"


def test_peak_ewma_believes_a_peak_at_once_and_forgives_slowly():
    there = table("peak_ewma", PoolSpec("a", guess=1.0), PoolSpec("b", guess=1.0), d=0)
    policy = there.router.policy
    slow = there.arrive()
    assert slow.pool.id == "a"
    there.now += 8.0
    there.finish(slow)  # a response of nine seconds
    assert policy.latency("a", there.now) == pytest.approx(9.0)
    assert policy.latency("a", there.now + 10.0) == pytest.approx(9.0 / 2.718281828, rel=1e-6)
    assert there.arrive().pool.id == "b"


def test_peak_ewma_learns_nothing_from_failures():
    there = table("peak_ewma", PoolSpec("a"), PoolSpec("b"), d=0)
    there.finish(there.arrive(), Outcome.FAILED)
    assert there.router.policy.latency("a", there.now) <= 1.0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("power_of_d", {"d": 0}, "d must be at least 1"),
        ("envoy_least_request", {"choice_count": 0}, "choice_count must be from 1 to 1000"),
        ("peak_ewma", {"decay": 0.0}, "decay must be positive"),
        ("peak_ewma", {"d": -1}, "d must be 0"),
        ("lased", {"exponent": 0.0}, "exponent must be above 0 and at most 1, not 0"),
        ("greedy", {"exponent": 1.5}, "exponent must be above 0 and at most 1, not 1.5"),
        ("lased", {"estimator": "median"}, "unknown estimator 'median'; known: mean, discounted, window"),
        ("lased", {"estimator": "discounted:factor=1"}, "between 0 and 1, not 1"),
        ("lased", {"estimator": "window:size=0"}, "whole number from 1"),
        ("lased", {"estimator": "window:size=x"}, "'size' must be a number"),
        ("lased", {"estimator": "mean:size=3"}, "takes no option size"),
        ("optimistic", {"bonus": -1.0}, "bonus must be 0 or more"),
        ("lased", {"prior_weight": "inf"}, "prior_weight must be 0 or more"),
    ],
)
def test_an_option_out_of_range_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        registry.create(name, Random(1), options)


def test_the_exponent_keeps_a_slow_pool_busier():
    specs = [PoolSpec("slow", guess=1.0, true_rate=1.0), PoolSpec("fast", guess=16.0, true_rate=16.0)]
    assert arrivals(table("sed", *specs), 5) == ["fast"] * 5
    # to the power ½ the rates are 1 and 4: slow is as good at four on fast, and ties go first
    assert arrivals(table("sed", *specs, exponent=0.5), 5) == ["fast", "fast", "fast", "slow", "fast"]
