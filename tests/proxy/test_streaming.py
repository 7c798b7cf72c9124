"""Streams and back-pressure.

Each piece is forwarded at once, a slow side stops the other one, and the memory does not depend on the length of a
body."""

import asyncio
import tracemalloc

import pytest

from tests.proxy.harness import (
    CHUNKED,
    OK,
    Recorder,
    all_clients_gone,
    checked_front,
    eventually,
    front,
    get,
    stable,
    status,
    write_buffer_bytes,
)

HEADS = {
    "chunked": CHUNKED,
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n",
    "to the end": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
}


def framed(head, piece):
    return b"%x\r\n%b\r\n" % (len(piece), piece) if b"chunked" in head else piece


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_S01_a_head_is_forwarded_before_its_body(head, version):
    """The pool sends its first event only when the client has the head."""
    go = asyncio.Event()

    async def script(wire):
        await wire.message()
        await wire.send(head)
        await go.wait()
        await wire.send(framed(head, b"data: 1\n\n"))
        await wire.rest()

    async with checked_front(script) as f:
        client = await f.begin(b"GET / HTTP/%b\r\nHost: a\r\n\r\n" % version)
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        go.set()
        await client.until(b"data: 1\n\n")
        client.reset()
        await all_clients_gone(f)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
async def test_S02_each_piece_of_a_response_is_forwarded_at_once(head):
    """Twenty bytes at a time: the pool sends the next ones when the client has these."""
    turn = asyncio.Semaphore(0)

    async def script(wire):
        await wire.message()
        await wire.send(head)
        for i in range(20):
            await wire.send(framed(head, b"data: event no %03d\n\n" % i))
            await turn.acquire()
        await wire.send(b"0\r\n\r\n" if b"chunked" in head else b"")

    async with checked_front(script) as f:
        client = await f.begin(get())
        await client.until(b"\r\n\r\n")
        for i in range(20):
            got = await client.until(b"%03d\n\n" % i)
            assert got.endswith(b"data: event no %03d\n\n" % i)
            turn.release()
        await f.wait_idle()


