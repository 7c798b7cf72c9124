"""Finds where one message ends and the next begins, in requests and in responses. PURE: bytes in, events out.

`Reader` cuts a byte stream into heads, body data and ends. A head is the first line of a message with its headers and
the empty line after them. The reader does not look beyond the end of a message until `next` is called, so pipelined
requests stay raw bytes until their turn. Heads are passed on whole, for llhttp to check. Bodies of known length are
counted. Chunked bodies are decoded strictly (RFC 9112 section 7.1).

    HEAD -> LENGTH ------------------------------------------> DONE -> HEAD (by `next`)
       |--> CHUNK_LINE -> CHUNK_DATA -> CHUNK_END -> CHUNK_LINE   ^
       |        \\-> TRAILERS ------------------------------------|
       |--> UNTIL_CLOSE (ends with the connection)               |
       \\---------------------- (no body) ------------------------/
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Protocol

from dispatcher.errors import BadRequest

MAX_CHUNK_LINE_BYTES = 4096  # of a chunk-size line with its extensions
MAX_TRAILER_BYTES = 16384  # of all trailers of a message
CR = 13
WAIT = -1  # instead of a position: more bytes are needed
_BARE_LF = re.compile(rb"(?<!\r)\n")
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"'
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;%b(?:=(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED))
_TRAILER = re.compile(rb"%b:[\t\x20-\x7e\x80-\xff]*" % _TOKEN)


class Body(Enum):
    """How a body ends if its length is not known in advance."""

    CHUNKED = auto()
    UNTIL_CLOSE = auto()


class Sink(Protocol):
    """The receiver of the events of a `Reader`."""

    def on_head(self, raw: bytes) -> int | Body:
        """A whole head is here. Return how its body is framed: its length, 0 if there is none, or how it ends."""
        ...

    def on_data(self, data: bytes) -> None:
        """A part of the body is here."""
        ...

    def on_end(self, trailers: list[bytes]) -> bool:
        """The message is complete. Return whether to read the next one at once."""
        ...


class _At(Enum):
    """What the reader expects next."""

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

    max_head_bytes: of a head, its empty line included.
    rest: bytes that were not read yet: an unfinished line or head, or what follows a complete message.
    Raises BadRequest: 414 if a first line alone is over the limit, 431 if a head is, 400 if the framing is not that of
    HTTP/1.1. After an error the reader must not be fed again.
    """

    __slots__ = ("_at", "_max_head_bytes", "_remaining", "_searched", "_sink", "_trailer_bytes", "_trailers", "rest")

    def __init__(self, sink: Sink, max_head_bytes: int) -> None:
        self._sink = sink
        self._max_head_bytes = max_head_bytes
        self._at = _At.HEAD
        self._remaining = 0
        self._searched = 0  # bytes of an unfinished head that were searched for its end
        self._trailers: list[bytes] = []
        self._trailer_bytes = 0
        self.rest = b""

    @property
    def has_begun_message(self) -> bool:
        """A part of the next message is here: more than the empty line that may come before it."""
        return self.rest not in (b"", b"\r", b"\r\n")

    @property
    def ends_with_connection(self) -> bool:
        """The body goes on until the connection is closed."""
        return self._at is _At.UNTIL_CLOSE

    def next(self) -> None:
        """Read the next message, after an `on_end` that returned False."""
        if self._at is _At.DONE:
            self._at = _At.HEAD
            if self.rest:
                self.feed(b"")

    def feed(self, data: bytes) -> None:
        """Read these bytes and call the sink."""
        if self.rest:
            data = self.rest + data
            self.rest = b""
        at, end = 0, len(data)
        while at < end:
            state = self._at
            if state is _At.HEAD:
                following = self._head(data, at)
            elif state is _At.LENGTH:
                following = self._length(data, at)
            elif state is _At.UNTIL_CLOSE:
                self._sink.on_data(data[at:] if at else data)
                return
            elif state is _At.DONE:
                following = WAIT
            else:
                following = self._chunked(data, at)
            if following == WAIT:
                self.rest = data[at:] if at else data
                return
            at = following

    # Each step takes the position at which it begins and returns the position at which it ended, or WAIT if it needs
    # more bytes. The data is not shortened on the way: each of many tiny chunks would cost a copy of the rest.

    def _head(self, data: bytes, at: int) -> int:
        start = at + 2 if data.startswith(b"\r\n", at) else at  # RFC 9112 2.2: one empty line before it is ignored
        if start > at and data.startswith(b"\r\n", start):
            raise BadRequest("more than one empty line before the request")
        end = data.find(b"\r\n\r\n", max(start, at + self._searched - 3)) + 4
        if end < 4 or end - start > self._max_head_bytes:
            self._check_head(data, at, start, end)
            self._searched = len(data) - at
            return WAIT
        self._searched = 0
        self._begin(self._sink.on_head(data[start:end]))
        if self._at is _At.DONE and self._sink.on_end([]):
            self._at = _At.HEAD
        return end

    def _check_head(self, data: bytes, at: int, start: int, end: int) -> None:
        """Refuse a head as soon as it is certainly too large or malformed. Only new bytes are searched."""
        if max(len(data), end) - start > self._max_head_bytes:
            if data.find(b"\r\n", start, start + self._max_head_bytes) >= 0:
                raise BadRequest(f"the head is over {self._max_head_bytes} bytes", 431, "head_too_large")
            raise BadRequest(f"the request line is over {self._max_head_bytes} bytes", 414, "line_too_long")
        if _BARE_LF.search(data, max(start, at + self._searched - 1)):
            raise BadRequest("a line of the head ends in a bare LF")

    def _begin(self, body: int | Body) -> None:
        if body is Body.CHUNKED:
            self._at = _At.CHUNK_LINE
            self._trailer_bytes = 0
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

    def _data(self, data: bytes, at: int) -> int:
        """Pass on as much of the body, or of a chunk, as is here."""
        end = min(at + self._remaining, len(data))
        self._remaining -= end - at
        self._sink.on_data(data if end - at == len(data) else data[at:end])
        return end

    def _length(self, data: bytes, at: int) -> int:
        end = self._data(data, at)
        if not self._remaining:
            self._end()
        return end

    def _chunked(self, data: bytes, at: int) -> int:
        state = self._at
        if state is _At.CHUNK_LINE:
            return self._chunk_line(data, at)
        if state is _At.CHUNK_DATA:
            end = self._data(data, at)
            if not self._remaining:
                self._at = _At.CHUNK_END
            return end
        if state is _At.TRAILERS:
            return self._trailer(data, at)
        if data.startswith(b"\r\n", at):
            self._at = _At.CHUNK_LINE
            return at + 2
        if data[at] == CR and at + 1 == len(data):
            return WAIT
        raise BadRequest("a chunk is longer than its size says")

    def _line(self, data: bytes, at: int, limit: int) -> int:
        """Return the position of the CRLF that ends this line; WAIT if it is not here yet."""
        end = data.find(b"\n", at, at + limit)
        if end < 0:
            if len(data) - at >= limit:
                raise BadRequest("a chunk-size line or trailer is too long")
            return WAIT
        if end == at or data[end - 1] != CR:
            raise BadRequest("a line of the chunked body ends in a bare LF")
        return end - 1

    def _chunk_line(self, data: bytes, at: int) -> int:
        end = self._line(data, at, MAX_CHUNK_LINE_BYTES)
        if end == WAIT:
            return WAIT
        match = _CHUNK_LINE.fullmatch(data, at, end)
        if match is None:
            raise BadRequest("a chunk-size line is malformed")
        self._remaining = size = int(match[1], 16)
        begin, after = end + 2, end + 2 + size
        if size and data.startswith(b"\r\n", after):  # the whole chunk is here: the common case
            self._sink.on_data(data[begin:after])
            return after + 2
        self._at = _At.CHUNK_DATA if size else _At.TRAILERS
        return begin

    def _trailer(self, data: bytes, at: int) -> int:
        end = self._line(data, at, MAX_TRAILER_BYTES)
        if end == WAIT:
            return WAIT
        if end == at:
            self._end()
        else:
            self._trailer_bytes += end - at
            if not _TRAILER.fullmatch(data, at, end) or self._trailer_bytes > MAX_TRAILER_BYTES:
                raise BadRequest("the trailers of the chunked body are malformed or too long")
            self._trailers.append(data[at:end])
        return end + 2
