"""Heads of responses: parses those of pools, and writes those for clients. PURE: no sockets, no clock.

As for requests, llhttp checks the syntax. What it does not check is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime

import httptools

from dispatcher.errors import UpstreamProtocolError
from dispatcher.http.framing import Body
from dispatcher.http.request import HOP_BY_HOP, KEPT, NAME, VERSION, VIA, Fields, Headers, tokens

BODILESS = frozenset((204, 304))
Fieldnames = frozenset[bytes]  # in lower case
_REASON = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
NOT_TRAILERS = frozenset(  # fields for framing, routing or authentication must not be trailers (RFC 9110 6.5.1)
    b"content-length transfer-encoding trailer host te connection content-encoding content-type content-range"
    b" authorization set-cookie max-forwards cache-control expect range via".split()
)


class Response:
    """A parsed head of a response.

    length: of the body, a number or how it ends, for the method of the request.
    connection: the tokens of its Connection fields, in lower case.
    keep_alive: the pool keeps the connection open.
    timing, load, retry_after: values of Server-Timing, endpoint-load-metrics and Retry-After; None without them.
    """

    __slots__ = (
        "connection",
        "headers",
        "keep_alive",
        "length",
        "load",
        "minor",
        "reason",
        "retry_after",
        "status",
        "timing",
    )

    def __init__(self, status: int, reason: bytes, minor: int, headers: Headers) -> None:
        self.status = status
        self.reason = reason
        self.minor = minor
        self.headers = headers
        self.length: int | Body = 0
        self.connection: frozenset[bytes] = frozenset()
        self.keep_alive = minor > 0
        self.timing: bytes | None = None
        self.load: bytes | None = None
        self.retry_after: bytes | None = None

    def __repr__(self) -> str:
        return f"<Response {self.status}>"


def parse_response(raw: bytes, method: bytes) -> Response:
    """Parse the head of a response to a request of this method. Raises UpstreamProtocolError."""
    if b"\x7f" in raw:
        raise UpstreamProtocolError("the pool's response has a control character in its head")
    version = VERSION.match(raw)
    if version is None or version[1] != b"1":
        raise UpstreamProtocolError("the pool's response is not HTTP/1.1")
    minor = min(int(version[2]), 1)
    if version[2] > b"1":
        raw = b"HTTP/1.1" + raw[8:]  # a later minor version is 1.1 to us (RFC 9110 2.5)
    fields = Fields()
    parser = httptools.HttpResponseParser(fields)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise UpstreamProtocolError(f"the pool's response is malformed: {error}") from error
    if not _REASON.fullmatch(fields.reason):
        raise UpstreamProtocolError("the pool's response has a control character in its reason phrase")
    if not 100 <= parser.get_status_code() <= 599:
        raise UpstreamProtocolError(f"the pool's response has no legal status: {parser.get_status_code()}")
    response = Response(parser.get_status_code(), fields.reason, minor, fields.headers)
    length: int | Body | None = None
    for key, value in fields.noted:
        if key == b"content-length":
            length = int(value)
        elif key == b"transfer-encoding":
            if value.lower() != b"chunked" or not minor or length is Body.CHUNKED:
                raise UpstreamProtocolError("the pool's response has a transfer coding other than chunked")
            length = Body.CHUNKED
        elif key == b"connection":
            response.connection |= tokens(value)
        elif key == b"server-timing":
            response.timing = value if response.timing is None else response.timing + b"," + value
        elif key == b"endpoint-load-metrics":
            response.load = value
        elif key == b"retry-after":
            response.retry_after = value
    if response.connection:
        response.keep_alive = b"close" not in response.connection and (
            minor > 0 or b"keep-alive" in response.connection
        )
    if method == b"HEAD" or response.status in BODILESS or response.status < 200:
        response.length = 0
    elif length is None:
        response.length = Body.UNTIL_CLOSE
        response.keep_alive = False
    else:
        response.length = length
    return response


def forward_response(
    response: Response,
    minor: int,
    keep_alive: bool,
    name: bytes = NAME,
    date: bytes = b"",
    hidden: Fieldnames = frozenset(),
) -> bytes:
    """Return the head for the client. It announces chunks if the length is unknown, unless the client is HTTP/1.0.

    minor: of the client's version HTTP/1.minor.
    keep_alive: the client's connection stays open. The caller must close it after a response without length to an
    HTTP/1.0 client.
    name: of this process, for Via.
    date: for a response without Date (RFC 9110 6.6.1).
    hidden: fields that the client does not get.
    """
    parts = [b"HTTP/1.1 %d " % response.status, response.reason, b"\r\n"]
    dropped = HOP_BY_HOP | hidden | (response.connection - KEPT)
    connection = [b"close"] if not keep_alive else [b"keep-alive"] if minor == 0 else []
    if response.status in (101, 426):  # Upgrade names the protocol (RFC 9110 15.2.2, 15.5.22)
        dropped -= {b"upgrade"}
        connection = [b"upgrade"] if response.status == 101 else [*connection, b"upgrade"]
    unframed = response.status == 204 or response.status < 200
    for field, value in response.headers:
        key = field.lower()
        if key in dropped or (unframed and key == b"content-length"):
            continue
        if key == b"date":
            date = b""
        parts += (field, b": ", value, b"\r\n")
    if date and response.status >= 200:
        parts += (b"Date: ", date, b"\r\n")
    if isinstance(response.length, Body) and minor > 0:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    if connection and (response.status >= 200 or response.status == 101):
        parts.append(b"Connection: %b\r\n" % b", ".join(connection))
    parts.append(VIA % (response.minor, name) if response.status >= 200 else b"\r\n")
    return b"".join(parts)


def last_chunk(trailers: Sequence[bytes] = ()) -> bytes:
    """Return the end of a chunked body, with those trailers that are allowed.

    >>> last_chunk([b"X-Sum: 1", b"Content-Length: 3"])
    b'0\\r\\nX-Sum: 1\\r\\n\\r\\n'
    """
    kept = (line for line in trailers if line.partition(b":")[0].lower() not in NOT_TRAILERS)
    return b"".join((b"0\r\n", *(line + b"\r\n" for line in kept), b"\r\n"))


def own_response(status: int, text: str, date: bytes, keep_alive: bool, method: bytes = b"GET") -> bytes:
    """Return a plain text response of the dispatcher's own."""
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\nDate: {date.decode()}\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        + ("Retry-After: 1\r\n" if status == 503 else "")
        + ("Allow: GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE\r\n" if status == 405 else "")
        + ("" if keep_alive else "Connection: close\r\n")
        + "\r\n"
    )
    return head.encode() if method == b"HEAD" else head.encode() + body


