"""Interim responses, Expect: 100-continue, and final responses before the end of the request's body."""

import asyncio
import socket
import time

import pytest

from tests.proxy.harness import (
    EVIL,
    OK,
    Pieces,
    Recorder,
    Scripted,
    UnreadingPool,
    answer_ok,
    assert_unharmed,
    eventually,
    front,
    get,
    original_lines,
    send_in_pieces,
    status,
    values,
)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
FRAMINGS = [("Content-Length: 5", b"hello"), ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n")]


def expecting(framing="Content-Length: 5", method="POST"):
    return get("/x", "Expect: 100-continue", framing, method=method)


def inviting(answer=OK):
    """A pool that invites the body and reads it before it answers."""

    async def play(wire, head):
        await wire.send(CONTINUE)
        await script.read_body(wire, head)
        await wire.send(answer)

    script = Scripted(play)
    return script


@pytest.mark.parametrize("method", ["POST", "PUT", "QUERY"])
@pytest.mark.parametrize(("framing", "body"), FRAMINGS)
async def test_E01_the_100_comes_from_the_pool_and_then_the_body_is_sent(framing, body, method):
    script = inviting()
    async with front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(expecting(framing, method))
            assert await client.until(b"\r\n\r\n") == CONTINUE
            await client.send(body)
            head, got = await client.message()
            assert (status((head,)), got) == (200, b"ok")
            assert values(head, b"connection") == []
        for head in script.heads:
            assert original_lines(head)[2:] == [b"Expect: 100-continue", framing.encode()]
        assert script.raw_bodies == [body, body]
        assert len(f.pools[0].connections) == 1
        await assert_unharmed(f)


async def test_E01_an_http_1_0_client_gets_no_100():
    """RFC 9110 10.1.1 and 15.2: no interim response to such a client; it sends its body unasked."""
    script = inviting()
    async with front(script) as f:
        client = await f.client()
        await client.send(b"POST /x HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello")
        assert status(await client.message()) == 200
        assert await client.ended()
        assert script.raw_bodies == [b"hello"]
        await assert_unharmed(f)


def blunt(answer, then=""):
    """A pool that answers each head at once and reads no body."""

    async def play(wire, head):
        await wire.send(answer)
        if then:
            getattr(wire, then)()
            raise EOFError
        await wire.rest()
        raise EOFError

    return Scripted(play)


FINAL = [
    b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno",
    b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
    b"HTTP/1.1 417 Expectation Failed\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
]


@pytest.mark.parametrize("then", ["", "close"])
@pytest.mark.parametrize("answer", FINAL)
@pytest.mark.parametrize(("framing", "body"), FRAMINGS)
async def test_E02_a_final_response_before_the_body_reaches_the_client(framing, body, answer, then):
    async with front(blunt(answer, then)) as f:
        client = await f.client()
        await client.send(expecting(framing))
        head, got = await client.message()
        assert (head.split(b" ")[1], got) == (answer.split(b" ")[1], b"no")
        assert values(head, b"connection") == [b"close"]
        await send_in_pieces(client, body)
        assert await client.ended()
        await assert_unharmed(f)


@pytest.mark.parametrize("answer", FINAL)
@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (f"Content-Length: {len(EVIL)}", EVIL),
        ("Content-Length: 5", b"hello" + EVIL),
        ("Content-Length: 5", EVIL),
        ("Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVIL), EVIL)),
        ("Transfer-Encoding: chunked", EVIL),
    ],
)
async def test_E03_bytes_after_an_early_final_response_are_no_request(framing, body, answer):
    script = blunt(answer)
    async with front(script) as f:
        client = await f.client()
        await client.send(expecting(framing))
        assert (await client.message())[1] == b"no"
        await send_in_pieces(client, body + EVIL, 7)
        assert await client.ended()
        assert [original_lines(head)[0] for head in script.heads] == [b"POST /x HTTP/1.1"]
        await assert_unharmed(f)


