"""The policy `curve`: golden traces, and what its estimates are after simple histories."""

import heapq
import json
from pathlib import Path
from random import Random

import pytest

from dispatcher import registry
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Job, Outcome, PoolSpec
from dispatcher.policies.curve import cost

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
            router.settle(ticket, at, OUTCOMES[how])
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