def parse_server_timing(timing: bytes | None) -> float | None:
    """Return the seconds of `Server-Timing: service;dur=<ms>`; None if it is absent or malformed.

    >>> parse_server_timing(b'db;dur=3, service;dur=12.5')
    0.0125
    """
    if timing is None:
        return None
    for metric in timing.split(b","):
        name, *parameters = metric.split(b";")
        if name.strip() != b"service":
            continue
        for parameter in parameters:
            key, _, value = parameter.partition(b"=")
            if key.strip() == b"dur" and _NUMBER.fullmatch(value.strip().strip(b'"')):
                return float(value.strip().strip(b'"')) / 1e3
    return None


def parse_retry_after(value: bytes | None, now: float) -> float:
    """Return the seconds of `Retry-After`, a number or a date (RFC 9110 10.2.3); 0 if it is absent or malformed.

    now: seconds since 1970.

    >>> parse_retry_after(b"120", 0.0), parse_retry_after(b"soon", 0.0)
    (120.0, 0.0)
    >>> parse_retry_after(b"Thu, 01 Jan 1970 00:01:00 GMT", 50.0)
    10.0
    >>> parse_retry_after(b"Sun Nov  6 08:49:37 1994", 784111677.0)
    100.0
    """
    if value is None:
        return 0.0
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        date = parsedate_to_datetime(value.decode("ascii"))
        if date.tzinfo is None:  # the obsolete forms are in GMT, too (RFC 9110 5.6.7)
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


_SECONDS = re.compile(rb"[0-9]{1,300}")
_NUMBER = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{1,12})?")
REASONS = {
    200: "OK",
    400: "Bad Request",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
    508: "Loop Detected",
}
