"""The Reader: events are the same however the bytes are cut, and chunks are read as llhttp reads them."""

import itertools

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.errors import BadRequest
from dispatcher.http.framing import Body, Reader


class Events:
    """A sink that remembers; bodies are framed as the heads say in a field of their own."""

    def __init__(self, go_on=True):
        self.heads, self.bodies, self.trailers = [], [], []
        self.go_on = go_on

    def on_head(self, raw):
        self.heads.append(raw)
        self.bodies.append(b"")
        if b"chunked" in raw:
            return Body.CHUNKED
        return int(raw.partition(b"L: ")[2].partition(b"\r\n")[0] or 0)

    def on_data(self, data):
        assert data
        self.bodies[-1] += data

    def on_end(self, trailers):
        self.trailers.append(trailers)
        return self.go_on


def chunked(body, sizes, extension=b"", trailers=b""):
    out, at = b"", 0
    for size in sizes:
        piece = body[at : at + size]
        at += size
        if piece:
            out += b"%X%s\r\n%s\r\n" % (len(piece), extension, piece)
    if body[at:]:
        out += b"%x\r\n%s\r\n" % (len(body[at:]), body[at:])
    return out + b"0\r\n" + trailers + b"\r\n"


bodies = st.binary(max_size=200)
messages = st.lists(st.tuples(bodies, st.booleans(), st.lists(st.integers(1, 50), max_size=5)), min_size=1, max_size=4)


def stream_of(items):
    out = b""
    for body, is_chunked, sizes in items:
        if is_chunked:
            out += b"POST / HTTP/1.1\r\nTE: chunked\r\n\r\n" + chunked(body, sizes, b";a=b", b"T: 1\r\n")
        else:
            out += b"POST / HTTP/1.1\r\nL: %d\r\n\r\n" % len(body) + body
    return out


def cut(raw, cuts):
    places = sorted({0, len(raw), *(c % (len(raw) + 1) for c in cuts)})
    return [raw[a:b] for a, b in itertools.pairwise(places)]


@settings(deadline=None)
@given(messages, st.lists(st.integers(0, 10**6), max_size=20))
def test_however_the_bytes_are_cut_the_events_are_the_same(items, cuts):
    raw, events = stream_of(items), Events()
    reader = Reader(events, 1000)
    for piece in cut(raw, cuts):
        reader.feed(piece)
    assert events.bodies == [body for body, _, _ in items]
    assert events.trailers == [[b"T: 1"] if is_chunked else [] for _, is_chunked, _ in items]
    assert reader.rest == b""


@settings(deadline=None)
@given(messages)
def test_a_byte_at_a_time(items):
    events = Events()
    reader = Reader(events, 1000)
    raw = stream_of(items)
    for i in range(len(raw)):
        reader.feed(raw[i : i + 1])
    assert events.bodies == [body for body, _, _ in items]


@settings(deadline=None)
@given(messages, bodies)
def test_it_never_looks_beyond_the_end_of_a_message_until_asked(items, after):
    events = Events(go_on=False)
    reader = Reader(events, 1000)
    reader.feed(stream_of(items) + after)
    for n in range(1, len(items) + 1):
        assert len(events.heads) == n
        assert len(events.trailers) == n
        if n < len(items):
            reader.next()
    assert reader.rest == after


class Llhttp:
    """What llhttp makes of a chunked body: its bytes, or None for a refusal; whether it saw the end."""

    def __init__(self, raw):
        self.body, self.complete = b"", False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            parser.feed_data(raw)
        except httptools.HttpParserError:
            self.body = None

    def on_body(self, data):
        self.body += data

    def on_message_complete(self):
        self.complete = True


ALPHABET = st.sampled_from(
    [
        b"0",
        b"1",
        b"5",
        b"a",
        b"\r\n",
        b"\r",
        b"\n",
        b";",
        b" ",
        b"x",
        b"hello",
        b"T: v",
        b"-",
        b"+",
        b"\x00",
        b"=",
        b'"',
        b"\\",
    ]
)


CHUNKED_BODIES = given(st.lists(ALPHABET, max_size=12).map(b"".join))


def check_against_llhttp(raw):
    """Where both read a whole body they read the same one. Our reader may be stricter than llhttp, but not laxer."""
    events = Events(go_on=False)
    reader = Reader(events, 1000)
    reader.feed(b"POST / HTTP/1.1\r\nTE: chunked\r\n\r\n")
    try:
        reader.feed(raw)
    except BadRequest:
        return
    if events.trailers:
        whole = raw[: len(raw) - len(reader.rest)]
        other = Llhttp(whole)
        assert other.body == events.bodies[0]
        assert other.complete


@settings(max_examples=150, deadline=None)
@CHUNKED_BODIES
def test_it_accepts_no_chunked_body_that_llhttp_refuses_and_reads_it_alike(raw):
    check_against_llhttp(raw)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@CHUNKED_BODIES
def test_it_agrees_with_llhttp_about_many_chunked_bodies(raw):
    check_against_llhttp(raw)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"GET /" + b"x" * 1000, 414),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 1000, 431),
        (b"GET /" + b"x" * 1000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 1000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\nHost: a\n", 400),
    ],
)
@pytest.mark.parametrize("step", [1, 10, 10**6])
def test_limits_hold_whichever_way_the_bytes_come(raw, code, step):
    reader = Reader(Events(), 1000)
    with pytest.raises(BadRequest) as refused:  # noqa: PT012
        for i in range(0, len(raw), step):
            reader.feed(raw[i : i + step])
    assert refused.value.status == code


def test_an_empty_line_before_a_request_is_ignored():
    events = Events()
    reader = Reader(events, 1000)
    for piece in (b"\r", b"\n", b"GET / HTTP/1.1\r\n\r\n"):
        reader.feed(piece)
    assert events.heads == [b"GET / HTTP/1.1\r\n\r\n"]
    with pytest.raises(BadRequest, match="more than one empty line"):
        reader.feed(b"\r\n\r\n")


@pytest.mark.parametrize("extension", [b"", b";a", b";a=b", b';a="b;c\\"";d=e'])
def test_chunk_extensions_are_read_and_dropped(extension):
    events = Events()
    Reader(events, 1000).feed(
        b"POST / HTTP/1.1\r\nTE: chunked\r\n\r\n5%b\r\nhello\r\n0%b\r\n\r\n" % (extension, extension)
    )
    assert events.bodies == [b"hello"]


@pytest.mark.parametrize("line", [b"5 ", b"5;", b"5;;a", b"5; a", b"5;a=", b'5;a="b', b"0x5", b"5;a\x00", b""])
def test_invalid_chunk_lines(line):
    reader = Reader(Events(), 1000)
    with pytest.raises(BadRequest):
        reader.feed(b"POST / HTTP/1.1\r\nTE: chunked\r\n\r\n%b\r\nhello\r\n0\r\n\r\n" % line)


def test_endless_chunk_lines_and_trailers_are_refused():
    for endless in (b"5;" + b"x" * 5000, b"0\r\n" + b"T: v\r\n" * 5000):
        reader = Reader(Events(), 1000)
        reader.feed(b"POST / HTTP/1.1\r\nTE: chunked\r\n\r\n")
        with pytest.raises(BadRequest):
            reader.feed(endless)
