"""The other policies: each does what its head says."""

from collections import Counter
from random import Random

import pytest

from dispatcher.core.types import Phase, PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.policies.esed import Esed
from dispatcher.policies.greedy import Greedy
from dispatcher.policies.jsq import Jsq
from dispatcher.policies.optimistic import Optimistic
from dispatcher.policies.random import Random as RandomPolicy
from dispatcher.policies.round_robin import RoundRobin
from dispatcher.policies.sed import Sed
from dispatcher.testing import Table

POOLS = [PoolSpec("slow", guess=9.0, true_rate=1.0), PoolSpec("fast", guess=1.0, true_rate=3.0)]


def held(policy, n, specs=POOLS):
    table = Table(policy, specs)
    return [table.arrive().pool.id for _ in range(n)]


def test_sed_takes_the_true_rates_and_ties_go_first():
    assert held(Sed(rng=Random(1)), 4) == ["fast", "fast", "slow", "fast"]


def test_esed_takes_the_guesses():
    assert held(Esed(rng=Random(1)), 9) == ["slow"] * 9


def test_jsq_takes_the_shortest():
    assert held(Jsq(rng=Random(1)), 4) == ["slow", "fast", "slow", "fast"]


def test_round_robin_goes_round():
    assert held(RoundRobin(rng=Random(1)), 5) == ["slow", "fast", "slow", "fast", "slow"]


def test_round_robin_goes_on_when_the_circle_shrinks():
    table = Table(RoundRobin(rng=Random(1)), [PoolSpec(name) for name in "abc"])
    for _ in range(3):
        table.arrive()
    table.remove("c")
    assert Counter(table.arrive().pool.id for _ in range(10)) == {"a": 5, "b": 5}


def test_random_is_even_and_tells_its_probability():
    n = 4000
    chosen = Counter(held(RandomPolicy(rng=Random(2)), n))
    assert abs(chosen["slow"] - n / 2) < 4 * (n / 4) ** 0.5
    table = Table(RandomPolicy(rng=Random(2)), POOLS)
    assert table.arrive().decision.probability == 0.5


def test_greedy_learns_after_every_completion_and_never_tries():
    table = Table(Greedy(rng=Random(1)), POOLS)
    ticket = table.arrive()
    assert ticket.pool.id == "slow"
    table.finish(ticket, service_time=4.0)
    assert table.router.policy.rate("slow") == 0.25
    following = table.arrive()
    assert (following.pool.id, following.decision.phase) == ("fast", Phase.EXPLOIT)


def test_optimistic_tries_an_idle_pool_only_where_it_could_win():
    specs = [PoolSpec("a", guess=1.0), PoolSpec("b", guess=100.0)]
    table = Table(Optimistic(rng=Random(1)), specs)
    first = table.arrive()
    assert (first.pool.id, first.decision.phase) == ("a", Phase.EXPLORE), "b looks best; a was never seen: it may be"
    table.finish(first, service_time=50.0)
    for _ in range(6):
        ticket = table.arrive()
        assert ticket.pool.id == "b"
        table.finish(ticket, service_time=0.01)
    assert table.arrive().pool.id == "b", "a is seen too little still, but could not win"


def test_optimistic_never_tries_a_busy_pool():
    table = Table(Optimistic(rng=Random(1)), [PoolSpec("a"), PoolSpec("b")])
    held = [table.arrive() for _ in range(8)]
    assert sum(ticket.decision.phase is Phase.EXPLORE for ticket in held) <= 2


def test_sed_refuses_to_start_without_a_true_rate():
    with pytest.raises(ConfigError, match="'b': policy sed needs true_rate"):
        Table(Sed(rng=Random(1)), [PoolSpec("a", true_rate=1.0), PoolSpec("b")])


@pytest.mark.parametrize(("ties", "first"), [("first", "slow"), ("slowest", "slow"), ("fastest", "fast")])
def test_the_tie_rule_is_an_option(ties, first):
    specs = [PoolSpec("slow", guess=1.0), PoolSpec("fast", guess=2.0)]
    table = Table(Esed(rng=Random(1), ties=ties), specs)
    table.arrive()  # now (0 + 1)/1 = (1 + 1)/2
    assert table.arrive().pool.id == first
