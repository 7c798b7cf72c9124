"""The framing of requests.

An ambiguous message is refused. A valid one reaches the pool with its own bytes and one framing.
"""

import asyncio

import pytest

from tests.proxy.harness import (
    EVIL,
    OK,
    Recorder,
    Scripted,
    Swallows,
    assert_refused,
    assert_refused_unseen,
    assert_unharmed,
    eventually,
    front,
    get,
    original_lines,
    queue,
    send_in_pieces,
    silent,
    status,
    values,
)

HELLO = b"5\r\nhello\r\n0\r\n\r\n"


def post(*fields, target="/x", method="POST", version="1.1"):
    return b"".join(
        (f"{method} {target} HTTP/{version}\r\n".encode(), b"Host: test\r\n", *(f + b"\r\n" for f in fields), b"\r\n")
    )


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    "fields",
    [
        (b"Content-Length: 0", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 0"),
        (b"Content-Length: 15", b"Transfer-Encoding: chunked"),
        (b"content-length: 5", b"X: y", b"TRANSFER-ENCODING: Chunked"),
        (b"Content-Length: 6", b"Transfer-Encoding: gzip, chunked"),
        (b"Content-Length: 6", b"Transfer-Encoding: identity"),
        (b"Content-Length: 6", b"Connection: transfer-encoding", b"Transfer-Encoding: chunked"),
    ],
)
async def test_F01_a_length_and_a_coding_together_are_refused(fields, size):
    """RFC 9112 6.3: ought to be an error, and the connection closes; the request inside the chunk is never one."""
    inside = b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVIL), EVIL)
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, post(*fields) + inside + EVIL, 400, 501, size=size)


@pytest.mark.parametrize(
    "value",
    [
        b"+5",
        b"-1",
        b"-0",
        b"1_0",
        b"0x5",
        b"5.0",
        b"5e0",
        b"5;",
        b"5 5",
        b"5,5",
        b"5, 5",
        b"5,6",
        b"",
        b" ",
        b"\x0b5",
        b"5\x0b",
        b"5\x0c",
        b"\xb2",
        b"\xd9\xa5",
        b"five",
        b'"5"',
        b"18446744073709551616",
        b"9" * 40,
        b"5\r\nContent-Length: 6",
        b"5\r\nX: y\r\ncontent-length: 5",
        b"0\r\nContent-Length: 5",
    ],
)
async def test_F05_a_length_is_digits_only_and_there_is_one(value):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, post(b"Content-Length: " + value) + b"hello" + EVIL, 400)


