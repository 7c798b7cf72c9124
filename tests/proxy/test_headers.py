"""Headers, byte for byte.

End-to-end headers arrive unchanged, the dispatcher's own headers cannot be forged, and invalid headers are refused.
"""

import asyncio
import gzip
import random
import re
import zlib

import pytest

from tests.proxy.harness import (
    Recorder,
    checked_front,
    front,
    get,
    header_lines,
    status,
    values,
    with_pools,
)

OWN = [b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"via"]


def response_with(*lines, body=b"ok", first=b"HTTP/1.1 200 OK"):
    """A response with these header lines."""
    return b"\r\n".join([first, *lines, b"Content-Length: %d" % len(body), b"", body])


def raw_get(*lines, target=b"/"):
    return b"\r\n".join([b"GET %b HTTP/1.1" % target, b"Host: test", *lines, b"", b""])


async def refused_unnoticed(f, raw, code):
    """The answer is this status, the connection ends, no pool has heard of it."""
    before = sum(len(pool.connections) for pool in f.pools)
    client = await f.begin(raw)
    answer = await client.message()
    assert status(answer) == code, raw[:80]
    assert b"Connection: close" in answer[0]
    assert await client.ended()
    assert sum(len(pool.connections) for pool in f.pools) == before


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title, str.swapcase])
@pytest.mark.parametrize("spread", [", ", "\r\nConnection: "])
async def test_H03_a_connection_header_cannot_remove_what_the_dispatcher_adds(spell, spread):
    """A Connection header removes the client's own headers, but not the dispatcher's, in any letter case."""
    names = ["X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded", "Via", "Host", "Content-Length"]
    nominated = spread.join(spell(name) for name in names)
    pool = Recorder()
    async with checked_front(pool) as f:
        raw = get("/", f"Connection: {nominated}", "X-Forwarded-For: 6.6.6.6", "Content-Length: 2", method="POST")
        assert status(await f.ask(raw + b"hi")) == 200
    ((head, body),) = pool.requests
    assert body == b"hi"
    assert values(head, b"host") == [b"test"]
    assert [values(head, name) for name in OWN[:3]] == [[b"127.0.0.1"], [b"http"], [b"test"]]
    assert len(values(head, b"via")) == len(values(head, b"forwarded")) == 1


COOKIES = [b"a=1; Path=/", b"b=2; Expires=Wed, 09 Jun 2027 10:18:14 GMT", b"a=3; HttpOnly"]


@pytest.mark.parametrize("names", [[b"Set-Cookie"] * 3, [b"Set-Cookie", b"set-cookie", b"SET-COOKIE"]])
async def test_H04_cookies_stay_one_to_a_line_in_their_order(names):
    """Never joined: their dates have commas."""
    lines = [b"%b: %b" % pair for pair in zip(names, COOKIES, strict=True)]
    async with checked_front(Recorder(response_with(lines[0], b"X: between", *lines[1:]))) as f:
        head, _ = await f.ask(get())
        assert [line for line in header_lines(head) if line.lower().startswith(b"set-cookie")] == lines


@pytest.mark.parametrize("lines", [["TE: trailers", "TE: gzip"], ["TE: gzip", "TE: trailers"], ["TE: gzip, trailers"]])
async def test_H05_a_te_field_in_two_lines_is_the_same_as_in_one(lines):
    """`trailers` in any of them is a client that takes trailers (RFC 9110 5.3)."""
    pool = Recorder(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n")
    async with checked_front(pool) as f:
        client = await f.begin(get("/", *lines, "Connection: TE, close"))
        assert (await client.rest()).endswith(b"\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n")
        assert values(pool.requests[0][0], b"te") == [b"trailers"]


@pytest.mark.parametrize(
    "lines",
    [
        ["Connection: close, x-mine"],
        ["Connection: close", "connection: x-mine"],
        ["Connection: x-mine", "Connection: , close"],
    ],
)
async def test_H05_two_connection_fields_are_the_same_as_one(lines):
    pool = Recorder()
    async with checked_front(pool) as f:
        client = await f.begin(get("/", *lines, "X-Mine: 1", "X-Other: 2"))
        head, _ = await client.message()
        assert b"Connection: close" in head
        assert await client.ended()
        assert values(pool.requests[0][0], b"x-mine") == []
        assert values(pool.requests[0][0], b"x-other") == [b"2"]


@pytest.mark.parametrize(
    "lines", [[b"Connection: close, x-up"], [b"Connection: close", b"Connection: X-Up"], [b"connection: x-up,close"]]
)
async def test_H05_two_connection_fields_of_a_response_are_the_same_as_one(lines):
    """The pool's connection is not used again, the field it nominates goes no further."""
    async with checked_front(Recorder(response_with(*lines, b"X-Up: 1"))) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get())
            head, _ = await client.message()
            assert values(head, b"x-up") == values(head, b"connection") == []
        assert len(f.pools[0].connections) == 2


