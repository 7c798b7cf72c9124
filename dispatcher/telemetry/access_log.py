"""The access log: one line for each finished request, as JSON or in Apache's combined format with extra fields.

Text from clients is escaped, so that no header can add a line or a field.
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

Entry = dict[str, Any]

LOGGED_HEADERS = {b"user-agent": "user_agent", b"referer": "referer", b"traceparent": "traceparent"}
ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 34, 92, *range(127, 256))}
EXTRA_FIELDS = ("pool", "phase", "response_time", "service_time", "ended_by", "error")  # behind the combined format


class AccessLog:
    """Writes the access log. Raises StartError if the file cannot be opened.

    path: a file, opened for appending, or "-" for stdout.
    line_format: `json` or `combined`.
    """

    def __init__(self, path: str, line_format: str) -> None:
        self._path = path
        self._line: Callable[[Entry], str] = combined if line_format == "combined" else json.dumps
        self.writer = LineWriter[Entry](self._open, self._render)

    def _open(self) -> TextIO:
        try:
            if self._path == "-":
                # A copy of the descriptor, so that closing the log leaves stdout open.
                return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
            return Path(self._path).open("a", encoding="ascii")
        except OSError as error:
            raise StartError(f"access_log.path: cannot write {self._path}: {error.strerror}") from error

    def _render(self, entry: Entry) -> str:
        entry["time"] = datetime.fromtimestamp(entry["time"], UTC).isoformat(timespec="milliseconds")
        return self._line(entry)

    def reopen(self) -> None:
        """Open the file again under the same name, because the old one may have been moved away. Raises StartError."""
        try:
            self.writer.reopen()
        except OSError as error:
            raise StartError(f"access_log.path: {self._path}: {error.strerror}") from error

    def log_request(self, exchange: Exchange) -> None:
        """Log a request that has ended, successfully or not."""
        request, ticket = exchange.request, exchange.last_ticket
        entry: Entry = {
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
            field = LOGGED_HEADERS.get(name.lower())
            if field:
                entry[field] = value.decode("latin1")
        self.writer.put(entry)

    def log_unreadable(self, peer: Peer, error: RequestError) -> None:
        """Log client data that could not be parsed as a request."""
        entry = {"time": wall(), "client": peer.address.decode(), "status": error.status}
        self.writer.put(entry | {"ended_by": "dispatcher", "error": error.reason})


def combined(entry: Entry) -> str:
    """Return an entry in Apache's combined format, followed by our own fields as key=value."""

    def text(key: str) -> str:
        return str(entry.get(key, "-") or "-").translate(ESCAPES)

    when = datetime.fromisoformat(entry["time"]).strftime("%d/%b/%Y:%H:%M:%S %z")
    line = f"{text('method')} {text('target')} HTTP/{text('version')}" if "method" in entry else "-"
    extra = " ".join(f"{key}={text(key)}" for key in EXTRA_FIELDS)
    return (
        f'{text("client")} - - [{when}] "{line}" {entry["status"]} {entry.get("bytes", 0)} '
        f'"{text("referer")}" "{text("user_agent")}" {extra} retries={entry.get("retries", 0)}'
    )
