"""The simulator against exact values of truncated chains (and M/M/1, M/M/c), within 4 standard errors.

Most tests run the compiled kernel, which `test_compiled` holds equal to the live objects, decision by decision."""

import math

import pytest

from loadgen.sim import theory
from loadgen.sim.compiled import Compiled
from loadgen.sim.model import Scenario, simulate
from loadgen.sim.replicate import mean_and_se

# μ, ρ, policy, guesses, L, W, share of pool 1, regret per arrival in the steady state
EXACT = [
    ((0.75, 0.91), 0.3, "sed", None, 0.661563, 1.328439, 0.290753, 0.0),
    ((0.75, 0.91), 0.6, "sed", None, 1.980907, 1.988863, 0.392606, 0.0),
    ((0.75, 0.91), 0.9, "sed", None, 9.808087, 6.564985, 0.441358, 0.0),
    ((0.75, 0.91), 0.9, "esed", (0.74, 0.92), 9.808195, 6.565057, 0.441351, 0.02582523),
    ((0.75, 0.91), 0.6, "esed", (0.74, 0.92), 1.980908, 1.988863, 0.392606, 0.00004417),
    ((1.0, 2.0), 0.6, "sed", None, 1.945104, 1.080614, 0.293945, 0.0),
    ((1.0, 2.0), 0.6, "jsq", None, 2.329235, 1.294019, 0.442670, 0.40207740),
    ((1.0, 5.0), 0.6, "sed", None, 1.964442, 0.545678, 0.057111, 0.0),
    ((1.0, 5.0), 0.6, "jsq", None, 3.144042, 0.873345, 0.258146, 0.25814461),
    ((1.0, 10.0), 0.3, "sed", None, 0.492500, 0.149242, 0.000023, 0.0),
    ((1.0, 10.0), 0.3, "jsq", None, 1.630658, 0.494139, 0.260341, 0.26034054),
    ((5.0, 10.0), 1 / 15, "sed", None, 0.109199, 0.109199, 0.084892, 0.0),
]


def within(values, exact, floor=0.0):
    mean, se = mean_and_se(values)
    assert abs(mean - exact) <= 4 * max(se, floor), f"{mean} ± {se}, exactly {exact}"


def compiled(scenario, seed):
    return Compiled(scenario).simulate(seed)


