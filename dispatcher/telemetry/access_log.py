"""One line for each request that is over: JSON, or the combined format of Apache with our own fields behind it.

What clients send is escaped: a line is a line, whatever stands in a header.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from dispatcher.errors import RequestError, StartError
from dispatcher.http.forwarded import Peer
from dispatcher.platform.clock import wall
from dispatcher.proxy.exchange import Exchange
from dispatcher.telemetry.writer import LineWriter

SHOWN = {b"user-agent": "user_agent", b"referer": "referer", b"traceparent": "traceparent"}
ESCAPED = {code: f"\\x{code:02x}" for code in (*range(32), 34, 92, *range(127, 256))}


class AccessLog:
    """path: a file, opened for appending, or "-" for stdout. Raises StartError if it cannot be had."""

    def __init__(self, path: str, form: str) -> None:
        self._path = path
        self._line: Callable[[dict[str, Any]], str] = combined if form == "combined" else json.dumps
        self._writer = LineWriter[dict[str, Any]](self._open, self._render)
        self.flush, self.wait_idle, self.close = self._writer.flush, self._writer.wait_idle, self._writer.close

    def _open(self) -> TextIO:
        try:
            if self._path == "-":
                return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
            return Path(self._path).open("a", encoding="ascii")
        except OSError as error:
            raise StartError(f"access_log.path: cannot write {self._path}: {error.strerror}") from error

    def _render(self, entry: dict[str, Any]) -> str:
        entry["time"] = datetime.fromtimestamp(entry["time"], UTC).isoformat(timespec="milliseconds")
        return self._line(entry)

    def reopen(self) -> None:
        """Go on in a file of the same name: the old one may have been moved away. Raises StartError."""
        try:
            self._writer.reopen()
        except OSError as error:
            raise StartError(f"access_log.path: {self._path}: {error.strerror}") from error

    def over(self, exchange: Exchange) -> None:
        """A request is over, however."""
        request, ticket = exchange.request, exchange.last_ticket
        entry: dict[str, Any] = {
            "time": wall(),
            "client": exchange.peer.address.decode(),
            "method": request.method.decode("latin1"),
            "target": request.target.decode("latin1"),
            "host": (request.host or b"").decode("latin1"),
            "version": f"1.{request.minor}",
            "status": exchange.status,
            "bytes": exchange.response_bytes,
            "response_time": round(exchange.ended_at - exchange.began_at, 6),
            "service_time": exchange.reported_service_time,
            "pool": exchange.pool or None,
            "phase": ticket.decision.phase.value if ticket is not None else None,
            "retries": exchange.retries,
            "ended_by": exchange.ended_by,
            "error": exchange.error.reason if exchange.error is not None else None,
        }
        for name, value in request.headers:
            field = SHOWN.get(name.lower())
            if field:
                entry[field] = value.decode("latin1")
        self._writer.put(entry)

    def refused(self, peer: Peer, error: RequestError) -> None:
        """What a client sent was no request that could be understood."""
        entry = {"time": wall(), "client": peer.address.decode(), "status": error.status}
        self._writer.put(entry | {"ended_by": "dispatcher", "error": error.reason})


def combined(entry: dict[str, Any]) -> str:
    """Apache's combined format, and what is ours as key=value behind it."""

    def text(key: str) -> str:
        return str(entry.get(key, "-") or "-").translate(ESCAPED)

    when = datetime.fromisoformat(entry["time"]).strftime("%d/%b/%Y:%H:%M:%S %z")
    line = f"{text('method')} {text('target')} HTTP/{text('version')}" if "method" in entry else "-"
    ours = " ".join(
        f"{key}={text(key)}" for key in ("pool", "phase", "response_time", "service_time", "ended_by", "error")
    )
    return (
        f'{text("client")} - - [{when}] "{line}" {entry["status"]} {entry.get("bytes", 0)} '
        f'"{text("referer")}" "{text("user_agent")}" {ours} retries={entry.get("retries", 0)}'
    )
