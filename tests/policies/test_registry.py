"""From names to policies: entry points, module:attr, and refusals in one clear line."""

from random import Random

import pytest

from dispatcher import registry
from dispatcher.errors import ConfigError
from dispatcher.policies.jsq import Jsq
from dispatcher.policies.lased import Lased

BUILT_IN = {"lased", "sed", "esed", "greedy", "jsq", "round_robin", "random"}


def test_the_built_in_ones_are_registered_as_strangers_are():
    assert set(registry.registered()) >= BUILT_IN
    assert all(registry.summary_of(registry.factory(name)) for name in BUILT_IN)


def test_any_importable_factory_will_do():
    assert isinstance(registry.create("dispatcher.policies.jsq:Jsq", Random(1)), Jsq)


def test_options_take_the_declared_types():
    policy = registry.create("lased", Random(1), {"n0": "9", "c": 2, "ties": "random"})
    assert isinstance(policy, Lased)
    assert (policy.n0, policy.c, policy.ties) == (9, 2.0, "random")
    assert isinstance(policy.c, float)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lasd", {}, "did you mean 'lased'"),
        ("nowhere:Policy", {}, "cannot be loaded"),
        ("dispatcher.policies.jsq:Nope", {}, "cannot be loaded"),
        ("dispatcher.core.expected_delay:__doc__", {}, "not something to be called"),
        ("lased", {"n": 3}, "has no option 'n'"),
        ("lased", {"alfa": 3.0}, "did you mean 'alpha'"),
        ("lased", {"n0": "many"}, "n0 must be int, not 'many'"),
        ("lased", {"n0": 2.5}, "n0 must be int"),
        ("lased", {"n0": True}, "n0 must be int"),
        ("lased", {"n0": 0}, "policy 'lased': n0 must be from 1"),
        ("round_robin", {"ties": "first"}, "it takes none"),
    ],
)
def test_refusals_say_what_and_why(name, options, message):
    with pytest.raises(ConfigError, match=message):
        registry.create(name, Random(1), options)
