"""Where something listens: HOST:PORT or a Unix socket; and the sockets that we listen on ourselves."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass

from dispatcher.errors import StartError

UNIX = "unix:"
FIRST_INHERITED = 3  # the first descriptor that systemd passes, by its protocol


@dataclass(frozen=True, slots=True)
class Address:
    """host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return UNIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """ "HOST:PORT", an IPv6 host in brackets, or "unix:/path". Raises ValueError.

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
    """Sockets that listen there, one for each address of a host name. Raises StartError, which names the key."""
    try:
        if address.path:
            return [_unix(address.path, backlog)]
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        places = dict.fromkeys((family, where) for family, _, _, _, where in found)
        with contextlib.ExitStack() as stack:
            sockets = [
                stack.enter_context(_tcp(family, where, backlog, reuse_port))
                for family, where in (list(places)[:1] if not address.port else places)
            ]
            stack.pop_all()
        return sockets
    except OSError as error:
        raise StartError(_cannot_listen(key, address, error)) from error


def _tcp(family: int, where: object, backlog: int, reuse_port: bool) -> socket.socket:
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)  # type: ignore[arg-type]
        made.listen(backlog)
        made.setblocking(False)
        stack.pop_all()
    return made


def _unix(path: str, backlog: int) -> socket.socket:
    """A file that a dead process left behind is replaced, one on which somebody listens is not."""
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
        with socket.socket(socket.AF_UNIX) as asked:
            asked.setblocking(False)
            found = asked.connect_ex(path)
        if found != errno.ECONNREFUSED:  # connected, or too many others are about to be
            raise OSError(errno.EADDRINUSE if found in (0, errno.EAGAIN) else found, os.strerror(errno.EADDRINUSE))
        os.unlink(path)
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(socket.socket(socket.AF_UNIX))
        made.bind(path)
        made.listen(backlog)
        made.setblocking(False)
        stack.pop_all()
    return made


def bound(listening: socket.socket) -> Address:
    """Where a socket listens."""
    name = listening.getsockname()
    return Address(path=name) if isinstance(name, str) else Address(name[0], name[1])


def inherited(environment: MutableMapping[str, str]) -> dict[str, list[socket.socket]]:
    """Sockets that systemd opened for us, by name: `admin` for the admin side, every other for the service.

    Takes the variables out of the environment, as the protocol asks (sd_listen_fds(3)).
    """
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit():
        return {}
    found: dict[str, list[socket.socket]] = {}
    for i in range(int(count)):
        taken = socket.socket(fileno=FIRST_INHERITED + i)
        taken.setblocking(False)
        os.set_inheritable(taken.fileno(), False)
        found.setdefault("admin" if i < len(names) and names[i] == "admin" else "listen", []).append(taken)
    return found


def _cannot_listen(key: str, address: Address, error: OSError) -> str:
    """What to tell a person when an address cannot be had."""
    if error.errno == errno.EADDRINUSE:
        return f"{key}: {address} is in use by another program; stop it or choose another address"
    if error.errno == errno.EACCES:
        return f"{key}: no permission to listen on {address}; ports below 1024 need privileges"
    return f"{key}: cannot listen on {address}: {error.strerror or error}"