@pytest.mark.parametrize(("framing", "body"), FRAMINGS)
async def test_E04_a_pool_that_sends_no_100_still_gets_the_body(framing, body):
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(expecting(framing))
            await eventually(lambda: f.in_flight == [1])
            await client.send(body)
            assert status(await client.message()) == 200
        assert script.raw_bodies == [body, body]
        await assert_unharmed(f)


@pytest.mark.parametrize("then", ["", "close"])
@pytest.mark.parametrize("expect", [("Expect: 100-continue",), ()])
@pytest.mark.parametrize("framing", ["Content-Length: 8000000", "Transfer-Encoding: chunked"])
async def test_E05_a_413_reaches_a_client_that_is_still_sending(framing, expect, then):
    answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
    async with front(blunt(answer, then)) as f:
        client = await f.client()
        piece = b"x" * 4096 if framing.startswith("C") else b"1000\r\n" + b"x" * 4096 + b"\r\n"
        await client.send(get("/x", *expect, framing, method="PUT") + piece)
        for _ in range(20):
            await send_in_pieces(client, piece)
        head, got = await client.message()
        assert (status((head,)), got) == (413, b"no")
        assert values(head, b"connection") == [b"close"]
        await send_in_pieces(client, piece)
        assert await client.ended()
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "pieces",
    [
        (CONTINUE, OK),
        (CONTINUE + OK,),
        (CONTINUE + OK[:20], OK[20:]),
        tuple(bytes([byte]) for byte in CONTINUE + OK),
        (CONTINUE + CONTINUE, OK),
        (CONTINUE + b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nok\r\n", b"0\r\n\r\n"),
    ],
)
async def test_E06_a_100_and_the_final_response_arrive_in_order(pieces):
    async with front(Pieces(*pieces)) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(expecting() + b"hello")
            for _ in range(b"".join(pieces).count(CONTINUE)):
                assert await client.until(b"\r\n\r\n") == CONTINUE
            head, got = await client.message()
            assert (status((head,)), got) == (200, b"ok")
        assert len(f.pools[0].connections) == 1
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "interim",
    [
        (HINTS,),
        (HINTS, HINTS.replace(b"/a", b"/b")),
        (b"HTTP/1.1 102 Processing\r\n\r\n", HINTS),
        (b"HTTP/1.1 104 Whatever\r\nX-Progress: 1\r\n\r\n",),
        (CONTINUE, HINTS),
        (HINTS,) * 50,
    ],
)
@pytest.mark.parametrize("together", [False, True])
async def test_E07_every_interim_response_is_forwarded_with_its_own_headers_only(interim, together):
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Final: 1\r\n\r\nok"
    async with front(Pieces(*([b"".join(interim) + final] if together else [*interim, final]))) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get())
            for expected in interim:
                assert await client.until(b"\r\n\r\n") == expected
            head, got = await client.message()
            assert (got, values(head, b"x-final"), values(head, b"link")) == (b"ok", [b"1"], [])
        assert len(f.pools[0].connections) == 1
        await assert_unharmed(f)


async def test_E07_a_103_arrives_before_the_final_response():
    go = asyncio.Event()

    async def hints(wire, head):
        await wire.send(HINTS)
        await go.wait()
        await wire.send(OK)

    async with front(Scripted(hints)) as f:
        client = await f.client()
        await client.send(get())
        assert await client.until(b"\r\n\r\n") == HINTS
        assert f.in_flight == [1]
        go.set()
        assert (await client.message())[1] == b"ok"
        await assert_unharmed(f)


