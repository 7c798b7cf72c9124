"""The policy `curve`: golden traces, and what its estimates are after simple histories."""

import heapq
import json
from pathlib import Path
from random import Random

import pytest

from dispatcher import registry
from dispatcher.core.regret import RegretMeter
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Job, Outcome, Phase, PoolSpec, Removed
from dispatcher.estimators.throughput_curve import ThroughputCurve
from dispatcher.policies import curve
from dispatcher.policies.curve import cost
from loadgen.sim.oracles import TrueDelay
from loadgen.sim.pools import ServicePool, ServiceScene, simulate

GOLDEN = json.loads((Path(__file__).parents[1] / "traces" / "curve_golden.json").read_text())
OUTCOMES = {"answered": Outcome.OK, "failed": Outcome.FAILED, "given up": Outcome.CANCELLED}


def fraction(x):
    return x % 1.0


def end_of(j, fails):
    """How request j ends."""
    if fails and j % 70 == 0:
        return "given up"
    return "failed" if fails and j % 50 == 0 else "answered"


def curve_router(pools, **options):
    policy = registry.create("curve", Random(0), options)
    router = Router(policy)
    for i in range(pools):
        router.apply(Added(PoolSpec(str(i))), 0.0)
    return policy, router


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_trace(name, monkeypatch):
    """Arrivals and response times without random numbers; the values come from an independent program."""
    trace = GOLDEN[name]
    pools, slow_from = trace["pools"], trace["slow_from"]
    policy, router = curve_router(len(pools), memory=trace["memory"] or 0)
    expected = {row["arrival"]: row for row in trace["after"]}
    noted = []
    monkeypatch.setattr(router, "_request_joined", noting_join(policy, pools, noted))
    choices, checksum, now, ends = [0] * len(pools), 0, 0.0, []
    for j in range(1, trace["arrivals"] + 1):
        now += (0.2 + 1.6 * fraction(0.7548776662466927 * j)) / trace["arrivals_per_second"]
        while ends and ends[0][0] <= now:
            at, _, ticket, how = heapq.heappop(ends)
            router.complete(ticket, at, OUTCOMES[how])
        before = {i: router.fleet[str(i)].in_flight for i in range(len(pools))}
        noted.clear()
        ticket = router.route(Job(j), now)
        i = int(ticket.pool.id)
        if j in expected:
            row, (seconds, capacity) = expected[j], noted
            assert seconds == pytest.approx(row["s"], rel=1e-9)
            assert capacity == pytest.approx(row["c"], rel=1e-9)
            rates = [policy.arrival_rate(str(k)) for k in range(len(pools))]
            scores = [cost(before[k], seconds[k], capacity[k], rates[k]) for k in range(len(pools))]
            assert scores == pytest.approx(row["score"], rel=1e-9)
        choices[i] += 1
        checksum = (31 * checksum + i + 1) % 1_000_000_007
        s = pools[i]["s"] * (4 if slow_from and i == 0 and j >= slow_from else 1)
        took = s * max(1, (before[i] + 1) / pools[i]["c"]) * (0.5 + fraction(0.6180339887498949 * j))
        heapq.heappush(ends, (now + took, j, ticket, end_of(j, slow_from is not None)))
    assert choices == trace["choices_by_pool"]
    assert checksum == trace["order_checksum"]


def noting_join(policy, pools, noted):
    """A `request_joined` that first appends what the policy knows to `noted`."""

    def join(pool, now):
        noted.extend(known(policy, pools))
        policy.request_joined(pool, now)

    return join


def known(policy, pools):
    """Service times and capacities, by pool."""
    estimates = policy.estimates()
    every = [estimates[str(i)] for i in range(len(pools))]
    return [one.service_seconds.value for one in every], [one.capacity.value for one in every]


# -- what it finds out


FOUR, SIXTEEN = "fcfs:servers=4,seconds=0.04", "fcfs:servers=16,seconds=0.08"


def learned(pools, rate, requests=6000, seed=1, **scene):
    """The response times, and the estimates of `curve` afterwards."""
    made = []

    def make(_, rng):
        made.append(registry.create("curve", rng))
        return made[0]

    scene = ServiceScene(tuple(ServicePool(text) for text in pools), rate, **scene)
    specs = [PoolSpec(str(i)) for i in range(len(pools))]
    times = simulate(scene, make, specs, requests, seed)
    return times, made[0].estimates()


