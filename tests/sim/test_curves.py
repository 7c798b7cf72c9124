"""Exact values and optimal routing of pools with any throughput curve."""

import math
from itertools import accumulate

import numpy as np
import pytest

from dispatcher.errors import ConfigError
from loadgen.experiments.theory_exact import report
from loadgen.sim import theory
from workers.curves import parse_curve


def system(lam, *curves, side=0):
    return theory.System(lam, side=side, curves=tuple(map(parse_curve, curves)))


F1X5, F1X25 = "fcfs:servers=1,seconds=0.005", "fcfs:servers=1,seconds=0.025"
F2X10, F32X40 = "fcfs:servers=2,seconds=0.01", "fcfs:servers=32,seconds=0.04"
F4X40, F16X80 = "fcfs:servers=4,seconds=0.04", "fcfs:servers=16,seconds=0.08"
P1X10, P16X60 = "ps:servers=1,seconds=0.01", "ps:servers=16,seconds=0.06"

# pools, λ, least mean response and that of SED with ties to the second pool, milliseconds; from an independent program
KNOWN = [
    ((F4X40, F16X80), 150.0, 58.8, 66.2),
    ((F1X25, "fcfs:servers=8,seconds=0.05"), 100.0, 43.3, 43.4),
    ((F1X25, F1X5), 144.0, 13.1, 14.2),
    pytest.param((F1X25, F1X5), 216.0, 45.1, 48.6, marks=pytest.mark.slow),
    ((F2X10, F32X40), 500.0, 30.1, 36.7),
    ((F2X10, F32X40), 800.0, 34.0, 39.0),
    (("fcfs:servers=10,seconds=0.02", "fcfs:servers=3,seconds=0.03"), 420.0, 21.9, 22.5),
    (("ps:servers=4,seconds=0.04", "ps:servers=2,seconds=0.02"), 120.0, 31.1, 35.0),
    ((P1X10, P16X60), 0.8 * (100 + 16 / 0.06), 50.0, 58.5),
    ((P1X10, P16X60), 0.4 * (100 + 16 / 0.06), 36.5, 45.3),
    (("infinite:seconds=0.05", "fcfs:servers=4,seconds=0.02"), 300.0, 33.8, 44.5),
    (("infinite:seconds=0.1", F1X5), 150.0, 17.8, 19.8),
]


@pytest.mark.parametrize(("curves", "lam", "best", "sed"), KNOWN)
def test_known_optima_and_those_of_sed(curves, lam, best, sed):
    pools = system(lam, *curves)
    assert 1e3 * theory.optimum(pools).mean_response == pytest.approx(best, abs=0.06)
    assert 1e3 * theory.chain(pools, theory.sed(pools, ties="last")).mean_response == pytest.approx(sed, abs=0.06)


@pytest.mark.parametrize(
    ("curves", "lam"),
    [
        ((F4X40, F16X80), 150.0),
        (("soft:a=0.1,seconds=0.02", "table:10,18,24"), 60.0),
        (("infinite:seconds=0.05", "fcfs:servers=4,seconds=0.02"), 300.0),
        (("retrograde:servers=4,peak=8,seconds=0.02", "limited:servers=2,limit=64,seconds=0.005"), 300.0),
    ],
)
def test_the_chain_of_the_optimal_routing_has_its_mean_and_no_rule_is_better(curves, lam):
    pools = system(lam, *curves)
    best = theory.optimum(pools)
    assert theory.chain(pools, best.routing).mean_in_system == pytest.approx(best.mean_in_system, abs=1e-6)
    for routing in (theory.sed(pools), theory.sed(pools, ties="last"), theory.jsq(pools), theory.curve(pools)):
        steady = theory.chain(pools, routing)
        assert steady.edge < 1e-6
        assert steady.mean_in_system >= best.mean_in_system - 1e-7


@pytest.mark.parametrize(
    ("curves", "lam", "most"),
    [
        ((F4X40, F16X80), 150.0, 1.01),
        ((F2X10, F32X40), 500.0, 1.01),
        ((P1X10, P16X60), 147.0, 1.01),
        (("infinite:seconds=0.05", "fcfs:servers=4,seconds=0.02"), 300.0, 1.02),
    ],
)
def test_the_score_of_the_curve_policy_comes_near_the_optimum_where_sed_does_not(curves, lam, most):
    pools = system(lam, *curves)
    best = theory.optimum(pools).mean_in_system
    assert theory.chain(pools, theory.curve(pools)).mean_in_system < most * best
    assert theory.chain(pools, theory.sed(pools)).mean_in_system > 1.1 * best