@pytest.mark.parametrize("interim", [HINTS, CONTINUE, HINTS + HINTS])
async def test_E07_an_http_1_0_client_gets_the_final_response_alone(interim):
    async with front(Pieces(interim + OK)) as f:
        client = await f.client()
        await client.send(b"GET /x HTTP/1.0\r\n\r\n")
        head, got = await client.message()
        assert (status((head,)), got) == (200, b"ok")
        assert await client.ended()
        await assert_unharmed(f)


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        ("reset", 502),
        ("close", 502),
        (b"nonsense\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 502),
        ("silence", 504),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\noh", 500),
    ],
)
@pytest.mark.parametrize("interim", [CONTINUE, HINTS])
async def test_E08_a_failure_after_an_interim_response_ends_in_an_error_response(interim, fails, code):
    async def play(wire, head):
        await wire.send(interim)
        await wire.body(head)
        if isinstance(fails, bytes):
            await wire.send(fails)
        elif fails == "silence":
            await wire.rest()
            raise EOFError
        else:
            getattr(wire, fails)()
            raise EOFError

    async with front(Scripted(play), timeouts={"answer": 0.05}) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(expecting())
            assert await client.until(b"\r\n\r\n") == interim
            await client.send(b"hello")
            head, got = await client.message()
            assert status((head,)) == code
            assert got
        await assert_unharmed(f)


@pytest.mark.parametrize("then", ["reset", "close"])
async def test_E08_a_failure_before_the_body_ends_in_a_502(then):
    async with front(saying_at_once(CONTINUE, then)) as f:
        client = await f.client()
        await client.send(expecting())
        head = await client.until(b"\r\n\r\n")
        if head == CONTINUE:
            head = await client.until(b"\r\n\r\n")
        assert status((head,)) == 502
        assert values(head, b"connection") == [b"close"]
        await assert_unharmed(f)


def saying_at_once(piece, then):
    async def play(wire, head):
        await wire.send(piece)
        await asyncio.sleep(0.002)
        getattr(wire, then)()
        raise EOFError

    return Scripted(play)


@pytest.mark.parametrize(("framing", "body"), FRAMINGS)
async def test_E09_without_a_pool_no_100_is_sent(framing, body):
    async with front(None, None) as f:
        client = await f.client()
        await client.send(expecting(framing))
        head, _ = await client.message()
        assert status((head,)) in (502, 503)
        assert values(head, b"connection") == [b"close"]
        await send_in_pieces(client, body + EVIL)
        assert await client.ended()
        await f.wait_idle()
        assert status(await f.ask(get("/fresh"))) in (502, 503)
        assert f.metric("lased_internal_errors_total") == 0


async def test_E09_while_every_pool_is_full_no_100_is_sent():
    go = asyncio.Event()

    async def holds(wire, head):
        await go.wait()
        await wire.send(OK)

    script = Scripted(holds)
    async with front(script, max_in_flight=1, queue={"timeout": 0.05}) as f:
        first = await f.client()
        await first.send(get("/first"))
        await eventually(lambda: script.heads)
        client = await f.client()
        await client.send(expecting())
        head, _ = await client.message()
        assert status((head,)) == 503
        assert values(head, b"connection") == [b"close"]
        assert await client.ended()
        go.set()
        assert status(await first.message()) == 200
        assert len(script.heads) == 1
        await assert_unharmed(f)


@pytest.mark.parametrize("body", [b"hello", EVIL, b"x" * 10000])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("next_chunked", [False, True])
async def test_E09_the_body_of_a_request_that_no_pool_took_is_part_of_no_other(body, chunked, next_chunked):
    """The connection may go on after the 502, but not with what was kept of the body for a pool."""

    def put(content, in_chunks, target):
        framing = "Transfer-Encoding: chunked" if in_chunks else f"Content-Length: {len(content)}"
        raw = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content) if in_chunks else content
        return get(target, framing, method="PUT") + raw

    async with front(None) as f:
        client = await f.client()
        await client.send(put(body, chunked, "/lost"))
        head, _ = await client.message()
        assert status((head,)) == 502
        script = Recorder()
        f.pools[0].script = script
        await f.pools[0].open()
        if values(head, b"connection") == [b"close"]:
            client = await f.client()
        for _ in range(2):
            await client.send(put(b"mine", next_chunked, "/next"))
            assert status(await client.message()) == 200
        whole = b"4\r\nmine\r\n0\r\n\r\n" if next_chunked else b"mine"
        assert script.raw_bodies == [whole, whole]
        assert [original_lines(head)[0] for head in script.heads] == [b"PUT /next HTTP/1.1"] * 2
        await assert_unharmed(f)


