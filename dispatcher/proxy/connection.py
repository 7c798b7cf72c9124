"""What the connections of both sides share: the transport, the message reader, writing and back-pressure.

A connection moves bytes and keeps no state of a request: that is all in `exchange.Exchange`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from typing import cast

from dispatcher.http.framing import Body, Reader

# Reasons to stop reading from a connection, as bits. It is read while there is none.
PIPELINE_FULL, BODY_BUFFER_FULL, POOL_SLOW, CLIENT_SLOW = 1, 2, 4, 8
ANY_REASON = PIPELINE_FULL | BODY_BUFFER_FULL | POOL_SLOW | CLIENT_SLOW
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 seconds
# These event loops keep the descriptor open until `connection_lost` has returned.
LOOPS_WITH_READABLE_LOST_SOCKETS = ("asyncio.selector_events", "uvloop.loop")


class Connection(asyncio.Protocol):
    """One connection, to a client or to a pool.

    reader: cuts what arrives into messages and calls `on_head`, `on_data` and `on_end`.
    is_writable: the peer takes what is written; False while the transport's buffer is full.
    pause_reasons: why it is not read from, as bits; 0 while it is read from.
    """

    __slots__ = ("is_writable", "loop", "pause_reasons", "reader", "transport")

    def __init__(self, loop: asyncio.AbstractEventLoop, max_head_bytes: int) -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None  # None before the connection is made and after it is lost
        self.reader = Reader(self, max_head_bytes)
        self.is_writable = True
        self.pause_reasons = 0

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send these bytes, unless the connection is closing."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def pause(self, reason: int) -> None:
        """Stop reading for this reason."""
        before = self.pause_reasons
        self.pause_reasons = before | reason
        if not before and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self, reasons: int) -> None:
        """These reasons no longer hold: read again if no other one is left."""
        before = self.pause_reasons
        self.pause_reasons = before & ~reasons
        if before and not self.pause_reasons and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def reset(self) -> None:
        """Close at once by a TCP reset, so that the peer cannot take what it has for a whole message."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not derived from this class

    # -- framing.Sink

    def on_head(self, raw: bytes) -> int | Body:
        raise NotImplementedError

    def on_data(self, data: bytes) -> None:
        raise NotImplementedError

    def on_end(self, trailers: list[bytes]) -> bool:
        raise NotImplementedError


def unread_data(transport: asyncio.Transport) -> Iterator[bytes]:
    """Yield what a lost connection received and that was not read.

    An event loop drops a connection when a write fails, although the peer may have sent its response before it closed.
    """
    if type(transport).__module__ not in LOOPS_WITH_READABLE_LOST_SOCKETS:
        return
    if transport.get_extra_info("sslcontext") is not None:
        return
    try:
        while data := os.read(transport.get_extra_info("socket").fileno(), 65536):
            yield data
    except OSError:
        return  # this is the reset that follows the data
