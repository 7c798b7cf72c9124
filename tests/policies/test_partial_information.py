"""Policies on what pools last said: partial_sed, whittle, myopic."""

import math
from random import Random

import pytest

from dispatcher.core.router import Router
from dispatcher.core.types import Added, Job, Outcome, PoolSpec, Report
from dispatcher.errors import ConfigError
from dispatcher.policies import whittle
from dispatcher.policies.partial_information import whittle_index as theory
from dispatcher.policies.partial_information.observation import CounterRate, QueueObservation
from dispatcher.policies.partial_information.queue_estimate import (
    expected_left,
    psi,
    static_split,
    upper_gamma,
    with_others,
)
from dispatcher.policies.partial_sed import PartialSed
from dispatcher.policies.whittle import Myopic, Whittle


def table(policy, rates=(4.0, 2.0), **spec):
    """A router before pools a, b, … whose guesses are their rates."""
    router = Router(policy)
    for name, rate in zip("abcdef", rates, strict=False):
        router.apply(Added(PoolSpec(name, guess=rate, **spec)), 0.0)
    return router


def said(router, pool, at, **report):
    """An answer of a pool that reports."""
    ticket = router.route(Job(1), at, frozenset(router.policy.specs) - {pool})
    router.complete(ticket, at, Outcome.OK, report=Report(at, **report))


def scores(router, now):
    return list(router.policy.score_all(router.fleet.pools, now))


def observed(rule, **options):
    """Pool a was last seen with 6 at 0 s, b with 3; nothing is open."""
    router = table(PartialSed(rng=Random(1), rule=rule, prior_weight=1e9, **options))
    for pool, depth in (("a", 6.0), ("b", 3.0)):
        said(router, pool, 0.0, queue_depth=depth, rps=2.6)
    return router


def test_relax_fades_what_was_seen_into_what_is_usual_and_that_slowly_into_nothing():
    router = observed("relax")
    said(router, "a", 2.0, queue_depth=0.0, rps=2.6)  # its usual is the mean of both now
    for age in (0.5, 3.0, 100.0):
        usual = 3.0 * math.exp(-0.01 * 4 * age)
        left = usual + (0.0 - usual) * math.exp(-0.1 * 4 * age)
        assert scores(router, 2.0 + age)[0] == pytest.approx((left + 1) / 4)


def test_a_pool_that_was_once_seen_full_is_visited_again():
    router = table(PartialSed(rng=Random(1), prior_weight=1e9), rates=(1.0, 1.0))
    for depth in (80.0, 60.0, 40.0, 20.0, 0.0):
        said(router, "b", 0.0, queue_depth=depth, rps=0.4)
    chosen, open_ones = [], []
    for k in range(1000):  # each takes three seconds, one comes a second: one pool is not enough
        if len(open_ones) == 3:
            ticket = open_ones.pop(0)
            depth = sum(each.pool.id == ticket.pool.id for each in open_ones)
            router.complete(ticket, float(k), Outcome.OK, report=Report(float(k), queue_depth=depth, rps=0.4))
        open_ones.append(router.route(Job(k), float(k)))
        chosen.append(open_ones[-1].pool.id)
    assert chosen[-500:].count("b") > 150


def test_k_divides_by_what_the_best_static_split_leaves_free():
    shares = static_split([4.0, 2.0], 5.2)
    assert scores(observed("stale+k"), 1.0) == pytest.approx([7 / (4 - shares[0]), 4 / (2 - shares[1])])


def test_own_requests_that_are_open_are_the_floor():
    router = observed("poisson+f")
    for _ in range(5):
        router.route(Job(1), 1.0, frozenset("b"))
    assert scores(router, 1000.0)[0] == pytest.approx((5 + 1) / 4)
    assert scores(observed("poisson"), 1000.0)[0] == pytest.approx(1 / 4)


def test_departures_alone_and_others_arrivals():
    assert scores(observed("poisson"), 1.0) == pytest.approx(
        [(expected_left(6, 4.0) + 1) / 4, (expected_left(3, 2.0) + 1) / 2]
    )
    left = [with_others(6, 1.0, 4.0, 2.6)[0], with_others(3, 1.0, 2.0, 1.9)[0]]  # no more than 95 % of the capacity
    assert scores(observed("reflect"), 1.0) == pytest.approx([(left[0] + 1) / 4, (left[1] + 1) / 2])


