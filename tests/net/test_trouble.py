"""What goes wrong, on either side: a clean answer or a broken one, never a wrong one; every count comes back."""

import asyncio

import pytest




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
async def test_what_is_no_clean_request_is_refused_and_the_connection_closed(raw, code, pieces):
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
async def test_a_chunked_body_gone_wrong_is_refused_and_held_against_nobody(body):
    async with front(silent) as f:
        client = await f.client()
        await client.send(get("/", "Transfer-Encoding: chunked", method="POST") + body)
        assert status(await client.message()) == 400
        assert await client.ended()
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol") == 0
        assert f.metric("lased_rejected_total", reason="bad_request") == 1


@pytest.mark.parametrize("framing", ["Content-Length: 2000", "Transfer-Encoding: chunked"])
async def test_a_body_over_the_limit_is_refused(framing):
    async with front(silent, limits={"body_bytes": 1000}) as f:
        client = await f.client()
        await client.send(
            get("/", framing, method="POST") + (b"7d0\r\n" if "chunked" in framing else b"") + b"x" * 2000
        )
        assert status(await client.message()) == 413
        assert await client.ended()
        await f.wait_idle()


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
async def test_an_answer_that_is_none_becomes_502(answer):
    async with front(Pieces(answer, then="close")) as f:
        client = await f.client()
        await client.send(get())
        assert status(await client.message()) == 502
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol" if answer else "reset") == 1
        assert f.metric("lased_requests_total", pool="p0", code="5xx") == 1


@pytest.mark.parametrize("then_reset", [False, True])
@pytest.mark.parametrize("part", [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
                                  b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"])  # fmt: skip
async def test_an_answer_broken_off_is_never_ended_cleanly(part, then_reset):
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


@pytest.mark.parametrize("extra", [b"more", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
async def test_bytes_after_an_answer_close_the_connection_and_reach_nobody(extra):
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


async def test_a_pool_that_speaks_unasked_loses_the_connection():
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


async def test_a_dead_kept_alive_connection_is_tried_again_once_for_a_get():
    async def dies_on_the_second(wire):
        await wire.message()
        await wire.send(OK)
        await wire.message()
        wire.reset()

    async with front(dies_on_the_second) as f:
        client = await f.client()
        for _ in range(4):
            await client.send(get())
            assert status(await client.message()) == 200
        await f.wait_idle()
        assert f.metric("lased_retries_total", reason="stale") == 3


async def test_a_post_is_not_sent_twice():
    async def dies_on_the_second(wire):
        await wire.message()
        await wire.send(OK)
        head, _ = await wire.message()
        posts.append(head)
        wire.reset()

    posts = []
    async with front(dies_on_the_second) as f:
        client = await f.client()
        await client.send(get())
        await client.message()
        await client.send(get("/", "Content-Length: 2", method="POST") + b"hi")
        assert status(await client.message()) == 502
        assert len(posts) == 1


async def test_a_pool_that_refuses_is_passed_over():
    async with front(None, answer_ok) as f:
        for _ in range(3):
            assert status(await f.ask(get())) == 200
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="connect") == 3
        assert f.metric("lased_retries_total", reason="connect") == 3


async def test_a_body_survives_the_search_for_a_pool():
    async def echo(wire):
        _, body = await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    body = bytes(range(256)) * 4096
    async with front(None, echo) as f:
        assert (await f.ask(get("/", f"Content-Length: {len(body)}", method="POST") + body))[1] == body


async def test_when_no_pool_accepts_the_answer_is_502_and_the_connection_goes_on():
    async with front(None, None) as f:
        client = await f.client()
        for _ in range(3):
            await client.send(get())
            assert status(await client.message()) == 502
        await f.wait_idle()


async def test_a_silent_pool_is_a_504():
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


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("after", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"])
async def test_a_client_that_leaves_takes_its_request_with_it(leave, after):
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
