"""Two connections joined after a response 101: bytes pass both ways, and either side may close its half first.

The two ends take the place of the HTTP protocols on their transports. When a connection is lost, its end calls the HTTP
protocol that it replaced, so that the connection is counted out by the same code as any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dispatcher.platform.clock import Timer
from dispatcher.proxy.connection import unread_data


class End(asyncio.Protocol):
    """One side of a tunnel. replaced: the protocol that had the transport before."""

    def __init__(self, tunnel: Tunnel, transport: asyncio.Transport, replaced: asyncio.BaseProtocol) -> None:
        self.transport = transport
        self.other: End
        self.sends_no_more = False
        self.is_lost = False
        self._replaced = replaced
        self._tunnel = tunnel

    @property
    def is_open(self) -> bool:
        return not self.is_lost and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        self._tunnel.data_passed()
        if self.other.is_open:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.sends_no_more = True
        self._tunnel.data_passed()
        if self.other.sends_no_more:
            self._tunnel.finish()
        elif self.other.is_open:
            if self.other.transport.can_write_eof():
                self.other.transport.write_eof()
            else:
                self._tunnel.finish()  # TLS has no half-close
        return self.transport.can_write_eof() and not self.transport.is_closing()

    def pause_writing(self) -> None:
        if self.other.is_open:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.is_open:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            for data in unread_data(self.transport):
                self.data_received(data)
        self.is_lost = True
        if not self.other.is_lost:
            # An orderly close, even after a reset: what the other side has not read yet must still reach it.
            self.other.transport.close()
        self._replaced.connection_lost(error)
        self._tunnel.end_lost()


class Tunnel:
    """Joins two connections.

    idle_seconds: without a byte either way, after which the tunnel ends; 0 means never.
    flush_seconds: for the last bytes to be sent.
    on_end: called once, when both connections are lost.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        idle_seconds: float,
        flush_seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        self._deadline = Timer(loop, self._on_deadline)
        self._idle_seconds = idle_seconds
        self._flush_seconds = flush_seconds
        self._on_end = on_end
        self._ends: tuple[End, End]
        self._is_finishing = False

    def join(
        self,
        one: tuple[asyncio.Transport, asyncio.BaseProtocol, bytes],
        two: tuple[asyncio.Transport, asyncio.BaseProtocol, bytes],
    ) -> None:
        """Take both connections over. Each has its transport, its protocol so far, and bytes that were read already."""
        a, b = self._ends = End(self, *one[:2]), End(self, *two[:2])
        a.other, b.other = b, a
        for end in (a, b):
            end.transport.set_protocol(end)
        for end, data in ((a, one[2]), (b, two[2])):
            if data:
                end.data_received(data)
        self.data_passed()

    def data_passed(self) -> None:
        """Bytes have passed: the idle time begins anew."""
        if not self._is_finishing:
            self._deadline.set(self._idle_seconds)

    def finish(self) -> None:
        """Both sides send no more: close the connections when everything that was written has been sent."""
        self._is_finishing = True
        self._deadline.set(self._flush_seconds)
        for end in self._ends:
            if not end.is_lost:
                end.transport.close()

    def end_lost(self) -> None:
        """One of the connections is lost."""
        if all(end.is_lost for end in self._ends):
            self._deadline.stop()
            self._on_end()
        elif not self._is_finishing:
            self._is_finishing = True
            self._deadline.set(self._flush_seconds)

    def _on_deadline(self) -> None:
        for end in self._ends:
            if not end.is_lost:
                end.transport.abort()
