"""Writes lines to a file from its own thread, so that a full disk or an unread pipe never blocks the event loop.

This replaces `logging.handlers.QueueHandler` and `QueueListener`, for three reasons. They need about 11 µs of the
event loop for each line, where `put` needs 0.6 µs: each record wakes the listener, which then competes for the
interpreter lock. `QueueListener.stop` waits without a deadline while a pipe is full. Write errors go to stderr instead
of the caller. `concurrent.futures` does not fit either: the interpreter waits for its threads at exit.
"""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable
from typing import Generic, TextIO, TypeVar

MAX_WAITING_ENTRIES = 100_000
WRITE_DEADLINE_SECONDS = 2.0  # for the batch that is being written when a caller must wait for it

Entry = TypeVar("Entry")


class LineWriter(Generic[Entry]):
    """Collects entries and writes them in batches, one batch at a time, when `flush` is called.

    open_file: opens the file, now and at `reopen`; its errors reach the caller.
    render: returns an entry as a line without the line end; it runs in the writing thread.
    """

    def __init__(self, open_file: Callable[[], TextIO], render: Callable[[Entry], str]) -> None:
        self._open_file = open_file
        self._render = render
        self._file = open_file()
        self._waiting: list[Entry] = []
        self._dropped = 0
        self._error: OSError | None = None
        self._batches: queue.SimpleQueue[tuple[TextIO, list[Entry]] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        # A daemon, because a thread that is blocked by a full pipe must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="line writer", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of entries that wait for a batch."""
        return len(self._waiting)

    def put(self, entry: Entry) -> None:
        """Add an entry. It is dropped and counted if too many entries wait already."""
        if len(self._waiting) < MAX_WAITING_ENTRIES:
            self._waiting.append(entry)
        else:
            self._dropped += 1

    def flush(self) -> None:
        """Hand the waiting entries to the thread, unless it still writes the previous batch.

        Raises OSError if a write failed or entries were dropped since the last call. Lines of a failed write are lost,
        because to keep them would only fill the memory.
        """
        self._hand_over()
        error, self._error = self._error, None
        dropped, self._dropped = self._dropped, 0
        if error is not None:
            raise error
        if dropped:
            raise OSError(errno.ENOBUFS, f"{dropped} lines were dropped because the file does not accept more")

    def wait_idle(self) -> bool:
        """Wait until the current batch is written, at most `WRITE_DEADLINE_SECONDS`; return whether it is."""
        return self._idle.wait(WRITE_DEADLINE_SECONDS)

    def reopen(self) -> None:
        """Open the file again under the same name, because the old one may have been moved away. Raises OSError."""
        new_file = self._open_file()
        self.wait_idle()
        self._hand_over()
        self._close_file()
        self._file = new_file

    def close(self) -> None:
        """Write the waiting entries, then close the file. Raises OSError; TimeoutError if the deadline passes."""
        self.wait_idle()
        self.flush()
        if not self.wait_idle():
            raise TimeoutError(errno.ETIMEDOUT, "the file does not accept the last lines")
        self._close_file()
        self._batches.put(None)
        self._thread.join(WRITE_DEADLINE_SECONDS)
        if self._error is not None:
            raise self._error

    def _hand_over(self) -> None:
        if self._waiting and self._idle.is_set():
            entries, self._waiting = self._waiting, []
            self._idle.clear()
            self._batches.put((self._file, entries))

    def _close_file(self) -> None:
        self._batches.put((self._file, []))  # an empty batch closes its file, after the batches before it

    def _run(self) -> None:
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
