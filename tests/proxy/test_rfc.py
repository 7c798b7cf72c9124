"""Rules of RFC 9110 and RFC 9112: hops, loops, versions, empty lines, trailers and the cutting of messages."""

import asyncio
import itertools
import random

import pytest

from tests.proxy.harness import (
    EVIL,
    OK,
    Pieces,
    Recorder,
    Scripted,
    assert_refused_unseen,
    assert_unharmed,
    front,
    get,
    header_lines,
    original_lines,
    status,
    values,
)


def via_of(head):
    (via,) = (line for line in header_lines(head) if line.lower().startswith(b"via:"))
    return via


async def test_X05_a_request_in_a_loop_is_refused_and_counted():
    script = Recorder()
    async with front(script) as f:
        await f.ask(get())
        via = via_of(script.requests[0][0])
        answer = await f.ask(get("/", via.decode() + ", 1.0 another (comment)"))
        assert status(answer) == 508
        assert f.metric("lased_rejected_total", reason="loop") == 1
        answer = await f.ask(get("/", "Via: 1.1 lased-dispatcher, 1.1 00000000.lased-dispatcher"))
        assert status(answer) == 200, "another dispatcher in the way is no loop"
        await f.wait_idle()
    assert len(script.requests) == 2


async def test_X02_trace_is_refused_and_shows_nothing():
    script = Recorder()
    async with front(script) as f:
        for fields in ((), ("Max-Forwards: 0",)):
            answer = await f.ask(get("/", "Cookie: secret", *fields, method="TRACE"))
            assert status(answer) == 405
            assert b"Allow: GET, HEAD" in answer[0]
            assert b"secret" not in answer[0] + answer[1]
    assert script.requests == []


async def test_X03_max_forwards_is_counted_down_for_options_alone():
    script = Recorder()
    async with front(script) as f:
        await f.ask(get("/", "Max-Forwards: 5", method="OPTIONS"))
        await f.ask(get("/", "Max-Forwards: 5"))
        await f.ask(get("/", "Max-Forwards: five", method="OPTIONS"))
        answer = await f.ask(get("/", "Max-Forwards: 0", method="OPTIONS"))
        assert status(answer) == 200
        await f.wait_idle()
    seen = [line for head, _ in script.requests for line in header_lines(head) if line.startswith(b"Max-Forwards")]
    assert seen == [b"Max-Forwards: 4", b"Max-Forwards: 5", b"Max-Forwards: five"]


TRAILED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        (("TE: trailers", "Connection: TE"), b"0\r\nX-Sum: 1\r\n\r\n"),
        ((), b"0\r\n\r\n"),
    ],
)
async def test_S07_allowed_trailers_reach_a_client_that_asked_for_them(fields, end):
    script = Recorder(TRAILED)
    async with front(script) as f:
        client = await f.client()
        await client.send(get("/", *fields))
        answer = await client.until(end)
        assert answer.endswith(b"2\r\nok\r\n" + end)
        await f.wait_idle()
    asked = [line for line in header_lines(script.requests[0][0]) if line.startswith((b"TE:", b"Connection:"))]
    assert asked == ([b"TE: trailers", b"Connection: TE"] if fields else [])


async def test_W06_a_426_keeps_its_upgrade_header_and_connection_options():
    script = Recorder(
        b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n"
    )
    async with front(script) as f:
        head, _ = await f.ask(get())
        assert b"Upgrade: h2c" in header_lines(head)
        assert b"Connection: upgrade" in header_lines(head)
        head, _ = await f.ask(get("/", "Connection: close"))
        assert b"Connection: close, upgrade" in header_lines(head)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize(
    "field",
    [
        b"X : y",
        b"X\t: y",
        b"Content-Length : 5",
        b"Transfer-Encoding : chunked",
        b"Connection : close",
        b"X Y: z",
        b": y",
        b"X",
        b" : y",
        b"X(: y",
        b"X\xe9: y",
        b"X\x00: y",
        b"X,Y: z",
    ],
)
async def test_X01_a_blank_before_the_colon_and_other_bad_names_are_refused(field, size):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, b"POST / HTTP/1.1\r\nHost: a\r\n" + field + b"\r\n\r\n" + EVIL, 400, size=size)


@pytest.mark.parametrize(
    "field", [b"X : y", b"Content-Length : 5", b"Transfer-Encoding : chunked", b"Set-Cookie\t: a=b"]
)
async def test_X01_in_a_response_the_blank_is_removed_or_the_status_is_502(field):
    """RFC 9112 5.1: never forwarded as it is."""
    async with front(Pieces(b"HTTP/1.1 200 OK\r\n" + field + b"\r\nContent-Length: 2\r\n\r\nok")) as f:
        client = await f.client()
        await client.send(get())
        head, _ = await client.message()
        assert status((head,)) in (200, 502)
        assert field not in head
        await assert_unharmed(f)


