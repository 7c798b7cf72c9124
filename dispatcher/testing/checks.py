"""The conformance suite of policies, open to strangers: `check_policy(factory)` runs every check on fresh policies.

A check is a function of a `Maker` that raises AssertionError, with a sentence, where the policy breaks its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from dispatcher.core.policy import Learner, Policy, PolicyFactory
from dispatcher.core.types import Outcome, PoolSpec, Ticket
from dispatcher.testing.doubles import Table

Maker = Callable[[int], Policy]
Check = Callable[[Maker], None]


def check_policy(factory: PolicyFactory, **options: Any) -> None:
    """Run every check on policies made as factory(rng=…, **options). Raises AssertionError at the first broken one."""

    def make(seed: int) -> Policy:
        return factory(rng=Random(seed), **options)

    for check in checks():
        check(make)


def checks() -> Iterator[Check]:
    """All checks, for those who want one test for each."""
    yield serves_one_pool
    yield serves_many_pools_and_servers
    yield names_only_open_pools
    yield equal_seeds_live_equal_lives
    yield survives_failures
    yield survives_rejections
    yield survives_late_feedback
    yield survives_membership_changes
    yield survives_an_empty_fleet
    yield keeps_to_those_it_may_choose
    yield tells_sane_beliefs


def specs(n: int, servers: int = 1) -> list[PoolSpec]:
    """n pools of rates 1, 2, …, guesses reversed."""
    return [PoolSpec(f"p{i}", servers=servers, guess=float(n - i), true_rate=float(i + 1)) for i in range(n)]


def drive(table: Table, dice: Random, moves: int) -> list[str]:
    """A random life: arrivals and departures in any order, some of them failures. Returns the pools chosen."""
    for _ in range(moves):
        if table.open and dice.random() < 0.5:
            outcome = dice.choice([Outcome.OK] * 5 + list(Outcome))
            known = dice.random() < 0.9
            table.finish(dice.choice(table.open), outcome, dice.expovariate(1.0) if known else None)
        elif table.router.fleet.pools:
            table.arrive()
        assert not table.recording.faults, f"the policy broke its contract: {table.recording.faults[0]}"
    return [decision.pool for decision, _ in table.recording.decisions]


def empty(table: Table) -> None:
    while table.open:
        table.finish(table.open[-1])
    assert not any(table.state), f"a count is left over: {table.router.fleet!r}"
    assert not table.recording.faults, f"the policy broke its contract: {table.recording.faults[0]}"


def serves_one_pool(make: Maker) -> None:
    table = Table(make(1), specs(1))
    assert set(drive(table, Random(1), 200)) == {"p0"}, "with one pool there is one choice"
    empty(table)


def serves_many_pools_and_servers(make: Maker) -> None:
    for n, servers in ((2, 1), (3, 4), (10, 2)):
        table = Table(make(1), specs(n, servers))
        drive(table, Random(n), 400)
        empty(table)


def names_only_open_pools(make: Maker) -> None:
    table = Table(make(2), specs(3))
    chosen = drive(table, Random(3), 300)
    assert set(chosen) <= {"p0", "p1", "p2"}, f"chose {set(chosen)}"


def equal_seeds_live_equal_lives(make: Maker) -> None:
    lives = [drive(Table(make(7), specs(4)), Random(5), 400) for _ in range(2)]
    assert lives[0] == lives[1], "two policies of one seed decided differently: use the rng that is given, and only it"


def survives_failures(make: Maker) -> None:
    table = Table(make(1), specs(2))
    for outcome in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CANCELLED) * 20:
        table.finish(table.arrive(), outcome)
    table.finish(table.arrive(), Outcome.OK, None)
    empty(table)


def survives_rejections(make: Maker) -> None:
    """Pools turn requests away, one of them always, and ask to be left alone."""
    table = Table(make(1), specs(3))
    for i in range(120):
        ticket = table.arrive()
        if ticket.pool.id == "p2" or i % 3 == 0:
            table.reject(ticket, retry_after=float(i % 5))
        else:
            table.finish(ticket)
    empty(table)


def survives_late_feedback(make: Maker) -> None:
    """Completions in the reverse order of arrival, long after."""
    table = Table(make(1), specs(3))
    for _ in range(50):
        table.arrive()
    empty(table)


def survives_membership_changes(make: Maker) -> None:
    """Pools come and go while requests are in flight; a returned one may be chosen again."""
    dice = Random(11)
    table = Table(make(1), specs(3))
    known = {spec.id: spec for spec in specs(6)}
    for _ in range(60):
        drive(table, dice, 10)
        there = [pool.id for pool in table.router.fleet.pools]
        name = dice.choice(list(known))
        if name not in there:
            table.add(known[name])
        elif len(there) > 1:
            table.remove(name)
    empty(table)


def survives_an_empty_fleet(make: Maker) -> None:
    """The last pool goes with a request in flight, and comes back."""
    table = Table(make(1), specs(1))
    ticket: Ticket = table.arrive()
    table.remove("p0")
    table.finish(ticket)
    table.add(specs(1)[0])
    table.finish(table.arrive())
    empty(table)


def keeps_to_those_it_may_choose(make: Maker) -> None:
    """A retry must not go back where it failed: the fleet shown is then a part of the whole."""
    table = Table(make(1), specs(3))
    for i in range(60):
        away = f"p{i % 3}"
        assert table.arrive(frozenset({away})).pool.id != away, f"chose {away}, which was not in the fleet shown"
    empty(table)


def tells_sane_beliefs(make: Maker) -> None:
    """A learner's rates and intervals are positive and hold each other, at every moment."""
    policy = make(1)
    table = Table(policy, specs(3))
    if not isinstance(policy, Learner):
        return
    for step in range(100):
        drive(table, Random(step), 3)
        for pool, estimate in policy.estimates().items():
            low, high = estimate.interval
            assert 0 <= low <= estimate.rate <= high, f"{pool}: {estimate.rate} is not within {low} … {high}"
            if pool in table.router.fleet:
                assert policy.rate(pool) > 0, f"{pool}: rate {policy.rate(pool)} is not positive"
    empty(table)