@pytest.mark.parametrize(
    ("curve", "lam"),
    [
        ("soft:a=0.1,seconds=0.02", 300.0),
        ("table:10,18,24", 20.0),
        ("limited:servers=2,limit=5,seconds=1", 1.2),
        ("retrograde:servers=4,peak=8,seconds=0.02,limit=10", 120.0),
    ],
)
def test_one_pool_is_its_birth_and_death_chain(curve, lam):
    pool = system(lam, curve)
    rates = [lam / pool.curves[0].rate(n) for n in range(1, pool.side)]
    weights = np.array(list(accumulate(rates, lambda a, b: a * b, initial=1.0)))
    expected = (weights * np.arange(pool.side)).sum() / weights.sum()
    steady = theory.chain(pool, theory.sed(pool))
    assert steady.mean_in_system == pytest.approx(expected, rel=1e-9)
    assert theory.optimum(pool).mean_in_system == pytest.approx(expected, rel=1e-6)
    assert steady.edge < 1e-6


@pytest.mark.parametrize("lam", [4.0, 200.0, 4000.0])
def test_an_infinite_server_has_poisson_numbers_at_any_load(lam):
    pool = system(lam, "infinite:seconds=0.05")
    steady = theory.chain(pool, theory.sed(pool))
    assert steady.mean_in_system == pytest.approx(lam * 0.05, rel=1e-6)
    log = -lam * 0.05 + np.arange(pool.side) * math.log(lam * 0.05) - [math.lgamma(n + 1) for n in range(pool.side)]
    assert steady.law == pytest.approx(np.exp(log), abs=1e-8)


def test_curves_of_servers_are_the_simple_form():
    simple, curves = theory.System(150.0, (25.0, 12.5), (4, 16)), system(150.0, F4X40, F16X80)
    assert (simple.side, simple.rho) == (curves.side, pytest.approx(curves.rho))
    for rule in (theory.sed, theory.jsq):
        assert (rule(simple) == rule(curves)).all()
    assert theory.chain(simple, theory.sed(simple)).regret == 0.0


def test_equal_scores_go_where_the_tie_rule_says():
    pools = system(150.0, F4X40, F16X80, side=40)
    assert (theory.sed(pools, ties="fastest") == theory.sed(pools)).all()
    assert (theory.sed(pools, ties="slowest") == theory.sed(pools, ties="last")).all()
    assert [int(theory.jsq(pools, ties)[0, 0]) for ties in theory.TIES] == [0, 1, 0, 1]
    assert not theory.wrong(pools, theory.sed(pools, ties="last")).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: system(9.0, "retrograde:servers=4,peak=8,seconds=0.02"), "no steady state: lam = 9 is not below"),
        (lambda: system(25.0, "table:10,30,20"), "no steady state"),
        (lambda: system(1.0, *[F1X5] * 4), "one to three pools, not 4"),
        (lambda: system(1.0, "infinite:seconds=1,limit=300", F1X5), "at most 248 servers or requests in service"),
        (lambda: system(1.0, "table:1,2,3,4", side=5), "between 6 and 5000"),
        (lambda: report("all", 1.0, (), (), (), 0, ("x",)), "--curve: unknown curve 'x'"),
        (lambda: report("all", 1.0, (1.0, 2.0), (), (), 0, (), "best"), "--ties must be one of first, last, fastest"),
        (lambda: report("chain", 1e6, (), (), (), 0, ("infinite:seconds=1",)), "the load is too high for exact values"),
    ],
)
def test_what_cannot_be_solved_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_report_names_the_curves_and_shows_how_closely_the_optimum_is_known():
    curves = ("infinite:seconds=0.1", F1X5)
    found = report("all", 150.0, (), (), (), 0, curves, "last")
    assert found["curves"] == list(curves)
    assert found["optimum"]["gap"] <= 1e-7
    rules = {row["rule"]: row for row in found["rules"]}
    assert set(rules) >= {"sed", "jsq", "curve", "optimum"}
    assert 1e3 * rules["sed"]["mean_response"] == pytest.approx(19.75, abs=0.01)
    assert rules["optimum"]["above_optimum"] == pytest.approx(0.0, abs=1e-6)
