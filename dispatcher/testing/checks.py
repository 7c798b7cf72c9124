"""The conformance tests of policies, for any policy: `check_policy(factory)` runs every check on fresh policies.

A check is a function of a `Maker`. It raises AssertionError with a sentence if the policy breaks its contract. The
service accepts every policy that passes. The service also survives exceptions of a policy, which the checks refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from dispatcher.core.policy import BasePolicy, Policy, PolicyFactory, as_policy
from dispatcher.core.types import Outcome, PoolSpec, Ticket
from dispatcher.errors import ConfigError
from dispatcher.testing.doubles import Table

Maker = Callable[[int], Policy]  # makes a policy from a seed
Check = Callable[[Maker], None]


def check_policy(factory: PolicyFactory, **options: Any) -> None:
    """Run every check on policies made by factory(rng=…, **options). Raises AssertionError if one of them fails."""

    def make(seed: int) -> BasePolicy:
        try:
            return as_policy(factory(rng=Random(seed), **options))
        except ConfigError as error:
            raise AssertionError(str(error)) from error

    for check in checks():
        check(make)


def checks() -> Iterator[Check]:
    """Yield all checks, for a test suite that runs each of them as a test of its own."""
    yield serves_one_pool
    yield serves_many_pools_and_servers
    yield names_only_open_pools
    yield equal_seeds_give_equal_decisions
    yield survives_failures
    yield survives_rejections
    yield survives_late_feedback
    yield survives_membership_changes
    yield survives_an_empty_fleet
    yield avoids_excluded_pools
    yield reports_consistent_estimates


def specs(n: int, servers: int = 1) -> list[PoolSpec]:
    """Return n pools with the true rates 1, 2, … and the guesses in reverse order."""
    return [PoolSpec(f"p{i}", servers=servers, guess=float(n - i), true_rate=float(i + 1)) for i in range(n)]


def drive(table: Table, rng: Random, steps: int) -> list[str]:
    """Make random arrivals and departures, some of them failures. Returns all pools chosen so far."""
    for _ in range(steps):
        if table.open and rng.random() < 0.5:
            outcome = rng.choice([Outcome.OK] * 5 + list(Outcome))
            is_known = rng.random() < 0.9
            table.finish(rng.choice(table.open), outcome, rng.expovariate(1.0) if is_known else None)
        elif table.router.fleet.pools:
            table.arrive()
        assert not table.recording.faults, f"the policy broke its contract: {table.recording.faults[0]}"
    return [decision.pool for decision, _ in table.recording.decisions]


def finish_all(table: Table) -> None:
    """End all open requests, and check that every count is 0 then."""
    while table.open:
        table.finish(table.open[-1])
    assert not any(table.state), f"a count is not 0 after all requests have ended: {table.router.fleet!r}"
    assert not table.recording.faults, f"the policy broke its contract: {table.recording.faults[0]}"


def serves_one_pool(make: Maker) -> None:
    table = Table(make(1), specs(1))
    assert set(drive(table, Random(1), 200)) == {"p0"}, "with one pool there is one choice"
    finish_all(table)


def serves_many_pools_and_servers(make: Maker) -> None:
    for n, servers in ((2, 1), (3, 4), (10, 2)):
        table = Table(make(1), specs(n, servers))
        drive(table, Random(n), 400)
        finish_all(table)


def names_only_open_pools(make: Maker) -> None:
    table = Table(make(2), specs(3))
    chosen = drive(table, Random(3), 300)
    assert set(chosen) <= {"p0", "p1", "p2"}, f"chose {set(chosen)}"


def equal_seeds_give_equal_decisions(make: Maker) -> None:
    runs = [drive(Table(make(7), specs(4)), Random(5), 400) for _ in range(2)]
    assert runs[0] == runs[1], "two policies with one seed decided differently; use only the random generator `rng`"


def survives_failures(make: Maker) -> None:
    table = Table(make(1), specs(2))
    for outcome in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CANCELLED) * 20:
        table.finish(table.arrive(), outcome)
    table.finish(table.arrive(), Outcome.OK, None)
    finish_all(table)


def survives_rejections(make: Maker) -> None:
    """Pools reject requests, one pool all of them, and some ask to be left alone for some time."""
    table = Table(make(1), specs(3))
    for i in range(120):
        ticket = table.arrive()
        if ticket.pool.id == "p2" or i % 3 == 0:
            table.reject(ticket, retry_after=float(i % 5))
        else:
            table.finish(ticket)
    finish_all(table)


def survives_late_feedback(make: Maker) -> None:
    """All requests end long after they arrived, in the reverse order."""
    table = Table(make(1), specs(3))
    for _ in range(50):
        table.arrive()
    finish_all(table)


def survives_membership_changes(make: Maker) -> None:
    """Pools join and leave while requests are in flight. A pool that has returned may be chosen again."""
    rng = Random(11)
    table = Table(make(1), specs(3))
    by_name = {spec.id: spec for spec in specs(6)}
    for _ in range(60):
        drive(table, rng, 10)
        present = [pool.id for pool in table.router.fleet.pools]
        name = rng.choice(list(by_name))
        if name not in present:
            table.add(by_name[name])
        elif len(present) > 1:
            table.remove(name)
    finish_all(table)


def survives_an_empty_fleet(make: Maker) -> None:
    """The last pool leaves with a request in flight, and returns."""
    table = Table(make(1), specs(1))
    ticket: Ticket = table.arrive()
    table.remove("p0")
    table.finish(ticket)
    table.add(specs(1)[0])
    table.finish(table.arrive())
    finish_all(table)


def avoids_excluded_pools(make: Maker) -> None:
    """A retry must not go to a pool where the request failed, so the policy sees a part of the fleet."""
    table = Table(make(1), specs(3))
    for i in range(60):
        excluded = f"p{i % 3}"
        chosen = table.arrive(frozenset({excluded})).pool.id
        assert chosen != excluded, f"chose {excluded}, which was not in the fleet shown"
    finish_all(table)


def reports_consistent_estimates(make: Maker) -> None:
    """At every moment rates are positive, and every estimate lies within its interval."""
    policy = as_policy(make(1))
    table = Table(policy, specs(3))
    for step in range(100):
        drive(table, Random(step), 3)
        for pool, estimate in policy.estimates().items():
            low, high = estimate.interval
            assert 0 <= low <= estimate.rate <= high, f"{pool}: {estimate.rate} is not within {low} … {high}"
            if pool in table.router.fleet:
                assert policy.rate(pool) > 0, f"{pool}: rate {policy.rate(pool)} is not positive"
    finish_all(table)
