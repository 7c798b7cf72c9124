"""The framing of responses.

The client gets the pool's bytes under one framing. A response that is cut short never looks complete, and bytes beside
a response reach no client.
"""

import asyncio

import pytest

from tests.proxy.harness import (
    CHUNKED,
    EVIL,
    OK,
    Pieces,
    Recorder,
    Scripted,
    answer_ok,
    assert_unharmed,
    eventually,
    front,
    get,
    pool_connections,
    status,
    values,
)

HELLO = b"5\r\nhello\r\n0\r\n\r\n"


def ok(*fields):
    return b"".join((b"HTTP/1.1 200 OK\r\n", *(field + b"\r\n" for field in fields), b"\r\n"))


@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED,
        ok(b"transfer-encoding: CHUNKED", b"ETag: e"),
        ok(),
        ok(b"Content-Type: text/plain"),
        CHUNKED.replace(b"200 OK", b"404 Not Found"),
        CHUNKED.replace(b"200 OK", b"500 Oh"),
    ],
)
async def test_R01_a_response_to_head_ends_with_its_head(answer, version):
    script = Recorder(answer)
    async with front(script) as f:
        client = await f.client()
        for _ in range(3):
            await client.send(f"HEAD /x HTTP/{version}\r\nHost: a\r\nConnection: keep-alive\r\n\r\n".encode())
            head, _ = await client.message(head_only=True)
            assert head.split(b" ")[1] == answer.split(b" ")[1]
            assert values(head, b"content-length") == []
            assert client.buffer == b""
        await client.send(get("/fresh"))
        assert (await client.message())[1] == b"/fresh"
        assert len(script.heads) == 3
        assert len(f.pools[0].connections) == 1
        await assert_unharmed(f)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("answer", [(CHUNKED, HELLO), (ok(b"Content-Length: 5"), b"hello"), (ok(), b"hello")])
async def test_R01_a_body_after_a_response_to_head_reaches_no_client(answer, apart):
    pieces = answer if apart else (b"".join(answer),)
    async with front(Pieces(*pieces)) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get("/x", method="HEAD"))
            head, _ = await client.message(head_only=True)
            assert status((head,)) == 200
            await f.wait_idle()
            if apart:
                await eventually(lambda: pool_connections(f).connections == 0)
            await client.send(get("/fresh"))
            assert (await client.message())[1] == b"/fresh"
        assert b"hello" not in client.buffer
        await assert_unharmed(f)


@pytest.mark.parametrize(
    ("method", "line"),
    [("HEAD", b"200 OK"), ("HEAD", b"404 Not Found"), ("HEAD", b"304 N"), ("GET", b"304 Not Modified")],
)
@pytest.mark.parametrize("length", [b"0", b"1234", b"99999999999"])
async def test_R04_the_length_of_a_body_that_is_not_sent_reaches_the_client_unchanged(method, line, length):
    script = Recorder(b"HTTP/1.1 %b\r\nContent-Length: %b\r\nETag: e\r\n\r\n" % (line, length))
    async with front(script) as f:
        client = await f.client()
        for _ in range(3):
            await client.send(get("/x", method=method))
            head, _ = await client.message(head_only=True)
            assert head.startswith(b"HTTP/1.1 " + line + b"\r\n")
            assert values(head, b"content-length") == [length]
            assert values(head, b"transfer-encoding") == []
        assert len(f.pools[0].connections) == 1
        await assert_unharmed(f)


@pytest.mark.parametrize("kept", [b"", b"Connection: keep-alive\r\n"])
@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED + HELLO,),
        (CHUNKED, b"2;a=b\r\nhe\r\n", b"3\r\nllo\r\n", b"0\r\n\r\n"),
        (CHUNKED, b"5\r\nhello\r\n0\r\n", b"X-Sum: 1\r\n\r\n"),
        (CHUNKED, *(HELLO[i : i + 1] for i in range(len(HELLO)))),
    ],
)
async def test_R05_an_http_1_0_client_gets_no_chunks_but_the_end_of_its_connection(pieces, kept):
    async with front(Pieces(*pieces)) as f:
        client = await f.client()
        await client.send(b"GET /x HTTP/1.0\r\n" + kept + b"\r\n")
        head = await client.until(b"\r\n\r\n")
        assert await client.rest() == b"hello"
        assert values(head, b"connection") == [b"close"]
        for name in (b"transfer-encoding", b"content-length", b"trailer", b"x-sum"):
            assert values(head, name) == []
        await assert_unharmed(f)
        assert len(f.pools[0].connections) == 1, "the pool's connection was in order"