@pytest.mark.parametrize("lines", [[b"chunked, chunked"], [b"chunked", b"chunked"], [b"chunked", b"gzip"]])
async def test_H05_transfer_codings_in_two_lines_are_the_same_as_in_one(lines):
    """Neither is a body that ends where anybody could tell (RFC 9112 6.1): refused both ways round."""
    lines = [b"Transfer-Encoding: %b" % line for line in lines]
    async with checked_front(Recorder(b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", b"0\r\n\r\n"]))) as f:
        raw = b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", *lines, b"", b"0\r\n\r\n"])
        await refused_unnoticed(f, raw, 400)
        assert status(await f.ask(get())) == 502


@pytest.mark.parametrize("lines", [[b"gzip, chunked"], [b"gzip", b"chunked"]])
async def test_H05_a_coding_that_is_not_understood_is_refused_in_one_line_or_two(lines):
    """501 (RFC 9112 6.1), for the dispatcher would have to understand it to frame it anew."""
    lines = [b"Transfer-Encoding: %b" % line for line in lines]
    async with checked_front() as f:
        await refused_unnoticed(f, b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", *lines, b"", b"0\r\n\r\n"]), 501)


@pytest.mark.parametrize(
    "text", [b"caf\xe9", b"caf\xc3\xa9", b"\xff\xfe", b"\x80", b"\xed\xa0\x80", bytes(range(128, 256))]
)
async def test_H06_bytes_beyond_ascii_are_the_same_at_the_far_side(text):
    """Latin-1, UTF-8 and what is neither, in a request's values, a response's, and its reason."""
    pool = Recorder(response_with(b"X-Text: " + text, first=b"HTTP/1.1 200 " + text))
    async with checked_front(pool) as f:
        head, _ = await f.ask(raw_get(b"X-Text: " + text, b'Content-Disposition: form-data; name="%b"' % text))
        assert head.startswith(b"HTTP/1.1 200 " + text + b"\r\n")
        assert values(head, b"x-text") == [text]
        assert values(pool.requests[0][0], b"x-text") == [text]
        assert values(pool.requests[0][0], b"content-disposition") == [b'form-data; name="%b"' % text]


CONTROLS = [c for c in [*range(0x20), 0x7F] if c not in b"\t\r\n"]


@pytest.mark.parametrize("place", [b"a%cb", b"%cb", b"a%c"])
async def test_H07_control_bytes_in_a_request_are_refused(place):
    """All of them but the tab, anywhere in a value: NUL and the line ends must not go on (RFC 9110 5.5), and none of
    the others is worth a pool's parser."""
    async with checked_front() as f:
        for control in CONTROLS:
            await refused_unnoticed(f, raw_get(b"X: " + place % control), 400)
        await refused_unnoticed(f, raw_get(b"X: a\rb"), 400)
        await refused_unnoticed(f, raw_get(b"X: a\nb"), 400)
        await refused_unnoticed(f, raw_get(b"X\x00: a"), 400)


@pytest.mark.parametrize("place", ["value", "name", "reason"])
async def test_H07_control_bytes_in_a_response_cause_a_502(place):
    pool = Recorder()
    async with checked_front(pool) as f:
        for control in [*CONTROLS, 13]:
            bad = b"a%cb" % control
            pool.answer = {
                "value": response_with(b"X: " + bad),
                "name": response_with(bad + b": x"),
                "reason": response_with(first=b"HTTP/1.1 200 " + bad),
            }[place]
            head, _ = await f.ask(get())
            assert status((head,)) == 502, control
            assert bad not in head


@pytest.mark.parametrize("control", [0, 1, 0x7F])
async def test_H07_control_bytes_do_not_pass_in_trailers(control):
    """Of a response: it ends broken, for its head is gone. Of a request: 400."""
    trailer = b"0\r\nX: a%cb\r\n\r\n" % control
    async with checked_front(
        Recorder(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n" + trailer)
    ) as f:
        client = await f.begin(get("/", "TE: trailers", "Connection: TE"))
        answer = await client.rest()
        assert b"X: a" not in answer
        assert not answer.endswith(b"0\r\n\r\n")
        client = await f.begin(get("/", "Transfer-Encoding: chunked", method="POST") + b"2\r\nhi\r\n" + trailer)
        assert status(await client.message()) == 400


@pytest.mark.parametrize("name", ["X_Forwarded_For", "x_forwarded_for", "X-Forwarded_For", "X_Forwarded_Host"])
async def test_H08_an_underscore_gives_a_forged_field_no_meaning(name):
    """Such a header changes none of the dispatcher's own headers."""
    pool = Recorder()
    async with checked_front(pool) as f:
        await f.ask(get("/", f"{name}: 1.2.3.4"))
    head, _ = pool.requests[0]
    assert [values(head, own) for own in OWN[:3]] == [[b"127.0.0.1"], [b"http"], [b"test"]]
    assert {line for line in header_lines(head) if b"1.2.3.4" in line} <= {f"{name}: 1.2.3.4".encode()}


@pytest.mark.parametrize("line", [b"Content_Length: 40", b"Transfer_Encoding: chunked"])
async def test_H08_a_header_with_underscores_frames_no_body(line):
    """What follows is the next request."""
    pool = Recorder()
    async with checked_front(pool) as f:
        client = await f.begin(raw_get(line, target=b"/1") + raw_get(target=b"/2"))
        for _ in range(2):
            assert status(await client.message()) == 200
    assert pool.targets == [b"/1", b"/2"]


@pytest.mark.parametrize(
    ("raw", "first"),
    [
        (b"GET /p HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /p HTTP/1.1"),
        (b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi", b"POST /p HTTP/1.1"),
        (b"GET /p HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n", b"GET /p HTTP/1.1"),
    ],
)
async def test_H12_only_headers_about_the_client_are_added(raw, first):
    """No Accept-Encoding that a pool might take for the client's, no User-Agent, no Accept, no type."""
    pool = Recorder(response_with())
    async with checked_front(pool) as f:
        answer = await f.ask(raw)
    head, _ = pool.requests[0]
    theirs = raw.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    *lines, forwarded, via = header_lines(head)
    assert head.startswith(first + b"\r\n")
    assert lines == [
        *theirs,
        b"X-Forwarded-For: 127.0.0.1",
        b"X-Forwarded-Proto: http",
        b"X-Forwarded-Host: a",
    ]
    assert forwarded.startswith(b"Forwarded: for=")
    assert via.startswith(b"Via: 1.1 ")
    added = {line.partition(b":")[0].lower() for line in header_lines(answer[0])} - {b"content-length"}
    assert added <= {b"via", b"date"}, "an answer gets a Date where it has none (RFC 9110 6.6.1), and nothing else"


async def test_H14_a_cookie_of_one_client_is_never_sent_for_another():
    """Pools are reached by a host name: a jar that holds cookies by name would show only there."""
    pool = Recorder(response_with(b"Set-Cookie: session=secret; Path=/", b"Set-Cookie: too=; Domain=localhost"))
    async with checked_front(pool) as f:
        by_name = f.service.config.model_dump(include={"pools"})["pools"]
        by_name[0]["url"] = f"http://localhost:{f.pools[0].port}"
        f.service.take_over(f.service.config.model_validate(f.service.config.model_dump() | {"pools": by_name}))
        for i in range(4):
            assert b"session=secret" in (await f.ask(get(f"/{i}", host="localhost")))[0]
        own = await f.ask(get("/own", "Cookie: mine=1", "Cookie: mine=2", host="localhost"))
        assert status(own) == 200
        assert [values(head, b"cookie") for head, _ in pool.requests] == [[]] * 4 + [[b"mine=1", b"mine=2"]]
        f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {})))


CODED = {
    "gzip": (b"gzip", gzip.compress(b"plain" * 100)),
    "a broken gzip": (b"gzip", gzip.compress(b"plain" * 100)[:-9] + b"\x00broken"),
    "br": (b"br", b"\x0b\x02\x80hello\x03"),
    "two": (b"gzip, deflate", zlib.compress(gzip.compress(b"plain" * 100))),
    "identity": (b"identity", b"plain"),
    "nobody's": (b"x-nobody", b"\x00\xff"),
    "a bomb": (b"gzip", gzip.compress(bytes(1 << 22))),
}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("coding", "body"), CODED.values(), ids=CODED)
async def test_H15_coded_bodies_pass_untouched_in_both_directions(coding, body, chunked):
    framing, framed = b"Content-Length: %d" % len(body), body
    if chunked:
        framing, framed = b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    lines = [b"Content-Encoding: " + coding, b'ETag: "coded"', framing]
    pool = Recorder(b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", framed]))
    async with checked_front(pool) as f:
        raw = b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", *lines, b"Accept-Encoding: gzip", b"", framed])
        head, got = await f.ask(raw)
        assert got == pool.requests[0][1] == body
        for there in (head, pool.requests[0][0]):
            assert values(there, b"content-encoding") == [coding]
            assert values(there, b"etag") == [b'"coded"']
            assert values(there, b"content-length") == ([] if chunked else [b"%d" % len(body)])
        assert values(pool.requests[0][0], b"accept-encoding") == [b"gzip"]


async def in_pieces(f, raw, sizes):
    """Send in pieces of these sizes, then all the rest, each read for itself; the response."""
    client = await f.client()
    try:
        for size in sizes:
            await client.send(raw[:size])
            raw = raw[size:]
            await asyncio.sleep(0)
        await client.send(raw)
    except ConnectionError:
        pass  # refused before it was all sent
    return client, await client.message()


SEGMENTS = {"one": [], "two": [10000], "many": [251] * 64, "a last byte": [16383, 1], "a first byte": [1]}


@pytest.mark.parametrize("sizes", SEGMENTS.values(), ids=SEGMENTS)
@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (raw_get(target=b"/" + b"x" * 20480), 414),
        (raw_get(b"X: " + b"x" * 20480), 431),
        (raw_get(b"x" * 20480 + b": x"), 431),
        (raw_get(*(b"X%d: 1" % i for i in range(200))), 431),
        (raw_get(*(b"X%d: %b" % (i, b"x" * 300) for i in range(80))), 431),
        (b"GET /" + b"x" * 20480, 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20480, 431),
    ],
    ids=["a target", "a value", "a name", "a count", "a sum", "a line without end", "a head without end"],
)
async def test_H16_too_large_a_head_is_refused_alike_in_any_number_of_segments(raw, code, sizes):
    async with checked_front() as f:
        client, answer = await in_pieces(f, raw, sizes)
        assert status(answer) == code
        assert b"Connection: close" in answer[0]
        assert await client.ended()
        assert f.pools[0].connections == []


