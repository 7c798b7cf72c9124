"""The policy `curve` before a pool whose speed changes: the test for changes, and what follows from it."""

from random import Random

import pytest

from dispatcher import registry
from dispatcher.core.types import PoolSpec
from dispatcher.estimators.surprise import Surprise
from loadgen.sim.pools import ServiceChange, ServicePool, ServiceScene, simulate
from workers.distributions import parse as parse_law

SECONDS = 0.1


def changes(surprise, law, departures, seed, factor=1.0):
    """How often the test finds a change, if each departure takes independent work of this law."""
    draws = parse_law(law, 1 / (factor * SECONDS), Random(seed))
    found = 0
    for _ in range(departures):
        surprise.spend(draws.sample(0.0))
        found += surprise.depart(SECONDS)
    return found


@pytest.mark.parametrize("law", ["fixed", "exp", "hyperexp:cv=3.1623", "classes:share=0.02,factor=100"])
def test_a_steady_pool_has_not_changed(law):
    assert changes(Surprise(), law, departures=20_000, seed=1) == 0


@pytest.mark.parametrize(("law", "factor"), [("exp", 0.2), ("exp", 3.0), ("hyperexp:cv=3.1623", 3.0)])
def test_another_speed_is_found_within_150_departures(law, factor):
    surprise = Surprise()
    assert not changes(surprise, law, departures=2000, seed=2)
    assert changes(surprise, law, departures=150, seed=3, factor=factor)


def test_nothing_is_said_of_fewer_than_200_departures():
    surprise = Surprise()
    assert not changes(surprise, "fixed", departures=100, seed=4)
    assert not changes(surprise, "fixed", departures=99, seed=4, factor=4.0)


def mean_seconds(scene, seed, requests=15_000):
    """The mean response time of the last 40 % of the requests, which come after the change."""
    specs = [PoolSpec(str(i)) for i in range(len(scene.pools))]
    times = simulate(scene, lambda _, rng: registry.create("curve", rng), specs, requests, seed)
    return times[requests * 3 // 5 :].mean()


@pytest.mark.slow  # the tests of `Surprise` above are the fast ones
def test_a_pool_that_becomes_slower_is_noticed_soon():
    """The faster of two pools becomes five times slower. Then the mean is nearly that of a pool that was slow before.

    Without the test for changes it is 6 % higher.
    """
    pools = tuple(ServicePool(f"fcfs:servers=2,seconds={seconds}") for seconds in (0.01, 0.02))
    scene = ServiceScene(pools, rate=100.0, changes=(ServiceChange(at=6000, pool=0, speed=0.2),))
    slow = ServiceScene((ServicePool("fcfs:servers=2,seconds=0.05"), pools[1]), rate=100.0)
    assert mean_seconds(scene, seed=1) < 1.03 * mean_seconds(slow, seed=1)