async def test_R05_an_empty_chunked_response_to_an_http_1_0_client_is_empty():
    async with front(Pieces(CHUNKED + b"0\r\n\r\n")) as f:
        client = await f.client()
        await client.send(b"GET /x HTTP/1.0\r\n\r\n")
        assert values(await client.until(b"\r\n\r\n"), b"connection") == [b"close"]
        assert await client.rest() == b""
        await assert_unharmed(f)


CLOSED = [
    (b"HTTP/1.1 200 OK\r\n\r\n", b"hello"),
    (b"HTTP/1.0 200 OK\r\n\r\n", b"hello"),
    (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", b"hello"),
    (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"he", b"llo"),
    (b"HTTP/1.1 200 OK\r\n\r\n5\r\nhello\r\n0\r\n\r\n",),
    (b"HTTP/1.1 200 OK\r\n\r\n",),
    (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 300_000),
]


@pytest.mark.parametrize("pieces", CLOSED)
async def test_R06_a_response_that_ends_with_its_connection_is_chunked_for_the_client(pieces):
    body = b"".join(pieces).partition(b"\r\n\r\n")[2]
    script = Pieces(*pieces, then="close")
    async with front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get())
            head, got = await client.message()
            assert got == body
            assert values(head, b"transfer-encoding") == [b"chunked"]
            assert values(head, b"content-length") == []
        assert len(f.pools[0].connections) == 2
        await assert_unharmed(f)