@pytest.mark.parametrize("sizes", SEGMENTS.values(), ids=SEGMENTS)
@pytest.mark.parametrize("where", ["target", "value"])
@pytest.mark.parametrize("over", [-1, 0, 1])
async def test_H16_the_limit_is_exact_to_the_byte_in_any_number_of_segments(over, where, sizes):
    limit = 16384
    room = limit + over - len(raw_get(b"X: "))
    raw = raw_get(b"X: " + (b"x" * room if where == "value" else b""), target=b"/")
    if where == "target":
        raw = raw_get(b"X: ", target=b"/" + b"x" * room)
    assert len(raw) == limit + over
    pool = Recorder()
    async with checked_front(pool, limits={"head_bytes": limit}) as f:
        _, answer = await in_pieces(f, raw, sizes)
        assert status(answer) == (200 if over <= 0 else 431)
        assert len(pool.requests) == (over <= 0)


@pytest.mark.parametrize("count", [99, 100, 101])
async def test_H16_the_number_of_fields_is_limited_to_the_field(count):
    pool = Recorder()
    async with checked_front(pool, limits={"headers": 100}) as f:
        code = status(await f.ask(raw_get(*(b"X: 1" for _ in range(count - 1)))))
        assert code == (200 if count <= 100 else 431)
        assert len(values(pool.requests[0][0], b"x") if pool.requests else []) == (count - 1 if count <= 100 else 0)


