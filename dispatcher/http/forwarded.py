"""Who is on the client's side of a connection, and what pools are told of it. PURE.

From a peer that is not trusted, whatever it says about where a request came from is replaced; a trusted one (another
proxy of ours) is believed and added to (RFC 7239 section 5).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Networks = Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network]

FOR, PROTO, HOST, FORWARDED = b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded"
ORIGIN = frozenset((FOR, PROTO, HOST, FORWARDED))
_MASKED = frozenset(name.replace(b"-", b"_") for name in ORIGIN)


class Peer:
    """address: without port, empty for a Unix socket. port: 0 where there is none. scheme: b"http" or b"https".

    >>> print(Peer("::1", 50, b"http").fields([], b"a:80").decode(), end="")  # doctest: +NORMALIZE_WHITESPACE
    X-Forwarded-For: ::1
    X-Forwarded-Proto: http
    X-Forwarded-Host: a:80
    Forwarded: for="[::1]:50";host="a:80";proto=http
    """

    __slots__ = ("_fixed", "_node", "address", "scheme", "trusted")

    def __init__(self, address: str, port: int, scheme: bytes, trusted: Networks = ()) -> None:
        address = address.partition("%")[0]  # the zone of a link-local address means nothing elsewhere
        self.address = address.encode()
        self.scheme = scheme
        self.trusted = _within(address, trusted)
        node = f'"[{address}]:{port}"' if ":" in address else f'"{address}:{port}"' if address else "unknown"
        self._node = node.encode()
        self._fixed = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n" % (self.address or b"unknown", scheme)

    def __repr__(self) -> str:
        return f"<Peer {self.address.decode() or 'local'}{', trusted' * self.trusted}>"

    def fields(self, said: list[tuple[bytes, bytes]], host: bytes) -> bytes:
        """The lines for the pool. said: what the request itself told, as (lower-case name, value)."""
        hop = b'for=%b;host="%b";proto=%b' % (self._node, host, self.scheme)
        if not said or not self.trusted:
            if not host:
                return b"%bForwarded: for=%b;proto=%b\r\n" % (self._fixed, self._node, self.scheme)
            return b"%bX-Forwarded-Host: %b\r\nForwarded: %b\r\n" % (self._fixed, host, hop)
        told: dict[bytes, bytes] = {}
        for name, value in said:
            told[name] = told[name] + b", " + value if name in told else value
        lines = [
            b"X-Forwarded-For: " + _added(told.get(FOR), self.address or b"unknown"),
            b"X-Forwarded-Proto: " + told.get(PROTO, self.scheme),
            b"X-Forwarded-Host: " + told.get(HOST, host),
            b"Forwarded: " + _added(told.get(FORWARDED), hop),
        ]
        return b"\r\n".join(lines) + b"\r\n"


def _added(before: bytes | None, last: bytes) -> bytes:
    return last if not before else before + b", " + last


def _within(address: str, networks: Networks) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return any((mapped or ip) in network for network in networks)


def tells_origin(name: bytes) -> bool:
    """Whether a field of this lower-case name says where a request came from: also with underscores, which some servers
    take for the same."""
    return name in ORIGIN or (b"_" in name and name.replace(b"-", b"_") in _MASKED)