@pytest.mark.parametrize("pieces", CLOSED)
async def test_R06_such_a_response_ends_with_its_connection_for_an_http_1_0_client(pieces):
    body = b"".join(pieces).partition(b"\r\n\r\n")[2]
    async with front(Pieces(*pieces, then="close")) as f:
        client = await f.client()
        await client.send(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head = await client.until(b"\r\n\r\n")
        assert values(head, b"connection") == [b"close"]
        assert values(head, b"transfer-encoding") == []
        assert await client.rest() == body
        await assert_unharmed(f)


def sees_the_end(*pieces):
    """A pool that sends these pieces and then waits for the end of the connection."""

    async def play(wire, head):
        await wire.body(head)
        for piece in pieces:
            await wire.send(piece)
        await wire.rest()
        script.ended.set()
        raise EOFError

    script = Scripted(play)
    script.ended = asyncio.Event()
    return script


@pytest.mark.parametrize(
    "fields",
    [
        (b"Content-Length: 2", b"Content-Length: 5"),
        (b"Content-Length: 5", b"X: y", b"content-length: 2"),
        (b"Content-Length: 2, 5",),
        (b"Content-Length: +5",),
        (b"Content-Length: -5",),
        (b"Content-Length: 0x5",),
        (b"Content-Length: 5_0",),
        (b"Content-Length: ",),
        (b"Content-Length: 5 5",),
        (b"Content-Length: 18446744073709551616",),
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 15"),
        (b"Transfer-Encoding: gzip",),
        (b"Transfer-Encoding: gzip, chunked",),
        (b"Transfer-Encoding: chunked, gzip",),
        (b"Transfer-Encoding: chunked, chunked",),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: xchunked",),
        (b"Transfer-Encoding: ",),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_R08_a_response_with_two_lengths_causes_a_502_and_closes_its_connection(fields, method):
    script = sees_the_end(ok(*fields) + HELLO)
    async with front(script) as f:
        client = await f.client()
        await client.send(get("/x", method=method))
        head, _ = await client.message(head_only=method == "HEAD")
        assert status((head,)) == 502
        assert b"hello" not in head + client.buffer
        await asyncio.wait_for(script.ended.wait(), 5)
        await client.send(get("/fresh"))
        assert (await client.message())[1] == b"/fresh"
        await assert_unharmed(f)


async def test_R08_a_chunked_http_1_0_response_causes_a_502():
    """RFC 9112 6.1: a Transfer-Encoding in such a message is faulty framing."""
    script = sees_the_end(CHUNKED.replace(b"1.1", b"1.0") + HELLO)
    async with front(script) as f:
        assert status(await f.ask(get())) == 502
        await asyncio.wait_for(script.ended.wait(), 5)
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX: y\n\r\n",
        b"HTTP/1.1 200 OK\n\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        b"HTTP/1.1 99 x\r\n\r\n",
        b"HTTP/1.1 1000 x\r\n\r\n",
        b"HTTP/1.1 600 x\r\n\r\n",
        b"HTTP/1.1 abc x\r\n\r\n",
        b"220 ready\r\n\r\n",
        EVIL,
        b"\x16\x03\x01\x02" * 10000,
    ],
)
async def test_R08_bytes_that_are_no_response_cause_a_502(answer):
    script = sees_the_end(answer)
    async with front(script) as f:
        assert status(await f.ask(get())) == 502
        await asyncio.wait_for(script.ended.wait(), 5)
        await assert_unharmed(f)


TWO = CHUNKED + b"5\r\nhello\r\n6\r\n there\r\n"
CUT = [
    (TWO, b"hello there"),
    (CHUNKED + b"5\r\nhello\r\n6\r\n th", b"hello th"),
    (CHUNKED + b"5\r\nhello\r\n6\r\n there", b"hello there"),
    (CHUNKED + b"5\r\nhello\r\n6", b"hello"),
    (CHUNKED + b"5\r\nhello\r\n0", b"hello"),
    (CHUNKED + b"5\r\nhello\r\n0\r\n", b"hello"),
    (CHUNKED + b"5\r\nhello\r\n0\r\nX: y\r\n", b"hello"),
    (CHUNKED, b""),
    (ok(b"Content-Length: 12") + b"hello there", b"hello there"),
    (ok(b"Content-Length: 12"), b""),
]


def dechunked(raw):
    """What a client makes of a chunked body: (its data, whether it saw the end)."""
    data = b""
    while b"\r\n" in raw:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line, 16)
        if not size:
            return data, raw.endswith(b"\r\n")
        data, raw = data + raw[:size], raw[size + 2 :]
    return data, False


async def broken(f, version=b"1.1"):
    """Ask for /x and take all that comes to the end of the connection: (head, body, whether it looks whole)."""
    client = await f.client()
    await client.send(b"GET /x HTTP/%b\r\nHost: a\r\n\r\n" % version)
    head = await client.until(b"\r\n\r\n")
    reset = False
    try:
        while data := await asyncio.wait_for(client.reader.read(65536), 5):
            client.buffer += data
    except ConnectionResetError:
        reset = True
    if values(head, b"transfer-encoding") == [b"chunked"]:
        return head, *dechunked(client.buffer)
    length = values(head, b"content-length")
    return head, client.buffer, len(client.buffer) >= int(length[0]) if length else not reset


