"""Two connections joined after a 101: bytes pass as they come, either side may end its half first.

The ends take the place of the two HTTP protocols on their transports and hand the loss of a connection back to them,
so that whoever counted it in counts it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dispatcher.platform.clock import Timer
from dispatcher.proxy.connection import unread_data


class End(asyncio.Protocol):
    """One side. was: the protocol that had the transport before."""

    def __init__(self, tunnel: Tunnel, transport: asyncio.Transport, was: asyncio.BaseProtocol) -> None:
        self.transport = transport
        self.was = was
        self.other: End
        self.ended = False  # this side will send no more
        self.lost = False
        self._tunnel = tunnel

    def data_received(self, data: bytes) -> None:
        self._tunnel.moved()
        if not self.other.lost and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        self._tunnel.moved()
        if self.other.ended:
            self._tunnel.finish()
        elif not self.other.lost and not self.other.transport.is_closing():
            if self.other.transport.can_write_eof():
                self.other.transport.write_eof()
            else:
                self._tunnel.finish()  # TLS has no half-close
        return self.transport.can_write_eof() and not self.transport.is_closing()

    def pause_writing(self) -> None:
        if not self.other.lost and not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.lost and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            for data in unread_data(self.transport):
                self.data_received(data)
        self.lost = True
        if not self.other.lost:
            self.other.transport.close()  # when what is on its way has gone out
        self.was.connection_lost(error)
        self._tunnel.lost()


class Tunnel:
    """idle: seconds without a byte either way after which it ends, 0 for never. flush: seconds for the last bytes to go
    out. over: called once, when both connections are gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: float, flush: float, over: Callable[[], None]) -> None:
        self._timer = Timer(loop, self._timed_out)
        self._idle = idle
        self._flush = flush
        self._over = over
        self._ends: tuple[End, End]
        self._finishing = False

    def join(
        self,
        one: tuple[asyncio.Transport, asyncio.BaseProtocol, bytes],
        two: tuple[asyncio.Transport, asyncio.BaseProtocol, bytes],
    ) -> None:
        """Take both over. Each side: its transport, its protocol until now, bytes of it that were read already."""
        a, b = self._ends = End(self, *one[:2]), End(self, *two[:2])
        a.other, b.other = b, a
        for end in (a, b):
            end.transport.set_protocol(end)
        for end, read in ((a, one[2]), (b, two[2])):
            if read:
                end.data_received(read)
        self.moved()

    def moved(self) -> None:
        """Something has passed."""
        if not self._finishing:
            self._timer.set(self._idle)

    def finish(self) -> None:
        """Both are done: close when what was written has gone out, and that in time."""
        self._finishing = True
        self._timer.set(self._flush)
        for end in self._ends:
            if not end.lost:
                end.transport.close()

    def lost(self) -> None:
        if all(end.lost for end in self._ends):
            self._timer.stop()
            self._over()
        elif not self._finishing:
            self._finishing = True
            self._timer.set(self._flush)

    def _timed_out(self) -> None:
        for end in self._ends:
            if not end.lost:
                end.transport.abort()
