"""Clients that leave, in every phase of a request.

The end of a client ends its request. The pool notices at once by the end of its connection, nothing more is sent for
this client, and no pool has failed.
"""

import asyncio

import pytest

from tests.proxy.harness import (
    CHUNKED,
    ENDS,
    Gated,
    Recorder,
    all_clients_gone,
    answer_ok,
    checked_front,
    eventually,
    front,
    get,
    loop_turns,
    pool_connections,
    pools_up,
    queue,
    status,
)

PROMPT = 1.0  # seconds within which the pool must know


class Works:
    """A pool that sends these bytes for each request and then works until its connection ends."""

    def __init__(self, sends=b""):
        self.sends = sends
        self.heads = []
        self.ended = asyncio.Event()

    async def __call__(self, wire):
        self.heads.append(await wire.until(b"\r\n\r\n"))
        await wire.send(self.sends)
        await wire.rest()
        self.ended.set()


REQUESTS = {
    "a GET": get(),
    "a GET of 1.0": b"GET / HTTP/1.0\r\n\r\n",
    "a POST": get("/", "Content-Length: 2", method="POST") + b"hi",
    "half a POST": get("/", "Content-Length: 20", method="POST") + b"half",
    "half a chunk": get("/", "Transfer-Encoding: chunked", method="POST") + b"5\r\nhe",
    "a body that waits to be invited": get("/", "Expect: 100-continue", "Content-Length: 5", method="PUT"),
    "several, pipelined": get("/1") + get("/2") + get("/3"),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("raw", REQUESTS.values(), ids=REQUESTS)
async def test_D01_a_client_that_leaves_before_the_first_byte_ends_its_pools_work(raw, how):
    pool = Works()
    async with checked_front(pool) as f:
        client = await f.begin(raw)
        await eventually(lambda: pool.heads)
        client.leave(how)
        await asyncio.wait_for(pool.ended.wait(), PROMPT)
        await all_clients_gone(f)
        assert len(pool.heads) == 1, "nothing else was sent for it"
        assert pool_connections(f).connections == 0


async def test_D01_a_client_whose_upload_is_not_read_ends_its_request():
    """The dispatcher holds such a client back by not reading; its reset must show all the same. (An end in good order
    would lie behind what it has sent, where no one could see it yet.)"""
    go = asyncio.Event()
    over = asyncio.Event()

    async def script(wire):
        await wire.until(b"\r\n\r\n")
        wire.writer.transport.pause_reading()
        await go.wait()
        wire.writer.transport.resume_reading()
        await wire.rest()
        over.set()

    async with checked_front(script) as f:
        client = await f.begin(get("/", f"Content-Length: {64 << 20}", method="PUT"))
        client.writer.write(b"x" * (64 << 20))
        before = -1
        while client.writer.transport.get_write_buffer_size() != before:
            before = client.writer.transport.get_write_buffer_size()
            await asyncio.sleep(0.03)
        client.reset()
        try:
            async with asyncio.timeout(PROMPT):
                await f.wait_idle()
        except TimeoutError:
            pytest.fail(f"{f.in_flight} in flight {PROMPT} s after the client left")
        finally:
            go.set()
        await over.wait()


@pytest.mark.parametrize("how", ENDS)
async def test_D01_a_client_that_pipelined_more_than_is_read_ahead_ends_its_pools_work(how):
    """Reading stops beyond a bound of pipelined bytes; the end of the client's connection lies behind them."""
    pool = Works()
    async with checked_front(pool) as f:
        client = await f.begin(get() + get("/more", "X: " + "x" * 1000) * 200)
        await eventually(lambda: pool.heads)
        await asyncio.sleep(0.02)
        client.leave(how)
        try:
            await asyncio.wait_for(pool.ended.wait(), PROMPT)
        except TimeoutError:
            pytest.fail(f"{f.in_flight} in flight {PROMPT} s after the client left")
        await all_clients_gone(f)
        assert len(pool.heads) == 1


async def test_D02_no_request_outlives_its_client_in_any_phase():
    """Many at once, each at another stage: dialling done, head sent, body under way, answer begun."""
    pool = Works()
    async with checked_front(pool) as f:
        clients = []
        for raw in list(REQUESTS.values()) * 4:
            clients.append(await f.begin(raw))
            await loop_turns(len(clients) % 5)
        await eventually(lambda: f.in_flight == [len(clients)])
        for client in clients:
            client.leave(ENDS[len(client.buffer) % 2])
        async with asyncio.timeout(PROMPT):
            await all_clients_gone(f)
            await eventually(lambda: pool_connections(f).connections == 0)
        assert f.metric("lased_client_aborts_total") == len(clients)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("reads", [True, False])
async def test_D03_a_client_that_leaves_during_a_download_ends_it(reads, how):
    """Also one that had stopped reading, so that its pool was held back when it left."""
    sent = 0
    broken = asyncio.Event()

    async def script(wire):
        nonlocal sent
        await wire.until(b"\r\n\r\n")
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        try:
            while True:
                await wire.send(b"x" * 65536)
                sent += 65536
        except ConnectionError:
            broken.set()

    async with checked_front(script) as f:
        client = await f.begin(get())
        await client.until(b"\r\n\r\n")
        before = -1
        while not reads and sent != before:
            before = sent
            await asyncio.sleep(0.03)
        while reads and sent < 1 << 20:
            client.buffer = b""
            await client.more()
        client.leave(how)
        await asyncio.wait_for(broken.wait(), PROMPT)
        await all_clients_gone(f)
        assert sent < 1 << 28
        assert pool_connections(f).connections == 0


@pytest.mark.parametrize("how", ENDS)
async def test_D04_a_client_that_leaves_an_event_stream_ends_it(how):
    """While the stream is silent, with no write that could fail."""
    pool = Works(CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Type: text/event-stream\r\n\r\n") + b"9\r\ndata: 1\n\n\r\n")
    async with checked_front(pool) as f:
        client = await f.begin(get("/", "Accept: text/event-stream"))
        await client.until(b"data: 1\n\n")
        client.leave(how)
        await asyncio.wait_for(pool.ended.wait(), PROMPT)
        await all_clients_gone(f)


@pytest.mark.parametrize("how", [*ENDS, "half"])
@pytest.mark.parametrize("raw", [get("/gone"), get("/gone", "Content-Length: 2", method="POST") + b"hi"])
async def test_D05_a_request_whose_client_leaves_the_queue_is_never_sent(raw, how):
    pool = Gated()
    async with checked_front(pool, max_in_flight=1) as f:
        first = await f.begin(get("/first"))
        await eventually(lambda: pool.requests)
        client = await f.begin(raw)
        await eventually(lambda: len(queue(f)) > 0)
        client.leave(how)
        await eventually(lambda: len(queue(f)) == 0)
        last = await f.begin(get("/last"))
        await eventually(lambda: len(queue(f)) > 0)
        pool.gate.set()
        assert [status(await client.message()) for client in (first, last)] == [200, 200]
        assert pool.targets == [b"/first", b"/last"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(
    ("raw", "sends"),
    [
        (REQUESTS["half a POST"], b""),
        (REQUESTS["half a chunk"], b""),
        (get(), b""),
        (get(), CHUNKED + b"5\r\nhello\r\n"),
        (get(), b"HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nhalf"),
    ],
)
async def test_D06_an_abort_is_the_clients_and_no_pools_failure(raw, sends, how):
    """Counted as the client's (4xx by class, for it is a 499), as often as it happens; the pool, out after one failure,
    stays in."""
    pool = Works(sends)
    async with checked_front(pool, answer_ok, health={"passive_failures": 1}) as f:
        for i in range(1, 4):
            pool.heads.clear()
            client = await f.begin(raw)
            await eventually(lambda: pool.heads)
            if sends:
                await client.until(b"\r\n\r\n")
            client.leave(how)
            await all_clients_gone(f)
            assert f.metric("lased_client_aborts_total") == i
            assert f.metric("lased_requests_total", pool="p0", code="4xx") == i
        assert f.metric("lased_requests_total", pool="p0", code="5xx") == 0
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol") == 0
        assert pools_up(f) == [1, 1]


async def test_D06_a_client_that_leaves_with_its_whole_response_has_not_aborted():
    async with checked_front(Recorder()) as f:
        for how in ENDS * 3:
            client = await f.begin(get())
            assert (await client.message())[1] == b"ok"
            client.leave(how)
        await all_clients_gone(f)
        assert f.metric("lased_client_aborts_total") == 0
        assert f.metric("lased_requests_total", pool="p0", code="2xx") == 6


HALF_CLOSED = {
    "while the pool works": b"",
    "within the answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
    "within a chunked answer": CHUNKED + b"5\r\nhello\r\n",
}


@pytest.mark.parametrize("sends", HALF_CLOSED.values(), ids=HALF_CLOSED)
async def test_D09_a_client_that_ends_its_sending_side_has_left(sends):
    """A client that was closed and one that only ends its side look alike, so either is taken to have left: the request
    is given up at once, and what the client has of a response cannot be taken for a whole one."""
    pool = Works(sends)
    async with checked_front(pool) as f:
        client = await f.begin(get())
        await eventually(lambda: pool.heads)
        if sends:
            await client.until(b"\r\n\r\n")
        client.writer.write_eof()
        await asyncio.wait_for(pool.ended.wait(), PROMPT)
        assert not (await client.rest()).endswith(b"0\r\n\r\n")
        await all_clients_gone(f)
        assert f.metric("lased_client_aborts_total") == 1


@pytest.mark.parametrize("raw", [get("/1"), get("/1") + get("/2"), b"GET /1 HTTP/1.0\r\n\r\n", b"", b"GET /1 HT"])
async def test_D09_an_end_right_after_the_request_brings_the_response_or_a_clean_abort(raw):
    """Both in one segment, before anything was read: nothing, or whole responses, and never a leak."""
    async with checked_front() as f:
        for _ in range(5):
            client = await f.client()
            client.writer.write(raw)
            client.writer.write_eof()
            answer = await client.rest()
            assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b"\r\n\r\n/")
            await all_clients_gone(f)


async def test_D09_an_end_after_the_response_closes_the_connection_cleanly():
    async with checked_front() as f:
        client = await f.begin(get("/done"))
        assert (await client.message())[1] == b"/done"
        client.writer.write_eof()
        assert await client.ended()
        await all_clients_gone(f)
        assert f.metric("lased_client_aborts_total") == 0


async def test_D09_a_client_that_ends_its_side_during_the_response_gets_no_wrong_one():
    """A large response that is all with the dispatcher when the client ends its side: the whole of it, or a break."""
    body = b"x" * (1 << 20)

    async def script(wire):
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with checked_front(script) as f:
        client = await f.begin(get())
        await client.until(b"\r\n\r\n")
        client.writer.write_eof()
        got = await client.rest()
        assert body.startswith(got)
        await all_clients_gone(f)


async def test_D05_a_pipelined_request_whose_client_leaves_before_its_turn_is_never_sent():
    pool = Gated()
    async with checked_front(pool, answer_ok) as f:
        client = await f.begin(get("/1") + get("/2"))
        await eventually(lambda: pool.requests)
        client.reset()
        await all_clients_gone(f)
        pool.gate.set()
        await loop_turns()
        assert pool.targets == [b"/1"]


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("after", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"])
async def test_a_client_that_leaves_ends_its_request(leave, after):
    ended = asyncio.Event()

    async def script(wire):
        await wire.message()
        await wire.send(after)
        await wire.rest()
        ended.set()

    async with front(script, policy="greedy") as f:
        client = await f.client()
        await client.send(get())
        await eventually(lambda: f.in_flight == [1])
        if after:
            await client.until(b"\r\n\r\n")
        getattr(client, leave)()
        await asyncio.wait_for(ended.wait(), 5)
        await f.wait_idle()
        assert f.metric("lased_client_aborts_total") == 1
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol") == 0
        assert f.metric("lased_requests_total", pool="p0", code="5xx") == 0
        assert f.service.router.policy.estimates()["p0"].observations == 0


async def test_a_client_that_leaves_before_its_request_is_whole_is_no_request():
    async with front() as f:
        client = await f.client()
        await client.send(b"GET / HTTP/1.1\r\nHost:")
        client.close()
        await eventually(lambda: repr(f.service.listener) == "<Listener 0 connections>")
        assert f.metric("lased_client_aborts_total") == 0
