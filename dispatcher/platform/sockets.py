"""Addresses (HOST:PORT or a Unix socket), and the sockets on which the service listens."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass

from dispatcher.errors import StartError

UNIX = "unix:"  # prefix of an address that is the path of a Unix socket
FIRST_INHERITED_DESCRIPTOR = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return UNIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that a text names. Raises ValueError.

    text: "HOST:PORT", where an IPv6 host stands in brackets, or "unix:/path".

    >>> parse_address("[::1]:8080")
    Address(host='::1', port=8080, path='')
    """
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        if not path.startswith("/"):
            raise ValueError(f"must be unix:/PATH with an absolute path, not {text!r}")
        return Address(path=path)
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"must be HOST:PORT, as in 127.0.0.1:8080, or unix:/PATH, not {text!r}")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def listen_on(key: str, address: Address, backlog: int, reuse_port: bool = False) -> list[socket.socket]:
    """Return sockets that listen on an address, one for each IP address of its host name. Raises StartError.

    key: the configuration key of the address, for error messages.
    backlog: length of the system's queue of new connections.
    reuse_port: share the port with another process.
    """
    try:
        if address.path:
            return [_listen_unix(address.path, backlog)]
        infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list(dict.fromkeys((family, socket_address) for family, _, _, _, socket_address in infos))
        if not address.port:  # each socket would get a port of its own
            del addresses[1:]
        with contextlib.ExitStack() as stack:  # closes all sockets if one of them fails
            sockets = [
                stack.enter_context(_listen_tcp(family, socket_address, backlog, reuse_port))
                for family, socket_address in addresses
            ]
            stack.pop_all()
        return sockets
    except OSError as error:
        raise StartError(_listen_error(key, address, error)) from error


def _listen_tcp(family: int, socket_address: object, backlog: int, reuse_port: bool) -> socket.socket:
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # IPv4 has a socket of its own
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(socket_address)  # type: ignore[arg-type]
        listening.listen(backlog)
        listening.setblocking(False)
        stack.pop_all()
    return listening


def _listen_unix(path: str, backlog: int) -> socket.socket:
    """Listen on a Unix socket. A file that a dead process left behind is replaced, one that is in use is not."""
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            result = probe.connect_ex(path)
        if result != errno.ECONNREFUSED:  # some process listens; EAGAIN means that its backlog is full
            code = errno.EADDRINUSE if result in (0, errno.EAGAIN) else result
            raise OSError(code, os.strerror(errno.EADDRINUSE))
        os.unlink(path)
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(path)
        listening.listen(backlog)
        listening.setblocking(False)
        stack.pop_all()
    return listening


def bound(listening: socket.socket) -> Address:
    """Return the address on which a socket listens."""
    name = listening.getsockname()
    return Address(path=name) if isinstance(name, str) else Address(name[0], name[1])


def inherited(environment: MutableMapping[str, str]) -> dict[str, list[socket.socket]]:
    """Return the sockets that systemd has opened: `admin` for the admin side, `listen` for all others.

    environment: the protocol's variables are removed from it, as sd_listen_fds(3) demands.
    """
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit():
        return {}
    sockets: dict[str, list[socket.socket]] = {}
    for i in range(int(count)):
        listening = socket.socket(fileno=FIRST_INHERITED_DESCRIPTOR + i)
        listening.setblocking(False)
        os.set_inheritable(listening.fileno(), False)
        key = "admin" if i < len(names) and names[i] == "admin" else "listen"
        sockets.setdefault(key, []).append(listening)
    return sockets


def _listen_error(key: str, address: Address, error: OSError) -> str:
    """Return the message for an address on which the service cannot listen."""
    if error.errno == errno.EADDRINUSE:
        return f"{key}: {address} is in use by another program; stop it or choose another address"
    if error.errno == errno.EACCES:
        return f"{key}: no permission to listen on {address}; ports below 1024 need privileges"
    return f"{key}: cannot listen on {address}: {error.strerror or error}"
