"""Policies that compare scores: many pools are scored by arrays, and must not differ from few pools."""

from random import Random

import pytest

from dispatcher.core.types import PoolSpec
from dispatcher.policies.base import ScoredPolicy
from dispatcher.policies.sed import Sed
from dispatcher.testing.doubles import Table


class Changing(ScoredPolicy):
    """Its speed is twice its rate, and both can change."""

    def __init__(self, *, rng):
        super().__init__(rng=rng)
        self.changed = {}

    def rate(self, pool):
        return self.changed.get(pool, 1.0)

    def speed(self, pool):
        return 2.0 * self.rate(pool.id)


def pools(n):
    return [PoolSpec(f"p{i}", guess=1.0, true_rate=3.0) for i in range(n)]


@pytest.mark.parametrize("n", [10, 40])
def test_a_changed_rate_changes_the_speed_that_is_scored(n):
    policy = Changing(rng=Random(1))
    fleet = Table(policy, pools(n)).router.fleet
    policy.scores(fleet.pools, 0.0)
    policy.changed["p7"] = 5.0
    policy.rate_changed("p7")
    scores = list(policy.scores(fleet.pools, 0.0))
    assert scores[7] == pytest.approx(1 / 10)
    assert scores[6] == pytest.approx(1 / 2)
    assert list(policy.rates(fleet.pools))[7] == 5.0


@pytest.mark.parametrize("n", [10, 40])
def test_the_rates_of_sed_are_its_guesses_however_many_pools_there_are(n):
    policy = Sed(rng=Random(1))
    fleet = Table(policy, pools(n)).router.fleet
    policy.scores(fleet.pools, 0.0)
    assert set(policy.rates(fleet.pools)) == {1.0}
