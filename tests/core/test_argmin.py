"""The one argmin: never a worse one, ties by rule, rounding decides nothing."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.argmin import TIE_RULES, argmin, check_ties
from dispatcher.core.fleet import Pool
from dispatcher.core.types import PoolSpec
from dispatcher.errors import ConfigError, PolicyError

scores_of = st.lists(st.floats(0, 1e12, allow_nan=False), min_size=1, max_size=20)


def pools(n):
    return [Pool(PoolSpec(str(i))) for i in range(n)]


@given(scores_of, st.sampled_from(TIE_RULES))
def test_never_takes_a_worse_one(scores, ties):
    there = pools(len(scores))
    taken = argmin(there, scores, ties, speed=lambda pool: float(pool.id), rng=Random(1))
    assert scores[there.index(taken)] <= min(scores) * (1 + 3e-9)


def test_rules_choose_among_equals_only():
    there = pools(4)
    scores = [2.0, 1.0, 1.0 + 1e-10, 1.0]
    speed = {"0": 9.0, "1": 3.0, "2": 1.0, "3": 2.0}
    taken = {
        ties: argmin(there, scores, ties, speed=lambda pool: speed[pool.id], rng=Random(1)).id
        for ties in ("first", "slowest", "fastest")
    }
    assert taken == {"first": "1", "slowest": "2", "fastest": "1"}


def test_random_ties_are_even():
    rng, there = Random(3), pools(3)
    n = 3000
    taken = [argmin(there, [1.0, 1.0, 5.0], "random", rng=rng).id for _ in range(n)]
    standard_error = (n * 0.25) ** 0.5
    assert abs(taken.count("0") - n / 2) < 4 * standard_error
    assert taken.count("2") == 0


def test_a_score_that_is_no_number_is_the_policys_fault():
    with pytest.raises(PolicyError, match="not a number"):
        argmin(pools(2), [float("nan"), float("nan")])


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match="first, random, slowest, fastest"):
        check_ties("best")
