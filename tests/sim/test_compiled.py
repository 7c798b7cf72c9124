"""The compiled kernel against the object-driven simulator: equal decisions, states, rates and results, to the bit."""

import dataclasses
import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.errors import ConfigError
from loadgen.sim.compiled import KINDS, Compiled, obstacle
from loadgen.sim.model import Scenario, simulate
from loadgen.sim.rng import records_of, service, uniform
from workers import distributions

LAWS = ("exp", "fixed", "lognormal:cv=2", "hyperexp:cv=3", "pareto:shape=2.5")
TIED = ("jsq", "esed", "sed", "greedy", "nq", "lased", "optimistic")


def assert_equal(scenario, seed=1):
    wanted = simulate(scenario, seed, keep_rows=True)
    got = Compiled(scenario).simulate(seed, keep_rows=True)
    for expected, row in zip(wanted.rows, got.rows, strict=True):
        expected = dataclasses.replace(expected, scores=(), rates=tuple(expected.rates))
        assert row == expected, f"decision {expected.n}"
    assert dataclasses.replace(got, rows=()) == dataclasses.replace(wanted, rows=())


@pytest.mark.parametrize("policy", KINDS)
def test_two_pools(policy):
    for lam, guess in ((0.5, (1.0, 0.1)), (1.8, (2.0, 1.0)), (2.8, (1.0, 2.0))):
        assert_equal(Scenario(policy, lam, (1.0, 2.0), guess, 1500, points=7, warmup=100))


@pytest.mark.parametrize(("policy", "law"), list(itertools.product(("lased", "optimistic"), LAWS)))
def test_service_laws_and_many_servers(policy, law):
    assert_equal(Scenario(policy, 14.0, (1.0, 2.0, 3.0), (3.0, 1.0, 1.0), 1500, servers=(4, 1, 3), service=law))


@pytest.mark.parametrize(("policy", "ties"), list(itertools.product(TIED, ("first", "random", "slowest", "fastest"))))
def test_tie_rules(policy, ties):
    scenario = Scenario(policy, 2.5, (2.0, 1.0, 0.5), (0.5, 1.0, 2.0), 800, options={"ties": ties})
    assert_equal(scenario, seed=3)


@pytest.mark.parametrize("process", ["constant", "mmpp:ratio=9,period=50", "wave:depth=0.9,period=300"])
def test_arrival_processes(process):
    assert_equal(Scenario("lased", 1.0, (1.0, 1.0), (1.0, 3.0), 1000, process=process, service="fixed"))


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "exponent": st.floats(0.3, 1.0),
        "prior_weight": st.sampled_from([0.0, 0.01, 1.0, 5.0]),
        "n0": st.integers(1, 12),
        "c": st.floats(0.0, 20.0),
        "alpha": st.floats(0.0, 2.0),
        "episodes": st.sampled_from(["system", "pool"]),
        "max_episode_arrivals": st.integers(0, 40),
        "bonus": st.floats(0.0, 5.0),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(KINDS),
    seed=st.integers(0, 10**9),
    rho=st.floats(0.05, 1.3),
    pools=st.lists(st.tuples(st.floats(0.1, 20.0), st.floats(0.1, 20.0), st.integers(1, 3)), min_size=1, max_size=6),
    options=OPTIONS,
)
def test_any_scenario(policy, seed, rho, pools, options):
    mu, guess, servers = zip(*pools, strict=True)
    takes = {
        "lased": OPTIONS_OF_LASED,
        "optimistic": OPTIONS_OF_LASED - ONLY_OF_LASED | {"bonus"},
        "greedy": {"exponent", "prior_weight"},
        "nq": {"exponent", "prior_weight"},
        "sed": {"exponent"},
        "esed": {"exponent"},
    }.get(policy, set())
    options = {key: value for key, value in options.items() if key in takes}
    lam = rho * sum(rate * c for rate, _, c in pools)
    assert_equal(Scenario(policy, lam, mu, guess, 300, servers=servers, options=options), seed)


ONLY_OF_LASED = {"n0", "episodes", "max_episode_arrivals"}
OPTIONS_OF_LASED = {"exponent", "prior_weight", "c", "alpha"} | ONLY_OF_LASED


@pytest.mark.parametrize("arrivals", [0, 15])
@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
def test_episodes_by_pool(rho, arrivals):
    options = {"episodes": "pool", "n0": 2, "max_episode_arrivals": arrivals}
    mu, guess, servers = (1.0, 2.0, 3.0, 4.0), (4.0, 3.0, 2.0, 1.0), (1, 1, 2, 1)
    assert_equal(Scenario("lased", rho * 13.0, mu, guess, 3000, servers=servers, options=options), seed=5)


@pytest.mark.parametrize("episodes", ["system", "pool"])
def test_many_pools(episodes):
    mu = tuple(1.0 + i % 3 for i in range(30))
    scenario = Scenario("lased", 0.2 * sum(mu), mu, (1.0,) * 30, 1500, options={"episodes": episodes, "n0": 1})
    assert_equal(scenario, seed=4)


def test_streams_are_python_s_own_from_any_even_place():
    rng = Random("7/work/0")
    for _ in range(5):
        rng.random()
    stream = records_of(rng)[0]
    assert [uniform(stream) for _ in range(2000)] == [rng.random() for _ in range(2000)]


def test_long_tailed_draws_are_python_s_own():
    law = distributions.Lognormal(2.0, Random("1/x"), 2.0)
    stream = records_of(Random("1/x"))[0]
    variance = 1.6094379124341003  # ln 5
    assert [service(stream, 2, 2.0, -variance / 2 - 0.6931471805599453, variance**0.5) for _ in range(500)] == [
        law.sample(0.0) for _ in range(500)
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"policy": "peak_ewma"}, "policy 'peak_ewma' is not compiled"),
        ({"options": {"estimator": "window:size=99"}}, "only the mean is compiled"),
        ({"profiles": ("step:at=5,factor=0.5", "")}, "rates that change are not compiled"),
    ],
)
def test_says_what_it_cannot_run(change, reason):
    scenario = dataclasses.replace(Scenario("lased", 1.0, (1.0, 2.0), (1.0, 2.0), 10), **change)
    assert reason in obstacle(scenario)
    with pytest.raises(ConfigError, match="cannot run this"):
        Compiled(scenario)
