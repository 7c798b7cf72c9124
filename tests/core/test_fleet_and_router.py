"""In-flight counts are exact: opened once, closed once, never negative, whatever goes wrong."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.fleet import Fleet
from dispatcher.core.regret import RegretMeter
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Decision, Job, Outcome, PoolSpec, Removed
from dispatcher.errors import ConfigError, InternalError, NoPoolAvailable, PolicyError, PoolsFull
from dispatcher.policies.esed import Esed
from dispatcher.policies.jsq import Jsq
from dispatcher.policies.sed import Sed
from dispatcher.telemetry.decisions import DecisionLog
from dispatcher.testing import Recording, Table

POOLS = [PoolSpec("a"), PoolSpec("b")]


def jsq():
    return Jsq(rng=Random(1))


def test_a_ticket_is_settled_once():
    table = Table(jsq(), POOLS)
    ticket = table.arrive()
    table.finish(ticket)
    with pytest.raises(InternalError, match="completed twice"):
        table.router.complete(ticket, 9.0, Outcome.OK)
    assert table.state == (0, 0)


def test_without_an_open_pool_nothing_is_counted():
    table = Table(jsq(), POOLS)
    with pytest.raises(NoPoolAvailable):
        table.arrive(frozenset("ab"))
    assert table.state == (0, 0)


def test_a_pool_that_comes_back_before_its_requests_end_still_counts_them():
    table = Table(jsq(), POOLS)
    held = [table.arrive() for _ in range(4)]
    table.remove("a")
    assert table.router.fleet.in_flight == 2
    assert [pool.id for pool in table.router.fleet.draining] == ["a"]
    table.add(PoolSpec("a"))
    assert table.router.fleet["a"].in_flight == 2
    for ticket in held:
        table.finish(ticket)
    assert table.state == (0, 0)
    assert table.router.fleet.draining == ()


def test_a_pool_that_left_counts_down_without_touching_the_fleet():
    table = Table(jsq(), POOLS)
    held = [table.arrive() for _ in range(2)]
    table.remove("a")
    table.finish(held[0])
    assert table.router.fleet.in_flight == 1
    assert table.router.fleet.count("a") == 0
    assert table.router.fleet.draining == ()


class Broken(Jsq):
    """Names a pool that does not exist, or raises, as told."""

    def __init__(self, what):
        super().__init__(rng=Random(1))
        self.what = what

    def choose(self, job, fleet, now):
        if self.what == "raises":
            raise RuntimeError("oops")
        return Decision("nowhere") if self.what == "strange" else None

    def learn(self, done, fleet):
        raise KeyError("lost")

    def adapt(self, change, fleet):
        raise ZeroDivisionError


@pytest.mark.parametrize("what", ["raises", "strange", "none"])
def test_a_broken_policy_is_named_and_the_request_still_served(what):
    table = Table(Broken(what), POOLS)
    first, second = table.arrive(), table.arrive()
    assert {first.pool.id, second.pool.id} == {"a", "b"}, "the safe choice is the shortest queue"
    table.finish(first)
    table.finish(second)
    assert table.state == (0, 0)
    assert len(table.recording.faults) == 6
    assert all(isinstance(fault, PolicyError) and "Broken" in str(fault) for fault in table.recording.faults)


def test_a_change_that_the_policy_refuses_leaves_the_fleet_as_it_was():
    router = Router(Sed(rng=Random(1)), [recording := Recording()])
    with pytest.raises(ConfigError, match="true_rate"):
        router.apply(Added(PoolSpec("a")), 0.0)
    assert router.fleet.pools == ()
    assert recording.changes == []


def test_names_must_differ_and_what_leaves_must_be_there():
    fleet = Fleet()
    fleet.add(PoolSpec("a"))
    with pytest.raises(ConfigError, match="there already"):
        fleet.add(PoolSpec("a"))
    with pytest.raises(ConfigError, match="no pool 'b'"):
        fleet.remove("b")


@pytest.mark.parametrize(
    ("key", "value"), [("servers", 0), ("guess", 0.0), ("guess", float("inf")), ("true_rate", -1.0)]
)
def test_a_pool_with_an_impossible_number_is_refused(key, value):
    with pytest.raises(ConfigError, match=key):
        PoolSpec("a", **{key: value})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["arrive", "finish", "add", "remove"]), st.integers(0, 10**6)), max_size=80))
def test_counts_equal_the_open_tickets_through_any_life(moves):
    table = Table(jsq(), POOLS)
    for move, n in moves:
        open_names = {pool.id for pool in table.router.fleet.pools}
        name = "abcd"[n % 4]
        if move == "arrive" and open_names:
            table.arrive()
        elif move == "finish" and table.open:
            table.finish(table.open[n % len(table.open)], list(Outcome)[n % 4])
        elif move == "add" and name not in open_names:
            table.add(PoolSpec(name))
        elif move == "remove" and name in open_names:
            table.remove(name)
        for pool in "abcd":
            assert table.router.fleet.count(pool) == sum(ticket.pool.id == pool for ticket in table.open)
        assert table.router.fleet.in_flight == sum(table.state)
    assert not table.recording.faults


def test_recorders_hear_the_state_before_the_request_joins():
    table = Table(jsq(), POOLS)
    table.arrive()
    table.arrive()
    assert [state for _, state in table.recording.decisions] == [(0, 0), (1, 0)]


def test_only_success_teaches():
    table = Table(jsq(), POOLS)
    for outcome in Outcome:
        table.router.complete(table.router.route(Job(1), 0.0), 1.0, outcome, service_time=0.001)
    taught = [(done.outcome, done.service_time) for done in table.recording.completions]
    assert taught == [(o, 0.001 if o is Outcome.OK else None) for o in Outcome]


@pytest.mark.parametrize("told", [0.0, -1.0, 1e9, math.inf, math.nan])
def test_a_service_time_that_cannot_be_true_is_not_believed(told):
    table = Table(jsq(), POOLS)
    table.router.complete(table.router.route(Job(1), 0.0), 1.0, Outcome.OK, service_time=told)
    assert table.recording.completions[0].service_time is None


def test_what_must_not_teach_does_not():
    table = Table(jsq(), POOLS, infer=True)
    table.router.complete(table.router.route(Job(1), 0.0), 1.0, Outcome.OK, teaches=False)
    assert table.recording.completions[0].service_time is None


def test_a_pool_that_returns_has_its_old_place():
    table = Table(jsq(), [PoolSpec(name) for name in "abc"])
    table.remove("a")
    table.add(PoolSpec("a"))
    assert [pool.id for pool in table.router.fleet.pools] == ["a", "b", "c"]


def test_pools_that_come_and_go_for_ever_leave_nothing_behind():
    table = Table(jsq(), POOLS, infer=True)
    for i in range(3000):
        table.add(PoolSpec(f"x{i}"))
        table.arrive(frozenset("ab"))
        table.finish(table.open[-1])
        table.remove(f"x{i}")
    assert len(table.router._estimators) < 400
    assert len(table.router.fleet._places) < 1100


class Mute(Jsq):
    """Raises where recorders ask."""

    def rate(self, pool):
        raise RuntimeError("secret")


def test_a_policy_that_cannot_tell_its_rates_still_routes():
    policy = Mute(rng=Random(1))
    meter = RegretMeter(policy)
    table = Table(policy, POOLS, recorders=[meter, DecisionLog(policy, meter)])
    table.finish(table.arrive())
    assert table.state == (0, 0)
    assert "secret" in str(table.recording.faults[0])


def test_removed_last_pool_leaves_an_empty_view():
    table = Table(jsq(), [PoolSpec("a")])
    table.router.apply(Removed("a"), 0.0)
    with pytest.raises(NoPoolAvailable):
        table.arrive()


def test_a_full_pool_is_not_shown_and_all_full_is_said():
    specs = [PoolSpec("a", guess=9.0, max_in_flight=1), PoolSpec("b", max_in_flight=2)]
    table = Table(Esed(rng=Random(1)), specs)
    tickets = [table.arrive() for _ in range(3)]
    assert [ticket.pool.id for ticket in tickets] == ["a", "b", "b"]
    with pytest.raises(PoolsFull):
        table.arrive()
    table.finish(tickets[1])
    assert table.arrive().pool.id == "b"
    with pytest.raises(PoolsFull):
        table.arrive(frozenset({"a"}))
    assert table.state == (1, 2)


def test_a_negative_limit_is_refused():
    with pytest.raises(ConfigError, match="max_in_flight must be 0"):
        PoolSpec("a", max_in_flight=-1)