async def test_H16_a_second_request_on_a_connection_has_the_same_limits():
    async with checked_front() as f:
        client = await f.begin(get("/1") + raw_get(b"X: " + b"x" * 20480))
        assert (await client.message())[1] == b"/1"
        assert status(await client.message()) == 431
        assert await client.ended()


async def test_H16_a_response_head_without_end_causes_a_502():
    async def endless(wire):
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\n")
        for i in range(100000):
            await wire.send(b"X%d: %b\r\n" % (i, b"x" * 200))

    async with checked_front(endless) as f:
        assert status(await f.ask(get())) == 502


async def test_H19_no_client_creates_a_metric_series():
    """Methods, hosts, paths and field names at random, and statuses of a pool that makes them up."""
    dice = random.Random(1)

    def word():
        return "".join(dice.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=8))

    async def script(wire):
        while True:
            await wire.message()
            await wire.send(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % dice.randrange(200, 600))

    def series(f):
        return {
            (sample.name, *sorted(sample.labels.items()))
            for family in f.service.registry.collect()
            for sample in family.samples
        }

    async with checked_front(script) as f:
        assert status(await f.ask(get("*", "Max-Forwards: 0", method="OPTIONS"))) == 200
        assert status(await f.ask(get(host="a b"))) == 400
        await f.ask(get())
        await f.wait_idle()
        before = series(f)
        for _ in range(3):
            client = await f.client()
            words = [(word(), word(), word()) for _ in range(100)]
            await client.send(b"".join(get(f"/{p}", f"{p}: {m}", method=m, host=h) for m, h, p in words))
            for _ in words:
                await client.message()
            assert status(await f.ask(get(host=f"{word()} x"))) == 400
        await f.wait_idle()
        assert series(f) == before