def replications(policy, lam, mu, guess, arrivals, reps=10, run=compiled, **more):
    """Independent runs, each without its warm-up, so that they are alike and nearly stationary."""
    scenario = Scenario(policy, lam, mu, guess or mu, arrivals, warmup=arrivals // 10, **more)
    return [run(scenario, 100 + j) for j in range(reps)]


def check_exact(row, arrivals, run=compiled):
    mu, rho, policy, guess, mean_in_system, response, share, slope = row
    results = replications(policy, rho * sum(mu), mu, guess, arrivals, run=run)
    within([r.mean_in_system for r in results], mean_in_system)
    within([r.mean_response for r in results], response)
    # a share of 2e-5 is too rare for a sample variance: the binomial one is the floor
    n = arrivals * len(results)
    within([r.shares[0] for r in results], share, floor=math.sqrt(share * (1 - share) / n))
    within([r.regret / arrivals for r in results], slope, floor=math.sqrt(slope / n))


@pytest.mark.parametrize("row", EXACT, ids=lambda row: f"{row[2]}-{row[0]}-{row[1]:.2g}")
def test_exact_values(row):
    check_exact(row, arrivals=50_000)


@pytest.mark.slow
@pytest.mark.parametrize("row", EXACT, ids=lambda row: f"{row[2]}-{row[0]}-{row[1]:.2g}")
def test_exact_values_of_the_live_objects(row):
    check_exact(row, arrivals=12_000, run=simulate)


@pytest.mark.slow
@pytest.mark.parametrize("row", EXACT, ids=lambda row: f"{row[2]}-{row[0]}-{row[1]:.2g}")
def test_exact_values_closely(row):
    check_exact(row, arrivals=1_000_000)


@pytest.mark.parametrize("row", EXACT, ids=lambda row: f"{row[2]}-{row[0]}-{row[1]:.2g}")
def test_the_stationary_law(row):
    """The same numbers by `sim.theory`, on a truncation of 90 a side, as they were made."""
    mu, rho, policy, guess, mean_in_system, response, share, slope = row
    system = theory.System(rho * sum(mu), mu, side=90)
    routing = theory.jsq(system) if policy == "jsq" else theory.sed(system, guess)
    steady = theory.chain(system, routing)
    # at load 0.9 some 1e-6 of the arrivals meet the edge, and how they are treated there shows in the last digits
    assert steady.edge < 1e-5
    assert steady.mean_in_system == pytest.approx(mean_in_system, rel=2e-6)
    assert steady.mean_response == pytest.approx(response, rel=5e-6)
    assert steady.shares[0] == pytest.approx(share, abs=1e-6)
    assert steady.regret == pytest.approx(slope, abs=1e-8)


def test_one_pool_is_an_mm1_queue():
    rho = 0.5
    results = replications("lased", rho, (1.0,), (3.0,), 20_000)
    within([r.mean_in_system for r in results], rho / (1 - rho))


def test_one_pool_of_three_servers_is_an_mm3_queue():
    """Erlang C by its textbook sum."""
    c, a = 3, 1.8
    tail = a**c / math.factorial(c) * c / (c - a)
    wait = tail / (sum(a**k / math.factorial(k) for k in range(c)) + tail)
    results = replications("lased", a, (1.0,), (1.0,), 20_000, servers=(c,))
    within([r.mean_in_system for r in results], a + wait * a / (c - a))


# λ, μ, guesses, {policy: mean regret after 10,000 arrivals and its standard error over 1,000 replications}
REGRET = [
    (0.2, (1.0, 1.0), (1.0, 0.1), {"lased": (0.8, 0.05), "greedy": (1983.5, 5.8), "optimistic": (0.9, 0.09)}),
    (1.0, (1.0, 1.0), (1.0, 0.1), {"lased": (17.3, 0.9), "greedy": (49.0, 1.3), "optimistic": (5.0, 0.2)}),
    (1.8, (1.0, 1.0), (1.0, 1.0), {"lased": (99.9, 3.8), "greedy": (80.2, 2.9), "optimistic": (78.5, 2.8)}),
    (1.8, (1.0, 1.0), (1.0, 10.0), {"lased": (3336.0, 77.0), "greedy": (84.0, 2.9), "optimistic": (79.5, 2.8)}),
    (1.1, (1.0, 10.0), (1.0, 1.0), {"lased": (28.1, 0.01), "greedy": (3.1, 0.1), "optimistic": (5.7, 0.1)}),
    (1.1, (1.0, 10.0), (1.0, 10.0), {"lased": (28.0, 0.0), "greedy": (0.0, 0.0), "optimistic": (5.8, 0.1)}),
    (5.5, (1.0, 10.0), (1.0, 0.1), {"lased": (1823.0, 5.6), "greedy": (31.0, 0.5), "optimistic": (30.9, 0.4)}),
    (9.9, (1.0, 10.0), (1.0, 1.0), {"lased": (416.8, 8.9), "greedy": (230.7, 10.0), "optimistic": (163.1, 4.8)}),
    (1.0, (5.0, 10.0), (5.0, 0.1), {"lased": (16.4, 0.2), "greedy": (10000.0, 0.0), "optimistic": (7.7, 0.3)}),
    (1.494, (0.75, 0.91), (0.74, 0.92), {"lased": (559.0, 8.4), "greedy": (533.2, 8.0), "optimistic": (522.7, 8.1)}),
]


def check_regret(run, lam, mu, guess, policy, expected, reps):
    exact, held_se = expected
    scenario = Scenario(policy, lam, mu, guess, 10_000)
    mean, se = mean_and_se([run(scenario, 500 + j).regret for j in range(reps)])
    # what is held was rounded to its last digit; 1,000 replications bound the true spread where ours shows none
    spread = math.hypot(se, held_se, held_se * math.sqrt(1000 / reps) if not se else 0.0)
    assert abs(mean - exact) <= 4 * spread + 0.06, f"{mean} ± {se}, held {exact} ± {held_se}"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lased", "greedy"])
@pytest.mark.parametrize(("lam", "mu", "guess", "held"), [REGRET[1], REGRET[8]])
def test_mean_regret_of_the_live_objects(lam, mu, guess, held, policy):
    check_regret(simulate, lam, mu, guess, policy, held[policy], reps=12)


@pytest.mark.parametrize("policy", ["lased", "greedy", "optimistic"])
@pytest.mark.parametrize(("lam", "mu", "guess", "held"), REGRET)
def test_mean_regret(lam, mu, guess, held, policy):
    check_regret(compiled, lam, mu, guess, policy, held[policy], reps=100)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lased", "greedy", "optimistic"])
@pytest.mark.parametrize(("lam", "mu", "guess", "held"), REGRET)
def test_mean_regret_closely(lam, mu, guess, held, policy):
    check_regret(compiled, lam, mu, guess, policy, held[policy], reps=1000)
