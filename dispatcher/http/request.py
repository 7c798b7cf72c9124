"""Heads of requests: parses those of clients, and writes those for pools. PURE: no sockets, no clock.

llhttp (by httptools) checks the syntax of every head. This module checks the rest: the version as written, one valid
Host, the form of the target, and methods that llhttp does not know. A forwarded head is written from the parsed fields.
Their names, order and bytes are kept; fields for one hop are not (RFC 9110 section 7.6.1).
"""

from __future__ import annotations

import re

import httptools

from dispatcher.errors import BadRequest
from dispatcher.http.forwarded import ORIGIN, Peer, tells_origin
from dispatcher.http.framing import Body

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding"
    b" upgrade http2-settings".split()
)
KEPT = frozenset((b"host", b"content-length", b"via"))  # fields that no Connection field can take away
NOTED = frozenset(
    b"host content-length transfer-encoding connection te via upgrade max-forwards server-timing"
    b" endpoint-load-metrics retry-after".split()
)  # fields that the dispatcher reads
REWRITTEN = HOP_BY_HOP | ORIGIN | {b"host", b"max-forwards", b"traceparent"}  # are not forwarded as they are
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))
LISTED = IDEMPOTENT | {b"POST", b"PATCH"}
NAME = b"lased-dispatcher"  # in Via, unless another name is given
VIA = b"Via: 1.%d %b\r\n\r\n"
_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([^ \r\n]*) HTTP/([0-9])\.([0-9])\r\n")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z\-._~!$&'()*+;=%]*)(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]+)([^#]*)")
_HOPS = re.compile(rb"[0-9]{1,9}")
VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])")


class Fields:
    """Collects the header fields that llhttp finds.

    headers: all fields, as written.
    noted: the fields that the dispatcher reads, under their lower-case names.
    reason: the reason phrase of a response.
    """

    __slots__ = ("headers", "noted", "reason")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.noted: Headers = []
        self.reason = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        value = value.rstrip(b" \t")
        self.headers.append((name, value))
        key = name.lower()
        if key in NOTED:
            self.noted.append((key, value))

    def on_status(self, reason: bytes) -> None:
        self.reason += reason


