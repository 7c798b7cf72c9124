"""LASED's rules, one by one, on the table."""

import math
from random import Random

import pytest

from dispatcher.core.types import Outcome, Phase, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.policies.lased import Lased
from dispatcher.testing import Table

POOLS = [PoolSpec("a", guess=5.0), PoolSpec("b", guess=0.1)]


def table(n0=2, specs=POOLS, **options):
    return Table(Lased(rng=Random(1), n0=n0, **options), specs)


def arrive_and_finish(t, service_time=1.0):
    ticket = t.arrive()
    t.finish(ticket, service_time=service_time)
    return ticket.pool.id, ticket.decision.phase


def test_an_exploration_sends_n0_to_each_in_turn_and_the_episode_waits_for_it():
    t = table(n0=3)
    seen = [arrive_and_finish(t) for _ in range(6)]
    assert seen == [("a", Phase.EXPLORE), ("b", Phase.EXPLORE)] * 3
    assert t.router.policy.episode.number == 2, "the system was empty six times, and the exploration done once"


def test_the_estimates_of_the_episodes_beginning_decide_until_it_ends():
    t = table(n0=1)
    first, second = t.arrive(), t.arrive()
    assert [t.router.policy.rate(pool) for pool in "ab"] == [5.0, 0.1]
    t.finish(first, service_time=0.5)
    assert t.router.policy.rate("a") == 5.0, "inside the episode nothing changes"
    t.finish(second, service_time=0.25)
    assert [t.router.policy.rate(pool) for pool in "ab"] == [2.0, 4.0]


def test_exploration_comes_back_when_a_pool_is_seen_too_little_for_the_episodes_number():
    t = table(n0=1, c=2.0)
    phases = [arrive_and_finish(t, service_time=1.0 if i % 2 else 0.1)[1] for i in range(40)]
    explored = [i for i, phase in enumerate(phases) if phase is Phase.EXPLORE]
    policy = t.router.policy
    assert explored[:2] == [0, 1]
    assert len(explored) > 2
    assert min(mean.weight for mean in policy.means.values()) >= policy.needed(policy.episode.number) - 1


def test_needed_is_the_papers_bound_with_its_floor():
    policy = Lased(rng=Random(1))
    assert policy.needed(1) == 7
    assert policy.needed(1000) == pytest.approx(3 * math.log(1000))


def test_a_pool_without_an_observation_keeps_its_guess():
    t = table(n0=1)
    for ticket in (t.arrive(), t.arrive()):
        t.finish(ticket, Outcome.FAILED)
    assert t.router.policy.rate("b") == 0.1
    assert t.router.policy.episode.number == 2


def test_a_prior_counts_as_observations_of_the_guess():
    t = table(n0=1, prior_weight=1.0)
    for ticket in (t.arrive(), t.arrive()):
        assert ticket.pool.id == "a", "one observation each is what episode 1 needs: no exploration"
        t.finish(ticket, service_time=0.3)
    assert t.router.policy.rate("a") == pytest.approx(3 / (1 / 5.0 + 2 * 0.3))


def test_an_episode_that_never_ends_can_be_closed_early():
    t = table(n0=1, max_episode_arrivals=4)
    held = [t.arrive()]
    for _ in range(3):
        t.finish(t.arrive(), service_time=0.1)
    assert t.router.policy.episode.number == 1
    t.finish(t.arrive(), service_time=0.1)
    assert t.router.policy.episode.number == 2, "the system was never empty"
    assert held[0].is_open


def test_the_trials_of_a_pool_that_leaves_are_dropped_with_it():
    t = table(n0=5)
    for _ in range(4):
        arrive_and_finish(t)
    t.remove("b")
    for _ in range(3):
        assert arrive_and_finish(t)[0] == "a"
    assert t.router.policy.episode.number >= 2


def test_a_pool_that_returns_is_remembered():
    t = table(n0=1)
    for _ in range(6):
        arrive_and_finish(t, service_time=0.5)
    known = t.router.policy.estimates()["b"].observations
    t.remove("b")
    t.add(POOLS[1])
    assert t.router.policy.estimates()["b"].observations == known > 0
    assert t.router.policy.rate("b") == 2.0


def test_a_pool_that_returns_within_the_episode_is_judged_as_at_its_beginning():
    t = table(n0=1)
    for ticket in (t.arrive(), t.arrive()):
        t.finish(ticket, service_time=0.5)
    held = [t.arrive(), t.arrive()]
    t.finish(next(ticket for ticket in held if ticket.pool.id == "a"), service_time=9.0)
    t.remove("a")
    t.add(POOLS[0])
    assert t.router.policy.rate("a") == 2.0


def test_another_guess_of_a_pool_that_was_never_observed_is_used_from_the_end_of_the_episode():
    t = table(n0=1, specs=[POOLS[0]])
    held = t.arrive()
    t.add(POOLS[1])
    t.remove("b")
    t.add(PoolSpec("b", guess=0.7))
    assert t.router.policy.rate("b") == 0.1
    t.finish(held)
    assert t.router.policy.rate("b") == 0.7


def test_a_pool_that_was_observed_after_it_left_comes_back_with_the_new_estimate():
    t = table(n0=1)
    first, second = t.arrive(), t.arrive()
    t.remove("b")
    t.finish(first, service_time=0.5)
    t.finish(second, service_time=0.5)
    assert t.router.policy.episode.number == 2
    t.finish(t.arrive(), service_time=0.5)
    t.add(POOLS[1])
    assert t.router.policy.rate("b") == 2.0


def test_what_left_long_ago_is_forgotten():
    t = table(n0=1)
    for i in range(400):
        t.add(PoolSpec(f"x{i}"))
        t.remove(f"x{i}")
    assert len(t.router.policy._departed) <= 256


def test_pools_with_more_servers_take_more_before_they_look_slow():
    specs = [PoolSpec("one", guess=1.0), PoolSpec("four", servers=4, guess=1.0)]
    t = table(n0=1, specs=specs)
    for ticket in (t.arrive(), t.arrive()):
        t.finish(ticket)
    held = [t.arrive().pool.id for _ in range(5)]
    assert held == ["one", "four", "four", "four", "four"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"n0": 0}, "n0"),
        ({"c": -1.0}, "c must be from 0"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": 1000.0}, "alpha"),
        ({"max_episode_arrivals": -1}, "max"),
        ({"prior_weight": -0.5}, "prior_weight"),
        ({"ties": "coin"}, "ties"),
        ({"c": math.nan}, "c must be from 0"),
    ],
)
def test_options_out_of_range_are_refused(options, word):
    with pytest.raises(ConfigError, match=word):
        Lased(rng=Random(1), **options)


def test_a_pool_that_is_forgotten_is_a_stranger_at_once_even_inside_an_episode():
    t = Table(Lased(rng=Random(1), n0=1, c=0.0), [PoolSpec("a", guess=2.0), PoolSpec("b", guess=2.0)])
    for _ in range(2):
        arrive_and_finish(t, service_time=0.01)
    t.arrive()
    before = t.router.policy.rate("a")
    assert before == pytest.approx(100.0)
    t.router.policy.reset_pool("a")
    assert t.router.policy.rate("a") == 2.0
