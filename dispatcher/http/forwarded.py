"""The address of a client, and the header fields that report it to pools (X-Forwarded-*, Forwarded). PURE.

What a client says about the origin of a request is replaced, unless the client is trusted (another proxy of the same
operator). A trusted client's fields are kept and added to (RFC 7239 section 5).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Networks = Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]

FOR, PROTO, HOST, FORWARDED = b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded"
ORIGIN = frozenset((FOR, PROTO, HOST, FORWARDED))
_MASKED = frozenset(name.replace(b"-", b"_") for name in ORIGIN)


class Peer:
    """The client's side of a connection.

    address: without port; empty for a Unix socket.
    port: 0 if there is none.
    scheme: b"http" or b"https".
    trusted: networks of trusted clients.

    >>> print(Peer("::1", 50, b"http").fields([], b"a:80").decode(), end="")  # doctest: +NORMALIZE_WHITESPACE
    X-Forwarded-For: ::1
    X-Forwarded-Proto: http
    X-Forwarded-Host: a:80
    Forwarded: for="[::1]:50";host="a:80";proto=http
    """

    __slots__ = ("_fixed", "_node", "address", "scheme", "trusted")

    def __init__(self, address: str, port: int, scheme: bytes, trusted: Networks = ()) -> None:
        address = address.partition("%")[0]  # the zone of a link-local address has no meaning on another machine
        self.address = address.encode()
        self.scheme = scheme
        self.trusted = _within(address, trusted)
        node = f'"[{address}]:{port}"' if ":" in address else f'"{address}:{port}"' if address else "unknown"
        self._node = node.encode()
        self._fixed = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n" % (self.address or b"unknown", scheme)

    def __repr__(self) -> str:
        return f"<Peer {self.address.decode() or 'local'}{', trusted' * self.trusted}>"

    def fields(self, origin: list[tuple[bytes, bytes]], host: bytes) -> bytes:
        """Return the header lines for the pool.

        origin: the request's own fields about its origin, as (lower-case name, value).
        host: the authority that the request is for.
        """
        hop = b'for=%b;host="%b";proto=%b' % (self._node, host, self.scheme)
        if not origin or not self.trusted:
            if not host:
                return b"%bForwarded: for=%b;proto=%b\r\n" % (self._fixed, self._node, self.scheme)
            return b"%bX-Forwarded-Host: %b\r\nForwarded: %b\r\n" % (self._fixed, host, hop)
        values: dict[bytes, bytes] = {}
        for name, value in origin:
            values[name] = values[name] + b", " + value if name in values else value
        lines = [
            b"X-Forwarded-For: " + _append(values.get(FOR), self.address or b"unknown"),
            b"X-Forwarded-Proto: " + values.get(PROTO, self.scheme),
            b"X-Forwarded-Host: " + values.get(HOST, host),
            b"Forwarded: " + _append(values.get(FORWARDED), hop),
        ]
        return b"\r\n".join(lines) + b"\r\n"


def _append(before: bytes | None, last: bytes) -> bytes:
    return last if not before else before + b", " + last


def _within(address: str, networks: Networks) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return any((mapped or ip) in network for network in networks)


def tells_origin(name: bytes) -> bool:
    """Return whether a field of this lower-case name reports the origin of a request.

    Some servers treat underscores like hyphens, so such names count, too.
    """
    return name in ORIGIN or (b"_" in name and name.replace(b"-", b"_") in _MASKED)