def test_psi_looks_at_the_chance_of_busy_and_first_at_pools_without_own_requests():
    router = observed("psi+f")
    busy = with_others(6, 1.0, 4.0, 2.6)[1]
    assert scores(router, 1.0)[0] == pytest.approx(psi(busy, 1 - busy) / 4)
    router.route(Job(1), 1.0, frozenset("b"))
    a, b = scores(router, 1.0)
    assert b < 1e8 < a
    assert upper_gamma(6, 4.0) < busy < 1


def test_its_own_request_is_on_top_of_what_was_believed():
    router = observed("relax")
    router.route(Job(1), 1.0, frozenset("b"))
    observation = router.policy.observations["a"]
    usual = 6.0 * math.exp(-0.04)
    assert observation.backlog == pytest.approx(1 + usual + (6.0 - usual) * math.exp(-0.4))
    assert observation.at == 1.0


def test_a_report_that_is_older_than_the_last_is_dropped_and_own_requests_behind_it_are_added():
    observation = QueueObservation()
    observation.reported(Report(5.0, queue_depth=2.0))
    observation.request_sent(2.0, 6.0)
    observation.request_sent(3.0, 7.0)
    observation.reported(Report(6.5, queue_depth=1.0))
    assert (observation.backlog, observation.at) == (2.0, 6.5), "one of the pool's, one of ours that it had not seen"
    observation.reported(Report(5.5, queue_depth=9.0))
    assert observation.backlog == 2.0


def test_rates_come_from_completions_a_busy_second_where_pools_count_them():
    router = table(PartialSed(rng=Random(1)), rates=(1.0, 1.0))
    for k in range(1, 11):  # others' requests are in the counters too
        said(router, "a", float(k), queue_depth=0.0, served=10.0 * k, busy=2.5 * k)
    assert router.policy.rate("a") == pytest.approx(4.0)
    assert router.policy.means["a"].observations == 9, "one an answer of ours: dispatchers' sums add up"
    assert router.policy.local_counts()["a"] == pytest.approx((9, 2.25, 9))
    said(router, "a", 11.0, served=3.0, busy=0.9)  # it began anew
    said(router, "a", 12.0, served=5.0, busy=1.4)
    assert router.policy.means["a"].observations == 10
    ticket = router.route(Job(1), 12.5, frozenset("b"))
    router.complete(ticket, 12.9, Outcome.OK, 0.39)
    assert router.policy.means["a"].observations == 10, "not what is inferred where others send, too"
    said(router, "b", 13.0, queue_depth=1.0)
    assert router.policy.rate("b") == 1.0


def test_a_counter_becomes_a_rate():
    rate = CounterRate()
    for k in range(101):
        rate.read(5 * k, k / 2)
    assert rate.value == pytest.approx(10.0)
    rate.read(0, 60.0)  # it began anew
    rate.read(300, 90.0)
    assert rate.value == pytest.approx(10.0)


def test_alone_and_without_reports_it_is_sed_on_learned_rates_but_for_the_split():
    router = table(PartialSed(rng=Random(1), rule="stale+f", prior_weight=1e9), rates=(3.0, 1.0))
    assert [router.route(Job(k), k * 1e-6).pool.id for k in range(4)] == ["a", "a", "a", "b"]


@pytest.mark.parametrize(
    "options", [{"rule": "x"}, {"rule": "relax+x"}, {"rule": ""}, {"replicas": 0}, {"replicas": 9999}, {"c": -1}]
)
def test_options_that_cannot_be(options):
    with pytest.raises(ConfigError, match=r"rule must be|replicas must be|c must be"):
        PartialSed(rng=Random(1), **options)


def test_servers_beside_each_other_share_the_wait():
    router = table(PartialSed(rng=Random(1), rule="stale", prior_weight=1e9), rates=(2.0,), servers=3)
    said(router, "a", 0.0, queue_depth=5.0)
    assert scores(router, 1.0) == pytest.approx([((5 + 1 - 3) + 3) / 6.0])


# -- whittle


