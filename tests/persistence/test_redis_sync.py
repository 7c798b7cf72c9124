"""Shared learning through a real Redis: sums that are counted once whatever happens to it, and fleets that learn
together."""

import asyncio
import shutil
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from dispatcher.core.router import Router
from dispatcher.core.types import Added, Job, Outcome, PoolSpec, Removed
from dispatcher.persistence import redis_sync as shared
from dispatcher.persistence.redis_sync import SharedLearning
from dispatcher.policies.greedy import Greedy
from dispatcher.policies.lased import Lased
from tests.persistence.redis_server import Redis

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")


@pytest.fixture
def redis(tmp_path):
    server = Redis(tmp_path)
    server.start()
    yield server
    server.thaw()
    server.kill()


class Member:
    """A dispatcher's policy with pools a and b, and its part in the sharing."""

    def __init__(self, url, policy=Greedy, **options):
        self.policy = policy(rng=Random(1), **options)
        self.router = Router(self.policy)
        for pool in ("a", "b"):
            self.router.apply(Added(PoolSpec(pool, guess=1.0)), 0.0)
        self.registry = CollectorRegistry()
        self.shared = SharedLearning(url, "test", lambda: self.policy, self.registry)
        self.now = 0.0

    def sees(self, pool, times):
        for service in times:
            self.now += service
            ticket = self.router.route(Job(1), self.now - service, frozenset({"a", "b"} - {pool}))
            self.router.complete(ticket, self.now, Outcome.OK, service)

    async def look(self):
        return await self.shared.exchange()

    def knows(self, pool):
        mean = self.policy.means[pool]
        return mean.observations, pytest.approx(mean.total)

    @property
    def up(self):
        return self.registry.get_sample_value("lased_shared_learning_up")


async def all_look(*members):
    for _ in range(2):  # once to tell, once to hear
        for member in members:
            assert await member.look()


async def test_what_each_has_seen_is_known_to_all_and_counted_once(redis):
    one, two, three = (Member(redis.url) for _ in range(3))
    one.sees("a", [0.1, 0.3])
    two.sees("a", [0.2])
    two.sees("b", [1.0])
    for _ in range(3):  # again and again changes nothing
        await all_look(one, two, three)
        for member in (one, two, three):
            assert member.knows("a") == (3, 0.6)
            assert member.knows("b") == (1, 1.0)
    three.sees("a", [0.4])
    await all_look(one, two, three)
    assert one.policy.rate("a") == pytest.approx(4 / 1.0)
    for member in (one, two, three):
        await member.shared.close()


async def test_killed_emptied_and_back_it_is_given_all_again_and_nothing_twice(redis):
    one, two = Member(redis.url), Member(redis.url)
    one.sees("a", [0.1] * 10)
    two.sees("a", [0.2] * 10)
    await all_look(one, two)
    redis.kill()
    one.sees("a", [0.1] * 5)
    assert not await one.look()
    assert one.up == 0
    assert one.knows("a") == (25, 3.5), "what the others had is not lost, and it goes on learning"
    redis.start()  # empty: nothing was saved
    await all_look(one, two)
    assert one.up == 1
    for member in (one, two):
        assert member.knows("a") == (25, 3.5)
    redis.ask("FLUSHALL")
    two.sees("a", [0.2])
    await all_look(one, two)
    assert one.knows("a") == two.knows("a") == (26, 3.7)
    for member in (one, two):
        await member.shared.close()


async def test_an_emptied_server_gets_back_what_those_that_have_gone_had_seen(redis):
    gone, one, two = Member(redis.url), Member(redis.url), Member(redis.url)
    gone.sees("a", [0.5] * 4)
    await gone.look()
    await gone.shared.close()
    one.sees("a", [0.1] * 6)
    await all_look(one, two)
    redis.ask("FLUSHALL")
    for _ in range(2):
        for member in (two, one):
            assert await member.look()
            assert member.knows("a") == (10, 2.6), "not even for a moment"
    late = Member(redis.url)
    await all_look(late)
    assert late.knows("a") == (10, 2.6)
    for member in (one, two, late):
        await member.shared.close()


@pytest.mark.parametrize("prior", [0.0, 5.0])
async def test_another_policy_goes_on_with_its_own_part_and_that_of_the_others(redis, prior):
    one, two = Member(redis.url, prior_weight=prior), Member(redis.url)
    one.sees("a", [0.1] * 10)
    two.sees("a", [0.2] * 20)
    await all_look(one, two)
    before, after = one.policy, Lased(rng=Random(1))
    after.set_state(before.get_state())
    after.set_local_counts(before.local_counts())
    one.router.switch(after, one.now)
    one.policy = after
    await all_look(one, two)
    for member in (one, two):
        assert member.knows("a") == (30, 5.0)
    for member in (one, two):
        await member.shared.close()


async def test_a_pool_that_is_out_is_forgotten_and_remembered_like_any_other(redis):
    one, two = Member(redis.url), Member(redis.url)
    one.sees("a", [0.1] * 4)
    await all_look(one, two)
    one.router.apply(Removed("a"), one.now)
    await all_look(one, two)
    assert two.knows("a") == (4, 0.4), "what was seen of it stays"
    one.policy.reset_pool("a")
    one.shared.reset_pool("a")
    await all_look(one, two)
    assert two.knows("a") == (0, 0.0)
    one.router.apply(Added(PoolSpec("a", guess=1.0)), one.now)
    await all_look(one, two)
    assert one.knows("a") == (0, 0.0)
    for member in (one, two):
        await member.shared.close()


