"""Deadlines, limits, health and the end of the service."""

import asyncio

import pytest



async def test_a_head_has_an_absolute_deadline():
    async with front(timeouts={"head": 0.15}) as f:
        client = await f.client()
        for byte in b"GET / HTTP/1.1\r\nHo":
            try:
                await client.send(bytes([byte]))
            except ConnectionError:
                break
            await asyncio.sleep(0.02)
        assert status(await client.message()) == 408
        assert await client.ended()


async def test_silent_and_idle_clients_are_let_go():
    async with front(timeouts={"head": 0.05, "keepalive": 0.05}) as f:
        assert await (await f.client()).ended()
        client = await f.client()
        await client.send(get())
        assert status(await client.message()) == 200
        assert await client.ended()


async def test_a_body_that_stops_is_a_408():
    async with front(silent, timeouts={"idle": 0.05}) as f:
        client = await f.client()
        await client.send(get("/", "Content-Length: 10", method="POST") + b"half")
        assert status(await client.message()) == 408
        await f.wait_idle()


async def test_a_flood_of_pipelined_requests_is_read_only_as_it_is_answered():
    go = asyncio.Event()

    async def gated(wire):
        while True:
            await wire.message()
            await go.wait()
            await wire.send(OK)

    async with front(gated) as f:
        client = await f.client()
        request = get("/", "X: " + "p" * 950)
        sent = 0

        async def push():
            nonlocal sent
            while sent < 20000:
                await client.send(request * 20)
                sent += 20

        pushing = asyncio.create_task(push())
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 15000, "reading goes on though nothing is answered"
        assert f.in_flight == [1]
        go.set()
        for _ in range(200):
            assert (await client.message())[1] == b"ok"
        pushing.cancel()


async def test_connections_beyond_the_limit_are_told_so():
    async with front(limits={"connections": 1}) as f:
        first = await f.client()
        await first.send(get())
        await first.message()
        second = await f.client()
        assert status(await second.message()) == 503
        assert await second.ended()
        await first.send(get())
        assert status(await first.message()) == 200
        assert f.metric("lased_rejected_total", reason="connections") == 1


async def test_a_pool_that_only_fails_is_taken_out_and_comes_back():
    broken = True

    async def script(wire):
        while True:
            await wire.message()
            await wire.send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n" if broken else OK)

    async with front(script, answer_ok, health={"passive_failures": 3, "ejection": 1.0}) as f:
        codes = [status(await f.ask(get())) for _ in range(12)]
        assert codes.count(500) == 3, "JSQ would send it everything: it is always idle"
        assert f.metric("lased_pool_up", pool="p0") == 0
        broken = False
        await eventually(lambda: f.metric("lased_pool_up", pool="p0") == 1)
        assert {status(await f.ask(get())) for _ in range(6)} == {200}


async def test_the_last_pool_is_never_taken_out():
    async with front(None, None, health={"passive_failures": 1}) as f:
        for _ in range(6):
            assert status(await f.ask(get())) == 502
        assert len(f.service.router.fleet.pools) == 1


async def test_a_drain_lets_requests_end_and_takes_no_more():
    go = asyncio.Event()

    async def gated(wire):
        await wire.message()
        await go.wait()
        await wire.send(OK)

    async with front(gated) as f:
        idle, busy = await f.client(), await f.client()
        await busy.send(get())
        await eventually(lambda: f.in_flight == [1])
        draining = asyncio.create_task(f.service.listener.drain())
        assert await idle.ended()
        assert not f.service.listener.is_ready
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the platform likes
            await f.client()
        go.set()
        head, body = await busy.message()
        assert b"Connection: close" in head
        assert body == b"ok"
        assert await draining == 0
        assert f.in_flight == [0]


async def test_a_drain_has_a_deadline():
    async with front(silent, timeouts={"drain": 0.05}) as f:
        client = await f.client()
        await client.send(get())
        await eventually(lambda: f.in_flight == [1])
        assert await f.service.listener.drain() == 1
        await f.wait_idle()


async def test_our_own_bug_is_a_500_and_counted(monkeypatch):
    async with front() as f:
        monkeypatch.setattr("dispatcher.proxy.exchange.forward_request", lambda *_: 1 / 0)
        assert status(await f.ask(get())) == 500
        assert f.metric("lased_internal_errors_total") == 1
        await f.wait_idle()
