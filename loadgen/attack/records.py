"""Holds the raw data of a run, from which every report is computed: for each request when it was planned, sent, done.

A column is an array, in memory or mapped from a file. With files a run may be larger than the memory, and all processes
of the run have the same rows.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 16  # rows that are processed at a time

# The reasons why a request has no status. A column holds the index.
ERRORS = (
    "",
    "dropped",
    "unfinished",
    "timed out",
    "refused",
    "unreachable",
    "closed",
    "reset",
    "bad answer",
    "TLS",
    "no connection",
)
DROPPED, OPEN, TIMED_OUT, REFUSED, UNREACHABLE, CLOSED, RESET, BAD_ANSWER, TLS, NO_CONNECTION = range(1, len(ERRORS))

# Type, and the value while nothing has happened. The types are as small as the limits of the plan allow: 255 URLs, 64
# processes, bodies below 4 GiB and a thousand pool names.
_COLUMNS: dict[str, tuple[str, float]] = {
    "planned": ("f8", np.nan),
    "sent": ("f8", np.nan),
    "done": ("f8", np.nan),
    "status": ("i2", 0),
    "error": ("u1", 0),
    "pool": ("u2", 0),
    "target": ("u1", 0),
    "body": ("u4", 0),
    "owner": ("u1", 0),
}


@dataclass(slots=True)
class Effort:
    """What one process did for a run.

    finished: requests that have a response or have failed. opened: connections.
    resent: requests sent again on a new connection. received: bytes.
    busy: integral of the requests in flight over time, seconds. It is counted independently of the rows, so that
    Little's law can compare the two.
    elapsed: seconds from the plan's start to its end. cpu: processor time, seconds.
    """

    sent: int = 0
    finished: int = 0
    opened: int = 0
    resent: int = 0
    received: int = 0
    busy: float = 0.0
    elapsed: float = 0.0
    cpu: float = 0.0


class Records:
    """The rows of n requests, in the order of the plan. Each column has the shape (n,).

    planned, sent, done: seconds from the start; NaN if it has not happened.
    status: HTTP status, 0 for no response. error: index into ERRORS.
    pool: index into `names`, by the header X-Pool of the response; 0 if unknown.
    target: index of the URL. body: bytes of the request body. owner: the process that sends the request.
    """

    planned: NDArray[np.float64]
    sent: NDArray[np.float64]
    done: NDArray[np.float64]
    status: NDArray[np.int16]
    error: NDArray[np.uint8]
    pool: NDArray[np.uint16]
    target: NDArray[np.uint8]
    body: NDArray[np.uint32]
    owner: NDArray[np.uint8]

    def __init__(self, planned: NDArray[np.float64]) -> None:
        self.names = [""]
        self._maps: list[tuple[mmap.mmap, int]] = []
        for name, (kind, empty) in _COLUMNS.items():
            setattr(self, name, np.full(len(planned), empty, dtype=kind))
        self.planned[:] = planned

    def __len__(self) -> int:
        return len(self.planned)

    @classmethod
    def create(cls, folder: Path, planned: Iterable[NDArray[np.float64]]) -> Records:
        """Create the columns as files. folder: must exist. planned: the planned instants, block by block."""
        n = 0
        with (folder / "planned").open("wb") as file:
            for block in planned:
                file.write(np.asarray(block, dtype="f8").tobytes())
                n += len(block)
        for name, (kind, empty) in _COLUMNS.items():
            if name == "planned":
                continue
            with (folder / name).open("wb") as file:
                for begin in range(0, n, CHUNK):
                    file.write(np.full(min(CHUNK, n - begin), empty, dtype=kind).tobytes())
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Records:
        """Map columns that `create` has written. Values that are assigned to them go into the files."""
        self = cls.__new__(cls)
        self.names, self._maps = [""], []
        for name, (kind, _) in _COLUMNS.items():
            with (folder / name).open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                mapped = mmap.mmap(file.fileno(), size) if size else None  # an empty file cannot be mapped
            column = np.frombuffer(mapped, dtype=kind) if mapped else np.empty(0, dtype=kind)
            if mapped:
                self._maps.append((mapped, column.itemsize))
            setattr(self, name, column)
        return self

    def release(self, before: int) -> None:
        """Give the memory of the rows before this one back to the system. The files keep their values."""
        for mapped, size in self._maps:
            if length := before * size // mmap.PAGESIZE * mmap.PAGESIZE:
                mapped.madvise(mmap.MADV_DONTNEED, 0, length)

    def share(self, owner: int, first: int = 0) -> Iterator[tuple[int, float]]:
        """Yield row and planned time of the requests that a process sends, from row `first` on."""
        for begin in range(first, len(self), CHUNK):
            rows = np.flatnonzero(self.owner[begin : begin + CHUNK] == owner) + begin
            yield from zip(rows.tolist(), self.planned[rows].tolist(), strict=True)

    def chunks(self, size: int = CHUNK) -> Iterator[slice]:
        """Yield slices of all rows in order, and release the memory of earlier ones."""
        for begin in range(0, len(self), size):
            yield slice(begin, begin + size)
            self.release(begin)

    @property
    def completed(self) -> NDArray[np.bool_]:
        """Whether the response has a status from 200 to 399, by row."""
        return (self.status >= 200) & (self.status < 400)

    @property
    def response(self) -> NDArray[np.float64]:
        """done − planned of the completed requests: the time that a user would have waited, seconds."""
        return np.asarray((self.done - self.planned)[self.completed])

    @property
    def service(self) -> NDArray[np.float64]:
        """done − sent of the completed requests: the time without the generator's lateness, seconds."""
        return np.asarray((self.done - self.sent)[self.completed])

    @property
    def lateness(self) -> NDArray[np.float64]:
        """sent − planned of all requests that were sent, seconds."""
        late = self.sent - self.planned
        return np.asarray(late[~np.isnan(late)])

    @property
    def pools(self) -> list[str]:
        """The name of the pool that responded, by row; empty if unknown."""
        return [self.names[code] for code in self.pool.tolist()]

    @property
    def errors(self) -> Counter[str]:
        """The number of requests without a status, by the kind of failure."""
        return Counter(ERRORS[code] for code in self.error[self.error > 0].tolist())