async def test_a_forget_whose_answer_is_lost_is_one_forget(redis):
    one, two = Member(redis.url), Member(redis.url)
    one.sees("a", [0.1])
    await all_look(one, two)
    one.policy.reset_pool("a")
    one.shared.reset_pool("a")
    script, answers = one.shared._script, 0

    async def lost(args):
        nonlocal answers
        found = await script(args=args)
        answers += 1
        if answers <= 3:
            raise TimeoutError
        return found

    one.shared._script = lost
    for _ in range(3):
        assert not await one.look()
    one.sees("a", [0.7])
    await all_look(one, two)
    assert redis.ask("HGET", "test:epochs", "a") == "1"
    assert one.knows("a") == two.knows("a") == (1, 0.7)
    for member in (one, two):
        await member.shared.close()


async def test_a_policy_that_breaks_its_word_stops_nothing(redis, capsys):
    member = Member(redis.url)
    member.policy.local_counts = lambda: 1 / 0
    assert not await member.look()
    del member.policy.local_counts
    assert await member.look()
    assert "ZeroDivisionError" in capsys.readouterr().out
    await member.shared.close()


async def test_a_server_that_does_not_answer_holds_nobody_up(redis, monkeypatch):
    monkeypatch.setattr(shared, "TIMEOUT_SECONDS", 0.2)
    member = Member(redis.url)
    await all_look(member)
    redis.freeze()
    member.sees("a", [0.1])
    began = asyncio.get_running_loop().time()
    assert not await member.look()
    assert asyncio.get_running_loop().time() - began < 0.6
    redis.thaw()
    other = Member(redis.url)
    await all_look(member, other)
    assert other.knows("a") == (1, 0.1), "an exchange that was broken off is made good"
    for each in (member, other):
        await each.shared.close()


async def test_the_absence_is_told_once_and_the_return_once(redis, capsys):
    member = Member(redis.url)
    redis.kill()
    for _ in range(3):
        await member.look()
    redis.start()
    for _ in range(3):
        await member.look()
    said = capsys.readouterr().out
    assert said.count("shared_learning_lost") == 1
    assert said.count("shared_learning ") == 1
    await member.shared.close()


async def test_an_operator_forgets_a_pool_for_the_whole_fleet(redis):
    one, two = Member(redis.url), Member(redis.url)
    one.sees("a", [0.1] * 4)
    two.sees("b", [0.5])
    await all_look(one, two)
    one.policy.reset_pool("a")
    one.shared.reset_pool("a")
    await all_look(one, two)
    for member in (one, two):
        assert member.knows("a") == (0, 0.0)
        assert member.knows("b") == (1, 0.5)
        assert member.policy.rate("a") == 1.0
    late = Member(redis.url)
    two.sees("a", [2.0])
    await all_look(one, two, late)
    assert late.knows("a") == (1, 2.0)
    for member in (one, two, late):
        await member.shared.close()


async def test_a_new_replica_starts_with_what_the_fleet_knows(redis):
    old = Member(redis.url, Lased)
    old.sees("a", [0.1] * 20)
    old.sees("b", [0.4] * 20)
    await old.look()
    await old.shared.close()
    new = Member(redis.url, Lased)
    await new.shared.begin()
    assert [new.policy.rate(pool) for pool in "ab"] == pytest.approx([10.0, 2.5]), "before its first episode"
    ticket = new.router.route(Job(1), 0.0)
    assert ticket.decision.pool == "a"
    assert not new.policy.episode.explored, "there is nothing left to try"
    await new.shared.close()


async def test_a_prior_is_nobodys_observation(redis):
    members = [Member(redis.url, prior_weight=5.0) for _ in range(2)]
    members[0].sees("a", [0.1])
    await all_look(*members)
    assert [member.policy.means["a"].weight for member in members] == [6.0, 6.0]
    for member in members:
        await member.shared.close()


async def test_dispatchers_that_went_are_folded_and_one_that_returns_is_not_counted_twice(redis, monkeypatch):
    monkeypatch.setattr(shared, "MAX_FIELDS", 3)
    monkeypatch.setattr(shared, "SILENT_SECONDS", -1)  # every other dispatcher counts as gone
    gone = Member(redis.url)
    gone.sees("a", [0.1] * 4)
    await gone.look()
    for _ in range(5):
        member = Member(redis.url)
        member.sees("a", [0.2])
        await member.look()
        await member.shared.close()
    assert int(redis.ask("HLEN", "test:pool:a:0")) <= 4
    watcher = Member(redis.url)
    await all_look(watcher)
    assert watcher.knows("a") == (9, 1.4)
    gone.sees("a", [0.3])
    monkeypatch.setattr(shared, "SILENT_SECONDS", 3600)
    await all_look(gone, watcher)
    await all_look(gone, watcher)
    assert watcher.knows("a") == (10, 1.7)
    assert gone.knows("a") == (10, 1.7)
    for member in (gone, watcher):
        await member.shared.close()


async def test_three_reach_an_accuracy_with_a_third_of_the_requests_each(redis):
    """Of n observations in all, everybody's estimate has the error of n, 1/√n, whoever saw them."""
    members, dice = [Member(redis.url) for _ in range(3)], Random(5)
    for _ in range(20):
        for member in members:
            member.sees("a", [dice.expovariate(4.0) for _ in range(50)])
            await member.look()
    await all_look(*members)
    for member in members:
        assert member.policy.means["a"].observations == 3000
        assert abs(member.policy.rate("a") / 4.0 - 1) < 4 / 3000**0.5
        await member.shared.close()