@pytest.mark.parametrize(
    "field",
    [
        b"Content-Length:5",
        b"Content-Length:  5",
        b"Content-Length: 5 ",
        b"Content-Length:\t5",
        b"Content-Length: 05",
        b"content-LENGTH: 0005",
    ],
)
async def test_F05_blanks_around_a_length_and_zeros_before_it_change_nothing(field):
    """RFC 9110 8.6 asks for digits and RFC 9112 5.1 leaves the blanks around a value out of it, so `05` is a five."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await client.send(post(field) + b"hello" + post(b"Content-Length: 2") + b"hi")
        for _ in range(2):
            assert status(await client.message()) == 200
        assert [int(value) for head in script.heads for value in values(head, b"content-length")] == [5, 2]
        assert script.raw_bodies == [b"hello", b"hi"]
        await assert_unharmed(f)


CODINGS = {  # what a Transfer-Encoding may say: the codes it may get; nothing else is accepted
    b"chunked, gzip": {400},  # RFC 9112 6.3: the last one must be chunked, else 400
    b"chunked,gzip": {400},
    b"chunked\r\nTransfer-Encoding: gzip": {400},
    b"chunked, identity": {400},
    b"gzip": {400, 501},
    b"identity": {400, 501},
    b"xchunked": {400, 501},
    b"chunkedx": {400, 501},
    b"chunk ed": {400, 501},
    b"chunked;q=1": {400, 501},
    b'"chunked"': {400, 501},
    b"\x0bchunked": {400},
    b"chun\xe7ked": {400, 501},
    b"": {400, 501},
    b",": {400, 501},
    b"gzip, chunked": {400, 501},  # a coding not understood: 501 is right (RFC 9112 6.1)
    b"gzip\r\nTransfer-Encoding: chunked": {400, 501},
    b"identity, chunked": {400, 501},
}


@pytest.mark.parametrize("length", [b"", b"Content-Length: 5"])
@pytest.mark.parametrize("value", CODINGS)
async def test_F06_the_only_coding_is_chunked_and_it_is_the_last(value, length):
    fields = (*filter(None, [length]), b"Transfer-Encoding: " + value)
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, post(*fields) + HELLO + EVIL, *CODINGS[value])


@pytest.mark.parametrize("value", [b"chunked", b"chunked ", b"  chunked", b"Chunked", b"CHUNKED"])
async def test_F06_chunked_is_chunked_in_any_case_and_goes_on_alone(value):
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(post(b"Transfer-Encoding:" + value) + HELLO)
            assert status(await client.message()) == 200
        for head in script.heads:
            assert original_lines(head) == [b"POST /x HTTP/1.1", b"Host: test", b"Transfer-Encoding: chunked"]
        assert script.raw_bodies == [HELLO, HELLO]
        await assert_unharmed(f)


@pytest.mark.parametrize("value", [b"chunked\t", b"\tchunked", b"chunked,", b",chunked", b"chunked , "])
async def test_F06_a_list_of_one_is_chunked_or_refused_and_never_anything_else(value):
    """RFC 9110 5.6.1.2 would let empty elements pass, and blanks around a value are none of it; refusing is safe."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await client.send(post(b"Transfer-Encoding: " + value) + HELLO + get("/next"))
        code = status(await client.message())
        assert code in (200, 400, 501)
        if code == 200:
            assert status(await client.message()) == 200
            assert values(script.heads[0], b"transfer-encoding") == [b"chunked"]
            assert script.raw_bodies == [HELLO, b""]
        else:
            assert await client.ended()
            assert script.heads == []
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "value",
    [
        b"chunked, chunked",
        b"chunked,chunked",
        b"chunked, Chunked",
        b"chunked, chunked, chunked",
        b"chunked, gzip, chunked",
        b"chunked\r\nTransfer-Encoding: chunked",
        b"chunked\r\nX: y\r\ntransfer-encoding:CHUNKED",
    ],
)
async def test_F07_chunked_twice_is_refused(value):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, post(b"Transfer-Encoding: " + value) + HELLO + EVIL, 400)


async def broken_upload(body, size):
    """A chunked body that goes wrong: 400 and the end; the pool gets no end of a body and nothing from behind it."""
    script = Swallows()
    async with front(script) as f:
        client = await f.client()
        await client.send(post(b"Transfer-Encoding: chunked"))
        await eventually(lambda: script.heads)
        await send_in_pieces(client, body + EVIL, size)
        head, _ = await client.message()
        assert status((head,)) == 400
        assert values(head, b"connection") == [b"close"]
        assert await client.ended()
        await asyncio.wait_for(script.ended.wait(), 5)
        assert b"evil" not in script.received
        assert not script.received.endswith(b"0\r\n\r\n")
        assert len(script.heads) == 1
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol") == 0
        await assert_unharmed(f)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    "body",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r\n0\n\r\n",
        b"5\r\nhello\r\n0\r\n\n",
        b"5\r\nhello\r\n0\r\nX: y\n\r\n",
        b"5\r\nhello\r\n0\n\n",
        b"5;a=b\nhello\r\n0\r\n\r\n",
        b"5\rhello\r\n0\r\n\r\n",
        b"5\r\rhello\r\n0\r\n\r\n",
        b"5\r\nhello\r0\r\n\r\n",
        b"5\r\nhello\r\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nX: a\rb\r\n\r\n",
    ],
)
async def test_F09_lines_of_a_chunked_body_end_in_crlf(body, size):
    await broken_upload(body, size)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\n\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n\r\n\r\n",
        b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\rHost: a\r\r\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\r\n\r\n",
        b"GET /\n HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 40\r\n\r\n",
    ],
)
async def test_F10_lines_of_a_head_end_in_crlf(raw, size):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, raw + EVIL, 400, size=size)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("extension", [b";a=b", b";a", b";a;b=c;d", b';a="b c;\\""', b';a="\xe9"', b";" + b"a" * 1000])
async def test_F11_chunk_extensions_are_accepted_and_dropped(extension, size):
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await send_in_pieces(client, post(b"Transfer-Encoding: chunked"))
        await send_in_pieces(client, b"5%b\r\nhello\r\n0%b\r\n\r\n" % (extension, extension) + get("/next"), size)
        for _ in range(2):
            assert status(await client.message()) == 200
        assert extension not in script.raw_bodies[0]
        assert unchunked(script.raw_bodies[0]) == b"hello"
        assert original_lines(script.heads[1])[0] == b"GET /next HTTP/1.1"
        await assert_unharmed(f)


