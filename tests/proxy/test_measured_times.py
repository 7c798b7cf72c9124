"""The times of requests as policies and metrics see them.

Only the service of the pool counts, not the network, the client or the queue.
"""

import asyncio

import pytest

from tests.proxy.harness import OK, Recorder, checked_front, completions, eventually, front, get, pouring, queue, status

GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
PAUSE = 0.15  # seconds


async def test_it_is_the_head_of_the_response_and_not_its_end():
    async def script(pool):
        await pool.message()
        await pool.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        await asyncio.sleep(PAUSE)
        await pool.send(b"k")

    async with front(script, policy="traefik_leasttime") as f:
        done = completions(f)
        assert (await f.ask(GET))[1] == b"ok"
        await f.wait_idle()
        (end,) = done
        assert end.ticket.routed_at < end.first_byte_at
        assert end.finished_at - end.first_byte_at > 0.9 * PAUSE


async def test_there_is_none_without_a_response():
    async def script(pool):
        await pool.message()
        pool.kill()

    async with front(script, policy="traefik_leasttime") as f:
        done = completions(f)
        assert (await f.ask(GET))[0].startswith(b"HTTP/1.1 502")
        await f.wait_idle()
        assert {end.first_byte_at for end in done} == {None}
        assert f.metric("lased_policy_errors_total") == 0


async def test_a_reported_service_time_is_used_and_forwarded():
    script = Recorder(b"HTTP/1.1 200 OK\r\nServer-Timing: db;dur=1, service;dur=0.25\r\nContent-Length: 0\r\n\r\n")
    async with front(script, policy="greedy") as f:
        head, _ = await f.ask(get())
        assert b"Server-Timing: db;dur=1, service;dur=0.25" in head
        await f.wait_idle()
        estimate = f.service.router.policy.estimates()["p0"]
        assert (estimate.observations, estimate.rate) == (1, pytest.approx(4000.0))


@pytest.mark.parametrize("code", [404, 500, 503])
async def test_errors_teach_no_rate(code):
    script = Recorder(b"HTTP/1.1 %d No\r\nServer-Timing: service;dur=0.001\r\nContent-Length: 0\r\n\r\n" % code)
    async with front(script, policy="greedy") as f:
        await f.ask(get())
        await f.wait_idle()
        if code >= 500:
            assert f.service.router.policy.estimates()["p0"].observations == 0


async def learned(f):
    await f.wait_idle()
    return f.service.router.policy.estimates()["p0"]


async def test_responses_of_400_teach_nothing_even_by_inference():
    async def missing(wire):
        while True:
            await wire.message()
            await wire.send(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")

    async with front(missing, policy="greedy") as f:
        for _ in range(5):
            await f.ask(get())
        assert (await learned(f)).observations == 0


@pytest.mark.parametrize("duration", [b"0", b"999999999999"])
async def test_an_impossible_report_is_ignored(duration):
    async def boasts(wire):
        while True:
            await wire.message()
            await wire.send(b"HTTP/1.1 200 OK\r\nServer-Timing: service;dur=%b\r\nContent-Length: 0\r\n\r\n" % duration)

    async with front(boasts, policy="greedy") as f:
        for _ in range(20):
            await f.ask(get())
        estimate = await learned(f)
        assert estimate.observations >= 10, "inferred instead"
        assert 10 < estimate.rate < 1e6


async def test_a_slow_upload_is_not_a_slow_service():
    async with front(Recorder(), policy="greedy") as f:
        client = await f.client()
        await client.send(get("/", "Content-Length: 10", method="POST") + b"half")
        await eventually(lambda: f.in_flight == [1])
        await asyncio.sleep(0.15)
        await client.send(b"after!")
        assert status(await client.message()) == 200
        estimate = await learned(f)
        assert estimate.observations == 0 or estimate.rate > 10.0


async def test_a_slow_reader_is_not_a_slow_service():
    total = 16 << 20
    async with front(pouring(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total, total), policy="greedy") as f:
        client = await f.client()
        await client.send(get())
        await client.until(b"\r\n\r\n")
        await asyncio.sleep(0.15)
        got = len(client.buffer)
        while got < total:
            client.buffer = b""
            assert await client.more()
            got += len(client.buffer)
        assert (await learned(f)).observations == 0


@pytest.mark.parametrize("policy", ["greedy", "lased"])
async def test_B26_the_rate_that_is_learned_is_the_pools_and_not_its_queues(policy):
    """A pool serves one after the other. Alone a request takes one service, in a crowd of eight more than four on the
    average; what is learned is one service either way, so that a queue does not make a pool look slow, and empty."""
    loop = asyncio.get_running_loop()
    one_at_a_time, took = asyncio.Lock(), []

    async def script(wire):
        while True:
            await wire.message()
            async with one_at_a_time:
                began_at = loop.time()
                await asyncio.sleep(0.004)
                took.append(loop.time() - began_at)
            await wire.send(OK)

    async with front(script, policy=policy) as f:
        clients = [await f.client() for _ in range(8)]
        for crowd in (1, 8, 1, 8, 8, 1, 8):
            for client in clients[:crowd]:
                await client.send(get())
            for client in clients[:crowd]:
                assert status(await client.message()) == 200
            await f.wait_idle()
            truth = len(took) / sum(took)
            assert f.service.router.policy.estimates()["p0"].rate == pytest.approx(truth, rel=0.4)


async def test_S09_the_time_in_the_queue_is_no_service_time_of_the_pool():
    """A pool for one request at a time is held for 60 ms; the next request waits that long and is served at once. What
    is learned of the pool is its service, and its count never shows the waiting one."""
    gate = asyncio.Event()

    async def script(wire):
        while True:
            head, _ = await wire.message()
            if b"/held" in head:
                await gate.wait()
            await wire.send(OK)

    async with checked_front(script, policy="greedy", max_in_flight=1) as f:
        held = await f.begin(get("/held"))
        await eventually(lambda: f.in_flight == [1])
        waiting = await f.begin(get("/waits"))
        await eventually(lambda: len(queue(f)) > 0)
        await asyncio.sleep(0.06)
        assert f.in_flight == [1]
        seconds = f.metric("lased_service_seconds_sum", pool="p0")
        gate.set()
        assert status(await held.message()) == 200
        await eventually(lambda: f.metric("lased_service_seconds_count", pool="p0") == 1)
        first = f.metric("lased_service_seconds_sum", pool="p0") - seconds
        assert status(await waiting.message()) == 200
        await f.wait_idle()
        assert f.metric("lased_service_seconds_count", pool="p0") == 2
        second = f.metric("lased_service_seconds_sum", pool="p0") - seconds - first
        assert first >= 0.06
        assert second < 0.05
        assert f.metric("lased_request_duration_seconds_sum", pool="p0") >= 0.12, "its client did wait"