@pytest.mark.parametrize("field", ["Transfer-Encoding: chunked", "Content-Length: 400"])
async def test_S02_each_piece_of_a_request_is_forwarded_at_once(field):
    """And the response may begin, and flow, before the request has ended."""

    async def script(wire):
        head = await wire.until(b"\r\n\r\n")
        await wire.send(CHUNKED)
        for i in range(20):
            await wire.until(b"piece %014d" % i)
            await wire.send(b"14\r\n%020d\r\n" % i)
        if b"chunked" in head:
            await wire.until(b"0\r\n\r\n")
        await wire.send(b"0\r\n\r\n")

    async with checked_front(script) as f:
        client = await f.begin(get("/", field, method="POST"))
        await client.until(b"\r\n\r\n")
        for i in range(20):
            piece = b"piece %014d" % i
            await client.send(b"14\r\n%b\r\n" % piece if "chunked" in field else piece)
            await client.until(b"%020d\r\n" % i)
        if "chunked" in field:
            await client.send(b"0\r\n\r\n")
        assert await client.until(b"0\r\n\r\n") == b"0\r\n\r\n"
        await f.wait_idle()


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("readers", [1, 4])
async def test_S04_a_client_that_does_not_read_stops_its_pool_and_costs_no_memory(framing, readers):
    """What is on its way lies in the systems' buffers; the dispatcher keeps a bounded part for each."""
    sent = {}
    total = 200 << 20
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if framing == "chunked" else b"x" * 65536

    async def script(wire):
        await wire.message()
        sent[wire] = 0
        await wire.send(CHUNKED if framing == "chunked" else b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent[wire] < total:
            await wire.send(piece)
            sent[wire] += 65536

    async with checked_front(script) as f:
        clients = [await f.client() for _ in range(readers)]
        for client in clients:
            client.writer.transport.pause_reading()
            await client.send(get())
        await eventually(lambda: len(sent) == readers)
        await stable(lambda: sum(sent.values()))
        assert all(n < 40 << 20 for n in sent.values()), "the pool can go on although the client does not read"
        assert write_buffer_bytes(f) < readers << 20
        assert f.in_flight == [readers]
        clients[0].writer.transport.resume_reading()
        before = sum(sent.values())
        while sum(sent.values()) < before + (4 << 20):
            clients[0].buffer = b""
            await clients[0].more()
        for client in clients:
            client.reset()
        await all_clients_gone(f)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_S04_a_pool_that_does_not_read_stops_its_client_and_costs_no_memory(framing):
    go = asyncio.Event()
    total = 200 << 20

    async def script(wire):
        await wire.until(b"\r\n\r\n")
        wire.writer.transport.pause_reading()
        await go.wait()

    field = "Transfer-Encoding: chunked" if framing == "chunked" else f"Content-Length: {total}"
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if framing == "chunked" else b"x" * 65536
    async with checked_front(script) as f:
        client = await f.begin(get("/", field, method="PUT"))
        sent = 0

        async def push():
            nonlocal sent
            while sent < total:
                await client.send(piece)
                sent += 65536

        pushing = asyncio.ensure_future(push())
        await stable(lambda: sent)
        assert sent < 40 << 20, "the client can go on though its pool does not read"
        assert write_buffer_bytes(f) < 1 << 20
        pushing.cancel()
        go.set()
        client.reset()
        await all_clients_gone(f)


@pytest.mark.parametrize("way", ["down", "up"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_S06_the_length_of_a_body_does_not_show_in_memory(way, framing):
    """Thirty-two megabytes pass, and no more than a few are ever there: of the dispatcher, its client and its pool."""
    total, block = 32 << 20, b"x" * 65536
    piece = b"10000\r\n" + block + b"\r\n" if framing == "chunked" else block
    last = b"0\r\n\r\n" if framing == "chunked" else b""
    field = "Transfer-Encoding: chunked" if framing == "chunked" else f"Content-Length: {total}"

    async def pour(wire):
        for _ in range(total // len(block)):
            await wire.send(piece)
        await wire.send(last)

    async def drink(wire):
        got = 0
        while got < total:
            got += wire.buffer.count(b"x")
            wire.buffer = wire.buffer[-7:].replace(b"x", b"")
            if got < total:
                assert await wire.more()
        return got

    async def script(wire):
        await wire.until(b"\r\n\r\n")
        if way == "down":
            await wire.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % field.encode())
            await pour(wire)
        else:
            assert await drink(wire) == total
            await wire.send(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    async with checked_front(script) as f:
        client = await f.client()
        tracemalloc.start()
        try:
            if way == "down":
                await client.send(get())
                await client.until(b"\r\n\r\n")
                assert await drink(client) == total
            else:
                await client.send(get("/", field, method="PUT"))
                await pour(client)
                assert status(await client.message()) == 200
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 << 20
        client.close()


TRAILERS = b"0\r\nX-Sum: 1\r\ngrpc-status: 0\r\nGrpc-Message:  two words \r\n\r\n"


@pytest.mark.parametrize("announced", [b"", b"Trailer: X-Sum\r\n"])
@pytest.mark.parametrize("together", [True, False])
async def test_S07_trailers_reach_a_client_that_takes_them(announced, together):
    """Announced or not, and whether they come with the last piece or after it."""
    go = asyncio.Event()

    async def script(wire):
        while True:
            await wire.message()
            await wire.send(CHUNKED[:-2] + announced + b"\r\n5\r\nhello\r\n" + (TRAILERS if together else b""))
            await go.wait()
            await wire.send(b"" if together else TRAILERS)

    async with checked_front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get("/", "TE: trailers", "Connection: TE"))
            await client.until(b"hello\r\n")
            go.set()
            assert await client.until(b"0\r\n") == b"0\r\n"
            lines = (await client.until(b"\r\n\r\n")).split(b"\r\n")
            assert [line.replace(b": ", b":").strip() for line in lines[:3]] == [
                b"X-Sum:1",
                b"grpc-status:0",
                b"Grpc-Message: two words",
            ]
        assert len(f.pools[0].connections) == 1, "it was read to its end"


@pytest.mark.parametrize("fields", [[], ["TE: gzip", "Connection: TE"], ["TE: trailersx", "Connection: TE"]])
async def test_S07_trailers_reach_no_other_client(fields):
    """Without `TE: trailers` they are dropped (RFC 9110 6.5.1)."""
    async with checked_front(Recorder(CHUNKED + b"5\r\nhello\r\n" + TRAILERS)) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get("/", *fields))
            assert (await client.message())[1] == b"hello"
            assert client.buffer == b""


@pytest.mark.parametrize(
    "name", ["Content-Length", "Transfer-Encoding", "Host", "Set-Cookie", "Authorization", "Trailer"]
)
async def test_S07_headers_that_frame_or_authorise_are_no_trailers(name):
    """It is dropped, the others stay (RFC 9110 6.5.1)."""
    last = b"0\r\nX-Sum: 1\r\n%b: 5\r\n\r\n" % name.lower().encode()
    async with checked_front(Recorder(CHUNKED + b"5\r\nhello\r\n" + last)) as f:
        client = await f.begin(get("/", "TE: trailers", "Connection: TE, close"))
        assert (await client.rest()).endswith(b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n")


async def test_a_slow_reader_holds_its_pool_back_and_memory_flat():
    total, piece = 64 << 20, b"x" * 65536
    sent = 0

    async def pour(wire):
        nonlocal sent
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            await wire.send(piece)
            sent += len(piece)

    async with front(pour) as f:
        client = await f.client()
        await client.send(get())
        head = await client.until(b"\r\n\r\n")
        assert status((head,)) == 200
        await stable(lambda: sent)
        assert sent < total // 2, "the pool could go on although the client does not read"
        assert f.in_flight == [1]
        got = len(client.buffer)
        client.buffer = b""
        while got < total:
            assert await client.more()
            got += len(client.buffer)
            client.buffer = b""
        assert got == total
        await f.wait_idle()


async def test_a_slow_pool_holds_its_client_back():
    go = asyncio.Event()

    async def slow(wire):
        await wire.until(b"\r\n\r\n")
        await go.wait()
        got = len(wire.buffer)
        while got < 64 << 20:
            wire.buffer = b""
            await wire.more()
            got += len(wire.buffer)
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with front(slow) as f:
        client = await f.client()
        await client.send(get("/", f"Content-Length: {64 << 20}", method="POST"))
        sent = 0

        async def push():
            nonlocal sent
            while sent < 64 << 20:
                await client.send(b"x" * 65536)
                sent += 65536

        pushing = asyncio.create_task(push())
        await stable(lambda: sent)
        assert sent < 32 << 20, "the client could go on sending though its pool does not read"
        go.set()
        assert status(await client.message()) == 200
        await pushing
        await f.wait_idle()