def unchunked(raw):
    body = b""
    while raw != b"0\r\n\r\n":
        size, _, raw = raw.partition(b"\r\n")
        assert size.isalnum()
        body, raw = body + raw[: int(size, 16)], raw[int(size, 16) :]
        assert raw.startswith(b"\r\n")
        raw = raw[2:]
    return body


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    "line",
    [
        b"5;\nx",
        b"5;a\nb",
        b'5;a="\n"',
        b'5;a="\r\n"',
        b'5;a="b',
        b"5;a=\x00",
        b"5;\x7f",
        b"5;a=b\r",
        b"5;;",
        b"5;=b",
        b"5 5",
        b"5,",
        b"5;a=b c",
        b"5;" + b"a" * 20000,
    ],
)
async def test_F11_a_malformed_chunk_extension_is_refused(line, size):
    await broken_upload(line + b"\r\nhello\r\n0\r\n\r\n", size if len(line) < 100 else 0)


@pytest.mark.parametrize("line", [b"5 ", b"5 ;a=b", b"5; a=b", b"5;a = b", b"5\t;a"])
async def test_F11_blanks_in_a_chunk_line_are_skipped_or_refused(line):
    """RFC 9112 7.1.1 knows blanks here as bad ones, to be read over; refusing is as safe, another reading is not."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await client.send(post(b"Transfer-Encoding: chunked") + line + b"\r\nhello\r\n0\r\n\r\n" + get("/next"))
        if status(await client.message()) == 200:
            assert status(await client.message()) == 200
            assert script.raw_bodies == [HELLO, b""]
        else:
            assert await client.ended()
            assert script.raw_bodies == []
        await assert_unharmed(f)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n\tb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX:\r\n a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n .evil\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n \r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n 8\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nX: y\r\n Content-Length: 40\r\n\r\n",
    ],
)
async def test_F12_a_folded_line_is_refused(raw, size):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, raw + EVIL, 400, size=size)


BAD_DATA = [
    b"5\r\nhelloXX\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhell\r\n0\r\n\r\n",
    b"5\r\nhello\r\nx\r\n",
    b"5\r\nhello\r\n\r\n0\r\n\r\n",
    b"\r\n5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"1_0\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n",
    b" 5\r\nhello\r\n0\r\n\r\n",
    b"5h\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff5\r\nhello\r\n0\r\n\r\n",
    b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nno trailer\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX : y\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX: \x00\r\n\r\n",
]


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("body", BAD_DATA)
async def test_F14_a_chunk_that_is_not_as_long_as_it_says_is_refused_at_once(body, size):
    await broken_upload(body, size)


@pytest.mark.parametrize("body", BAD_DATA[:4])
async def test_F14_a_malformed_request_in_the_queue_is_refused_at_once(body):
    """A queued request with a malformed body is refused before its turn comes."""
    go = asyncio.Event()

    async def holds(wire, head):
        await go.wait()
        await wire.send(OK)

    script = Scripted(holds)
    async with front(script, max_in_flight=1, queue={"timeout": 0}) as f:
        first = await f.client()
        await first.send(get("/first"))
        await eventually(lambda: f.in_flight == [1])
        waiting = await f.client()
        await waiting.send(post(b"Transfer-Encoding: chunked"))
        await eventually(lambda: len(queue(f)) > 0)
        await waiting.send(body + EVIL)
        try:
            head, _ = await asyncio.wait_for(waiting.message(), 0.2)
            assert status((head,)) == 400
            assert await waiting.ended()
        finally:
            go.set()
        assert status(await first.message()) == 200
        await assert_unharmed(f)
        assert len(script.heads) == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PROPFIND", "GET"])
async def test_F17_an_empty_body_stays_a_body_with_its_length(method):
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(post(b"Content-Length: 0", method=method))
            assert status(await client.message()) == 200
        for head in script.heads:
            assert original_lines(head) == [f"{method} /x HTTP/1.1".encode(), b"Host: test", b"Content-Length: 0"]
        await assert_unharmed(f)


async def test_F17_an_empty_chunked_body_stays_one_and_none_is_made_up():
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await client.send(post(b"Transfer-Encoding: chunked") + b"0\r\n\r\n" + post() + get("/x"))
        for _ in range(3):
            assert status(await client.message()) == 200
        assert [original_lines(head)[2:] for head in script.heads] == [[b"Transfer-Encoding: chunked"], [], []]
        assert script.raw_bodies == [b"0\r\n\r\n", b"", b""]
        await assert_unharmed(f)


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "HEAD", "PUT", "QUERY"])
@pytest.mark.parametrize(
    ("framing", "body"), [(b"Content-Length: 5", b"hello"), (b"Transfer-Encoding: chunked", HELLO)]
)
@pytest.mark.parametrize("size", [0, 1])
async def test_F19_any_method_takes_a_body_and_its_framing_along(method, framing, body, size):
    script = Recorder(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with front(script) as f:
        client = await f.client()
        await send_in_pieces(client, (post(framing, method=method) + body), size)
        await client.send(get("/next"))
        for _ in range(2):
            assert status(await client.message(head_only=True)) == 200
        assert original_lines(script.heads[0]) == [f"{method} /x HTTP/1.1".encode(), b"Host: test", framing]
        assert (unchunked(script.raw_bodies[0]) if body is HELLO else script.raw_bodies[0]) == b"hello"
        assert original_lines(script.heads[1])[0] == b"GET /next HTTP/1.1"
        await assert_unharmed(f)


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize("size", [0, 1])
async def test_F20_an_http_1_0_body_ends_by_its_length_and_the_rest_is_ignored(method, size):
    script = Recorder(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with front(script) as f:
        client = await f.client()
        await send_in_pieces(client, post(b"Content-Length: 5", method=method, version="1.0") + b"hello" + EVIL, size)
        head, _ = await client.message(head_only=True)
        assert status((head,)) == 200
        assert await client.ended()
        assert [original_lines(head)[0] for head in script.heads] == [f"{method} /x HTTP/1.1".encode()]
        assert values(script.heads[0], b"content-length") == [b"5"]
        assert script.raw_bodies == [b"hello"]
        await assert_unharmed(f)


async def test_F20_bytes_after_an_http_1_0_request_without_length_are_no_request():
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await client.send(b"GET /x HTTP/1.0\r\n\r\nhello" + EVIL)
        assert (await client.message())[1] == b"ok"
        assert await client.ended()
        assert [original_lines(head) for head in script.heads] == [[b"GET /x HTTP/1.1", b"Host: "]]
        await assert_unharmed(f)


async def test_F20_a_kept_http_1_0_connection_reads_the_next_request_after_the_body():
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        one = post(b"Connection: keep-alive", b"Content-Length: 5", version="1.0") + b"hello"
        await client.send(one + one)
        for _ in range(2):
            assert status(await client.message()) == 200
        assert script.raw_bodies == [b"hello", b"hello"]
        await assert_unharmed(f)


@pytest.mark.parametrize("value", [b"chunked", b"gzip, chunked", b"identity"])
@pytest.mark.parametrize("kept", [(), (b"Connection: keep-alive",)])
async def test_F20_http_1_0_knows_no_transfer_codings(value, kept):
    """RFC 9112 6.1: a coding in such a message is faulty framing, and its connection must end."""
    async with front(Recorder()) as f:
        raw = post(*kept, b"Transfer-Encoding: " + value, version="1.0")
        await assert_refused_unseen(f, raw + HELLO + EVIL, 400, 501)


@pytest.mark.parametrize("size", [0, 100])
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 1001", EVIL * 30),
        (b"Content-Length: 18446744073709551615", EVIL * 30),
        (b"Transfer-Encoding: chunked", b"3e9\r\n" + EVIL * 30),
        (b"Transfer-Encoding: chunked", b"1f4\r\n" + b"x" * 500 + b"\r\n" + b"1f5\r\n" + EVIL * 30),
        (b"Transfer-Encoding: chunked", b"64\r\n" + b"x" * 100 + b"\r\n" + (b"1\r\nx\r\n" * 901) + EVIL),
    ],
)
async def test_F22_a_body_over_the_limit_is_refused_and_nothing_behind_it_is_a_request(framing, body, size):
    script = Swallows()
    async with front(script, limits={"body_bytes": 1000}) as f:
        await assert_refused(f, post(framing) + body, 413, size=size)
        if framing.startswith(b"Content"):
            assert script.heads == []
        assert len(script.heads) <= 1
        assert len(script.received) < 3000
        await assert_unharmed(f)


@pytest.mark.parametrize("framing", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
async def test_F22_a_body_at_the_limit_is_accepted(framing):
    script = Recorder()
    async with front(script, limits={"body_bytes": 1000}) as f:
        body = b"x" * 1000
        raw = body if framing.startswith(b"Content") else b"3e8\r\n" + body + b"\r\n0\r\n\r\n"
        client = await f.client()
        for _ in range(2):
            await client.send(post(framing) + raw)
            assert status(await client.message()) == 200
        assert script.raw_bodies == [raw, raw]
        await assert_unharmed(f)


async def test_F22_a_too_large_body_after_a_slow_request_is_refused_in_its_turn():
    go = asyncio.Event()

    async def slow(wire, head):
        await go.wait()
        await wire.send(OK)

    script = Scripted(slow)
    async with front(script, limits={"body_bytes": 1000}) as f:
        client = await f.client()
        await client.send(get("/slow") + post(b"Content-Length: 2000") + EVIL * 20)
        await eventually(lambda: script.heads)
        go.set()
        assert (await client.message())[1] == b"ok"
        assert status(await client.message()) == 413
        assert await client.ended()
        assert len(script.heads) == 1
        await assert_unharmed(f)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"GET / RTSP/1.0", 400),
        (b"OPTIONS * RTSP/1.0", 400),
        (b"GET / ICE/1.0", 400),
        (b"SOURCE /x ICE/1.0", 400),
        (b"OPTIONS sip:a SIP/2.0", 400),
        (b"GET /", 400),
        (b"GET", 400),
        (b"GET /x y HTTP/1.1", 400),
        (b"GET / http/1.1", 400),
        (b"GET / HTTP/1", 400),
        (b"GET / HTTP/11", 400),
        (b"GET / HTTP/1.10", 400),
        (b"GET / HTTP/01.1", 400),
        (b"GET / HTTP/1.1 ", 400),
        (b"GET  / HTTP/1.1", 400),
        (b" GET / HTTP/1.1", 400),
        (b"GET\t/\tHTTP/1.1", 400),
        (b"GET / HTTP/1.1\x0b", 400),
        (b"GET / HTTPS/1.1", 400),
        (b"GET / HTTP/-1.1", 400),
        (b"G@T / HTTP/1.1", 400),
        (b"HTTP/1.1 200 OK", 400),
        (b"GET / HTTP/0.9", 505),
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/3.0", 505),
        (b"PRI * HTTP/2.0", 505),
    ],
)
async def test_F23_another_protocol_is_refused(line, code, size):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, line + b"\r\nHost: a\r\n\r\n" + EVIL, code, size=size)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"SSH-2.0-client\r\n",
        b"EHLO a\r\n",
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    ],
)
async def test_F23_bytes_that_never_become_a_head_are_refused_in_time(raw):
    async with front(Recorder(), timeouts={"head": 0.05}) as f:
        await assert_refused_unseen(f, raw, 400, 408)


async def test_F23_the_preface_of_http_2_is_refused():
    async with front(Recorder()) as f:
        await assert_refused_unseen(
            f, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00" + bytes(4) + EVIL, 400, 505
        )


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", 400),
        (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /#f HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / RTSP/1.0\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 405),
        (b"GET /" + b"x" * 20000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: 1\r\n" % i for i in range(200)) + b"\r\n", 431),
    ],
)
@pytest.mark.parametrize("pieces", [None, 700])
async def test_an_invalid_request_is_refused_and_its_connection_closed(raw, code, pieces):
    async with front() as f:
        client = await f.client()
        for i in range(0, len(raw), pieces or len(raw)):
            try:
                await client.send(raw[i : i + (pieces or len(raw))])
            except ConnectionError:
                break
            await asyncio.sleep(0)
        answer = await client.message()
        assert status(answer) == code
        assert b"Connection: close" in answer[0]
        assert await client.ended()
        assert f.pools[0].connections == []
        assert f.in_flight == [0]


BAD_CHUNKS = [
    b"5\nhello\r\n0\r\n\r\n",
    b"5\r\nhelloXX\r\n0\r\n\r\n",
    b"x\r\n",
    b"5;\nx\r\nhello\r\n0\r\n\r\n",
    b"0\r\nBad trailer\r\n\r\n",
    b"ffffffffffffffffff\r\n",
    b"-1\r\n",
]


@pytest.mark.parametrize("body", BAD_CHUNKS)
async def test_a_malformed_chunked_body_is_refused_and_no_pool_has_failed(body):
    async with front(silent) as f:
        client = await f.client()
        await client.send(get("/", "Transfer-Encoding: chunked", method="POST") + body)
        assert status(await client.message()) == 400
        assert await client.ended()
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol") == 0
        assert f.metric("lased_rejected_total", reason="bad_request") == 1
