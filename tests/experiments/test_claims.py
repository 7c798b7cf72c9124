"""Checks of claims on results made by hand: each holds where it should, and does not where it should not."""

import math

import numpy as np
import pytest

from dispatcher.errors import ConfigError
from loadgen.experiments import claims
from loadgen.experiments.results import Measured, Results, student
from loadgen.experiments.sim_comparison import axis_of, difference
from loadgen.experiments.spec import Cell, Spec
from loadgen.sim.model import Scenario

N, POINTS = 20, 10


def measured(labels, curve=None, policy="lased", noise=0.0, arrivals=1000, shares=(0.5, 0.5), joined=None, **values):
    """A cell whose replications differ by noise only. curve: of the mean regret."""
    curve = np.linspace(1, 100, POINTS) if curve is None else np.asarray(curve, dtype=float)
    wobble = noise * np.linspace(-1, 1, N)
    scenario = Scenario(policy, 1.0, (1.0, 2.0), (1.0, 2.0), arrivals, points=len(curve))
    columns = {
        "curve": curve + wobble[:, None],
        "regret": curve[-1] + wobble,
        "shares": np.tile(shares, (N, 1)),
        "joined": np.tile(np.zeros((len(curve), 2)) if joined is None else joined, (N, 1, 1)),
        **{name: value + wobble for name, value in values.items()},
    }
    return Measured(Cell(labels, scenario), tuple(range(N)), columns)


LINE, FLAT = np.arange(1, 11) * 10, np.minimum(np.arange(1, 11), 2) * 10


def results(**curves):
    return Results([measured({"policy": name}, curve) for name, curve in curves.items()])


def test_linear_and_flat_are_distinguished():
    both = results(line=LINE, flat=FLAT)
    assert claims.linear(both, {"policy": "line"}, tolerance=0.01)[0]
    assert not claims.linear(both, {"policy": "flat"}, tolerance=0.5)[0]
    assert claims.flattens(both, {"policy": "flat"}, most=0.0)[0]
    assert not claims.flattens(both, {"policy": "line"}, most=0.4)[0]
    assert not claims.linear(results(none=np.zeros(10)), {"policy": "none"}, tolerance=0.1)[0], "nothing is no line"


def test_agrees_adds_the_errors_of_both_sources():
    one = Results([measured({"policy": "a"}, LINE, noise=1.0)])  # its standard error is 0.136

    def agrees(mean, error, arrivals=500):
        expected = {"policy": {"a": [mean, error]}}
        return claims.agrees(one, {}, expected, arrivals=arrivals, standard_errors=3.0)[0]

    assert agrees(50.4, 0.0)
    assert not agrees(50.5, 0.0)
    assert agrees(53.0, 1.0)
    assert not agrees(54.0, 1.0)
    with pytest.raises(LookupError, match="no point of the curve is at 501 arrivals"):
        agrees(50.0, 1.0, arrivals=501)


def test_lower_asks_for_standard_errors():
    a, b = measured({"policy": "a"}, LINE), measured({"policy": "b"}, LINE + 1, noise=3.0)
    both = Results([a, b])
    less = {"metric": "regret", "less": {"policy": "a"}, "more": {"policy": "b"}}
    assert claims.lower(both, **less, standard_errors=2.0)[0]
    assert not claims.lower(both, **less, standard_errors=4.0)[0]
    assert not claims.lower(both, metric="regret", less=less["more"], more=less["less"], standard_errors=0.0)[0]
    assert claims.level_or_lower(
        both, metric="regret", less=less["more"], more=less["less"], standard_errors=3.0, tolerance=0.0
    )[0]


def test_unpaired_replications_are_not_compared():
    a, b = measured({"policy": "a"}), measured({"policy": "b"})
    b = Measured(b.cell, tuple(range(1, N + 1)), b.values)
    with pytest.raises(LookupError, match="not the same"):
        claims.difference(Results([a, b]), "regret", {"policy": "a"}, {"policy": "b"})


def test_not_monotone_needs_a_fall_and_a_rise():
    def along(values):
        return Results(
            [
                measured({"policy": p, "g": str(i)}, LINE + (v if p == "a" else 0))
                for i, v in enumerate(values)
                for p in "ab"
            ]
        )

    given = {
        "metric": "regret",
        "first": {"policy": "a"},
        "second": {"policy": "b"},
        "along": "g",
        "turn": ["0", "1", "2"],
        "standard_errors": 2.0,
    }
    assert claims.not_monotone(along([3, 1, 2]), **given)[0]
    assert claims.not_monotone(along([1, 3, 2]), **given)[0]
    assert not claims.not_monotone(along([1, 1, 1]), **given)[0]
    assert not claims.not_monotone(along([1, 2, 3]), **given)[0]


def test_flat_later_follows_the_axis():
    early, late = np.minimum(np.arange(1, 11), 1) * 10, LINE
    cells = [measured({"rho": rho}, curve) for rho, curve in (("0.3", early), ("0.9", late))]
    assert claims.flat_later(Results(cells), {}, "rho")[0]
    assert not claims.flat_later(Results([measured({"rho": "0.3"}, late), measured({"rho": "0.9"}, early)]), {}, "rho")[
        0
    ]


