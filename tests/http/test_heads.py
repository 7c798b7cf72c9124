"""Parsing of request and response heads, and the heads that are forwarded."""

import pytest

from dispatcher.errors import BadRequest, UpstreamProtocolError
from dispatcher.http.forwarded import Peer
from dispatcher.http.framing import Body
from dispatcher.http.request import forward_request, parse_request
from dispatcher.http.response import forward_response, parse_response, parse_server_timing


def request(*fields, line="GET / HTTP/1.1", host="a"):
    lines = [line, *([f"Host: {host}"] if host is not None else []), *fields]
    return parse_request("\r\n".join(lines).encode("latin1") + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("fields", "line", "keep_alive"),
    [
        ((), "GET / HTTP/1.1", True),
        (("Connection: close",), "GET / HTTP/1.1", False),
        (("Connection: x, CLOSE",), "GET / HTTP/1.1", False),
        ((), "GET / HTTP/1.0", False),
        (("Connection: Keep-Alive",), "GET / HTTP/1.0", True),
        (("Connection: keep-alive", "Connection: close"), "GET / HTTP/1.1", False),
    ],
)
def test_whether_the_connection_stays(fields, line, keep_alive):
    assert request(*fields, line=line).keep_alive is keep_alive


def test_lengths():
    assert request().length == 0
    assert request("Content-Length: 05").length == 5
    assert request("Transfer-Encoding: Chunked").length is Body.CHUNKED


def test_trailing_blanks_are_no_part_of_a_value():
    assert (b"X", b"a") in request("X: a \t").headers


def test_a_later_minor_version_is_forwarded_as_1_1():
    forwarded = forward_request(request(line="GET / HTTP/1.7"), Peer("1.2.3.4", 5, b"http"))
    assert forwarded.startswith(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize("host", ["a", "a:80", "[::1]:80", "a_b.c-d", "", "192.0.2.1"])
def test_valid_hosts(host):
    assert request(host=host).host == host.encode()


@pytest.mark.parametrize("host", ["a b", "a,b", "a/b", "a:b", "[::1", "a@b", "a?b", "a#b", 'a"b', None])
def test_invalid_hosts(host):
    with pytest.raises(BadRequest):
        request(host=host)


@pytest.mark.parametrize(
    "target",
    ["x", "*", "http:///x", "ftp://a/", "http://a b/", "http://u@a/", "/a b", "/#", "http://a/#f", "/\xff", ""],
)
def test_invalid_targets(target):
    with pytest.raises(BadRequest):
        request(line=f"GET {target} HTTP/1.1")


def test_options_keeps_its_star():
    assert request(line="OPTIONS * HTTP/1.1").target == b"*"
    assert request(line="OPTIONS http://a HTTP/1.1").target == b"*"


@pytest.mark.parametrize(("method", "harmless"), [("GET", True), ("PUT", True), ("POST", False), ("PATCH", False)])
def test_only_some_methods_are_idempotent(method, harmless):
    assert request(line=f"{method} / HTTP/1.1").idempotent is harmless


@pytest.mark.parametrize(
    ("raw", "method", "length", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"GET", 3, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"HEAD", 0, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"GET", Body.CHUNKED, True),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"GET", Body.UNTIL_CLOSE, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", b"GET", 3, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n", b"GET", 3, True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", b"GET", 0, True),
        (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", b"GET", 0, True),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", b"GET", 0, True),
    ],
)
def test_how_a_response_is_framed(raw, method, length, keep_alive):
    response = parse_response(raw, method)
    assert (response.length, response.keep_alive) == (length, keep_alive)


NO_ANSWERS = [
    b"HTTP/1.1 20 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
    b"ICY 200 OK\r\n\r\n",
    b"HTTP/1.1 600 No\r\n\r\n",
    b"HTTP/1.1 099 No\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
    b"HTTP/1.1 200 OK\nX: a\n\n\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
]


@pytest.mark.parametrize("raw", NO_ANSWERS)
def test_invalid_responses(raw):
    with pytest.raises(UpstreamProtocolError):
        parse_response(raw, b"GET")


def test_reasons_pass_and_odd_ones_too():
    head = forward_response(
        parse_response(b"HTTP/1.1 299 Caf\xe9 au lait\r\nContent-Length: 0\r\n\r\n", b"GET"), 1, True
    )
    assert head.startswith(b"HTTP/1.1 299 Caf\xe9 au lait\r\n")


@pytest.mark.parametrize(
    ("timing", "seconds"),
    [
        (None, None),
        (b"service;dur=1.5", 0.0015),
        (b"a;dur=9,  service ; dur = 2", 0.002),
        (b'service;desc="x";dur="3"', 0.003),
        (b"service", None),
        (b"service;dur=-1", None),
        (b"service;dur=1e9", None),
        (b"service;dur=nan", None),
        (b"service;dur=", None),
        (b"services;dur=1", None),
    ],
)
def test_the_service_time_in_server_timing_is_read(timing, seconds):
    assert parse_server_timing(timing) == (pytest.approx(seconds) if seconds is not None else None)
