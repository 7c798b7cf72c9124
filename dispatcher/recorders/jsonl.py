"""Decision rows as JSON lines in a file. Rows are gathered in memory and written by `flush`, which the driver calls now
and then, so that routing never waits for a disk; what has not been written at `close` is written then.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

from dispatcher.core.interfaces import FleetView, Recorder
from dispatcher.core.types import Decision, Job
from dispatcher.recorders.memory import Row, Rows


class JsonLines(Recorder):
    """rows: stands before this recorder in the router and makes the rows. Raises OSError if the file cannot be had."""

    def __init__(self, path: Path, rows: Rows) -> None:
        self._rows = rows
        self._unwritten: list[Row] = []
        self._file: TextIO = path.open("w", encoding="utf-8")

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self._unwritten.append(self._rows.rows[-1])

    def flush(self) -> None:
        rows, self._unwritten = self._unwritten, []
        self._file.writelines(json.dumps(row.plain()) + "\n" for row in rows)
        self._file.flush()

    def close(self) -> None:
        self.flush()
        self._file.close()