BLANKS = {
    b"X: a \t": b"a",
    b"X:a": b"a",
    b"X:\t \ta": b"a",
    b"X: a  b\tc ": b"a  b\tc",
    b"X: ": b"",
    b"X:": b"",
    b"X: \t ": b"",
    b"X: \xe9 ": b"\xe9",
    b"X: a:b : c ": b"a:b : c",
    b'X: " a " ': b'" a "',
}


@pytest.mark.parametrize(("line", "value"), BLANKS.items())
async def test_H20_blanks_around_a_value_are_none_of_it(line, value):
    """And those within it stay (RFC 9110 5.5)."""
    pool = Recorder(response_with(line, b"Y: 1"))
    async with checked_front(pool) as f:
        head, _ = await f.ask(raw_get(line, b"Y: 1"))
        expected = b"\r\nX: " + value + b"\r\nY: 1\r\n"
        assert expected in pool.requests[0][0]
        assert expected in head


@pytest.mark.parametrize("blank", [b" ", b"\t", b" \t "])
async def test_H20_blanks_around_values_that_frame_and_route_mean_nothing(blank):
    """They are no part of the value (RFC 9112 5.1), for Host and Connection as for any other field."""
    pool = Recorder()
    async with checked_front(pool) as f:
        raw = b"GET /1 HTTP/1.1\r\nHost:%btest%b\r\nConnection:%bclose%b\r\n\r\n" % ((blank,) * 4)
        client = await f.begin(raw)
        assert status(await client.message()) == 200
        assert await client.ended()
        assert values(pool.requests[0][0], b"host") == [b"test"]


