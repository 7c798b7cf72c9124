"""Every registered policy against every check of the public kit; and the kit finds what is broken."""

from random import Random

import pytest

from dispatcher import registry
from dispatcher.core.types import Decision
from dispatcher.policies.base import BasePolicy
from dispatcher.policies.lased import Lased
from dispatcher.testing import check_policy, checks


@pytest.mark.parametrize("check", list(checks()), ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", list(registry.registered()))
def test_conforms(name, check):
    maker = registry.factory(name)
    check(lambda seed: maker(rng=Random(seed)))


@pytest.mark.parametrize("ties", ["random", "slowest", "fastest"])
def test_conforms_with_other_ties(ties):
    check_policy(Lased, ties=ties)


def test_conforms_with_short_episodes():
    check_policy(Lased, max_episode_arrivals=5, prior_weight=2.0, n0=2)


def test_conforms_with_episodes_by_pool():
    check_policy(Lased, episodes="pool", n0=2)


class Forgetful(BasePolicy):
    """Goes on naming the first pool it ever saw."""

    def choose(self, job, fleet, now):
        self.first = getattr(self, "first", fleet.pools[0].id)
        return Decision(self.first)


class Wilful(BasePolicy):
    """Brings its own dice."""

    dice = Random(9)

    def choose(self, job, fleet, now):
        return Decision(self.dice.choice(fleet.pools).id)


class Credulous(BasePolicy):
    """Expects a service time with every completion."""

    def choose(self, job, fleet, now):
        return Decision(fleet.pools[-1].id)

    def learn(self, done, fleet):
        self.total = done.service_time + 1


@pytest.mark.parametrize("broken", [Forgetful, Wilful, Credulous])
def test_the_kit_finds_what_is_broken(broken):
    with pytest.raises(AssertionError):
        check_policy(broken)
