"""Connections of clients and pools that stay open between requests."""

import asyncio

import pytest

from tests.proxy.harness import OK, Recorder, checked_front, eventually, front, get, pool_connections, status


async def test_both_sides_keep_their_connections():
    async with front() as f:
        client = await f.client()
        for i in range(5):
            await client.send(get(f"/{i}"))
            assert (await client.message())[1] == b"/%d" % i
        assert len(f.pools[0].connections) == 1


async def test_an_http_1_0_client_may_keep_its_connection():
    async with front() as f:
        client = await f.client()
        for _ in range(2):
            await client.send(b"GET /k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            head, body = await client.message()
            assert b"Connection: keep-alive" in head
            assert body == b"/k"


async def test_a_stray_line_end_after_a_request_is_not_a_request():
    async with front(timeouts={"head": 0.1, "keepalive": 0.5}) as f:
        client = await f.client()
        await client.send(get() + b"\r\n")
        assert status(await client.message()) == 200
        await asyncio.sleep(0.2)
        await client.send(get())
        assert status(await client.message()) == 200


@pytest.mark.parametrize("timer", ["answer", "idle"])
async def test_K05_time_that_a_connection_lay_idle_does_not_count_against_its_next_request(timer):
    """The pool takes its time over the second request too; together they are over every timeout, each is not."""

    async def script(wire):
        while True:
            await wire.message()
            await asyncio.sleep(0.03)
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha")
            await asyncio.sleep(0.03)
            await wire.send(b"lf")

    async with checked_front(script, timeouts={timer: 0.1}) as f:
        client = await f.client()
        for pause in (0.12, 0):
            await client.send(get())
            assert (await client.message())[1] == b"half"
            await asyncio.sleep(pause)
        assert len(f.pools[0].connections) == 1, "it was the same connection"


async def test_K05_the_time_for_which_idle_connections_are_kept_cuts_none_that_is_in_use():
    gate = asyncio.Event()

    async def script(wire):
        await wire.message()
        await wire.send(OK)
        await wire.message()
        await gate.wait()
        await wire.send(OK)

    async with checked_front(script, timeouts={"pool_idle": 0.04}) as f:
        client = await f.client()
        await client.send(get())
        await client.message()
        await asyncio.sleep(0.02)
        await client.send(get())
        await asyncio.sleep(0.06)
        gate.set()
        assert status(await client.message()) == 200
        assert len(f.pools[0].connections) == 1
        await eventually(lambda: pool_connections(f).connections == 0, "an idle connection is kept beyond its time")


async def test_K07_a_request_at_the_very_end_of_keep_alive_is_served_or_was_never_read():
    """Clients come back some milliseconds before and after the timeout. If the dispatcher closes the connection, the
    request was sent to no pool, so that the client can repeat it safely."""
    pool, limit = Recorder(), 0.05
    async with checked_front(pool, timeouts={"keepalive": limit}) as f:

        async def returns(i):
            client = await f.begin(get("/first"))
            assert status(await client.message()) == 200
            await asyncio.sleep(limit + (i - 15) * 0.0004)
            try:
                await client.send(get(f"/again{i}"))
                return status(await client.message()), i
            except (EOFError, ConnectionError):
                assert client.buffer == b""
                return 0, i

        answers = await asyncio.gather(*(returns(i) for i in range(30)))
        assert {code for code, _ in answers} <= {0, 200}
        served = {b"/again%d" % i for code, i in answers if code}
        assert set(pool.targets) - {b"/first"} == served


@pytest.mark.parametrize(
    "request_",
    [
        get("/", "Keep-Alive: timeout=3600, max=1000", "Connection: keep-alive"),
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nKeep-Alive: timeout=3600\r\n\r\n",
        get("/") + b"\r\n",
        get("/", "Content-Length: 2", method="POST") + b"hi",
    ],
    ids=["asks for longer", "1.0", "an empty line behind", "with a body"],
)
async def test_K08_an_idle_client_is_closed_at_the_keep_alive_timeout(request_):
    async with checked_front(timeouts={"keepalive": 0.05, "head": 5.0, "idle": 5.0}) as f:
        client = await f.begin(request_)
        began_at = asyncio.get_running_loop().time()
        assert status(await client.message()) == 200
        assert await client.ended()
        assert 0.04 < asyncio.get_running_loop().time() - began_at < 1


async def test_K08_each_request_starts_the_keep_alive_timeout_anew():
    async with checked_front(timeouts={"keepalive": 0.06}) as f:
        client = await f.client()
        for _ in range(4):
            await client.send(get())
            assert status(await client.message()) == 200
            await asyncio.sleep(0.03)
