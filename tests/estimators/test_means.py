"""Estimators: what each remembers, for how long, and that all of them serve every learner."""

from random import Random

import pytest

from dispatcher.core.types import PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.estimators.discounted import Discounted
from dispatcher.estimators.mean import Mean
from dispatcher.estimators.named import estimator_maker
from dispatcher.estimators.window import Window
from dispatcher.policies.greedy import Greedy
from dispatcher.policies.lased import Lased
from dispatcher.policies.optimistic import Optimistic
from dispatcher.policies.partial_information.departure_rate import DepartureRate
from dispatcher.testing import Table, check_policy

TEXTS = ["mean", "discounted:factor=0.98", "window:size=50"]


@pytest.mark.parametrize("text", TEXTS)
def test_of_constant_observations_all_learn_the_rate(text):
    estimator = estimator_maker(text)(5.0, 2.0)
    assert estimator.rate == pytest.approx(5.0)
    for _ in range(200):
        estimator.learn_one(0.1)
    assert estimator.rate == pytest.approx(10.0, rel=0.03)
    assert estimator.observations == 200


def test_the_window_is_exactly_the_mean_of_the_last_ones():
    rng, window, seen = Random(1), Window(1.0, size=7), []
    for _ in range(100):
        seen.append(rng.expovariate(3.0))
        window.learn_one(seen[-1])
        assert window.weight == min(len(seen), 7)
        assert window.rate == pytest.approx(len(seen[-7:]) / sum(seen[-7:]), rel=1e-12)


def test_the_window_does_not_add_up_rounding_errors():
    window = Window(1.0, size=3)
    for _ in range(1000):
        for x in (1e9, 1e-9, 1.0):
            window.learn_one(x)
    for _ in range(3):
        window.learn_one(1e-9)
    assert 1 / window.rate == pytest.approx(1e-9)


def test_a_prior_leaves_the_window_as_its_oldest_entry():
    window = Window(guess=2.0, prior_weight=4.0, size=2)
    window.learn_one(1.0)
    assert (window.weight, window.total) == (5.0, 3.0)
    window.learn_one(1.0)
    assert (window.weight, window.total) == (2.0, 2.0)


def test_discounting_halves_what_is_old():
    mean = Discounted(1.0, factor=0.5)
    for x in (4.0, 2.0, 1.0):
        mean.learn_one(x)
    assert (mean.weight, mean.total) == (1.75, 3.0)


def test_the_discounted_interval_is_as_wide_as_the_spread_of_its_mean():
    """Share of intervals that hold the true rate, of 95 in a hundred."""
    rng, held, n = Random(5), 0, 2000
    for _ in range(n):
        mean = Discounted(1.0, factor=0.9)
        for _ in range(80):
            mean.learn_one(rng.expovariate(4.0))
        low, high = mean.interval
        held += low <= 4.0 <= high
    assert abs(held / n - 0.95) < 0.02


def test_a_mean_is_a_discounted_mean_without_discount():
    rng, plain, nearly = Random(2), Mean(1.0), Discounted(1.0, factor=1 - 1e-12)
    for _ in range(50):
        x = rng.expovariate(1.0)
        plain.learn_one(x)
        nearly.learn_one(x)
    assert nearly.rate == pytest.approx(plain.rate)
    assert nearly.interval == pytest.approx(plain.interval)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("policy", [Lased, Greedy, Optimistic])
def test_every_learner_takes_every_estimator(policy, text):
    check_policy(policy, estimator=text, prior_weight=1.0, exponent=0.7)


@pytest.mark.parametrize("text", ["discounted:factor=0.9", "window:size=20"])
def test_lased_refuses_what_forgets_too_fast_for_it(text):
    with pytest.raises(ConfigError, match="would explore for ever"):
        Lased(rng=Random(1), estimator=text)
    Lased(rng=Random(1), estimator=text, c=0.5)


@pytest.mark.parametrize("prior_weight", [0.0, 0.001, 0.1, 1.0])
def test_optimistic_stands_any_prior(prior_weight):
    check_policy(Optimistic, prior_weight=prior_weight)


@pytest.mark.parametrize(("text", "rate"), [("mean", 1.1), ("window:size=5", 5.0)])
def test_a_pool_that_slows_is_seen_to_be_slow_by_those_that_forget(text, rate):
    table = Table(Greedy(rng=Random(1), estimator=text), [PoolSpec("a", guess=1.0)])
    for seconds in (1.0,) * 50 + (0.2,) * 5:
        table.finish(table.arrive(), service_time=seconds)
    assert table.router.policy.rate("a") == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("censored", [True, False])
def test_departures_between_sights_of_a_backlog_tell_a_rate(censored):
    """Services at 2.0, sights half a second to two apart, one to three jobs sent in between; within 4 standard errors
    of the filter's memory of about a hundred intervals. Without the term for empty queues it would find a slower
    pool."""
    dice, found = Random(3), DepartureRate(1.0, factor=0.999)
    backlog, plain = 0, [0.0, 0.0]
    for _ in range(6000):
        before, seconds = backlog + dice.randint(1, 3), dice.uniform(0.5, 2.0)
        left, t = 0, dice.expovariate(2.0)
        while t < seconds and left < before:
            left, t = left + 1, t + dice.expovariate(2.0)
        backlog = before - left
        found.learn(before, backlog, seconds)
        plain = [plain[0] + left, plain[1] + seconds]
    if censored:
        assert found.rate == pytest.approx(2.0, rel=4 / 2000**0.5)
    else:
        assert plain[0] / plain[1] < 1.9
