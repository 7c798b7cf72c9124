"""The optimal routing: known values, and what must hold of any optimum."""

import numpy as np
import pytest

from dispatcher.errors import ConfigError
from loadgen.sim import theory
from loadgen.sim.compiled import Compiled
from loadgen.sim.model import Scenario
from loadgen.sim.replicate import mean_and_se

# λ, μ, least mean number in system and SED's. At load 0.9 a truncation to 61 states a pool is a
# tenth of a per cent off; these are converged (150 and 250 states agree to 1e-8).
OPTIMA = [
    (3.6, (1.0, 5.0), 1.887148, 1.964442),
    (1.8, (1.0, 2.0), 1.945104, 1.945104),
    (8.8, (1.0, 10.0), 4.549075, 5.100163),
    pytest.param(9.9, (1.0, 10.0), 9.689736, 10.798226, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("lam", "mu", "best", "sed"), OPTIMA)
def test_known_optima(lam, mu, best, sed):
    system = theory.System(lam, mu)
    found = theory.optimum(system)
    assert found.mean_in_system == pytest.approx(best, abs=2e-6)
    assert theory.chain(system, theory.sed(system)).mean_in_system == pytest.approx(sed, rel=1e-6)


@pytest.mark.parametrize("servers", [(1, 1), (2, 3)])
def test_the_stationary_law_of_the_optimal_routing_confirms_it(servers):
    system = theory.System(4.0, (1.0, 4.0), servers)
    found = theory.optimum(system)
    assert theory.chain(system, found.routing).mean_in_system == pytest.approx(found.mean_in_system, abs=1e-6)


def test_no_other_rule_is_better():
    system = theory.System(2.0, (1.0, 3.0), side=40)
    best = theory.optimum(system).mean_in_system
    dice = np.random.default_rng(1)
    for routing in (theory.jsq(system), *(theory.sed(system, exponent=e) for e in (0.3, 0.5, 0.7, 0.9))):
        assert theory.chain(system, routing).mean_in_system >= best - 1e-9
    changed = theory.optimum(system).routing.copy()
    changed[tuple(dice.integers(0, 5, 2))] ^= 1
    assert theory.chain(system, changed).mean_in_system >= best - 1e-9


# μ, load, exponent, L above the optimum: converged values
EXPONENTS = [
    ((1.0, 5.0), 0.6, 0.7, 0.0052),
    ((1.0, 5.0), 0.6, 1.0, 0.0410),
    ((1.0, 10.0), 0.8, 0.7, 0.0120),
    ((1.0, 10.0), 0.8, 1.0, 0.1210),
    pytest.param((1.0, 10.0), 0.9, 0.7, 0.0122, marks=pytest.mark.slow),
    pytest.param((1.0, 10.0), 0.9, 1.0, 0.1144, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("mu", "rho", "exponent", "above"), EXPONENTS)
def test_rates_to_a_power_come_near_the_optimum(mu, rho, exponent, above):
    system = theory.System(rho * sum(mu), mu)
    steady = theory.chain(system, theory.sed(system, exponent=exponent))
    assert steady.mean_in_system / theory.optimum(system).mean_in_system - 1 == pytest.approx(above, abs=6e-4)


@pytest.mark.parametrize("servers", [(1, 1), (4, 2)])
def test_the_policies_exponent_is_that_of_the_theory(servers):
    mu, lam = (1.0, 5.0), 0.7 * (servers[0] + 5.0 * servers[1])
    scenario = Scenario("sed", lam, mu, mu, 20_000, servers=servers, options={"exponent": 0.7}, warmup=2000)
    mean, se = mean_and_se([Compiled(scenario).simulate(seed).mean_in_system for seed in range(8)])
    system = theory.System(lam, mu, servers)
    assert abs(mean - theory.chain(system, theory.sed(system, exponent=0.7)).mean_in_system) <= 4 * se


def test_three_pools_and_one():
    system = theory.System(0.5, (1.0,))
    assert theory.chain(system, theory.sed(system)).mean_in_system == pytest.approx(1.0)
    system = theory.System(2.0, (1.0, 1.0, 1.0), side=18)
    best = theory.optimum(system)
    assert theory.chain(system, theory.jsq(system)).mean_in_system == pytest.approx(best.mean_in_system, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3.0, (1.0, 2.0)), "no steady state"),
        ((1.0, (1.0, 1.0, 1.0, 1.0)), "one to three pools, not 4"),
        ((1.0, (1.0, 2.0), (1,)), "servers has 1 values"),
        ((1.0, (1.0, -2.0)), "must be positive"),
        ((1.0, (1.0, 2.0), (), 251), "between 3 and 250"),
    ],
)
def test_what_cannot_be_solved_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        theory.System(*arguments)
