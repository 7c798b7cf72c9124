"""Deadlines for heads, bodies, idle connections, responses and clients that do not read."""

import asyncio

import pytest

from tests.proxy.harness import (
    Recorder,
    all_clients_gone,
    answer_ok,
    checked_front,
    eventually,
    front,
    get,
    pools_up,
    pouring,
    silent,
    status,
)


async def test_a_silent_pool_causes_a_504():
    async with front(silent, timeouts={"answer": 0.05}) as f:
        client = await f.client()
        await client.send(get())
        assert status(await client.message()) == 504
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="timeout") == 1


async def test_a_pool_that_stops_in_the_middle_is_cut():
    async def stalls(wire):
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await asyncio.sleep(60)

    async with front(stalls, timeouts={"idle": 0.05}) as f:
        client = await f.client()
        await client.send(get())
        await client.until(b"\r\n\r\n")
        assert await client.rest() == b"half"
        await f.wait_idle()


async def test_a_head_has_an_absolute_deadline():
    async with front(timeouts={"head": 0.06}) as f:
        client = await f.client()
        for byte in b"GET / HTTP/1.1\r\nHo":
            try:
                await client.send(bytes([byte]))
            except ConnectionError:
                break
            await asyncio.sleep(0.008)
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


SHORT = {"head": 5.0, "keepalive": 5.0, "answer": 5.0, "idle": 0.2}


@pytest.mark.parametrize("goes_on", ["ends", "trickles"])
async def test_a_client_that_does_not_read_is_closed_although_it_sends(goes_on):
    async with front(pouring(b"HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n"), timeouts=SHORT) as f:
        client = await f.client()
        await client.send(get("/", "Content-Length: 1000", method="POST") + b"x" * 500)
        await eventually(lambda: f.in_flight == [1])
        await asyncio.sleep(0.1)
        try:
            for _ in range(50 if goes_on == "trickles" else 1):
                await client.send(b"x" * (5 if goes_on == "trickles" else 500))
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass  # let go already
        await all_clients_gone(f)


async def test_a_refused_client_that_reads_nothing_is_closed(monkeypatch):
    monkeypatch.setattr("dispatcher.proxy.downstream.LINGER_SECONDS", 0.1)
    async with front() as f:
        client = await f.client()
        await client.send(b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n")
        await all_clients_gone(f)
        assert client.writer.transport is not None


async def test_a_response_that_is_not_taken_does_not_keep_its_connection():
    small = b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + b"x" * 40000

    async def many(wire):
        while True:
            await wire.message()
            await wire.send(small)

    async with front(many, timeouts=SHORT) as f:
        client = await f.client()
        client.writer.transport.pause_reading()
        requests = get() * 400 + get("/", "Connection: close")
        await client.send(requests)
        await all_clients_gone(f)


@pytest.mark.parametrize("answer", [0.03, 0.06, 0.12])
async def test_a_stalled_upload_is_no_failure_of_the_pool(answer):
    timeouts = {"answer": answer, "idle": 0.06}
    async with front(Recorder(), Recorder(), timeouts=timeouts, health={"passive_failures": 1}) as f:
        for _ in range(3):
            client = await f.client()
            await client.send(get("/", "Content-Length: 10", method="POST") + b"half")
            assert status(await client.message()) == 408
        await f.wait_idle()
        assert [f.metric("lased_pool_up", pool=p) for p in ("p0", "p1")] == [1, 1]


async def test_a_pool_that_does_not_read_the_body_has_failed():
    async def deaf(wire):
        await wire.until(b"\r\n\r\n")
        await asyncio.sleep(60)

    async with front(deaf, timeouts={"idle": 0.1}) as f:
        client = await f.client()
        body = b"x" * (16 << 20)
        sending = asyncio.ensure_future(client.send(get("/", f"Content-Length: {len(body)}", method="POST") + body))
        assert status(await client.message()) == 504
        await f.wait_idle()
        await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("before", [b"", get("/first")], ids=["its first request", "a later one"])
async def test_B22_a_slow_head_has_an_absolute_deadline(before):
    """Each byte comes well within it, and none moves it. No pool hears of a request whose head is not whole."""
    pool = Recorder()
    async with checked_front(pool, timeouts={"head": 0.1, "keepalive": 5.0, "idle": 5.0}) as f:
        client = await f.begin(before)
        if before:
            assert status(await client.message()) == 200
        began_at = asyncio.get_running_loop().time()
        answered = asyncio.ensure_future(client.message())
        for byte in get("/trickles", "X: " + "x" * 500):
            if answered.done():
                break
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.005)
        assert status(await answered) == 408
        assert 0.09 < asyncio.get_running_loop().time() - began_at < 0.5
        assert b"/trickles" not in pool.targets
        assert len(f.pools[0].connections) == len(pool.requests)
        assert await client.ended()


async def test_B22_a_silent_connection_is_closed():
    async with checked_front(timeouts={"head": 0.04}) as f:
        assert await asyncio.wait_for((await f.client()).ended(), 1)
        await all_clients_gone(f)
        assert f.pools[0].connections == []


async def test_B22_a_body_may_be_slow_but_may_not_stop():
    """Bytes that keep coming are a slow client and no attack; silence is ended, and is not the pool's."""
    async with checked_front(answer_ok, answer_ok, timeouts={"idle": 0.06}, health={"passive_failures": 1}) as f:
        client = await f.begin(get("/slow", "Content-Length: 12", method="POST"))
        for _ in range(12):
            await client.send(b"x")
            await asyncio.sleep(0.01)
        assert (await client.message())[1] == b"/slow"
        await client.send(get("/stops", "Content-Length: 12", method="POST") + b"x")
        assert status(await client.message()) == 408
        await f.wait_idle()
        assert pools_up(f) == [1, 1]
