"""What goes through, and how: bytes untouched, hop-by-hop fields dropped, connections kept, bodies streamed."""

import asyncio
import re

import pytest



async def test_target_and_fields_pass_byte_for_byte():
    script = Recorder()
    async with front(script) as f:
        fields = ["X-Odd: caf\xe9 \xff", "x-CASE: kept", "X-Twice: 1", "X-Twice: 2", "Cookie: a=b; c"]
        await f.ask(get("/a//b/%zz?q=%41&x[]=1", *fields, host="Example.test:81"))
    head, _ = script.requests[0]
    assert head.startswith(b"GET /a//b/%zz?q=%41&x[]=1 HTTP/1.1\r\nHost: Example.test:81\r\n")
    assert [line for line in header_lines(head) if line.lower().startswith((b"x-odd", b"x-case", b"x-tw", b"cookie"))] == [
        b"X-Odd: caf\xe9 \xff", b"x-CASE: kept", b"X-Twice: 1", b"X-Twice: 2", b"Cookie: a=b; c",
    ]  # fmt: skip


async def test_it_adds_who_asked_and_nothing_else():
    script = Recorder()
    async with front(script) as f:
        await f.ask(get("/", "X-Forwarded-For: 6.6.6.6", "X-Forwarded-Proto: gopher"))
    *fields, forwarded, via = header_lines(script.requests[0][0])
    assert re.fullmatch(rb'Forwarded: for="127.0.0.1:[0-9]+";host="test";proto=http', forwarded)
    assert fields == [
        b"Host: test", b"X-Forwarded-For: 127.0.0.1", b"X-Forwarded-Proto: http", b"X-Forwarded-Host: test",
    ]  # fmt: skip
    assert via.startswith(b"Via: 1.1 ")
    assert via.endswith(b".lased-dispatcher")


async def test_fields_of_one_hop_and_those_nominated_do_not_pass():
    script = Recorder(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x-up\r\nX-Up: 1\r\nKeep-Alive: 5\r\nX-Stays: 1\r\n\r\nok"
    )
    async with front(script) as f:
        head, _ = await f.ask(
            get(
                "/",
                "Connection: keep-alive, X-Mine",
                "X-Mine: 1",
                "Keep-Alive: 3",
                "TE: gzip",
                "Proxy-Connection: x",
                "X-Stays: 1",
            )
        )
    sent = script.requests[0][0].lower()
    for name in (b"x-mine", b"keep-alive", b"te:", b"connection"):
        assert b"\r\n" + name not in sent
    assert b"x-stays" in sent
    assert b"x-up" not in head.lower()
    assert b"keep-alive" not in head.lower()
    assert b"X-Stays: 1" in head


async def test_host_and_length_cannot_be_nominated_away():
    script = Recorder()
    async with front(script) as f:
        await f.ask(
            get("/", "Connection: host, content-length, x-forwarded-for", "Content-Length: 5", method="POST") + b"hello"
        )
    head, body = script.requests[0]
    assert b"Host: test" in head
    assert body == b"hello"
    assert b"X-Forwarded-For: 127.0.0.1" in head


async def test_both_sides_keep_their_connections():
    async with front() as f:
        client = await f.client()
        for i in range(5):
            await client.send(get(f"/{i}"))
            assert (await client.message())[1] == b"/%d" % i
        assert len(f.pools[0].connections) == 1


