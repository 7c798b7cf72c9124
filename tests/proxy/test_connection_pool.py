"""The reuse of connections to pools."""

import asyncio

import pytest

from tests.proxy.harness import (
    ENDS,
    OK,
    Recorder,
    all_clients_gone,
    checked_front,
    eventually,
    front,
    get,
    loop_turns,
    pool_connections,
    status,
)


class Leaves(Recorder):
    """A recorder that closes its connections after each response without a Connection: close."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    async def __call__(self, wire):
        self.requests.append(await wire.message())
        await wire.send(OK)
        wire.leave(self.how)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_K01_a_connection_that_its_pool_has_closed_is_not_used_again(how, method):
    """The end was seen before the next request: a fresh connection, no retry, not even for a POST an error."""
    pool = Leaves(how)
    async with checked_front(pool) as f:
        client = await f.client()
        for _ in range(5):
            await client.send(get("/", "Content-Length: 2", method=method) + b"hi")
            assert (await client.message())[1] == b"ok"
            await eventually(lambda: pool_connections(f).connections == 0)
        assert len(pool.requests) == len(f.pools[0].connections) == 5
        assert f.metric("lased_retries_total", reason="stale") == 0


@pytest.mark.parametrize("how", ENDS)
async def test_K01_no_get_fails_when_its_pool_closes_right_after_the_last_response(how):
    """The next request races the end of its connection, at every distance of some turns of the loop."""
    async with checked_front(Leaves(how)) as f:
        client = await f.client()
        for i in range(40):
            await client.send(get())
            assert status(await client.message()) == 200
            await loop_turns(i % 8)


@pytest.mark.parametrize("extra", [b"more", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
async def test_bytes_after_a_response_close_the_connection_and_reach_no_client(extra):
    async def script(wire):
        await wire.message()
        await wire.send(OK + extra)
        await asyncio.sleep(60)

    async with front(script) as f:
        client = await f.client()
        for _ in range(3):
            await client.send(get())
            assert (await client.message())[1] == b"ok"
        assert len(f.pools[0].connections) == 3


async def test_a_pool_that_sends_without_a_request_loses_the_connection():
    async def script(wire):
        await wire.message()
        await wire.send(OK)
        await asyncio.sleep(0.02)
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await asyncio.sleep(60)

    async with front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get())
            assert (await client.message())[1] == b"ok"
            await eventually(lambda: pool_connections(f).connections == 0)


async def test_a_connection_whose_request_was_not_read_is_not_used_again(monkeypatch):
    monkeypatch.setattr("dispatcher.proxy.downstream.LINGER_SECONDS", 0.1)
    go = asyncio.Event()

    async def early(wire):
        await wire.until(b"\r\n\r\n")
        await wire.send(OK)
        await go.wait()

    async with front(early) as f:
        client = await f.client()
        body = b"x" * (8 << 20)
        sending = asyncio.ensure_future(client.send(get("/", f"Content-Length: {len(body)}", method="POST") + body))
        assert status(await client.message()) == 200
        await all_clients_gone(f)
        await asyncio.gather(sending, return_exceptions=True)
        assert pool_connections(f).take_idle() is None
        go.set()