def test_whittle_joins_where_most_has_been_wasted():
    router = table(Whittle(rng=Random(1), capacity=5, prior_weight=1e9), rates=(1.0, 4.0))
    assert [router.route(Job(k), 0.0).pool.id for k in range(2)] == ["a", "b"], "those never tried come first"
    now = 2.0
    expected = [-theory.continuous(now, 5, 1.0), -theory.continuous(now, 5, 4.0)]
    assert scores(router, now) == pytest.approx(expected)
    assert router.route(Job(3), now).pool.id == "b"


def test_a_blocking_pool_is_judged_by_its_table_as_soon_as_there_is_one():
    router = table(Whittle(rng=Random(1), model="blocking", capacity=3, prior_weight=1e9), rates=(1.0, 1.0))
    whittle._table(3).result(20)
    for pool, depth in (("a", 1.0), ("b", 3.0)):
        said(router, pool, 0.0, queue_depth=depth)
    made = theory.blocking(3, whittle.SLOT_SERVICES)
    assert scores(router, 1.0) == pytest.approx([-made(1, 4), -made(3, 4)])
    myopic = table(Myopic(rng=Random(1), model="blocking", capacity=3, prior_weight=1e9), rates=(1.0,))
    said(myopic, "a", 0.0, queue_depth=1.0)
    assert scores(myopic, 1.0) == pytest.approx([-3 * (1 - math.exp(-1.0))])


def test_a_report_is_no_pick_and_an_empty_pool_is_worth_all_it_holds():
    router = table(Whittle(rng=Random(1), capacity=5, prior_weight=1e9), rates=(1.0, 1.0))
    for k in range(2):
        router.route(Job(k), 0.0)
    said_scores = scores(router, 3.0)
    router.policy.observations["a"].reported(Report(2.9, queue_depth=0.0))
    assert scores(router, 3.0) == said_scores
    blocking = table(Whittle(rng=Random(1), model="blocking", capacity=3, prior_weight=1e9), rates=(1.0,))
    said(blocking, "a", 1.0, queue_depth=0.0)
    assert scores(blocking, 1.0) == [-3.0]


def test_a_pools_own_limit_is_its_capacity():
    router = table(Whittle(rng=Random(1), capacity=0), rates=(1.0,), max_in_flight=7)
    router.route(Job(1), 0.0)
    assert scores(router, 3.0) == pytest.approx([-theory.continuous(3.0, 7, 1.0)])
    with pytest.raises(ConfigError, match="max_in_flight must be from 1"):
        table(Whittle(rng=Random(1), capacity=0))
    for options in ({"model": "x"}, {"capacity": -1}, {"model": "blocking", "capacity": 99}):
        with pytest.raises(ConfigError, match=r"model must be|capacity must be"):
            Whittle(rng=Random(1), **options)


def test_a_single_dispatcher_that_sees_backlogs_alone_learns_rates_from_how_they_fall():
    """A pool of 2 a second, guessed at 1, seen each time an answer comes; within 4 standard errors of about 100
    intervals."""
    router, dice = table(PartialSed(rng=Random(1)), rates=(1.0,)), Random(2)
    now, free, waiting = 0.0, 0.0, []
    for k in range(3000):
        now += dice.expovariate(1.2)
        while waiting and waiting[0][0] <= now:
            at, ticket = waiting.pop(0)
            router.complete(ticket, at, Outcome.OK, report=Report(at, queue_depth=len(waiting)))
        free = max(free, now) + dice.expovariate(2.0)
        waiting.append((free, router.route(Job(k), now)))
    assert router.policy.rate("a") == pytest.approx(2.0, rel=4 / 100**0.5)
    assert router.policy.rate("a") > 1.5


def test_a_pool_that_is_believed_useless_is_tried_and_found_out():
    router = table(PartialSed(rng=Random(1)), rates=(5.0, 0.01))
    now, chosen = 0.0, []
    for k in range(200):
        now += 1.0
        ticket = router.route(Job(k), now)
        chosen.append(ticket.pool.id)
        router.complete(ticket, now + 0.5, Outcome.OK, 0.2 if ticket.pool.id == "a" else 0.1)
    assert "b" in chosen[:4]
    assert router.policy.rate("b") == pytest.approx(10.0)
    assert chosen[-100:].count("b") > 90, "it is the faster one"
    assert router.policy.means["a"].weight >= 3 * math.log(150)
    with pytest.raises(ConfigError, match="c must be"):
        PartialSed(rng=Random(1), c=-1.0)