async def test_pipelined_requests_are_answered_in_order():
    async def slow_first(wire):
        while True:
            head, _ = await wire.message()
            target = head.split(b" ")[1]
            if target == b"/0":
                await asyncio.sleep(0.02)
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(target), target))

    async with front(slow_first, slow_first) as f:
        client = await f.client()
        await client.send(b"".join(get(f"/{i}", "X: " + "p" * 300) for i in range(300)))
        assert [(await client.message())[1] for _ in range(300)] == [b"/%d" % i for i in range(300)]


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_bodies_pass_in_both_directions(framing):
    body = bytes(range(256)) * 2000

    async def echo(wire):
        while True:
            _, got = await wire.message()
            if framing == "length":
                await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(got) + got)
            else:
                await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for i in range(0, len(got), 7000):
                    piece = got[i : i + 7000]
                    await wire.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                await wire.send(b"0\r\n\r\n")

    async with front(echo) as f:
        client = await f.client()
        for _ in range(3):
            if framing == "length":
                await client.send(get("/", f"Content-Length: {len(body)}", method="POST") + body)
            else:
                await client.send(get("/", "Transfer-Encoding: chunked", method="POST"))
                await client.send(b"%x;ext=1\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            assert (await client.message())[1] == body
        await f.wait_idle()


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "FOO", "QUERY"])
async def test_any_method_may_carry_a_body(method):
    script = Recorder()
    async with front(script) as f:
        await f.ask(get("/", "Content-Length: 5", method=method) + b"hello")
    assert script.requests[0][0].startswith(method.encode() + b" / ")
    assert script.requests[0][1] == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_an_answer_to_head_has_no_body_whatever_its_head_says(answer):
    async with front(Recorder(answer)) as f:
        client = await f.client()
        for _ in range(3):
            await client.send(get("/", method="HEAD"))
            head, _ = await client.message(head_only=True)
            assert status((head,)) == 200
        assert (b"Content-Length: 1234" in head) == (b"1234" in answer)


@pytest.mark.parametrize("code", [204, 304])
async def test_answers_without_a_body(code):
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


async def test_an_answer_that_ends_with_its_connection_becomes_chunked():
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


async def test_an_http_1_0_client_may_keep_its_connection():
    async with front() as f:
        client = await f.client()
        for _ in range(2):
            await client.send(b"GET /k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            head, body = await client.message()
            assert b"Connection: keep-alive" in head
            assert body == b"/k"


async def test_interim_answers_pass_and_the_final_one_follows():
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


async def test_an_early_answer_to_a_large_upload_reaches_the_client():
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


@pytest.mark.parametrize(("target", "upstream", "host"), [
    ("http://other:81/p?q", b"/p?q", b"other:81"), ("http://other?q", b"/?q", b"other"), ("HTTP://o", b"/", b"o"),
])  # fmt: skip
async def test_an_absolute_target_overrules_host(target, upstream, host):
    script = Recorder()
    async with front(script) as f:
        await f.ask(get(target, host="ignored"))
    assert script.requests[0][0].startswith(b"GET " + upstream + b" HTTP/1.1\r\nHost: " + host + b"\r\n")


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
        before = -1
        while sent != before:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.2)
        assert sent < total // 2, "the pool could go on pouring though nobody reads"
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
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 32 << 20, "the client could go on sending though its pool does not read"
        go.set()
        assert status(await client.message()) == 200
        await pushing
        await f.wait_idle()


async def test_what_the_pool_says_of_its_service_time_is_believed_and_passed_on():
    script = Recorder(b"HTTP/1.1 200 OK\r\nServer-Timing: db;dur=1, service;dur=0.25\r\nContent-Length: 0\r\n\r\n")
    async with front(script, policy="greedy") as f:
        head, _ = await f.ask(get())
        assert b"Server-Timing: db;dur=1, service;dur=0.25" in head
        await f.wait_idle()
        estimate = f.service.router.policy.estimates()["p0"]
        assert (estimate.observations, estimate.rate) == (1, pytest.approx(4000.0))


@pytest.mark.parametrize("code", [404, 500, 503])
async def test_errors_teach_no_rate(code):
    script = Recorder(b"HTTP/1.1 %d No\r\nServer-Timing: service;dur=0.001\r\nContent-Length: 0\r\n\r\n" % code)
    async with front(script, policy="greedy") as f:
        await f.ask(get())
        await f.wait_idle()
        if code >= 500:
            assert f.service.router.policy.estimates()["p0"].observations == 0


async def test_requests_and_decisions_are_counted():
    async with front(answer_ok, answer_ok) as f:
        for _ in range(4):
            await f.ask(get())
        await f.wait_idle()
        counted = sum(f.metric("lased_requests_total", pool=p, code="2xx") for p in ("p0", "p1"))
        decided = sum(f.metric("lased_decisions_total", pool=p, phase="exploit") for p in ("p0", "p1"))
        assert (counted, decided) == (4, 4)
        await eventually(lambda: f.metric("lased_request_duration_seconds_count", pool="p0") == 4)
