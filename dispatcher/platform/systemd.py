"""What a service manager is told, by the protocol of sd_notify(3): ready, reloading, stopping, and that the loop turns.

One datagram a message to the socket that NOTIFY_SOCKET names; without one nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator, MutableMapping

from dispatcher.platform.clock import monotonic_us

PATIENCE = 0.2  # seconds that a message may hold the loop up, where the manager does not read


class Notifier:
    """Tells the service manager, if there is one. failed: called with the reason where a message could not be sent.

    Takes the variables out of the environment, so that no child speaks in our name.
    """

    def __init__(self, environment: MutableMapping[str, str], failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._place = _place(environment.pop("NOTIFY_SOCKET", ""))
        pid, period = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
        meant = self._place and pid in ("", str(os.getpid())) and period.isascii() and period.isdigit()
        self._every = int(period) / 2e6 if meant else 0.0
        self._ready = False

    def ready(self) -> None:
        """Listening."""
        self._ready = True
        self._send("READY=1")

    def stopping(self) -> None:
        """Draining; from now on nothing else but the watchdog is told."""
        self._ready = False
        self._send("STOPPING=1")

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Around a reload, which leaves us ready whether it is carried out or refused; the status says which."""
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
        """Twice in the time that the manager allows: the loop turns. It ends only where nobody wants to know."""
        while self._every:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._every)

    def _send(self, message: str) -> None:
        if not self._place:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
                ours.settimeout(PATIENCE)
                ours.sendto(message.encode(), self._place)
        except OSError as error:
            self._failed(f"{message.partition('=')[0]}: {error.strerror or error}")


def _place(text: str) -> str:
    """The socket's address: a path, or @name for an abstract one. Others (vsock) are not for us.

    >>> _place("@here"), _place("/run/notify"), _place("vsock:2:9")
    ('\\x00here', '/run/notify', '')
    """
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""