class Request:
    """A parsed head of a request.

    minor: of the version HTTP/1.minor.
    host: the authority that it is for.
    length: of the body, a number or how it ends.
    connection: the tokens of its Connection fields, in lower case.
    keep_alive: the client keeps the connection open.
    trailers: the client accepts trailers.
    hops: the value of Max-Forwards; None without it.
    passed: the proxies that it came through, by Via.
    upgrade: the protocols that it asks to switch to; None if it does not ask.
    """

    __slots__ = (
        "connection",
        "headers",
        "hops",
        "host",
        "keep_alive",
        "length",
        "method",
        "minor",
        "passed",
        "target",
        "trailers",
        "upgrade",
    )

    def __init__(self, method: bytes, target: bytes, minor: int, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        self.headers = headers
        self.host: bytes | None = None
        self.length: int | Body = 0
        self.connection: frozenset[bytes] = frozenset()
        self.keep_alive = minor > 0
        self.trailers = False
        self.hops: int | None = None
        self.passed: frozenset[bytes] = frozenset()
        self.upgrade: bytes | None = None

    def __repr__(self) -> str:
        return f"<Request {self.method.decode('latin1')} {self.target.decode('latin1')}>"

    @property
    def idempotent(self) -> bool:
        """To serve it twice has the same effect as to serve it once (RFC 9110 9.2.2)."""
        return self.method in IDEMPOTENT


def tokens(value: bytes) -> frozenset[bytes]:
    """Return the elements of a comma-separated list, in lower case."""
    return frozenset(part.strip().lower() for part in value.split(b",") if part.strip())


def _request_line(raw: bytes) -> tuple[bytes, bytes, int]:
    line = _LINE.match(raw)
    if line is None:
        raise BadRequest("the request line is not METHOD TARGET HTTP/1.1")
    method, target, major, minor = line.groups()
    if major != b"1":
        raise BadRequest("only HTTP/1.0 and HTTP/1.1 are spoken here", 505, "version")
    return method, target, int(minor)


def parse_request(raw: bytes, header_limit: int = 100) -> Request:
    """Parse a whole head. Raises BadRequest with the status of the response.

    >>> parse_request(b"GET /a?b HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    <Request GET /a?b>
    """
    method, target, minor = _request_line(raw)
    fields = _llhttp_request(raw, method, minor)
    headers = fields.headers
    if len(headers) > header_limit:
        raise BadRequest(f"more than {header_limit} header fields", 431, "too_many_headers")
    request = Request(method, target, min(minor, 1), headers)
    hosts = 0
    for key, value in fields.noted:
        if key == b"host":
            hosts += 1
            request.host = value
        elif key == b"content-length":
            request.length = int(value)
        elif key == b"transfer-encoding":
            if value.lower() != b"chunked" or not minor:
                raise BadRequest("the only transfer coding understood is chunked, in HTTP/1.1", 501, "coding")
            request.length = Body.CHUNKED
        elif key == b"connection":
            request.connection |= tokens(value)
        elif key == b"te":
            request.trailers |= b"trailers" in tokens(value)
        elif key == b"via":
            request.passed |= {hop.split(b" ")[1] for hop in tokens(value) if b" " in hop}
        elif key == b"upgrade":
            request.upgrade = value if request.upgrade is None else request.upgrade + b", " + value
        elif key == b"max-forwards" and method == b"OPTIONS" and _HOPS.fullmatch(value):
            request.hops = int(value)
    if request.connection:
        request.keep_alive = b"close" not in request.connection and (minor > 0 or b"keep-alive" in request.connection)
    if request.upgrade is not None and not _may_upgrade(request):
        request.upgrade = None
    if hosts > 1 or (minor and not hosts) or (request.host and not _HOST.fullmatch(request.host)):
        raise BadRequest("there must be one valid Host field")
    _normalize_target(request)
    return request


def _may_upgrade(request: Request) -> bool:
    """The upgrade is asked for properly, in HTTP/1.1, without a body, and not to HTTP/2, which is for one hop only."""
    protocols = tokens(request.upgrade or b"")
    return (
        b"upgrade" in request.connection
        and request.minor > 0
        and request.length == 0
        and bool(protocols)
        and not any(protocol.partition(b"/")[0] in (b"h2c", b"h2") for protocol in protocols)
    )


def _llhttp_request(raw: bytes, method: bytes, minor: int) -> Fields:
    if method == b"CONNECT":
        raise BadRequest("CONNECT is refused: this is not a forward proxy", 405, "connect")
    if method == b"TRACE":
        raise BadRequest("TRACE is refused: it would show headers that proxies added", 405, "trace")
    if b"\x7f" in raw:
        raise BadRequest("a control character in the head")
    if minor > 1:
        raw = raw.replace(b"HTTP/1.%d\r\n" % minor, b"HTTP/1.1\r\n", 1)  # a later minor version is treated as 1.1
    if method not in LISTED:  # every token is a legal method (RFC 9110 9.1), but llhttp knows these only
        raw = b"POST" + raw[len(method) :]
    fields = Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # llhttp stops after the head of a request with Upgrade and no body
    except httptools.HttpParserError as error:
        raise BadRequest(f"malformed request: {error}") from error
    return fields


def _normalize_target(request: Request) -> None:
    """Put the target into the form that is forwarded. An authority in it overrides Host (RFC 9112 3.2.2)."""
    target = request.target
    if b"#" in target:
        raise BadRequest("a fragment in the target")
    if target.startswith(b"/") or (target == b"*" and request.method == b"OPTIONS"):
        return
    match = _ABSOLUTE.fullmatch(target)
    if match is None or match[1].startswith(b":") or not _HOST.fullmatch(match[1]):
        raise BadRequest("the target must be a path, an absolute URL, or * with OPTIONS")
    request.host = match[1]
    path = match[2]
    if not path and request.method == b"OPTIONS":
        request.target = b"*"
    else:
        request.target = path if path.startswith(b"/") else b"/" + path


def forward_request(request: Request, peer: Peer, name: bytes = NAME, trace: bytes | None = None) -> bytes:
    """Return the head for the pool.

    peer: the client. Only a trusted client's fields about the origin of the request are kept.
    name: of this process, for Via.
    trace: our traceparent, which replaces the client's.
    """
    dropped = request.connection - KEPT
    origin: Headers = []
    parts = [request.method, b" ", request.target, b" HTTP/1.1\r\nHost: ", request.host or b"", b"\r\n"]
    for field, value in request.headers:
        key = field.lower()
        if key in dropped:
            continue
        if key in REWRITTEN or b"_" in key:
            if tells_origin(key):
                origin.append((key, value))
                continue
            if key in HOP_BY_HOP or key == b"host" or (trace is not None and key == b"traceparent"):
                continue
            if key == b"max-forwards" and request.hops:
                value = b"%d" % (request.hops - 1)
        parts += (field, b": ", value, b"\r\n")
    if request.length is Body.CHUNKED:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    if request.upgrade is not None:
        parts += (b"Upgrade: ", request.upgrade, b"\r\n")
        parts.append(b"TE: trailers\r\nConnection: TE, Upgrade\r\n" if request.trailers else b"Connection: Upgrade\r\n")
    elif request.trailers:
        parts.append(b"TE: trailers\r\nConnection: TE\r\n")
    if trace is not None:
        parts += (b"traceparent: ", trace, b"\r\n")
    parts.append(peer.fields(origin, request.host or b""))
    parts.append(VIA % (request.minor, name))
    return b"".join(parts)