def test_starves():
    cells = Results([measured({"policy": "a"}, shares=(0.9999, 0.0001))])
    assert claims.starves(cells, {"policy": "a"}, pool=2, most=0.001)[0]
    assert not claims.starves(cells, {"policy": "a"}, pool=1, most=0.001)[0]


@pytest.mark.parametrize(
    ("share_after", "took"), [([0.5] * 50, 0.0), ([0.9] * 20 + [0.5] * 30, 170.0), ([0.9] * 50, math.inf)]
)
def test_recovery_is_when_the_share_is_right_for_good(share_after, took):
    """Two equal pools at half load: SED gives the second one a little less than half, as ties go first."""
    share = np.array([0.9] * 50 + share_after)
    joined = np.cumsum(np.stack((10 * (1 - share), 10 * share), axis=1), axis=0)
    one = measured({"policy": "a"}, np.zeros(100), joined=joined)
    assert claims.recovery(one, pool=2, rates=(1.0, 1.0), at=0.5, tolerance=0.2) == took


def test_the_sum_against_the_better_one():
    cells = Results(
        [
            measured({"policy": p, "cell": c}, np.full(10, v))
            for c, row in (("x", (10, 90, 12)), ("y", (80, 20, 15)))
            for p, v in zip(("a", "b", "best"), row, strict=True)
        ]
    )
    given = {"of": "policy", "best": "best", "others": ["a", "b"]}
    assert claims.sum_of_better(cells, **given, most=0.9, worst=2.0)[0]
    assert not claims.sum_of_better(cells, **given, most=0.89, worst=2.0)[0]
    assert not claims.sum_of_better(cells, **given, most=0.9, worst=1.0)[0]


def spec_with(**claim):
    return Spec(
        title="x",
        source="x",
        picture="dots",
        scenario={},
        axes={"policy": ["line", "flat"]},
        claims=[claim],
        sizes={"quick": {"arrivals": 9, "reps": 2}},
    )


LINEAR = {"says": "x", "check": "linear", "given": {"where": {"policy": "flat"}, "tolerance": 0.1}}


def test_a_claim_that_cannot_be_judged_is_open():
    both = results(line=LINE)
    (verdict,) = claims.judge(spec_with(**LINEAR), both)
    assert verdict.holds is None
    assert "there is no cell" in verdict.evidence
    (verdict,) = claims.judge(spec_with(**LINEAR), both, live=True)
    assert verdict.evidence == "not judged on a live run, which is too short"
    (verdict,) = claims.judge(spec_with(**LINEAR, full_only=True), both, size="quick")
    assert verdict.evidence.startswith("judged in full size only")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"check": "liner"}, "there is no check 'liner'"),
        ({"given": {"where": {"policy": "line"}}}, "tolerance"),
        ({"given": {"where": {"policy": "lime"}, "tolerance": 0.1}}, "no policy is 'lime'; there are: line, flat"),
        ({"given": {"where": {"polcy": "line"}, "tolerance": 0.1}}, "no polcy is 'line'; there are: none"),
        (
            {"check": "starves", "given": {"where": {"policy": "line"}, "pool": 0, "most": 0.1}},
            "numbered from 1, not 0",
        ),
        ({"check": "starves", "given": {"where": {"policy": "line"}, "pool": 3, "most": 0.1}}, "out of bounds"),
    ],
)
def test_a_claim_that_is_not_stated_rightly_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        claims.judge(spec_with(**{**LINEAR, **change}), results(line=LINE))


def test_paired_differences_lose_the_shared_noise():
    a = measured({"policy": "a"}, mean_response=2.0, noise=1.0)
    b = measured({"policy": "b"}, mean_response=1.9, noise=1.0)
    result = difference(b, a, "mean_response")
    assert result.mean == pytest.approx(-0.1)
    assert result.half == pytest.approx(0.0, abs=1e-12)
    assert result.verdict == "better"
    assert result.part == pytest.approx(-0.05)


@pytest.mark.parametrize(("n", "exact"), [(2, 12.706), (3, 4.303), (4, 3.182), (10, 2.262), (30, 2.045), (1000, 1.962)])
def test_the_quantile_of_students_t(n, exact):
    assert student(n) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("text", ["lased", "", "a,a"])
def test_a_comparison_needs_two_different_policies(text):
    with pytest.raises(ConfigError, match="at least two different ones"):
        axis_of(text)


def test_policies_are_named_with_their_options():
    assert axis_of("lased/estimator=window:size=99/c=2,mine:Policy") == [
        {
            "label": "lased/estimator=window:size=99/c=2",
            "policy": "lased",
            "options": {"estimator": "window:size=99", "c": "2"},
        },
        {"label": "mine:Policy", "policy": "mine:Policy", "options": {}},
    ]