@pytest.mark.parametrize("hops", [(), ("Max-Forwards: 0",), ("Max-Forwards: 5",)])
@pytest.mark.parametrize("target", ["/", "/x?secret=1", "http://h/", "*"])
async def test_X02_trace_ends_here_and_shows_nothing(target, hops):
    """RFC 9110 9.3.8 and 7.6.2: with no hop left it must be answered here; a server may refuse the method."""
    async with front(Recorder()) as f:
        client = await f.client()
        await client.send(get(target, "Cookie: secret", "Authorization: Basic secret", *hops, method="TRACE"))
        head, body = await client.message()
        assert status((head,)) in (200, 400, 405)
        assert b"secret" not in head + body
        assert f.pools[0].connections == []
        await assert_unharmed(f)


@pytest.mark.parametrize(
    ("hops", "forwarded"),
    [
        (b"1", [b"0"]),
        (b"5", [b"4"]),
        (b"10", [b"9"]),
        (b"007", [b"6"]),
        (b"100000000", [b"99999999"]),
        (b"3 ", [b"2"]),
    ],
)
@pytest.mark.parametrize("target", ["*", "/", "http://h"])
async def test_X03_hops_of_options_are_counted_down(hops, forwarded, target):
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get(target, "Max-Forwards: " + hops.decode(), method="OPTIONS"))
            assert status(await client.message()) == 200
        assert [values(head, b"max-forwards") for head in script.heads] == [forwarded, forwarded]
        await assert_unharmed(f)


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "QUERY"])
@pytest.mark.parametrize("hops", ["0", "1", "5"])
async def test_X03_hops_of_other_methods_mean_nothing(method, hops):
    """RFC 9110 7.6.2: a recipient may ignore the field on any other method."""
    script = Recorder(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with front(script) as f:
        client = await f.client()
        await client.send(get("/", f"Max-Forwards: {hops}", method=method))
        assert status(await client.message()) == 200
        assert values(script.heads[0], b"max-forwards") == [hops.encode()]
        await assert_unharmed(f)


FRAMED = [
    ("", b""),
    ("Content-Length: 5", b"hello"),
    (f"Content-Length: {len(EVIL)}", EVIL),
    ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
]


@pytest.mark.parametrize("target", ["*", "/"])
@pytest.mark.parametrize(("framing", "body"), FRAMED)
@pytest.mark.parametrize("together", [False, True])
async def test_X03_with_no_hop_left_options_is_answered_here_and_its_body_is_dropped(target, framing, body, together):
    await answered_here(200, get(target, "Max-Forwards: 0", *filter(None, [framing]), method="OPTIONS"), body, together)


async def answered_here(code, head, body, together):
    """The dispatcher answers this itself; the next request is itself alone, on this connection or another."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await client.send(head + body if together else head)
        answer, _ = await client.message()
        assert status((answer,)) == code
        assert f.pools[0].connections == []
        if values(answer, b"connection") == [b"close"]:
            assert await client.ended()
            client = await f.client()
        elif not together:
            await client.send(body)
        for framing, mine in (
            ("Content-Length: 4", b"mine"),
            ("Transfer-Encoding: chunked", b"4\r\nmine\r\n0\r\n\r\n"),
        ):
            await client.send(get("/next", framing, method="POST") + mine)
            assert status(await client.message()) == 200
        assert [original_lines(head)[0] for head in script.heads] == [b"POST /next HTTP/1.1"] * 2
        assert script.raw_bodies == [b"mine", b"4\r\nmine\r\n0\r\n\r\n"]
        await assert_unharmed(f)


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
async def test_X04_an_interim_response_has_no_length_and_no_coding(interim, framing):
    """RFC 9110 8.6 and 9112 6.1; what follows it is the response, not its body."""
    async with front(Pieces(b"HTTP/1.1 %b\r\nX: y\r\n%b\r\n\r\n" % (interim, framing) + OK)) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get())
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 %b\r\nX: y\r\n\r\n" % interim
            assert (await client.message())[1] == b"ok"
        assert len(f.pools[0].connections) == 1
        await assert_unharmed(f)


@pytest.mark.parametrize("fields", [(b"Content-Length: 0",), (b"Content-Length: 5",), (b"Transfer-Encoding: chunked",)])
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
async def test_X04_a_204_has_no_length_and_no_coding(fields, method):
    async with front(Recorder(b"HTTP/1.1 204 No Content\r\nETag: e\r\n" + b"\r\n".join(fields) + b"\r\n\r\n")) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get("/x", method=method))
            head, _ = await client.message()
            assert status((head,)) == 204
            assert values(head, b"content-length") + values(head, b"transfer-encoding") == []
            assert values(head, b"etag") == [b"e"]
        assert len(f.pools[0].connections) == 1
        await assert_unharmed(f)


async def its_name(f, script):
    """What the dispatcher calls itself, as a pool reads it."""
    assert status(await f.ask(get("/x"))) == 200
    (via,) = values(script.heads.pop(), b"via")
    script.raw_bodies.pop()
    assert via.startswith(b"1.1 ")
    return via.removeprefix(b"1.1 ").decode()


@pytest.mark.parametrize(
    "chain",
    [
        "1.1 {0}",
        "1.0 {0}",
        "HTTP/1.1 {0}",
        "1.1 a, 1.1 {0}",
        "1.1 {0}, 1.0 b (comment)",
        "1.1 {0} (it)",
        "1.1 a\r\nVia: 1.1 {0}",
        "1.1 {0}\r\nVia: 1.1 a",
        "1.1 a,1.1 {0},1.1 b",
    ],
)
@pytest.mark.parametrize(("framing", "body"), FRAMED[:3])
async def test_X05_a_request_in_a_loop_ends_here_and_its_body_is_dropped(chain, framing, body):
    script = Recorder()
    async with front(script) as f:
        via = "Via: " + chain.format(await its_name(f, script))
        client = await f.client()
        await client.send(get("/x", via, *filter(None, [framing]), method="PUT") + body)
        head, _ = await client.message()
        assert status((head,)) == 508
        assert script.heads == []
        if values(head, b"connection") == [b"close"]:
            client = await f.client()
        await client.send(get("/next", "Content-Length: 4", method="POST") + b"mine")
        assert status(await client.message()) == 200
        assert script.raw_bodies == [b"mine"]
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "chain", ["1.1 a", "1.1 a, 1.0 b", "1.1 00000000.lased-dispatcher", "1.1 a (1.1 {0})", "1.1 x{0}", "1.1 {0}x"]
)
async def test_X05_others_in_the_chain_are_no_loop_and_stay_in_it(chain):
    script = Recorder()
    async with front(script) as f:
        name = await its_name(f, script)
        assert status(await f.ask(get("/x", "Via: " + chain.format(name)))) == 200
        assert b", ".join(values(script.heads[0], b"via")).decode() == chain.format(name) + ", 1.1 " + name
        await assert_unharmed(f)


@pytest.mark.parametrize("minor", range(1, 10))
async def test_X06_a_later_minor_version_is_read_as_1_1(minor):
    """A message is processed as the highest version understood (RFC 9110 2.5), and each side gets HTTP/1.1."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(b"POST /x HTTP/1.%d\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" % minor)
            head, body = await client.message()
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert (body, values(head, b"connection")) == (b"ok", [])
        assert [original_lines(head)[0] for head in script.heads] == [b"POST /x HTTP/1.1"] * 2
        assert script.raw_bodies == [b"hello", b"hello"]
        await assert_unharmed(f)


@pytest.mark.parametrize("minor", [0, 1, 2, 9])
async def test_X06_a_later_minor_version_in_a_response_is_read_as_1_1(minor):
    async with front(Recorder(OK.replace(b"1.1", b"1.%d" % minor))) as f:
        head, body = await f.ask(get())
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert body == b"ok"
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "version",
    [
        b"HTTP/2.0",
        b"HTTP/0.9",
        b"HTTP/3.0",
        b"HTTP/2",
        b"RTSP/1.0",
        b"ICE/1.0",
        b"ICY",
        b"http/1.1",
        b"HTTP/11",
        b"HTTP/1.10",
        b"HTTPS/1.1",
        b"HTTP /1.1",
        b"",
    ],
)
@pytest.mark.parametrize(
    "framing", [b"Content-Length: 2\r\n\r\nok", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"]
)
async def test_X06_a_response_in_another_protocol_causes_a_502(version, framing):
    """RFC 9110 2.5: another major version is another message syntax, of which nothing can be known."""
    async with front(Pieces(version + b" 200 OK\r\n" + framing)) as f:
        assert status(await f.ask(get())) == 502
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "fields",
    [
        ("Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", "Connection: Upgrade, HTTP2-Settings"),
        ("Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
        ("upgrade: H2C", "connection: UPGRADE"),
        ("Upgrade: h2c", "Upgrade: foo", "Connection: upgrade"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "HEAD"])
async def test_X07_an_offer_to_speak_http_2_goes_no_further(fields, method):
    script = Recorder(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    async with front(script) as f:
        client = await f.client()
        await client.send(get("/x", *fields, method=method) + get("/next"))
        for _ in range(2):
            assert status(await client.message()) == 200
        assert original_lines(script.heads[0]) == [f"{method} /x HTTP/1.1".encode(), b"Host: test"]
        assert original_lines(script.heads[1]) == [b"GET /next HTTP/1.1", b"Host: test"]
        await assert_unharmed(f)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
async def test_X07_a_101_without_an_upgrade_causes_a_502(raw):
    """RFC 9110 7.8: a server must not switch to what the client did not offer."""
    async with front(Pieces(raw + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) as f:
        client = await f.client()
        await client.send(get())
        assert status(await client.message()) == 502
        await client.send(get("/fresh"))
        assert (await client.message())[1] == b"/fresh"
        await assert_unharmed(f)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("first", [b"", b"\r\n"])
async def test_X08_an_empty_line_before_a_request_is_skipped(first, size):
    """RFC 9112 2.2; old clients send one behind the body of a POST."""
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        post = get("/x", "Content-Length: 5", method="POST") + b"hello"
        raw = first + post + b"\r\n" + get("/y") + b"\r\n" + post
        for i in range(0, len(raw), size or len(raw)):
            await client.send(raw[i : i + (size or len(raw))])
        for _ in range(3):
            assert (await client.message())[1] == b"ok"
        assert [original_lines(head)[0].split(b" ")[1] for head in script.heads] == [b"/x", b"/y", b"/x"]
        assert script.raw_bodies == [b"hello", b"", b"hello"]
        await assert_unharmed(f)


@pytest.mark.parametrize("before", [b"\n", b"\r", b" \r\n", b"\r\n\n", b"\r\n \r\n", b"\r\r\n", b"\x00\r\n"])
async def test_X08_anything_else_before_a_request_is_refused(before):
    async with front(Recorder()) as f:
        await assert_refused_unseen(f, before + EVIL, 400)


@pytest.mark.parametrize("count", [2, 3, 100])
async def test_X08_several_empty_lines_are_skipped_or_refused(count):
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        await client.send(b"\r\n" * count + get("/x"))
        head, _ = await client.message()
        assert (status((head,)), len(script.heads)) in ((200, 1), (400, 0))
        await assert_unharmed(f)


ANSWERS = {
    b"ok": OK,
    b"hello": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nX-Sum: 1\r\n\r\n",
    b"": b"HTTP/1.1 204 No Content\r\n\r\n",
}


def cuts(length, seed):
    """Where to cut so many bytes: everywhere for seed 0, else at random."""
    if not seed:
        return list(range(1, length))
    dice = random.Random(seed)
    return sorted(dice.sample(range(1, length), min(length - 1, dice.randrange(1, 12))))


@pytest.mark.parametrize("seed", range(6))
async def test_X09_it_does_not_matter_where_the_bytes_are_cut(seed):
    requests = [
        (get("/1"), b""),
        (get("/2", "Content-Length: 5", method="POST"), b"hello"),
        (get("/3", "Transfer-Encoding: chunked", method="PUT"), b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n"),
        (get("/4", "X: " + "y" * 50, method="QUERY"), b""),
    ]

    async def play(wire, head):
        await script.read_body(wire, head)
        answer = list(ANSWERS.values())[len(script.raw_bodies) % len(ANSWERS)]
        edges = [0, *cuts(len(answer), seed), len(answer)]
        for begin, end in itertools.pairwise(edges):
            await wire.send(answer[begin:end])
            await asyncio.sleep(0)

    script = Scripted(play)
    async with front(script) as f:
        client = await f.client()
        raw = b"".join(head + body for head, body in requests)
        edges = [0, *cuts(len(raw), seed), len(raw)]
        for begin, end in itertools.pairwise(edges):
            await client.send(raw[begin:end])
            await asyncio.sleep(0)
        for i in range(1, 5):
            head, got = await client.message()
            if status((head,)) == 103:
                head, got = await client.message()
            assert got == list(ANSWERS)[i % len(ANSWERS)]
        assert [original_lines(head)[0].split(b" ")[1] for head in script.heads] == [b"/1", b"/2", b"/3", b"/4"]
        chunked = script.raw_bodies.pop(2)
        assert script.raw_bodies == [b"", b"hello", b""]
        assert sum(len(part) for part in chunked.split(b"\r\n")[1:-3:2]) == 5
        assert chunked.endswith(b"\r\n0\r\n\r\n")
        assert len(f.pools[0].connections) == 1
        await assert_unharmed(f)
