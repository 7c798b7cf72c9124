"""Messages to the service manager by the protocol of sd_notify(3): ready, reloading, stopping, and the watchdog.

Each message is one datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator, MutableMapping

from dispatcher.platform.clock import monotonic_us

SEND_TIMEOUT_SECONDS = 0.2  # the event loop is blocked at most this long if the manager does not read


class Notifier:
    """Sends messages to the service manager, if there is one.

    environment: the protocol's variables are removed from it, so that no child process can use them.
    failed: called with the reason if a message could not be sent.
    """

    def __init__(self, environment: MutableMapping[str, str], failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._socket_address = _socket_address(environment.pop("NOTIFY_SOCKET", ""))
        pid, period_us = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
        watched = pid in ("", str(os.getpid())) and period_us.isascii() and period_us.isdigit()
        # Half of the period that the manager allows, as sd_watchdog_enabled(3) recommends; 0 without a watchdog.
        self._watchdog_interval = int(period_us) / 1e6 / 2 if watched and self._socket_address else 0.0
        self._ready = False

    def ready(self) -> None:
        """Report that the service listens."""
        self._ready = True
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the service drains. After this only watchdog messages are sent."""
        self._ready = False
        self._send("STOPPING=1")

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Report the reload that runs inside this context. If it raises, the status gives the reason.

        The service is ready afterwards in both cases.
        """
        if not self._ready:
            yield
            return
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_us()}")
        status = ""
        try:
            yield
        except Exception as error:
            status = "reload refused: " + " ".join(str(error).split())
            raise
        finally:
            self._send(f"READY=1\nSTATUS={status}")

    async def watch(self) -> None:
        """Send watchdog messages, which show that the event loop runs. Return at once if there is no watchdog."""
        while self._watchdog_interval:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_interval)

    def _send(self, message: str) -> None:
        if not self._socket_address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_TIMEOUT_SECONDS)
                sender.sendto(message.encode(), self._socket_address)
        except OSError as error:
            self._failed(f"{message.partition('=')[0]}: {error.strerror or error}")


def _socket_address(text: str) -> str:
    """Return the socket's address: a path, or an abstract name for @name. Other kinds (vsock) return nothing.

    >>> _socket_address("@here"), _socket_address("/run/notify"), _socket_address("vsock:2:9")
    ('\\x00here', '/run/notify', '')
    """
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""
