"""Pools that reject requests, before policies that learn from rejections and before others."""

import asyncio
from random import Random

import pytest

from dispatcher.policies.exp3_ix import Exp3Ix
from tests.proxy.harness import (
    answer_ok,
    answers,
    consecutive_failures,
    front,
    get,
    status,
)


def policy_of(f):
    return f.service.router.policy


@pytest.mark.parametrize("code", [503, 429])
async def test_a_pool_that_turns_requests_away_is_drawn_less_and_not_ejected(code):
    async with front(answers(code, b""), answer_ok, policy="exp3_ix") as f:
        codes = [status(await f.ask(get())) for _ in range(60)]
        away = codes.count(code)
        assert codes.count(200) == 60 - away
        assert 0 < away < 30
        assert policy_of(f).probabilities()["p0"] < 0.2
        assert f.metric("lased_pool_rejections_total", pool="p0") == away
        f.service.admin.refresh_metrics()
        assert f.metric("lased_choice_probability", pool="p0") == pytest.approx(policy_of(f).probabilities()["p0"])
        assert f.metric("lased_pool_up", pool="p0") == 1
        assert f.metric("lased_upstream_errors_total", pool="p0", reason=str(code)) == 0
        assert consecutive_failures(f, "p0") == 0
        await f.wait_idle()


async def test_a_resend_is_a_send_of_its_own_and_spends_the_budget():
    retry = {"on": ["503"], "budget": 0.0, "per_second": 0.3}  # three at once, and no more for a while
    async with front(answers(503, b""), answers(503, b""), answer_ok, policy="exp3_ix", retry=retry) as f:
        codes = [status(await f.ask(get())) for _ in range(30)]
        resent = f.metric("lased_retries_total", reason="503")
        assert policy_of(f).sends == 30 + resent
        turned = sum(f.metric("lased_pool_rejections_total", pool=pool) for pool in ("p0", "p1"))
        assert turned == codes.count(503) + resent
        await f.wait_idle()


async def test_an_attempt_that_is_repeated_teaches_too():
    retry = {"on": ["503"], "budget": 1.0}
    async with front(answers(503, b""), answer_ok, policy="exp3_ix", retry=retry) as f:
        assert {status(await f.ask(get())) for _ in range(40)} == {200}
        assert policy_of(f).losses[0] > 0
        assert policy_of(f).losses[1] == 0
        assert f.metric("lased_pool_up", pool="p0") == 1


async def test_retry_after_is_respected():
    async with front(answers(503, b"", b"Retry-After: 30"), answer_ok, policy="exp3_ix") as f:
        assert [status(await f.ask(get())) for _ in range(40)].count(503) == 1
        assert set(policy_of(f).resting) == {"p0"}


async def test_a_pool_that_cannot_be_reached_has_rejected_and_is_ejected_as_ever():
    async with front(answer_ok, answer_ok, policy="exp3_ix", health={"passive_failures": 3}) as f:
        await f.pools[0].close()
        for _ in range(40):
            await f.ask(get())
        assert f.metric("lased_pool_rejections_total", pool="p0") >= 3
        assert f.metric("lased_pool_up", pool="p0") == 0


async def test_no_response_in_time_is_a_rejection_and_a_broken_connection_is_not():
    async def silent(wire):
        await wire.message()
        await asyncio.sleep(3600)

    async def breaks(wire):
        await wire.message()

    for script, rejections in ((silent, 1), (breaks, 0)):
        async with front(script, policy="exp3_ix", timeouts={"answer": 0.05}, retry={"on": []}) as f:
            await f.ask(get())
            assert f.metric("lased_pool_rejections_total", pool="p0") == rejections
            await f.wait_idle()


async def test_to_other_policies_it_stays_a_failure():
    async with front(
        answers(503, b"", b"Retry-After: 1"), answer_ok, policy="round_robin", health={"passive_failures": 3}
    ) as f:
        for _ in range(10):
            await f.ask(get())
        assert f.metric("lased_pool_up", pool="p0") == 0
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="503") == 0  # it was an answer
        assert f.service.registry.get_sample_value("lased_pool_rejections_total", {"pool": "p0"}) is None


async def test_rejections_are_counted_after_a_change_of_policy():
    async with front(answers(503, b""), answer_ok, policy="round_robin") as f:
        f.service.router.switch(Exp3Ix(rng=Random(1)), 1e9)
        assert f.service.registry.get_sample_value("lased_pool_rejections_total", {"pool": "p0"}) == 0
        for _ in range(20):
            await f.ask(get())
        assert f.metric("lased_pool_rejections_total", pool="p0") > 0


async def test_between_rejections_failures_are_not_in_a_row():
    """Of 503, 503, 500 and so on only the 500 count, and what turns away in between works."""
    answers = iter([503, 503, 500] * 20)

    async def script(wire):
        while True:
            await wire.message()
            await wire.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % next(answers))

    async with front(script, answer_ok, policy="exp3_ix", health={"passive_failures": 2}, retry={"on": []}) as f:
        policy_of(f).floor = 0.5  # so that the pool goes on being asked
        for _ in range(60):
            await f.ask(get())
        assert f.metric("lased_pool_rejections_total", pool="p0") > 4
        assert f.metric("lased_pool_up", pool="p0") == 1


async def test_a_503_that_breaks_off_is_an_error_for_every_policy():
    async def torn(wire):
        await wire.message()
        await wire.send(b"HTTP/1.1 503 No\r\nContent-Length: 100\r\n\r\nbye")
        wire.kill()

    async with front(torn, torn, policy="exp3_ix", health={"passive_failures": 3}, retry={"on": []}) as f:
        for _ in range(12):
            client = await f.client()
            await client.send(get())
            await client.rest()
        errors = [f.metric("lased_upstream_errors_total", pool=pool, reason="protocol") for pool in ("p0", "p1")]
        assert sum(errors) == 12
        assert 0 in [f.metric("lased_pool_up", pool=pool) for pool in ("p0", "p1")]
        await f.wait_idle()