@pytest.mark.parametrize("then", ["reset", "close"])
@pytest.mark.parametrize(("answer", "data"), CUT)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_R09_a_response_that_its_pool_breaks_off_is_broken_for_the_client_too(answer, data, then, version):
    async with front(Pieces(answer, then=then)) as f:
        head, got, whole = await broken(f, version)
        assert status((head,)) == 200
        assert not whole
        assert data.startswith(got)
        if then == "close" and version == b"1.1":
            assert got == data
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol") == 1
        await assert_unharmed(f)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    "rest",
    [
        b"6\n there\r\n0\r\n\r\n",
        b"6\r\n thereXX\r\n0\r\n\r\n",
        b"x\r\n",
        b"-6\r\n there\r\n0\r\n\r\n",
        b"6;\nx\r\n",
        b"0\n\n",
        b"0\r\n\n",
        b"0\r\nno trailer\r\n\r\n",
        b"ffffffffffffffff6\r\n there\r\n0\r\n\r\n",
    ],
)
async def test_R09_a_response_with_malformed_chunks_is_broken_for_the_client_too(rest, size):
    pieces = [rest[i : i + 1] for i in range(len(rest))] if size else [rest]
    async with front(Pieces(CHUNKED, b"5\r\nhello\r\n", *pieces)) as f:
        head, got, whole = await broken(f)
        assert status((head,)) == 200
        assert not whole
        assert got in (b"hello", b"hello there", *(b"hello there"[:i] for i in range(5, 11)))
        await assert_unharmed(f)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(("answer", "data"), [*CUT, (ok() + b"hello", b"hello")])
async def test_R10_a_response_that_stalls_is_broken_for_the_client_too(answer, data, version):
    script = sees_the_end(answer)
    async with front(script, timeouts={"idle": 0.03}) as f:
        head, got, whole = await broken(f, version)
        assert status((head,)) == 200
        assert not whole
        assert data.startswith(got)
        await asyncio.wait_for(script.ended.wait(), 5)
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="timeout") == 1
        await assert_unharmed(f)


@pytest.mark.parametrize("then", ["reset", "close"])
@pytest.mark.parametrize(
    "pieces",
    [
        (ok(b"Content-Length: 100"),),
        (ok(b"Content-Length: 1"),),
        (b"HTTP/1.1 404 No\r\nContent-Length: 100\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\n", b"Content-Length: 100\r\n\r\n"),
    ],
)
async def test_R11_a_pool_that_dies_before_its_body_causes_a_broken_response_or_a_502(pieces, then):
    async with front(Pieces(*pieces, then=then)) as f:
        head, got, whole = await broken(f)
        if status((head,)) == 502:
            assert whole
        else:
            assert head.split(b" ")[1] == pieces[0].split(b" ")[1]
            assert (got, whole) == (b"", False)
        await assert_unharmed(f)


@pytest.mark.parametrize("then", ["reset", "close"])
@pytest.mark.parametrize(
    "part",
    [
        b"H",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n",
        b"HTTP/1.1 200 OK\r\n\r",
        b"\r\n",
    ],
)
async def test_R11_a_pool_that_dies_inside_its_head_causes_a_502(part, then):
    async with front(Pieces(part, then=then)) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get())
            head, body = await client.message()
            assert status((head,)) == 502
            assert body
        await assert_unharmed(f)


@pytest.mark.parametrize("then", ["reset", "close"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_R13_a_pool_that_sends_nothing_causes_a_502_and_has_failed(method, then):
    script = Pieces(then=then)
    async with front(script, answer_ok, policy="round_robin", health={"passive_failures": 1, "ejection": 60.0}) as f:
        client = await f.client()
        codes = []
        for _ in range(4):
            await client.send(get("/x", "Content-Length: 0", method=method))
            head, _ = await client.message(head_only=method == "HEAD")
            codes.append(status((head,)))
        assert sorted(codes) == [200, 200, 200, 502]
        assert len(script.heads) == 1
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="reset") == 1
        assert f.metric("lased_pool_up", pool="p0") == 0
        await assert_unharmed(f)


@pytest.mark.parametrize(
    ("method", "body", "arrivals"),
    [("GET", b"", 2), ("HEAD", b"", 2), ("PUT", b"hi", 2), ("POST", b"", 1), ("POST", b"hi", 1)],
)
async def test_R13_on_a_kept_connection_a_safe_request_is_sent_once_more(method, body, arrivals):
    script = Pieces(then="close")
    async with front(script) as f:
        client = await f.client()
        await client.send(get("/fresh"))
        await client.message()
        await client.send(get("/x", f"Content-Length: {len(body)}", method=method) + body)
        head, _ = await client.message(head_only=method == "HEAD")
        assert status((head,)) == 502
        assert len(script.heads) == arrivals
        await assert_unharmed(f)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("behind", [b"x", b"hello", HELLO, OK.replace(b"ok", b"no"), b"\r\n", b"HTTP/1.1 "])
@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
        ("HEAD", ok(b"Content-Length: 5")),
        ("GET", ok(b"Content-Length: 0")),
    ],
)
async def test_R14_bytes_where_no_body_may_be_reach_no_client_and_end_the_connection(method, answer, behind, apart):
    async with front(Pieces(*(answer, behind) if apart else (answer + behind,))) as f:
        client = await f.client()
        for i in range(2):
            await client.send(get("/x", method=method))
            head, _ = await client.message(head_only=True)
            assert head.split(b" ")[1] == answer.split(b" ")[1]
            await eventually(lambda: pool_connections(f).connections == 0)
            await client.send(get("/fresh"))
            assert (await client.message())[1] == b"/fresh"
            assert len(f.pools[0].connections) == 2 + i
        assert client.buffer == b""
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_a_response_to_head_has_no_body(answer):
    async with front(Recorder(answer)) as f:
        client = await f.client()
        for _ in range(3):
            await client.send(get("/", method="HEAD"))
            head, _ = await client.message(head_only=True)
            assert status((head,)) == 200
        assert (b"Content-Length: 1234" in head) == (b"1234" in answer)