@pytest.mark.parametrize(
    ("pools", "rate", "capacity", "seconds"),
    [
        ((FOUR, SIXTEEN), 150.0, (4, 16), (0.04, 0.08)),
        (("ps:servers=4,seconds=0.04", "ps:servers=2,seconds=0.02"), 120.0, (4, 2), (0.04, 0.02)),
        (("fcfs:servers=1,seconds=0.025", "fcfs:servers=1,seconds=0.005"), 200.0, (1, 1), (0.025, 0.005)),
    ],
)
def test_it_finds_the_servers_and_the_service_time(pools, rate, capacity, seconds):
    _, estimates = learned(pools, rate)
    for i in range(2):
        found = estimates[str(i)]
        assert found.capacity.value / capacity[i] == pytest.approx(1, abs=0.42), "one step of the grid"
        assert found.service_seconds.value == pytest.approx(seconds[i], rel=0.12)
        for interval in (found.capacity, found.service_seconds, found.throughput):
            assert interval.low <= interval.value <= interval.high
        assert found.throughput.low <= capacity[i] / seconds[i] <= found.throughput.high


def test_an_unlimited_pool_is_not_taken_for_a_small_one():
    _, estimates = learned(("infinite:seconds=0.05", "infinite:seconds=0.1"), 200.0)
    assert estimates["0"].capacity.value >= 16


@pytest.mark.slow  # `test_it_finds_the_servers_and_the_service_time` is the fast one
def test_it_needs_no_more_than_the_better_of_the_rules_that_know_the_pools():
    times, _ = learned((FOUR, SIXTEEN), 150.0, requests=12_000)
    scene = ServiceScene((ServicePool(FOUR), ServicePool(SIXTEEN)), 150.0)
    specs = [PoolSpec("0"), PoolSpec("1")]
    told = simulate(scene, TrueDelay, specs, 12_000, 1)
    jsq = simulate(scene, lambda _, rng: registry.create("jsq", rng), specs, 12_000, 1)
    assert times.mean() < 0.97 * min(told.mean(), jsq.mean())


# -- how requests end


def run_with_one_bad_pool(bad, requests=3000):
    """Requests by pool; pool 0 of three is `bad`: (seconds, outcome) of each of its requests, None for never."""
    _, router = curve_router(3)
    rng, ends, now, chosen, open_tickets = Random(1), [], 0.0, [0, 0, 0], []
    for j in range(requests):
        now += rng.expovariate(100.0)
        while ends and ends[0][0] <= now:
            at, _, ticket, outcome = heapq.heappop(ends)
            router.complete(ticket, at, outcome)
        ticket = router.route(Job(j), now)
        i = int(ticket.pool.id)
        chosen[i] += 1
        if i or bad is None:
            if i == 0:
                open_tickets.append(ticket)
                continue
            busy = max(1.0, (ticket.in_flight_before + 1) / 4)
            heapq.heappush(ends, (now + rng.expovariate(1 / 0.04) * busy, j, ticket, Outcome.OK))
        else:
            heapq.heappush(ends, (now + bad[0], j, ticket, bad[1]))
    return chosen


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_a_pool_that_fails_at_once_attracts_no_traffic(outcome):
    assert run_with_one_bad_pool((0.001, outcome))[0] < 30


def test_a_hung_pool_loses_its_traffic():
    assert run_with_one_bad_pool(None)[0] < 60


def test_a_pool_that_rejects_at_once_attracts_no_traffic():
    _, router = curve_router(2)
    chosen, now = [0, 0], 0.0
    for j in range(500):
        now += 0.1
        ticket = router.route(Job(j), now)
        i = int(ticket.pool.id)
        chosen[i] += 1
        router.complete(ticket, now + (0.001 if i == 0 else 0.05), Outcome.OK, teaches=i == 1, accepted=i == 1)
    assert chosen[0] < 20


