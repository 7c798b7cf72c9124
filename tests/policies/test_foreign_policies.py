"""Policies that do not derive from the base class: the test kit and the service accept and refuse the same ones."""

import sys
import textwrap
from random import Random

import aiohttp
import pytest

from dispatcher import registry
from dispatcher.cli import app
from dispatcher.core.policy import BasePolicy, as_policy
from dispatcher.core.types import PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.policies.base import IndexPolicy, LearningPolicy, ScoredPolicy
from dispatcher.policies.jsq import Jsq
from dispatcher.testing import Table, check_policy
from tests.proxy.harness import front, get, status

SOURCE = """
from dispatcher.core.types import Decision


class Three:
    '''Sends every request to the first pool.'''

    def __init__(self, *, rng):
        self.learned = 0

    def choose(self, job, fleet, now):
        return Decision(fleet.pools[0].id)

    def learn(self, done, fleet):
        self.learned += 1

    def adapt(self, change, fleet):
        pass


class One:
    def __init__(self, *, rng):
        pass

    choose = Three.choose
"""
REFUSAL = "One is not a policy: it has no learn, adapt"


@pytest.fixture
def three(tmp_path, monkeypatch):
    """The module `three`, in the present folder, as a user would have it."""
    (tmp_path / "three.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import three

    yield three
    del sys.modules["three"]


def check(policy):
    return app(["check", "--pool", "a=http://127.0.0.1:9", "--policy", policy], standalone_mode=False) or 0


def test_the_kit_and_the_check_command_accept_three_methods(three, capsys):
    check_policy(three.Three)
    assert check("three:Three") == 0
    assert capsys.readouterr().out.startswith("policy  three:Three")


async def test_a_policy_of_three_methods_serves_requests_and_is_shown(three):
    async with front(policy="three:Three") as f:
        assert status(await f.ask(get())) == 200
        await f.wait_idle()
        async with aiohttp.ClientSession(f"http://{f.admin[0]}:{f.admin[1]}") as admin:
            state = await (await admin.get("/state")).json()
            metrics = await (await admin.get("/metrics")).text()
        assert (state["episode"]["number"], state["pools"][0]["estimate"], state["plane"]) == (2, 1.0, None)
        assert "lased_policy_errors_total 0.0" in metrics


def test_the_kit_and_the_service_refuse_with_the_same_sentence(three):
    with pytest.raises(AssertionError, match=f"^{REFUSAL}$"):
        check_policy(three.One)
    with pytest.raises(ConfigError, match=f"^policy 'three:One': {REFUSAL}$"):
        registry.create("three:One", Random(1))
    with pytest.raises(ConfigError, match=REFUSAL):
        check("three:One")


def test_the_wrapper_passes_everything_on_and_counts_episodes(three):
    policy = three.Three(rng=Random(1))
    table = Table(policy, [PoolSpec("a", guess=3.0)])
    for _ in range(4):
        table.finish(table.arrive())
    wrapper = table.router.policy
    assert (policy.learned, wrapper.episode.number, wrapper.rate("a"), wrapper.name) == (4, 5, 3.0, "Three")


def test_a_fault_is_reported_under_the_name_of_the_policy(three):
    policy = three.Three(rng=Random(1))
    table = Table(policy, [PoolSpec("a")])
    policy.learned = None
    table.finish(table.arrive())
    (fault,) = table.recording.faults
    assert str(fault).startswith("Three.learn broke its contract: TypeError")


def test_a_policy_of_the_base_class_is_not_wrapped():
    policy = Jsq(rng=Random(1))
    assert as_policy(policy) is policy
    assert issubclass(LearningPolicy, ScoredPolicy)
    assert issubclass(ScoredPolicy, BasePolicy)
    assert IndexPolicy is ScoredPolicy, "the earlier name still works"


def test_a_subclass_with_its_own_score_is_scored_by_it_however_many_pools_there_are():
    class Last(LearningPolicy):
        def score(self, pool, now):
            return -int(pool.id)

    table = Table(Last(rng=Random(1)), [PoolSpec(str(i)) for i in range(40)])
    assert table.arrive().pool.id == "39"