async def test_E09_the_body_of_a_request_that_expired_in_the_queue_is_part_of_no_other():
    go = asyncio.Event()

    async def holds(wire, head):
        if b"/first" in head:
            await go.wait()
        await script.read_body(wire, head)
        await wire.send(OK)

    script = Scripted(holds)
    async with front(script, max_in_flight=1, queue={"timeout": 0.03}) as f:
        first = await f.client()
        await first.send(get("/first"))
        await eventually(lambda: script.heads)
        client = await f.client()
        await client.send(get("/lost", f"Content-Length: {len(EVIL)}", method="POST") + EVIL)
        head, _ = await client.message()
        assert status((head,)) == 503
        go.set()
        assert status(await first.message()) == 200
        if values(head, b"connection") == [b"close"]:
            client = await f.client()
        await client.send(get("/next", "Content-Length: 4", method="POST") + b"mine")
        assert status(await client.message()) == 200
        assert script.raw_bodies == [b"", b"mine"]
        await assert_unharmed(f)


def after_some(answer, then):
    """A pool that answers when it has read 64 KiB of a body, and reads no more."""

    async def play(wire, head):
        await wire.exactly(65536)
        await wire.send(answer)
        if then:
            getattr(wire, then)()
        else:
            wire.buffer = b""
            while await wire.more():
                wire.buffer = b""
        raise EOFError

    return Scripted(play)


@pytest.mark.parametrize("code", [413, 404, 200])
@pytest.mark.parametrize("then", ["", "close"])
async def test_E10_an_early_response_to_a_large_upload_reaches_the_client(code, then):
    """Also when the pool closes with the rest unread, which makes its kernel send a reset behind the response."""
    answer = b"HTTP/1.1 %d Early\r\nContent-Length: 2\r\n\r\nno" % code
    async with front(after_some(answer, then)) as f:
        client = await f.client()
        await client.send(get("/x", "Content-Length: 50000000", method="PUT"))
        sent, ended = 0, False

        async def send():
            nonlocal sent, ended
            try:
                while sent < 50_000_000:
                    await client.send(b"x" * 65536)
                    sent += 65536
                    await asyncio.sleep(0)
            except ConnectionError:
                pass
            ended = True

        sending = asyncio.create_task(send())
        head, got = await client.message()
        assert (status((head,)), got) == (code, b"no")
        assert values(head, b"connection") == [b"close"]
        await f.wait_idle()
        assert await client.ended()
        client.kill()
        await sending
        await assert_unharmed(f)


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_E10_an_early_response_arrives_even_if_more_of_the_body_was_sent_after_it(then):
    """The pool's response waits in the dispatcher's socket while the next piece of the body meets the reset."""
    both = asyncio.Event()

    async def play(wire, head):
        await wire.exactly(5)
        client.writer.write(b"x" * 5)  # in the dispatcher's socket first: read first, sent to a pool that is gone
        wire.writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
        wire.writer.transport.pause_reading()
        getattr(wire, then)()
        both.set()
        raise EOFError

    async with front(Scripted(play)) as f:
        client = await f.client()
        await client.send(get("/x", "Content-Length: 1000", method="PUT") + b"hello")
        await asyncio.wait_for(both.wait(), 5)
        head, got = await client.message()
        assert (status((head,)), got) == (413, b"no")
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "upgrade",
    [
        ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQAAP__"),
        ("Upgrade: h2c", "Connection: upgrade"),
        ("Upgrade: h2c, foo/2", "Connection: Upgrade"),
        ("Upgrade: TLS/1.2", "Connection: Upgrade"),
    ],
)
@pytest.mark.parametrize(("framing", "body"), FRAMINGS)
async def test_E11_a_body_with_an_upgrade_is_forwarded_without_the_upgrade(framing, body, upgrade):
    """A server that does not want to upgrade ignores the header (RFC 9110 7.8) and serves the request."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await client.send(get("/x", *upgrade, framing, method="POST") + body + get("/next"))
        for _ in range(2):
            head, got = await client.message()
            assert (status((head,)), got) == (200, b"ok")
        assert original_lines(script.heads[0]) == [b"POST /x HTTP/1.1", b"Host: test", framing.encode()]
        assert original_lines(script.heads[1])[0] == b"GET /next HTTP/1.1"
        assert script.raw_bodies == [body, b""]
        await assert_unharmed(f)


@pytest.mark.parametrize(("framing", "body"), FRAMINGS)
async def test_E11_a_body_with_an_upgrade_to_a_websocket_is_still_a_body(framing, body):
    """Whatever becomes of the upgrade: a pool that declines it gets the body, and the next request is one."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        fields = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        await client.send(get("/x", *fields, framing, method="POST") + body)
        assert status(await client.message()) == 200
        await client.send(get("/next"))
        assert status(await client.message()) == 200
        assert script.raw_bodies == [body, b""]
        assert original_lines(script.heads[1])[0] == b"GET /next HTTP/1.1"
        await assert_unharmed(f)


