"""The rule that ends LASED's episodes with `episodes = "pool"`, case by case."""

from random import Random

import pytest

from dispatcher.core.types import Outcome, Phase, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.policies.lased import MAX_ARRIVALS_BY_POOL, Lased
from dispatcher.testing import Table
from loadgen.sim.model import Scenario, simulate

A, B, C = (PoolSpec(name, guess=guess) for name, guess in (("a", 3.0), ("b", 2.0), ("c", 1.0)))
CAP = 6  # arrivals; a multiple of two pools and of three


def table(specs=(A, B), **options):
    """A table on which the first episode, with one trial of each pool, has ended."""
    t = Table(Lased(rng=Random(1), episodes="pool", n0=1, c=0.0, **options), specs)
    for ticket in [t.arrive() for _ in specs]:
        t.finish(ticket, service_time=1.0)
    assert episode(t) == 2
    return t


def episode(t):
    return t.router.policy.episode.number


def arrive_at(t, pool):
    ticket = t.arrive(exclude=frozenset(other.id for other in t.router.fleet.pools if other.id != pool))
    assert ticket.pool.id == pool
    return ticket


def busy_at_the_beginning(specs=(A, B)):
    """A table on which every pool was busy as the third episode began, and a ticket of each pool."""
    t = table(specs, max_episode_arrivals=CAP)
    held = {spec.id: [arrive_at(t, spec.id) for _ in range(CAP // len(specs))][-1] for spec in specs}
    assert episode(t) == 2
    t.arrive()
    assert episode(t) == 3, "the cap has ended the second episode"
    return t, held


def finish_all(t, pool):
    for ticket in [ticket for ticket in t.open if ticket.pool.id == pool]:
        t.finish(ticket)


def test_an_episode_ends_when_every_pool_was_empty_once_though_never_all_at_one_instant():
    t, _ = busy_at_the_beginning()
    finish_all(t, "a")
    again = arrive_at(t, "a")
    assert episode(t) == 3, "pool b has not been empty yet"
    finish_all(t, "b")
    assert episode(t) == 4
    assert again.is_open, "pool a is busy again, so the system was never empty"


def test_a_pool_that_was_empty_at_the_beginning_counts_as_having_been_empty():
    t = table()
    held = arrive_at(t, "b")
    t.finish(arrive_at(t, "a"))
    assert episode(t) == 3
    assert held.is_open


def test_an_episode_ends_only_at_a_departure_that_leaves_its_pool_empty():
    t = table()
    first, _ = arrive_at(t, "a"), arrive_at(t, "a")
    t.finish(first)
    assert episode(t) == 2
    finish_all(t, "a")
    assert episode(t) == 3


def test_the_estimates_change_only_as_the_episode_ends():
    t, _ = busy_at_the_beginning()
    before = t.router.policy.rate("a")
    for ticket in [ticket for ticket in t.open if ticket.pool.id == "a"]:
        t.finish(ticket, service_time=9.0)
    assert t.router.policy.rate("a") == before
    finish_all(t, "b")
    assert t.router.policy.rate("a") < before


def test_an_episode_does_not_end_while_trials_are_left_to_give():
    t = Table(Lased(rng=Random(1), episodes="pool", n0=2, c=0.0), [A, B])
    phases = []
    for _ in range(4):
        ticket = t.arrive()
        phases.append(ticket.decision.phase)
        assert episode(t) == 1
        t.finish(ticket)
    assert phases == [Phase.EXPLORE] * 4
    assert episode(t) == 2


def test_with_one_pool_both_rules_are_the_same():
    number = {}
    for episodes in ("system", "pool"):
        t, rng = Table(Lased(rng=Random(1), episodes=episodes, n0=1), [A]), Random(5)
        for _ in range(200):
            if t.open and rng.random() < 0.6:
                t.finish(t.open[0])
            else:
                t.arrive()
        number[episodes] = episode(t)
    assert number["system"] == number["pool"] > 10


def test_a_request_that_fails_empties_its_pool_too():
    t = table()
    t.finish(arrive_at(t, "a"), Outcome.FAILED)
    assert episode(t) == 3


def test_a_pool_that_leaves_is_no_longer_waited_for():
    t, held = busy_at_the_beginning()
    finish_all(t, "a")
    t.remove("b")
    assert episode(t) == 4
    assert held["b"].is_open


def test_the_removal_of_a_pool_does_not_end_an_episode_that_waits_for_another():
    t, _ = busy_at_the_beginning((A, B, C))
    t.remove("b")
    finish_all(t, "c")
    assert episode(t) == 3
    finish_all(t, "a")
    assert episode(t) == 4


def test_a_pool_that_joins_or_returns_within_the_episode_is_not_waited_for():
    t, held = busy_at_the_beginning()
    t.add(C)
    arrive_at(t, "c")
    t.remove("b")
    t.add(B)
    finish_all(t, "a")
    assert episode(t) == 4
    assert held["b"].is_open


def test_the_cap_ends_an_episode_whose_pool_never_empties():
    t, _ = busy_at_the_beginning()
    finish_all(t, "a")
    for _ in range(CAP - 1):
        t.finish(arrive_at(t, "a"))
    assert episode(t) == 3
    arrive_at(t, "a")
    assert episode(t) == 4


@pytest.mark.parametrize(
    ("options", "cap"),
    [
        ({}, 0),
        ({"max_episode_arrivals": 50}, 50),
        ({"episodes": "pool"}, MAX_ARRIVALS_BY_POOL),
        ({"episodes": "pool", "max_episode_arrivals": 50}, 50),
    ],
)
def test_the_default_cap_depends_on_the_rule(options, cap):
    assert Lased(rng=Random(1), **options).max_episode_arrivals == cap


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match="episodes must be 'system' or 'pool', not 'busy'"):
        Lased(rng=Random(1), episodes="busy")


def test_it_learns_where_the_system_never_empties():
    mu = (1.0, 2.0, 3.0, 4.0, 5.0)
    by_pool, by_system = (
        simulate(Scenario("lased", 13.5, mu, mu[::-1], 6_000, options={"episodes": rule}), seed=1)
        for rule in ("pool", "system")
    )
    assert by_system.episodes == 2, "the first episode ends after the last arrival"
    assert by_pool.episodes > 100
    assert by_pool.regret < by_system.regret / 5