@pytest.mark.parametrize("code", [204, 304])
async def test_responses_without_a_body(code):
    async with front(Recorder(b"HTTP/1.1 %d X\r\nETag: e\r\n\r\n" % code)) as f:
        client = await f.client()
        for _ in range(3):
            await client.send(get())
            head, _ = await client.message()
            assert status((head,)) == code
            assert b"transfer-encoding" not in head.lower()
        assert len(f.pools[0].connections) == 1


async def until_closed(wire):
    await wire.message()
    await wire.send(b"HTTP/1.0 200 OK\r\n\r\nall there is")


async def test_a_response_that_ends_with_its_connection_becomes_chunked():
    async with front(until_closed) as f:
        head, body = await f.ask(get())
        assert b"Transfer-Encoding: chunked" in head
        assert body == b"all there is"


async def test_an_http_1_0_client_gets_plain_bytes_and_the_end_of_the_connection():
    chunked = Recorder(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    async with front(chunked) as f:
        client = await f.client()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        answer = await client.rest()
        assert b"transfer-encoding" not in answer.lower()
        assert b"Connection: close" in answer
        assert answer.endswith(b"\r\n\r\nhello")


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x7f\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000,
        b"",
    ],
)
async def test_an_invalid_response_becomes_a_502(answer):
    async with front(Pieces(answer, then="close")) as f:
        client = await f.client()
        await client.send(get())
        assert status(await client.message()) == 502
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol" if answer else "reset") == 1
        assert f.metric("lased_requests_total", pool="p0", code="5xx") == 1


@pytest.mark.parametrize("then_reset", [False, True])
@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
async def test_a_response_broken_off_is_never_ended_cleanly(part, then_reset):
    async with front(Pieces(part, then="reset" if then_reset else "close")) as f:
        client = await f.client()
        await client.send(get())
        assert status((await client.until(b"\r\n\r\n"),)) == 200
        assert not (await client.rest()).endswith(b"0\r\n\r\n")
        await f.wait_idle()


async def test_a_1_0_client_sees_a_reset_where_nothing_else_could_tell():
    async with front(Pieces(b"HTTP/1.1 200 OK\r\n\r\nsome", then="reset")) as f:
        client = await f.client()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(), 5)


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "X: until the end"])
async def test_a_1_0_client_sees_a_cut_response_as_broken(framing):
    piece = b"5\r\nhello\r\n" if "chunked" in framing else b"hello"

    async def script(wire):
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\n" + framing.encode() + b"\r\n\r\n" + piece)
        await go.wait()
        wire.reset()

    go = asyncio.Event()
    async with front(script) as f:
        client = await f.client()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        await client.until(b"hello")
        go.set()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(), 5)
