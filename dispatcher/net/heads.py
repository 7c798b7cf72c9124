"""Heads in, forwarded heads out. PURE: no sockets, no clock.

llhttp (by httptools) judges the syntax of every head; what it leaves open is checked here: the version as written,
one valid Host, the form of the target, methods it does not list. Each forwarded head is written anew from the parsed
fields: their names, order and bytes are kept, fields of one hop only are not (RFC 9110 section 7.6.1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import httptools

from dispatcher.errors import BadRequest, UpstreamProtocolError
from dispatcher.net.framing import Body
from dispatcher.net.peer import Peer, tells_origin

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding"
    b" upgrade http2-settings".split()
)
KEPT = frozenset((b"host", b"content-length", b"via"))  # fields that no Connection field can take away
IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))
LISTED = IDEMPOTENT | {b"POST", b"PATCH"}
BODILESS = frozenset((204, 304))
NAME = b"lased-dispatcher"  # in Via, where nothing else was chosen
VIA = b"Via: 1.%d %b\r\n\r\n"
NOT_TRAILERS = (
    frozenset(  # fields that frame or route a message, or let somebody in, may not come behind it (RFC 9110 6.5.1)
        b"content-length transfer-encoding trailer host te connection content-encoding content-type content-range"
        b" authorization set-cookie max-forwards cache-control expect range via".split()
    )
)

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z\-._~!$&'()*+;=%]*)(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]+)([^#]*)")
_HOPS = re.compile(rb"[0-9]{1,9}")
_VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])")


class _Fields:
    """What llhttp calls back on."""

    __slots__ = ("headers", "reason")

    def __init__(self) -> None:
        self.headers: Headers = []
        self.reason = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.rstrip(b" \t")))

    def on_status(self, reason: bytes) -> None:
        self.reason += reason


class Request:
    """A parsed request head. length: of the body, a number or how it ends. minor: of the version HTTP/1.minor.
    host: the authority it is for. connection: the tokens of its Connection fields, in lower case. trailers: the client
    takes them. hops: of Max-Forwards, None without. passed: through whom it came, by Via. upgrade: the protocols that
    it asks to go on with, None if it does not."""

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
        """Whether serving it twice is harmless (RFC 9110 9.2.2)."""
        return self.method in IDEMPOTENT


class Response:
    """A parsed head of an answer. length: of the body, for this request's method."""

    __slots__ = ("connection", "headers", "keep_alive", "length", "minor", "reason", "status", "timing")

    def __init__(self, status: int, reason: bytes, minor: int, headers: Headers) -> None:
        self.status = status
        self.reason = reason
        self.minor = minor
        self.headers = headers
        self.length: int | Body = 0
        self.connection: frozenset[bytes] = frozenset()
        self.keep_alive = minor > 0
        self.timing: bytes | None = None

    def __repr__(self) -> str:
        return f"<Response {self.status}>"


def _tokens(value: bytes) -> frozenset[bytes]:
    return frozenset(part.strip().lower() for part in value.split(b",") if part.strip())


def _request_line(raw: bytes) -> tuple[bytes, bytes, int]:
    parts = raw[: raw.index(b"\r\n")].split(b" ")
    version = _VERSION.fullmatch(parts[-1])
    if len(parts) != 3 or version is None or not _TOKEN.fullmatch(parts[0]):
        raise BadRequest("the request line is not METHOD TARGET HTTP/1.1")
    if version[1] != b"1":
        raise BadRequest("only HTTP/1.0 and HTTP/1.1 are spoken here", 505, "version")
    return parts[0], parts[1], int(version[2])


def parse_request(raw: bytes, header_limit: int = 100) -> Request:
    """A whole head into a Request. Raises BadRequest with the status to answer.

    >>> parse_request(b"GET /a?b HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    <Request GET /a?b>
    """
    method, target, minor = _request_line(raw)
    headers = _llhttp_request(raw, method, minor).headers
    if len(headers) > header_limit:
        raise BadRequest(f"more than {header_limit} header fields", 431, "too_many_headers")
    request = Request(method, target, min(minor, 1), headers)
    hosts = 0
    for name, value in headers:
        key = name.lower()
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
            request.connection |= _tokens(value)
        elif key == b"te":
            request.trailers = b"trailers" in _tokens(value)
        elif key == b"via":
            request.passed |= {hop.split(b" ")[1] for hop in _tokens(value) if b" " in hop}
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
    _settle_target(request)
    return request


def _may_upgrade(request: Request) -> bool:
    """Asked for properly, in HTTP/1.1, without a body; h2c is for one hop only, and not ours."""
    wanted = _tokens(request.upgrade or b"")
    return (
        b"upgrade" in request.connection
        and request.minor > 0
        and request.length == 0
        and bool(wanted)
        and not any(each.partition(b"/")[0] in (b"h2c", b"h2") for each in wanted)
    )


def _llhttp_request(raw: bytes, method: bytes, minor: int) -> _Fields:
    if method == b"CONNECT":
        raise BadRequest("CONNECT is refused: this is no forward proxy", 405, "connect")
    if method == b"TRACE":
        raise BadRequest("TRACE is refused: it would show what was added on the way", 405, "trace")
    if b"\x7f" in raw:
        raise BadRequest("a control character in the head")
    if minor > 1:
        raw = raw.replace(b"HTTP/1.%d\r\n" % minor, b"HTTP/1.1\r\n", 1)  # a later minor version is 1.1 to us
    if method not in LISTED:  # any token is a legal method (RFC 9110 9.1): llhttp judges the rest under a name it knows
        raw = b"POST" + raw[len(method) :]
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # Upgrade without a body: llhttp stops behind the head, as we do
    except httptools.HttpParserError as error:
        raise BadRequest(f"malformed request: {error}") from error
    return fields


