"""Decision rows as JSON lines in a file."""

from __future__ import annotations

import json
from pathlib import Path

from dispatcher.core.policy import FleetView, Recorder
from dispatcher.core.types import Decision, Job
from dispatcher.telemetry.decisions import Row, Rows
from dispatcher.telemetry.writer import LineWriter


class JsonLines(Recorder):
    """rows: stands before this recorder in the router and makes the rows. Raises OSError if the file cannot be had."""

    def __init__(self, path: Path, rows: Rows) -> None:
        self._rows = rows
        self._writer = LineWriter[Row](lambda: path.open("w", encoding="utf-8"), lambda row: json.dumps(row.plain()))
        self.flush, self.wait_idle, self.close = self._writer.flush, self._writer.wait_idle, self._writer.close

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self._writer.put(self._rows.rows[-1])
