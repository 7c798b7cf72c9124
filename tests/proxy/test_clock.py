"""A jump of the wall clock changes neither deadlines nor measured times."""

import asyncio
import time

import pytest

from tests.proxy.harness import OK, Gated, checked_front, eventually, front, get, pools_up, queue, status, status_codes

STEPS = [3600.0, -3600.0]


def step_the_clock(monkeypatch, seconds):
    """The wall clock of this process jumps by so much."""
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)


@pytest.mark.parametrize("step", STEPS)
async def test_B15_a_jump_of_the_wall_clock_ends_no_wait_early_or_late(monkeypatch, step):
    """One request is in flight, one is queued, one client is idle, and one pool is ejected: the jump changes none of
    it."""
    held = Gated()
    timeouts = {"keepalive": 1.0, "answer": 1.0, "head": 1.0, "idle": 1.0}
    async with checked_front(held, None, max_in_flight=1, timeouts=timeouts, health={"passive_failures": 1}) as f:
        idle = await f.client()
        clients = [await f.begin(get("/0"))]
        await eventually(lambda: held.requests)
        assert status(await f.ask(get())) in (502, 503)
        await eventually(lambda: pools_up(f) == [1, 0])
        clients.append(await f.begin(get("/1")))
        await eventually(lambda: len(queue(f)) > 0)
        with monkeypatch.context() as stepping:
            step_the_clock(stepping, step)
            await asyncio.sleep(0.02)
            assert f.in_flight == [1, 0]
            assert pools_up(f) == [1, 0]
            held.gate.set()
            assert [status(await client.message()) for client in clients] == [200, 200]
            await idle.send(get())
            assert status(await idle.message()) == 200


@pytest.mark.parametrize("step", STEPS)
async def test_B15_a_jump_of_the_wall_clock_keeps_no_deadline_from_firing(monkeypatch, step):
    async def silent(wire):
        await wire.rest()

    async with checked_front(silent, timeouts={"answer": 0.05, "keepalive": 0.05}) as f:
        client = await f.begin(get())
        await eventually(lambda: f.in_flight == [1])
        with monkeypatch.context() as stepping:
            step_the_clock(stepping, step)
            assert status(await asyncio.wait_for(client.message(), 1)) == 504
            assert await asyncio.wait_for(client.ended(), 1)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("policy", ["greedy", "peak_ewma"])
async def test_B16_a_jump_of_the_wall_clock_shows_in_no_measured_time(monkeypatch, step, policy):
    """It jumps while each request is in flight, and the times still add up to what passed."""

    async def script(wire):
        while True:
            await wire.message()
            step_the_clock(stepping, step)
            await asyncio.sleep(0.001)
            await wire.send(OK)

    with monkeypatch.context() as stepping:
        async with front(script, policy=policy) as f:
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            assert await status_codes(f, 10) == [200] * 10
            await f.wait_idle()
            passed = loop.time() - began_at
            assert 0.009 < f.metric("lased_request_duration_seconds_sum", pool="p0") <= passed
            assert 0 < f.metric("lased_service_seconds_sum", pool="p0") <= passed
            rate = f.service.router.policy.estimates()["p0"].rate
            assert policy != "greedy" or 10 / passed * 0.9 < rate < 1100
