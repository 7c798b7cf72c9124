"""Regret against the oracle in the state seen: ties are right, causes are told apart."""

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.fleet import Fleet
from dispatcher.core.regret import Cause, RegretMeter, is_wrong, overflow_threshold
from dispatcher.core.types import Added, Decision, Job, Phase, PoolSpec
from dispatcher.policies.esed import Esed


def fleet_at(queues, servers=None):
    fleet = Fleet()
    for i, q in enumerate(queues):
        fleet.add(PoolSpec(str(i), servers=(servers or [1] * len(queues))[i]))
        for _ in range(q):
            fleet.open_one(fleet[str(i)])
    return fleet


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 5)), min_size=1, max_size=5), st.data()
)
def test_wrong_means_a_strictly_smaller_delay_elsewhere(pools, data):
    chosen = data.draw(st.integers(0, len(pools) - 1))
    fleet = fleet_at([q for q, _, _ in pools], [c for _, _, c in pools])
    rates = {str(i): float(mu) for i, (_, mu, _) in enumerate(pools)}
    delays = [(Fraction(max(0, q + 1 - c), c) + 1) / mu for q, mu, c in pools]
    assert is_wrong(fleet, str(chosen), rates) == (delays[chosen] > min(delays))


def test_at_a_tie_every_minimiser_is_right():
    fleet = fleet_at([0, 1])
    assert not is_wrong(fleet, "0", {"0": 0.1, "1": 0.2})
    assert not is_wrong(fleet, "1", {"0": 0.1, "1": 0.2})


@pytest.mark.parametrize(
    ("queues", "phase", "cause"),
    [
        ([1, 0], Phase.EXPLOIT, Cause.ESTIMATION),
        ([1, 0], Phase.EXPLORE, Cause.EXPLORATION),
        ([9, 0], Phase.EXPLOIT, Cause.OVERFLOW),
        ([9, 0], Phase.EXPLORE, Cause.EXPLORATION),
        ([0, 0], Phase.EXPLOIT, None),
    ],
)
def test_causes(queues, phase, cause):
    fleet = fleet_at(queues)
    meter = RegretMeter(Esed(rng=Random(1)))
    for pool in fleet.pools:
        meter.changed(Added(PoolSpec(pool.id, true_rate=1.0)), 0.0)
    meter.chosen(Job(1), Decision("0", phase=phase), fleet, 0.0)
    assert meter.last is cause
    assert meter.total == (cause is not None)


def test_regret_is_silent_until_every_true_rate_is_known():
    meter = RegretMeter(Esed(rng=Random(1)))
    meter.changed(Added(PoolSpec("0", true_rate=1.0)), 0.0)
    meter.changed(Added(PoolSpec("1")), 0.0)
    meter.chosen(Job(1), Decision("0"), fleet_at([5, 0]), 0.0)
    assert not meter.known
    assert meter.total == 0


def test_the_overflow_threshold_grows_with_the_logarithm():
    assert [overflow_threshold(k) for k in (1, 10)] == [7, 7]
    assert overflow_threshold(1000) == pytest.approx(3 * 6.907755278982137)