@pytest.mark.parametrize("how", ["given up", "slow reader", "not found"])
def test_some_ends_teach_only_the_time_in_flight(how):
    policy, router = curve_router(1)
    for j in range(5):
        router.complete(router.route(Job(j), float(j)), j + 0.5, Outcome.OK)
    state = policy._states["0"]
    departures, seconds = sum(state.departures_from), state.seconds_with[1]
    ticket = router.route(Job(9), 10.0)
    if how == "slow reader":
        router.discard_timing(ticket, 11.0)
    outcome = Outcome.CANCELLED if how == "given up" else Outcome.OK
    router.complete(ticket, 12.0, outcome, teaches=how != "not found")
    assert sum(state.departures_from) == departures
    assert state.seconds_with[1] == pytest.approx(seconds + 2.0 * policy._weight)


def test_a_pool_that_answers_nothing_but_client_errors_attracts_no_traffic():
    _, router = curve_router(2)
    chosen, now = [0, 0], 0.0
    for j in range(500):
        now += 0.1
        ticket = router.route(Job(j), now)
        i = int(ticket.pool.id)
        chosen[i] += 1
        router.complete(ticket, now + (0.001 if i == 0 else 0.05), Outcome.OK, teaches=i == 1)
    assert chosen[0] < 20


def test_a_request_that_another_policy_sent_is_counted():
    policy = registry.create("curve", Random(1))
    router = Router(registry.create("jsq", Random(1)))
    router.apply(Added(PoolSpec("0")), 0.0)
    early = [router.route(Job(j), 0.0) for j in range(9)]
    router.switch(policy, 1.0)
    late = router.route(Job(9), 2.0)
    for ticket in (*early, late):
        router.complete(ticket, 3.0, Outcome.OK)
    state = policy._states["0"]
    assert state.largest == 10
    assert state.seconds_with[10] == pytest.approx(policy._weight), "one second with ten requests"
    assert sum(state.departures_from) == pytest.approx(policy._weight), "the others joined before it counted"


