"""Keeps the finished pieces of an experiment in a file, so that an interrupted run can continue."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO


class Checkpoint:
    """Results in a file of JSON lines, each under a mark that identifies the work and the code that did it.

    A process can be killed in the middle of a write. Such a torn line costs only its own result: it is skipped when
    the file is read, and the next result starts on a line of its own.

    path: the file. It is created by the first `add`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[str, dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                # Earlier versions wrote `fingerprint` in the files of cells.
                mark = entry.pop("mark", None) or entry.pop("fingerprint")
                self._results[mark] = entry
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a torn line can still be valid JSON, such as a number

    def __contains__(self, mark: str) -> bool:
        return mark in self._results

    def get(self, mark: str) -> dict[str, Any] | None:
        """Return the result that was added under this mark, or None."""
        return self._results.get(mark)

    def __getitem__(self, mark: str) -> dict[str, Any]:
        return self._results[mark]

    def add(self, mark: str, result: dict[str, Any]) -> None:
        """Append a result to the file.

        mark: identifies the work. result: an object that JSON can represent, without the key `mark`.
        """
        line = json.dumps({"mark": mark} | result).encode() + b"\n"
        with self._path.open("a+b") as file:
            # A torn line has no line end. Without this check the new line would be glued to it and lost as well.
            if file.tell() and not self._ends_with_newline(file):
                line = b"\n" + line
            file.write(line)
        self._results[mark] = result

    @staticmethod
    def _ends_with_newline(file: BinaryIO) -> bool:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
