"""Where one message ends and the next begins. PURE: bytes in, events out; the same for requests and answers.

`Reader` cuts a byte stream into heads, body data and ends, and never looks beyond the end of a message until it is
asked to: what a client pipelines stays raw bytes until its turn. Heads are handed out whole for llhttp to judge;
bodies of known length are counted, not parsed; chunked bodies are decoded strictly (RFC 9112 section 7.1).
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Protocol

from dispatcher.errors import BadRequest

CHUNK_LINE_LIMIT = 4096  # bytes of a chunk-size line with its extensions
TRAILER_LIMIT = 16384
_BARE_LF = re.compile(rb"(?<!\r)\n")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class Body(Enum):
    """How a body ends that tells no length beforehand."""

    CHUNKED = auto()
    UNTIL_CLOSE = auto()


class Sink(Protocol):
    """Who gets the events of a Reader."""

    def on_head(self, raw: bytes) -> int | Body:
        """A whole head, its blank line included. Answers how the body is framed; 0 if there is none."""
        ...

    def on_data(self, data: bytes) -> None: ...
    def on_end(self, trailers: list[bytes]) -> bool:
        """The message is complete. Whether to go on at once with the bytes that follow."""
        ...


class _At(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNK_LINE = auto()
    CHUNK_DATA = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    UNTIL_CLOSE = auto()
    DONE = auto()


class Reader:
    """Cuts one direction of a connection into messages.

    head_limit: bytes of a head, its blank line included. Errors are BadRequest: 414 if a first line alone is over the
    limit, 431 if a head is, 400 for what is no HTTP/1.1 framing. After an error the reader must not be fed again.
    """

    __slots__ = ("_at", "_head_limit", "_remaining", "_sink", "_trailers", "rest")

    def __init__(self, sink: Sink, head_limit: int) -> None:
        self._sink = sink
        self._head_limit = head_limit
        self._at = _At.HEAD
        self._remaining = 0
        self._trailers: list[bytes] = []
        self.rest = b""  # bytes not looked at yet: an unfinished line or head, or what follows a complete message

    @property
    def in_body(self) -> bool:
        """Inside a message, beyond its head."""
        return self._at is not _At.HEAD and self._at is not _At.DONE

    @property
    def ends_with_connection(self) -> bool:
        return self._at is _At.UNTIL_CLOSE

    def next(self) -> None:
        """Go on with the next message, after an `on_end` that did not want to."""
        if self._at is _At.DONE:
            self._at = _At.HEAD
            if self.rest:
                self.feed(b"")

    def feed(self, data: bytes) -> None:
        """Take bytes in and tell the sink."""
        if self.rest:
            data = self.rest + data
            self.rest = b""
        while data:
            at = self._at
            if at is _At.HEAD:
                step = self._head(data)
            elif at is _At.LENGTH:
                step = self._length(data)
            elif at is _At.UNTIL_CLOSE:
                self._sink.on_data(data)
                return
            elif at is _At.DONE:
                step = None
            else:
                step = self._chunked(data)
            if step is None:
                self.rest = data
                return
            data = step

    def _head(self, data: bytes) -> bytes | None:
        """One step each: the bytes that are left, None if more are needed (or wanted later)."""
        if data.startswith(b"\r\n"):  # RFC 9112 2.2: an empty line before a request is ignored
            return data[2:]
        end = data.find(b"\r\n\r\n") + 4
        if end < 4 or end > self._head_limit:
            self._check_head(data, end)
            return None
        self._begin(self._sink.on_head(data[:end]))
        if self._at is _At.DONE and self._sink.on_end([]):
            self._at = _At.HEAD
        return data[end:]

    def _check_head(self, data: bytes, end: int) -> None:
        if max(len(data), end) > self._head_limit:
            if b"\r\n" in data[: self._head_limit]:
                raise BadRequest(f"the head is over {self._head_limit} bytes", 431, "head_too_large")
            raise BadRequest(f"the request line is over {self._head_limit} bytes", 414, "line_too_long")
        if _BARE_LF.search(data):
            raise BadRequest("a line of the head ends in a bare LF")

    def _begin(self, body: int | Body) -> None:
        if body is Body.CHUNKED:
            self._at = _At.CHUNK_LINE
        elif body is Body.UNTIL_CLOSE:
            self._at = _At.UNTIL_CLOSE
        else:
            assert isinstance(body, int)
            self._remaining = body
            self._at = _At.LENGTH if body else _At.DONE

    def _end(self) -> None:
        self._at = _At.DONE
        trailers, self._trailers = self._trailers, []
        if self._sink.on_end(trailers):
            self._at = _At.HEAD

    def _length(self, data: bytes) -> bytes:
        n = self._remaining
        if len(data) < n:
            self._remaining = n - len(data)
            self._sink.on_data(data)
            return b""
        self._remaining = 0
        self._sink.on_data(data if len(data) == n else data[:n])
        self._end()
        return data[n:]

    def _chunked(self, data: bytes) -> bytes | None:
        at = self._at
        if at is _At.CHUNK_LINE:
            return self._chunk_line(data)
        if at is _At.TRAILERS:
            return self._trailer(data)
        if at is _At.CHUNK_END:
            if len(data) < 2 and data == b"\r":
                return None
            if not data.startswith(b"\r\n"):
                raise BadRequest("a chunk is longer than its size says")
            self._at = _At.CHUNK_LINE
            return data[2:]
        n = self._remaining
        self._sink.on_data(data[:n])
        self._remaining = max(0, n - len(data))
        if not self._remaining:
            self._at = _At.CHUNK_END
        return data[n:]

    def _line(self, data: bytes, limit: int) -> int:
        """Where the CRLF of the line is; -1 if it is not here yet."""
        end = data.find(b"\n", 0, limit)
        if end < 0:
            if len(data) >= limit:
                raise BadRequest("a chunk-size line or trailer is too long")
            return -1
        if end == 0 or data[end - 1] != 13:
            raise BadRequest("a line of the chunked body ends in a bare LF")
        return end - 1

    def _chunk_line(self, data: bytes) -> bytes | None:
        end = self._line(data, CHUNK_LINE_LIMIT)
        if end < 0:
            return None
        match = _CHUNK_LINE.fullmatch(data, 0, end)
        if match is None:
            raise BadRequest("a chunk-size line is malformed")
        self._remaining = int(match[1], 16)
        self._at = _At.CHUNK_DATA if self._remaining else _At.TRAILERS
        return data[end + 2 :]

    def _trailer(self, data: bytes) -> bytes | None:
        end = self._line(data, TRAILER_LIMIT)
        if end < 0:
            return None
        if end:
            line = data[:end]
            if not _TRAILER.fullmatch(line) or sum(map(len, self._trailers)) + end > TRAILER_LIMIT:
                raise BadRequest("the trailers of the chunked body are malformed or too long")
            self._trailers.append(line)
        else:
            self._end()
        return data[end + 2 :]