@pytest.mark.parametrize("seconds", [0.1, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_request_from_before_the_sums_leaves_the_estimates_sound(seconds, forgotten):
    policy = registry.create("curve", Random(1))
    router = Router(policy if forgotten else registry.create("jsq", Random(1)))
    router.apply(Added(PoolSpec("0")), 0.0)
    early = router.route(Job(0), 0.0)
    if forgotten:
        policy.reset_pool("0")
    else:
        router.switch(policy, seconds - 0.01)
    router.complete(early, seconds, Outcome.OK)
    for j in range(5):
        router.complete(router.route(Job(j), seconds + j), seconds + j + 0.01, Outcome.OK)
        found = policy.estimates()["0"]
        for interval in (found.service_seconds, found.capacity, found.throughput):
            assert interval.low <= interval.value <= interval.high
    assert policy.rate("0") > 1


@pytest.mark.parametrize("end", ["failed", "not found"])
def test_an_outage_does_not_distort_what_is_usual(end):
    policy, router = curve_router(2, memory=100)
    now = 0.0

    def send(good):
        nonlocal now
        now += 0.1
        ticket = router.route(Job(1), now)
        outcome = Outcome.OK if good or end == "not found" else Outcome.FAILED
        router.complete(ticket, now + 0.05, outcome, teaches=good)

    for _ in range(200):
        send(good=True)
    usual = policy.usual_seconds
    for _ in range(5000):
        send(good=False)
    assert policy.usual_seconds < 200 * usual
    for _ in range(300):
        send(good=True)
    assert policy.usual_seconds == pytest.approx(usual, rel=0.1)


def test_a_pool_that_was_recalled_is_tried_again_though_it_looked_slow():
    first, router = curve_router(2)
    for j in range(400):
        ticket = router.route(Job(j), 10.0 * j)
        router.complete(ticket, 10.0 * j + (5.0 if ticket.pool.id == "1" else 0.01), Outcome.OK)
    second = registry.create("curve", Random(1))
    second.set_state(first.get_state())
    router = Router(second)
    for pool in "01":
        router.apply(Added(PoolSpec(pool)), 0.0)
    chosen = []
    for j in range(2500):
        ticket = router.route(Job(j), float(j))
        router.complete(ticket, j + 0.01 * (1 if ticket.pool.id == "0" else 0.5), Outcome.OK)
        chosen.append(ticket.pool.id)
    assert chosen[-300:].count("1") > 290


def test_large_counts_bring_a_fit_only_where_they_allow_a_larger_capacity():
    known = ThroughputCurve(1.0)
    assert sum(known.join(n) for n in range(1, 65)) == 64
    assert 1 <= sum(known.join(n) for n in range(65, 1100)) <= 9
    assert sum(known.join(n) for n in range(1100, 5000)) == 0


# -- many pools, long lives


def choices(policy, pools, requests=1000):
    router = Router(policy)
    for i in range(pools):
        router.apply(Added(PoolSpec(str(i))), 0.0)
    rng, ends, now, chosen = Random(1), [], 0.0, []
    for j in range(requests):
        now += rng.expovariate(40.0 * pools)
        while ends and ends[0][0] <= now:
            at, _, ticket = heapq.heappop(ends)
            router.complete(ticket, at, Outcome.OK)
        ticket = router.route(Job(j), now)
        chosen.append(ticket.pool.id)
        i = int(ticket.pool.id)
        took = rng.expovariate(1 / (0.01 * (1 + i % 5))) * max(1, (ticket.in_flight_before + 1) / (1 + i % 3))
        heapq.heappush(ends, (now + took, j, ticket))
    return chosen


def test_many_pools_at_once_are_decided_as_one_by_one(monkeypatch):
    at_once = choices(registry.create("curve", Random(1)), 30)
    monkeypatch.setattr(curve, "MIN_POOLS_FOR_ARRAYS", 1000)
    assert choices(registry.create("curve", Random(1)), 30) == at_once


def test_weights_that_grow_large_change_nothing(monkeypatch):
    before = choices(registry.create("curve", Random(1), {"memory": 100}), 3)
    monkeypatch.setattr(curve, "MAX_WEIGHT", 16.0)
    assert choices(registry.create("curve", Random(1), {"memory": 100}), 3) == before


def test_what_is_remembered_is_recalled():
    first, router = curve_router(2)
    for j in range(200):
        for ticket in [router.route(Job(j), j * 1.0) for _ in range(3)]:
            router.complete(ticket, j + 0.2 + 0.1 * int(ticket.pool.id), Outcome.OK)
    second = registry.create("curve", Random(1))
    second.set_state(json.loads(json.dumps(first.get_state())))
    other = Router(second)
    for pool in "01":
        other.apply(Added(PoolSpec(pool)), 0.0)
    for pool in "01":
        assert second.rate(pool) == pytest.approx(first.rate(pool), rel=0.05)
        assert second.estimates()[pool].capacity.value == first.estimates()[pool].capacity.value
    assert other.route(Job(1), 0.0).decision.phase is Phase.EXPLOIT


def test_a_pool_that_comes_back_is_known():
    policy, router = curve_router(2)
    for j in range(50):
        router.complete(router.route(Job(j), j * 1.0), j + 0.5, Outcome.OK)
    rate = policy.rate("0")
    router.apply(Removed("0"), 50.0)
    router.apply(Added(PoolSpec("0")), 51.0)
    assert policy.rate("0") == rate
    policy.reset_pool("0")
    assert policy.estimates()["0"].observations == 0


def test_requests_that_take_no_time_at_all_do_no_harm():
    policy, router = curve_router(2)
    for j in range(20):
        router.complete(router.route(Job(j), 1.0), 1.0, Outcome.OK)
    assert policy.estimates()["0"].observations + policy.estimates()["1"].observations == 20
    assert policy.rate("0") > 0


def test_configured_servers_are_believed_until_counts_say_otherwise():
    policy = registry.create("curve", Random(1))
    router = Router(policy)
    router.apply(Added(PoolSpec("0", servers=8)), 0.0)
    assert policy.estimates()["0"].capacity.value == 8
    router.complete(router.route(Job(1), 0.0), 0.1, Outcome.OK)
    assert policy.estimates()["0"].capacity.value >= 8


# -- regret


def test_regret_is_the_excess_over_its_own_score_with_the_true_values():
    policy = registry.create("curve", Random(1))
    meter = RegretMeter(policy)
    router = Router(policy, [meter])
    for pool, rate in (("0", 10.0), ("1", 20.0)):
        router.apply(Added(PoolSpec(pool, true_rate=rate)), 0.0)
    assert "curve" in meter.oracle
    router.route(Job(1), 0.0)  # the first trial goes to the slow pool, which costs twice as much
    assert meter.total == 1
    assert sum(meter.excess.values()) == pytest.approx(1.0)
    router.route(Job(2), 0.0)
    assert meter.total == 1