def _settle_target(request: Request) -> None:
    """Bring the target to the form in which it is forwarded; an authority in it overrules Host (RFC 9112 3.2.2)."""
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
    """The head for the pool.

    peer: who sends it, and so whether what it says of its origin is believed. name: ours in Via. trace: our
    traceparent, in the place of the client's.
    """
    dropped = request.connection - KEPT
    said: Headers = []
    parts = [request.method, b" ", request.target, b" HTTP/1.1\r\nHost: ", request.host or b"", b"\r\n"]
    for field, value in request.headers:
        key = field.lower()
        if key in HOP_BY_HOP or key in dropped or key == b"host":
            continue
        if tells_origin(key):
            said.append((key, value))
            continue
        if trace is not None and key == b"traceparent":
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
    parts.append(peer.fields(said, request.host or b""))
    parts.append(VIA % (request.minor, name))
    return b"".join(parts)


def parse_response(raw: bytes, method: bytes) -> Response:
    """A whole head of an answer to a request of this method. Raises UpstreamProtocolError."""
    if b"\x7f" in raw:
        raise UpstreamProtocolError("the pool's answer has a control character in its head")
    version = _VERSION.match(raw)
    if version is None or version[1] != b"1":
        raise UpstreamProtocolError("the pool's answer is not HTTP/1.1")
    minor = min(int(version[2]), 1)
    if version[2] > b"1":
        raw = b"HTTP/1.1" + raw[8:]  # a later minor version is 1.1 to us (RFC 9110 2.5)
    fields = _Fields()
    parser = httptools.HttpResponseParser(fields)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise UpstreamProtocolError(f"the pool's answer is malformed: {error}") from error
    if not 100 <= parser.get_status_code() <= 599:
        raise UpstreamProtocolError(f"the pool's answer has no legal status: {parser.get_status_code()}")
    response = Response(parser.get_status_code(), fields.reason, minor, fields.headers)
    length: int | Body | None = None
    for name, value in fields.headers:
        key = name.lower()
        if key == b"content-length":
            length = int(value)
        elif key == b"transfer-encoding":
            if value.lower() != b"chunked" or not minor or length is Body.CHUNKED:
                raise UpstreamProtocolError("the pool's answer has a transfer coding other than chunked")
            length = Body.CHUNKED
        elif key == b"connection":
            response.connection |= _tokens(value)
        elif key == b"server-timing":
            response.timing = value if response.timing is None else response.timing + b"," + value
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


def forward_response(response: Response, minor: int, keep_alive: bool, name: bytes = NAME) -> bytes:
    """The head for the client. A body of unknown length is said to come in chunks, unless the client is HTTP/1.0.

    minor: the client's version. keep_alive: whether the client's connection stays open; an answer without length to
    an HTTP/1.0 client is ended by closing it, which the caller must see to.
    """
    parts = [b"HTTP/1.1 %d " % response.status, response.reason, b"\r\n"]
    dropped = HOP_BY_HOP | (response.connection - KEPT)
    connection = [b"close"] if not keep_alive else [b"keep-alive"] if minor == 0 else []
    if response.status in (101, 426):  # it must say to what (RFC 9110 15.2.2, 15.5.22)
        dropped -= {b"upgrade"}
        connection = [b"upgrade"] if response.status == 101 else [*connection, b"upgrade"]
    unframed = response.status == 204 or response.status < 200
    for field, value in response.headers:
        key = field.lower()
        if key in dropped or (unframed and key == b"content-length"):
            continue
        parts += (field, b": ", value, b"\r\n")
    if isinstance(response.length, Body) and minor > 0:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    if connection and (response.status >= 200 or response.status == 101):
        parts.append(b"Connection: %b\r\n" % b", ".join(connection))
    parts.append(VIA % (response.minor, name) if response.status >= 200 else b"\r\n")
    return b"".join(parts)


def last_chunk(trailers: Sequence[bytes] = ()) -> bytes:
    """The end of a chunked body, with those trailers that may stand there.

    >>> last_chunk([b"X-Sum: 1", b"Content-Length: 3"])
    b'0\\r\\nX-Sum: 1\\r\\n\\r\\n'
    """
    kept = (line for line in trailers if line.partition(b":")[0].lower() not in NOT_TRAILERS)
    return b"".join((b"0\r\n", *(line + b"\r\n" for line in kept), b"\r\n"))


def own_answer(status: int, text: str, keep_alive: bool, method: bytes = b"GET") -> bytes:
    """An answer of the dispatcher's own, plain text."""
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        + ("Retry-After: 1\r\n" if status == 503 else "")
        + ("Allow: GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE\r\n" if status == 405 else "")
        + ("" if keep_alive else "Connection: close\r\n")
        + "\r\n"
    )
    return head.encode() if method == b"HEAD" else head.encode() + body


def service_time(timing: bytes | None) -> float | None:
    """Seconds of `Server-Timing: service;dur=<ms>`; None where it is absent or no sane number.

    >>> service_time(b'db;dur=3, service;dur=12.5')
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
