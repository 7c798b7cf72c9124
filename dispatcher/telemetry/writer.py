"""Lines to a file, written by a thread of its own: a disk that is full or a pipe that nobody reads holds no request up.

The driver calls `flush` now and then. One batch is under way at a time; what comes meanwhile waits, up to a bound, and
is dropped beyond it, which `dropped` counts.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TextIO, TypeVar

MOST = 100_000  # entries that may wait
ENDING = 2.0  # seconds that the last batch has at the end

Entry = TypeVar("Entry")


class LineWriter(Generic[Entry]):
    """open_file: opens it, now and at `reopen`; raises what it wants. render: an entry as a line, without its end."""

    def __init__(self, open_file: Callable[[], TextIO], render: Callable[[Entry], str]) -> None:
        self._open = open_file
        self._render = render
        self._file = open_file()
        self._waiting: list[Entry] = []
        self._batches: queue.SimpleQueue[tuple[TextIO, list[Entry]] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._error: OSError | None = None
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, name="line writer", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        if len(self._waiting) < MOST:
            self._waiting.append(entry)
        else:
            self.dropped += 1

    def flush(self) -> None:
        """Have written what there is, unless the last batch is still under way. Raises OSError if that one failed; its
        lines are lost, for they could only pile up."""
        error, self._error = self._error, None
        self._hand_over()
        if error is not None:
            raise error

    def _hand_over(self) -> None:
        if self._waiting and self._idle.is_set():
            entries, self._waiting = self._waiting, []
            self._idle.clear()
            self._batches.put((self._file, entries))

    def wait_idle(self) -> bool:
        """Wait for the batch that is under way, for tests and for the end; whether it is done."""
        return self._idle.wait(ENDING)

    def reopen(self) -> None:
        """Go on in a file of the same name: the old one may have been moved away."""
        fresh = self._open()
        self.wait_idle()
        self._hand_over()
        self._batches.put((self._file, []))  # closes it, after what is to be written to it
        self._file = fresh

    def _write(self) -> None:
        while (batch := self._batches.get()) is not None:
            file, entries = batch
            try:
                if entries:
                    file.write("".join(self._render(entry) + "\n" for entry in entries))
                    file.flush()
                else:
                    file.close()
            except OSError as error:
                self._error = error
            if entries:
                self._idle.set()

    def close(self) -> None:
        """Write what is left, if that can be done in time. Raises OSError."""
        self.wait_idle()
        self.flush()
        if not self.wait_idle():
            raise TimeoutError(0, "the file does not take what is left")
        self._batches.put((self._file, []))
        self._batches.put(None)
        self._thread.join(ENDING)
        if self._error is not None:
            raise self._error