async def test_interim_responses_pass_and_the_final_one_follows():
    async def hints(wire):
        await wire.message()
        await wire.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with front(hints) as f:
        client = await f.client()
        await client.send(get())
        assert b"Link: </a>" in (await client.message())[0]
        assert (await client.message())[1] == b"ok"


async def test_the_pool_invites_the_body_and_gets_it():
    async def inviting(wire):
        head = await wire.until(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + await wire.exactly(5))

    async with front(inviting) as f:
        client = await f.client()
        await client.send(get("/", "Expect: 100-continue", "Content-Length: 5", method="POST"))
        assert status(await client.message()) == 100
        await client.send(b"hello")
        assert (await client.message())[1] == b"hello"


async def test_an_early_response_to_a_large_upload_reaches_the_client():
    async def refuse(wire):
        await wire.until(b"\r\n\r\n")
        await wire.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(10)

    async with front(refuse) as f:
        client = await f.client()
        await client.send(get("/", "Content-Length: 50000000", method="PUT") + b"x" * 100_000)
        head, _ = await client.message()
        assert status((head,)) == 413
        assert b"Connection: close" in head
        await f.wait_idle()


async def test_an_early_response_arrives_although_the_pool_did_not_read():
    loop = asyncio.get_running_loop()
    with UnreadingPool() as pool, socket.socket() as client:
        async with front(answer_ok) as f:
            await pool.replace_pools_of(f)
            client.connect(f.address)
            client.setblocking(False)
            await loop.sock_sendall(client, get("/", "Content-Length: 100000", method="POST"))
            await eventually(lambda: pool.connections)
            await loop.sock_sendall(client, b"x" * 100)
            await asyncio.sleep(0.05)
            client.send(b"more" * 100)
            pool.connections[0].send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            pool.connections[0].close()
            time.sleep(0.03)  # noqa: ASYNC251 - as above
            assert (await asyncio.wait_for(loop.sock_recv(client, 4096), 3)).startswith(b"HTTP/1.1 413")
            client.close()


async def test_a_pool_that_answers_early_may_go_on_reading_a_long_upload():
    async def early_head(wire):
        await wire.until(b"\r\n\r\n")
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
        await wire.exactly(10)
        await wire.send(b"ok")

    async with front(early_head, timeouts={"idle": 0.1, "answer": 0.1}) as f:
        client = await f.client()
        await client.send(get("/", "Content-Length: 10", method="POST"))
        for _ in range(10):
            await client.send(b"x")
            await asyncio.sleep(0.02)
        assert (await client.message())[1] == b"ok"
        await f.wait_idle()
