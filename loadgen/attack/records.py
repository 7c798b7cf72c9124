"""The raw stamps of a run: three for each request, planned, sent and done. Every report is a function of them.

A column is an array, in memory or mapped from a file of its own. Files let a run of hours be larger than the memory,
and let the sending processes and the one that watches them see the same rows.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UNFINISHED = 0  # status of a request that got no answer
CHUNK = 1 << 16  # rows that are looked at at a time

# why a request has no status; a column holds the index
ERRORS = ("", "dropped", "unfinished", "timed out", "refused", "unreachable", "closed", "reset", "bad answer", "TLS",
          "no connection")  # fmt: skip
DROPPED, OPEN, TIMED_OUT, REFUSED, UNREACHABLE, CLOSED, RESET, BAD_ANSWER, TLS, NO_CONNECTION = range(1, len(ERRORS))

_COLUMNS: dict[str, tuple[str, float]] = {  # type, and what stands where nothing has happened
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
    """What a process did for a run. busy: integral of the requests in flight over time, counted apart from the stamps
    (Little's law compares the two); elapsed: seconds from the plan's start to its end; cpu: of this process,
    seconds."""

    sent: int = 0
    answered: int = 0
    opened: int = 0
    resent: int = 0
    received: int = 0
    busy: float = 0.0
    elapsed: float = 0.0
    cpu: float = 0.0


class Records:
    """n requests, in the order of the plan. Times are seconds from the start; NaN where a thing has not happened.

    planned, sent, done: shape (n,). status: HTTP status, 0 for no answer. error: index into ERRORS. pool: index into
    `names`, who answered, by X-Pool; 0 unknown. target, body: which URL, how many bytes go with it. owner: which
    process sends it.
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
        """Columns in files of this folder, which must exist. planned: the plan, block by block."""
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
        """Columns made by `create`; what is written into them is in the files."""
        self = cls.__new__(cls)
        self.names, self._maps = [""], []
        for name, (kind, _) in _COLUMNS.items():
            with (folder / name).open("r+b") as file:
                size = file.seek(0, 2)
                mapped = mmap.mmap(file.fileno(), size) if size else None
            column = np.frombuffer(mapped, dtype=kind) if mapped else np.empty(0, dtype=kind)
            if mapped:
                self._maps.append((mapped, column.itemsize))
            setattr(self, name, column)
        return self

    def forget(self, before: int) -> None:
        """Rows before this one are not needed soon: their memory is free for others, the files keep them."""
        for mapped, size in self._maps:
            if length := before * size // mmap.PAGESIZE * mmap.PAGESIZE:
                mapped.madvise(mmap.MADV_DONTNEED, 0, length)

    def share(self, owner: int, first: int = 0) -> Iterator[tuple[int, float]]:
        """The rows that this process sends: their numbers and planned times."""
        for begin in range(first, len(self), CHUNK):
            mine = np.flatnonzero(self.owner[begin : begin + CHUNK] == owner) + begin
            yield from zip(mine.tolist(), self.planned[mine].tolist(), strict=True)

    def chunks(self, size: int = CHUNK) -> Iterator[slice]:
        """The rows, some at a time; those that were seen are forgotten."""
        for begin in range(0, len(self), size):
            yield slice(begin, begin + size)
            self.forget(begin)

    @property
    def completed(self) -> NDArray[np.bool_]:
        """Answered with a status below 400."""
        return (self.status >= 200) & (self.status < 400)

    @property
    def response(self) -> NDArray[np.float64]:
        """done − planned of the completed ones: what a user would have waited, whoever was late."""
        return np.asarray((self.done - self.planned)[self.completed])

    @property
    def service(self) -> NDArray[np.float64]:
        """done − sent of the completed ones: what the system took, the generator's lateness left out."""
        return np.asarray((self.done - self.sent)[self.completed])

    @property
    def lateness(self) -> NDArray[np.float64]:
        """sent − planned of all that were sent."""
        late = self.sent - self.planned
        return np.asarray(late[~np.isnan(late)])

    @property
    def pools(self) -> list[str]:
        """Who answered, by row; "" unknown."""
        return [self.names[code] for code in self.pool.tolist()]

    @property
    def errors(self) -> Counter[str]:
        """Kinds of failure that left a request without a status."""
        return Counter(ERRORS[code] for code in self.error[self.error > 0].tolist())