@pytest.mark.parametrize("behind", [b" ", b"\t", b" \t "])
@pytest.mark.parametrize("name", [b"Content-Length: 2", b"Transfer-Encoding: chunked"])
async def test_H20_blanks_behind_a_framing_value_change_no_framing(name, behind):
    """They may be taken off, as the RFC has it, or the request be refused, as a guard against parsers that differ; but
    a body of another length is never seen."""
    pool = Recorder()
    body = b"hi" if b"Length" in name else b"2\r\nhi\r\n0\r\n\r\n"
    async with checked_front(pool) as f:
        client = await f.begin(b"POST /1 HTTP/1.1\r\nHost: a\r\n%b%b\r\n\r\n%b" % (name, behind, body) + get("/2"))
        if status(await client.message()) == 200:
            assert status(await client.message()) == 200
            assert [(head.split(b" ")[1], got) for head, got in pool.requests] == [(b"/1", b"hi"), (b"/2", b"")]
        else:
            assert await client.ended()
            assert pool.requests == []


ODD = [
    b"x-lOwEr: 1",
    b"CONTENT-TYPE: text/plain",
    b"etag: e",
    b"X-Request-ID: 1",
    b"x-request-id: 2",
    b"X-REQUEST-ID: 3",
]


async def test_H21_names_keep_their_letters_and_their_order():
    """Also where the same name comes in other letters: no two fields are merged or sorted."""
    pool = Recorder(response_with(*ODD))
    async with checked_front(pool) as f:
        head, _ = await f.ask(raw_get(*ODD))
        assert [line for line in header_lines(head) if line in ODD] == ODD
        assert [line for line in header_lines(pool.requests[0][0]) if line in ODD] == ODD


@pytest.mark.parametrize("name", [b"content-length", b"CONTENT-LENGTH", b"cOnTeNt-LeNgTh"])
async def test_H21_letters_of_names_that_frame_make_no_difference(name):
    pool = Recorder(b"HTTP/1.1 200 OK\r\n%b: 2\r\n\r\nok" % name)
    async with checked_front(pool) as f:
        client = await f.begin(b"POST / HTTP/1.1\r\nhOsT: a\r\n%b: 2\r\n\r\nhi" % name + get("/2"))
        head, body = await client.message()
        assert body == b"ok"
        assert name + b": 2" in header_lines(head)
        assert status(await client.message()) == 200
        assert pool.requests[0][1] == b"hi"
        assert name + b": 2" in header_lines(pool.requests[0][0])


async def test_target_and_fields_pass_byte_for_byte():
    script = Recorder()
    async with front(script) as f:
        fields = ["X-Odd: caf\xe9 \xff", "x-CASE: kept", "X-Twice: 1", "X-Twice: 2", "Cookie: a=b; c"]
        await f.ask(get("/a//b/%zz?q=%41&x[]=1", *fields, host="Example.test:81"))
    head, _ = script.requests[0]
    assert head.startswith(b"GET /a//b/%zz?q=%41&x[]=1 HTTP/1.1\r\nHost: Example.test:81\r\n")
    names = (b"x-odd", b"x-case", b"x-tw", b"cookie")
    assert [line for line in header_lines(head) if line.lower().startswith(names)] == [
        b"X-Odd: caf\xe9 \xff",
        b"x-CASE: kept",
        b"X-Twice: 1",
        b"X-Twice: 2",
        b"Cookie: a=b; c",
    ]


async def test_only_headers_about_the_client_are_added():
    script = Recorder()
    async with front(script) as f:
        await f.ask(get("/", "X-Forwarded-For: 6.6.6.6", "X-Forwarded-Proto: gopher"))
    *fields, forwarded, via = header_lines(script.requests[0][0])
    assert re.fullmatch(rb'Forwarded: for="127.0.0.1:[0-9]+";host="test";proto=http', forwarded)
    assert fields == [
        b"Host: test",
        b"X-Forwarded-For: 127.0.0.1",
        b"X-Forwarded-Proto: http",
        b"X-Forwarded-Host: test",
    ]
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
