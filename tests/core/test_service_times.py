"""Service times seen from outside: exact for FCFS, right in sum for any work-conserving pool, never from failures."""

import heapq
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core import service_times
from dispatcher.core.fleet import Pool
from dispatcher.core.service_times import WINDOW, Overhead, ServiceTimeEstimator, SortedWindow
from dispatcher.core.types import Decision, Job, PoolSpec, Ticket
from workers.station import Station


def ticket(pool, n, now):
    return Ticket(Job(n), Decision(pool.id), now, pool)


def observe(jobs, servers=1, overhead=0.0):
    """jobs: (arrival, work), in order; served FCFS. Yields (observed, work), in order of departure."""
    pool = Pool(PoolSpec("a", servers=servers))
    clock, station, events = ServiceTimeEstimator(pool.servers), Station(servers), []
    for n, (at, work) in enumerate(jobs):
        heapq.heappush(events, (at, 1, n, work))
    there = {}
    while events:
        now, kind, n, work = heapq.heappop(events)
        if kind == 1:
            there[n] = ticket(pool, n, now)
            clock.arrived(there[n], now)
            finish = station.admit(now + overhead / 2, work) + overhead / 2
            heapq.heappush(events, (finish, 0, n, work))
        else:
            yield clock.departed(there[n], now, True), work


def poisson_jobs(n, lam, mu, seed):
    dice, at, jobs = Random(seed), 0.0, []
    for _ in range(n):
        at += dice.expovariate(lam)
        jobs.append((at, dice.expovariate(mu)))
    return jobs


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_fcfs_services_are_seen_exactly(servers, monkeypatch):
    monkeypatch.setattr(service_times, "MIN_OBSERVATIONS", 10**9)  # no correction of an overhead that is not there
    for observed, work in observe(poisson_jobs(2000, 0.8 * servers, 1.0, seed=servers), servers):
        assert observed == pytest.approx(work, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5)), min_size=1, max_size=30), st.integers(0, 2**20))
def test_over_a_busy_period_the_times_add_up_to_the_busy_time_whatever_the_order(jobs, seed):
    """A pool with one processor that may serve in any order: departures at any instants at which it is busy."""
    dice = Random(seed)
    pool = Pool(PoolSpec("a"))
    clock = ServiceTimeEstimator(pool.servers)
    now, there, total, busy, began = 0.0, [], 0.0, 0.0, 0.0
    for n, (gap, _) in enumerate(jobs):
        now += gap
        if not there:
            began = now
        there.append(ticket(pool, n, now))
        clock.arrived(there[-1], now)
        while there and dice.random() < 0.5:
            now += dice.random()
            total += clock.departed(there.pop(dice.randrange(len(there))), now, True)
            if not there:
                busy += now - began
    while there:
        now += 0.5
        total += clock.departed(there.pop(dice.randrange(len(there))), now, True)
        if not there:
            busy += now - began
    assert total == pytest.approx(busy, abs=1e-6)


def test_after_a_failure_the_pool_is_not_believed_until_it_has_served_what_came_later():
    """The dead request may still be in service: neither who was there with it nor who waited behind it can teach."""
    clock = ServiceTimeEstimator(servers=1)
    clock.arrived("dead", 0.0)
    clock.arrived("beside", 1.0)
    assert clock.departed("dead", 2.0, served=False) is None
    clock.arrived("behind", 2.5)
    clock.arrived("after", 2.6)
    assert clock.departed("beside", 3.0, served=True) is None
    assert clock.departed("behind", 4.0, served=True) is None
    assert clock.departed("after", 5.5, served=True) == 1.5


def test_a_request_cancelled_while_it_waited_gives_its_place_up():
    clock = ServiceTimeEstimator(servers=1)
    clock.arrived("served", 0.0)
    clock.arrived("gone", 1.0)
    clock.departed("gone", 1.5, served=False)
    for n in range(3):
        clock.arrived(n, 2.0)
    clock.departed("served", 5.0, served=True)
    assert [clock.departed(n, 7.0 + 2 * n, served=True) for n in range(3)] == [None, 2.0, 2.0]


def test_what_was_never_wholly_sent_has_no_service_and_takes_no_place():
    clock = ServiceTimeEstimator(servers=1)
    clock.arrived("quick", 1.0)
    assert clock.departed("quick", 2.0, served=True) == 1.0
    assert clock.departed("still uploading", 3.0, served=True) is None


def test_a_request_whose_end_will_not_show_is_forgotten_with_those_there():
    clock = ServiceTimeEstimator(servers=1)
    clock.arrived("slow reader", 0.0)
    clock.arrived("beside", 0.5)
    clock.discard("slow reader", 1.0)
    assert clock.departed("beside", 2.0, served=True) is None
    clock.arrived("later", 3.0)
    assert clock.departed("later", 4.0, served=True) == 1.0
    assert clock.departed("slow reader", 9.0, served=True) is None


LAWS = {
    "exponential": lambda dice: dice.expovariate(200.0),
    "fixed": lambda dice: 0.005,
    "lognormal": lambda dice: dice.lognormvariate(math.log(0.005) - math.log(5) / 2, math.sqrt(math.log(5))),
}


@pytest.mark.parametrize("law", LAWS)
def test_the_overhead_is_learned_and_taken_off(law):
    """Rate 200, load 0.5, 0.5 ms of overhead: uncorrected the mean would be some 5 % too long."""
    dice, at, jobs = Random(5), 0.0, []
    for _ in range(10_000):
        at += dice.expovariate(100.0)
        jobs.append((at, LAWS[law](dice)))
    seen = list(observe(jobs, overhead=0.0005))
    error = sum(observed for observed, _ in seen) / sum(work for _, work in seen) - 1
    assert abs(error) < 0.01


def test_nothing_is_corrected_before_both_kinds_were_seen():
    overhead = Overhead()
    for _ in range(10 * service_times.UPDATE_INTERVAL):
        overhead.learn_one(2.0, began_idle=True)
    assert overhead.seconds == 0.0
    for _ in range(service_times.UPDATE_INTERVAL):
        overhead.learn_one(1.5, began_idle=False)
    assert overhead.seconds == pytest.approx(0.5, abs=1e-5)


def test_a_request_that_came_just_before_its_predecessors_end_was_seen_began_on_arrival():
    pool = Pool(PoolSpec("a"))
    clock = ServiceTimeEstimator(pool.servers)
    clock.overhead.seconds = 0.5
    first, second = ticket(pool, 1, 0.0), ticket(pool, 2, 2.9)
    clock.arrived(first, first.routed_at)
    clock.arrived(second, second.routed_at)
    assert clock.departed(first, 3.0, True) == 2.5
    assert clock.departed(second, 5.0, True) == pytest.approx(5.0 - 3.4)


def test_what_a_pool_says_itself_is_not_worked_out():
    pool = Pool(PoolSpec("a"))
    clock = ServiceTimeEstimator(pool.servers)
    clock.arrived(one := ticket(pool, 1, 0.0), 0.0)
    assert clock.departed(one, 3.0, True, known=True) is None


def test_the_window_forgets_what_is_old_and_stays_bounded():
    window = SortedWindow()
    for x in range(3 * WINDOW):
        window.learn_one(float(x))
    assert window.ordered == [float(x) for x in range(2 * WINDOW, 3 * WINDOW)]
