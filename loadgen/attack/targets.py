"""Builds the requests as bytes from URLs, method, headers and body. PURE, except that `addresses` asks the resolver."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)  # RFC 9110, section 5.6.2
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110, section 9.2.2
FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding", "connection"})  # derived from the request
MAX_URLS = 255


@dataclass(frozen=True, slots=True)
class Origin:
    """The end of connections: scheme, host and port."""

    scheme: str
    host: str
    port: int

    def addresses(self) -> list[tuple[str, int]]:
        """Return the numeric addresses in the resolver's order. Raises OSError."""
        infos = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys((str(address[0]), self.port) for *_, address in infos))


@dataclass(frozen=True, slots=True)
class Target:
    """One URL. head: the request line and headers, without Content-Length."""

    url: str
    origin: Origin
    head: bytes


def _is_host(name: str) -> bool:
    try:
        # The codec refuses labels that are empty or too long.
        return name.isascii() and bool(name.encode("idna")) and not set(name) & set(' "<>\\^`{|}')
    except UnicodeError:
        return False


@dataclass(frozen=True)
class Request:
    """What all requests of a run have in common.

    body: of each request. sizes: whether the length of each body is drawn instead; its bytes are zero.
    keepalive: whether a connection carries more than one request.
    verify: whether certificates are checked, by the system's authorities or those in the file `authority`.
    number: the name of a header with the number of the request in the plan, from 0; empty for none.
    Raises ValueError with one clear line.
    """

    urls: tuple[str, ...]
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    sizes: bool = False
    keepalive: bool = True
    verify: bool = True
    authority: str = ""
    number: str = ""
    targets: tuple[Target, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.urls) <= MAX_URLS:
            raise ValueError(f"from 1 to {MAX_URLS} URLs, not {len(self.urls)}")
        # CONNECT names a host instead of a path, and makes the connection a tunnel.
        if not _TOKEN.fullmatch(self.method) or self.method == "CONNECT":
            raise ValueError(f"the method must be one like GET or POST, not {self.method!r}")
        if self.number and (not _TOKEN.fullmatch(self.number) or self.number.lower() in FRAMING_HEADERS):
            raise ValueError(f"the header of the request's number cannot be named {self.number!r}")
        for name, value in self.headers:
            if not _TOKEN.fullmatch(name) or any((ord(c) < 32 and c != "\t") or ord(c) == 127 for c in value):
                raise ValueError(f"a header must be NAME: VALUE in one line, not {f'{name}: {value}'!r}")
            try:
                value.encode("latin-1")
            except UnicodeEncodeError:
                raise ValueError(f"the header {name} holds a character that cannot be sent: {value!r}") from None
            if name.lower() in FRAMING_HEADERS:
                raise ValueError(f"the header {name} is set automatically and cannot be given")
        object.__setattr__(self, "targets", tuple(self._target(url) for url in self.urls))

    def _target(self, url: str) -> Target:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0  # refused below, like a port 0 in the URL
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL must begin with http:// or https:// and name a host, not {url!r}")
        if port == 0:
            raise ValueError(f"the port of a URL must be from 1 to 65535: {url!r}")
        if "@" in parts.netloc:
            raise ValueError("a URL must not contain a user or a password: use --header 'Authorization: ...'")
        if not _is_host(parts.hostname):
            raise ValueError(f"{parts.hostname!r} is not a host name; write one that is not ASCII as xn--...")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not (path.isascii() and path.isprintable()) or " " in path:
            raise ValueError(f"the URL holds characters that must be percent-encoded: {url!r}")
        lines = [f"{self.method} {path} HTTP/1.1"]
        given_names = {name.lower() for name, _ in self.headers}
        defaults = {"Host": parts.netloc, "User-Agent": "lased-loadgen", "Accept": "*/*"}
        lines += [f"{name}: {value}" for name, value in defaults.items() if name.lower() not in given_names]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [] if self.keepalive else ["Connection: close"]
        origin = Origin(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))
        return Target(url, origin, ("\r\n".join(lines) + "\r\n").encode("latin-1", "strict"))

    @property
    def idempotent(self) -> bool:
        return self.method in IDEMPOTENT

    @property
    def alike(self) -> bool:
        """Whether all requests to one URL are equal."""
        return not (self.sizes or self.number)

    def bytes_for(self, target: int, size: int, number: int = 0) -> bytes:
        """Return the whole request.

        target: index of the URL. size: of the body, if sizes are drawn. number: of the request in the plan.
        """
        body = bytes(size) if self.sizes else self.body
        # A request without content has a Content-Length only if its method expects content: RFC 9110, section 8.6.
        bodiless = not body and self.method not in ("POST", "PUT", "PATCH")
        length = b"" if bodiless else b"Content-Length: %d\r\n" % len(body)
        counter = b"%s: %d\r\n" % (self.number.encode(), number) if self.number else b""
        return b"%s%s%s\r\n%s" % (self.targets[target].head, counter, length, body)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for https URLs; None without such URLs. Raises OSError and ssl.SSLError."""
        if all(target.origin.scheme == "http" for target in self.targets):
            return None
        context = ssl.create_default_context(cafile=self.authority or None)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])  # a server must not choose HTTP/2
        return context


def header(text: str) -> tuple[str, str]:
    """Parse "NAME: VALUE" into name and value. Raises ValueError."""
    name, colon, value = text.partition(":")
    if not colon:
        raise ValueError(f"a header must be NAME: VALUE, not {text!r}")
    return name.strip(), value.strip()


def body_of(text: str | None, file: Path | None) -> bytes:
    """Return the body from a text or a file; empty without both. Raises ValueError and OSError."""
    if text is not None and file is not None:
        raise ValueError("use either --body or --body-file")
    return file.read_bytes() if file is not None else (text or "").encode()


def weights_of(text: str | None, urls: Sequence[str]) -> tuple[float, ...]:
    """Parse "3,1" into a weight for each URL; without a text all weights are equal. Raises ValueError."""
    if text is None:
        return (1.0,) * len(urls)
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    if len(weights) != len(urls) or not all(0 < weight < float("inf") for weight in weights):
        raise ValueError(f"--weights needs one positive number for each of {len(urls)} URLs, as in 3,1, not {text!r}")
    return weights
