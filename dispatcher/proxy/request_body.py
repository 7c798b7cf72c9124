"""What has arrived of a request's body: the part that must still be sent, and the part that can be sent again. PURE."""

from __future__ import annotations

from dispatcher.errors import BadRequest


class RequestBody:
    """The body of one request on its way to a pool.

    is_chunked: it has no length and is sent in chunks.
    max_bytes: of the whole body; 0 means no limit.
    max_replay_bytes: how much of it is kept for another attempt; None if the request must not be repeated.
    """

    __slots__ = ("_is_chunked", "_max_bytes", "_max_replay_bytes", "_pieces", "_received", "_replay", "unsent_bytes")

    def __init__(self, is_chunked: bool, max_bytes: int, max_replay_bytes: int | None) -> None:
        self._is_chunked = is_chunked
        self._max_bytes = max_bytes
        self._max_replay_bytes = max_replay_bytes
        self._pieces: list[bytes] = []  # have arrived and were not sent
        self._replay: bytearray | None = bytearray() if max_replay_bytes is not None else None  # was sent and is kept
        self._received = 0
        self.unsent_bytes = 0

    @property
    def can_be_replayed(self) -> bool:
        """Another attempt is possible: everything that was sent is still here."""
        return self._replay is not None

    def add(self, data: bytes) -> None:
        """Take what has arrived. Raises BadRequest if the body is too large."""
        self._received += len(data)
        if self._max_bytes and self._received > self._max_bytes:
            raise BadRequest(f"the body is over {self._max_bytes} bytes", 413, "body_too_large")
        self._pieces.append(data)
        self.unsent_bytes += len(data)

    def take(self, is_complete: bool) -> bytes:
        """Return what is to be sent now, framed as the pool expects it. is_complete: no more of the body follows."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self.unsent_bytes = 0
        if data and self._replay is not None:
            self._replay += data
            if self._max_replay_bytes is None or len(self._replay) > self._max_replay_bytes:
                self._replay = None
        if not self._is_chunked:
            return data
        end = b"0\r\n\r\n" if is_complete else b""
        # All that has arrived becomes one chunk, however small the client's chunks are.
        return b"%x\r\n%b\r\n%b" % (len(data), data, end) if data else end

    def rewind(self) -> None:
        """Send the body from its beginning, in another attempt."""
        if self._replay:
            self._pieces.insert(0, bytes(self._replay))
            self.unsent_bytes += len(self._replay)
            self._replay.clear()
