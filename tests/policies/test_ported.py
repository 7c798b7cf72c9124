"""The competing rules in virtual time, and their options."""

from math import sqrt
from random import Random

import pytest

from dispatcher import registry
from dispatcher.core.types import PoolSpec
from dispatcher.errors import ConfigError
from loadgen.sim.model import Scenario, simulate
from tests.policies.road import Road

RIVALS = ("traefik_leasttime", "prequal", "p2c_ewma", "least_conn")
SEEDS = range(8)


def means(policy):
    """Mean response times of eight runs with two unequal pools: 30 requests a second, 25 and 100 services."""
    scenario = Scenario(policy, lam=30.0, mu=(25.0, 100.0), guess=(1.0, 1.0), arrivals=1500, warmup=200)
    return [simulate(scenario, seed).mean_response for seed in SEEDS]


@pytest.fixture(scope="module")
def at_random():
    return means("random")


@pytest.mark.parametrize("policy", RIVALS)
def test_it_beats_random_on_unequal_pools(policy, at_random):
    gains = [random - ours for random, ours in zip(at_random, means(policy), strict=True)]
    n = len(gains)
    mean = sum(gains) / n
    error = sqrt(sum((gain - mean) ** 2 for gain in gains) / (n - 1) / n)
    assert mean > 4 * error, f"gains {mean:.4f} ± {error:.4f} s"


@pytest.mark.parametrize("policy", RIVALS)
def test_a_pool_that_never_answers_does_not_break_it(policy):
    road = Road(policy, [PoolSpec("dead"), PoolSpec("good")])
    for i in range(500):
        ticket = road.send(at=0.01 * i)
        if ticket.pool.id == "good":
            road.end(ticket, at=0.01 * i + 0.005)
    road.remove("dead")
    assert {road.send(at=5.0 + 0.01 * i).pool.id for i in range(20)} == {"good"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("traefik_leasttime", {"window": 0}, "window must be from 1 to 100,000, not 0"),
        ("traefik_leasttime", {"resolution": 0.0}, "resolution must be from 1e-9 to 1 second, not 0"),
        ("p2c_ewma", {"decay": 0.0}, "decay must be a positive number of seconds, not 0"),
        ("least_conn", {"ties": "last"}, "ties must be one of first, random, slowest, fastest, not 'last'"),
        ("prequal", {"probes": 0.0}, "probes must be above 0 and at most 1000, not 0"),
        ("prequal", {"remove": -1.0}, "remove must be from 0 to 1000, not -1"),
        ("prequal", {"pool_size": 1}, "pool_size must be from 2 to 1000, not 1"),
        ("prequal", {"max_age": 0.0}, "max_age must be a positive number of seconds, not 0"),
        ("prequal", {"delta": -0.5}, "delta must be 0 or more, not -0.5"),
        ("prequal", {"q_rif": 1.5}, "q_rif must be from 0 to 1, not 1.5"),
        ("prequal", {"window": 0}, "window must be from 1 to 1000, not 0"),
    ],
)
def test_an_option_out_of_range_is_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        registry.create(name, Random(1), options)
