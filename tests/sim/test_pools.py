"""Pools as services are, in virtual time, against what queueing theory says of them."""

import math

import numpy as np
import pytest

from dispatcher import registry
from dispatcher.core.types import PoolSpec
from loadgen.sim.oracles import TrueCost, TrueDelay
from loadgen.sim.pools import ServiceChange, ServicePool, ServiceScenario, simulate


def run(pools, rate, make="random", requests=20_000, seed=1, **scene):
    """Response times of one run, seconds."""
    pools = tuple(pool if isinstance(pool, ServicePool) else ServicePool(pool) for pool in pools)
    if isinstance(make, str):
        name = make
        make = lambda scene, rng: registry.create(name, rng)  # noqa: E731
    specs = [PoolSpec(str(i)) for i in range(len(pools))]
    return simulate(ServiceScenario(pools, rate, **scene), make, specs, requests, seed)


def mean_and_error(times, batches=20):
    """The mean after the first tenth, and its standard error by batch means."""
    means = times[len(times) // 10 :][: len(times) * 9 // 10 // batches * batches].reshape(batches, -1).mean(axis=1)
    return means.mean(), means.std(ddof=1) / math.sqrt(batches)


@pytest.mark.parametrize(
    ("pool", "rate", "law", "expected"),
    [
        ("fcfs:servers=1,seconds=0.01", 50.0, "exp", 0.02),
        ("ps:servers=1,seconds=0.01", 50.0, "hyperexp:cv=2", 0.02),
        ("infinite:seconds=0.05", 200.0, "lognormal:cv=2", 0.05),
        ("fcfs:servers=2,seconds=0.01", 150.0, "exp", 0.01 / (1 - 0.75**2)),
    ],
)
def test_one_pool_has_the_mean_response_time_of_theory(pool, rate, law, expected):
    mean, error = mean_and_error(run([pool], rate, law=law, requests=40_000))
    assert abs(mean - expected) < 4 * error


def test_the_network_adds_its_time():
    quick = run(["infinite:seconds=0.01"], 10.0, requests=500)
    far = run([ServicePool("infinite:seconds=0.01", network=0.03)], 10.0, requests=500)
    assert far == pytest.approx(quick + 0.03)


def test_policies_meet_the_same_arrivals_and_the_same_work():
    pools = ["infinite:seconds=0.05", "infinite:seconds=0.05"]
    assert run(pools, 50.0, "jsq", 500) == pytest.approx(run(pools, 50.0, "round_robin", 500))


def test_a_run_is_a_function_of_its_seed():
    pools = ["fcfs:servers=4,seconds=0.04", "soft:a=0.1,seconds=0.02"]
    first = run(pools, 60.0, "curve", 2000, dispatchers=3)
    assert np.array_equal(first, run(pools, 60.0, "curve", 2000, dispatchers=3))
    assert not np.array_equal(first, run(pools, 60.0, "curve", 2000, seed=2, dispatchers=3))


def test_a_pool_that_slows_down_takes_longer_from_then_on():
    change = ServiceChange(at=500, pool=0, speed=0.5)
    times = run(["infinite:seconds=0.02"], 10.0, requests=1000, law="fixed", changes=(change,))
    assert times[:490].max() == pytest.approx(0.02)
    assert times[500:].min() == pytest.approx(0.04)


def test_a_pool_that_gains_servers_has_shorter_waits():
    change = ServiceChange(at=2000, pool=0, servers=8)
    times = run(["fcfs:servers=1,seconds=0.02"], 45.0, requests=4000, changes=(change,))
    assert times[2500:].mean() < 0.5 * times[500:2000].mean()


@pytest.mark.parametrize("oracle", [TrueDelay, TrueCost])
def test_full_knowledge_beats_join_the_shortest_queue_and_hears_of_changes(oracle):
    pools = ["fcfs:servers=1,seconds=0.025", "fcfs:servers=1,seconds=0.005"]
    assert run(pools, 140.0, oracle, 4000).mean() < 0.8 * run(pools, 140.0, "jsq", 4000).mean()
    scene = ServiceScenario(tuple(map(ServicePool, pools)), 60.0, changes=(ServiceChange(500, 1, speed=0.01),))
    specs = [PoolSpec("0"), PoolSpec("1")]
    unaware = simulate(scene, oracle, specs, 1000, 1)
    aware = simulate(scene, oracle, specs, 1000, 1, on_change=lambda policy, change: policy.pool_changed(change))
    assert aware[500:].mean() < 0.5 * unaware[500:].mean()


def test_the_capacity_of_a_pool_is_its_largest_throughput_over_that_of_one_request():
    capacities = {
        "fcfs:servers=4,seconds=0.04": 4,
        "ps:servers=2,seconds=0.02": 2,
        "infinite:seconds=0.05": math.inf,
        "limited:servers=2,limit=64,seconds=0.005": 2,
        "soft:a=0.1,seconds=0.02": 10,
    }
    assert {text: ServicePool(text).capacity for text in capacities} == pytest.approx(capacities)


def test_pools_far_away_do_not_lose_requests():
    pools = [ServicePool("fcfs:servers=1,seconds=0.01", 0.05), ServicePool("ps:servers=1,seconds=0.01", 0.001)]
    times = run(pools, 120.0, "curve", 3000)
    assert np.isfinite(times).all()
    assert times.min() > 0.001
