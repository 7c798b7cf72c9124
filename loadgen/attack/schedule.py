"""Draws the schedule of a run before it starts, or reads it from a trace, and chooses what is sent at each instant.

The instants are absolute offsets, so sending cannot shift them, and equal seeds give equal traffic. They are not
rescaled: a Poisson schedule over T seconds has a random number of requests. They come in blocks, because a plan may be
larger than the memory.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from loadgen.attack.arrivals import ArrivalProcess, Stages
from loadgen.attack.records import CHUNK, Records
from workers.distributions import ServiceTime

MAX_ARRIVALS = 500_000_000  # in one schedule
MAX_BODY_BYTES = (1 << 32) - 1
Block = NDArray[np.float64]


def blocks(process: ArrivalProcess, duration: float) -> Iterator[Block]:
    """Yield all arrivals before `duration`, block by block. duration: seconds. Raises ValueError."""
    if not 0 < duration < math.inf:
        raise ValueError(f"the duration must be positive, not {duration:g}")
    expected = process.arrivals if isinstance(process, Stages) else process.rate(0.0) * duration
    if expected > MAX_ARRIVALS:
        raise ValueError(f"over {MAX_ARRIVALS:,} requests: lower the rate or the duration")
    offsets, at = [], process.next_arrival(0.0)
    while at is not None and at < duration:
        offsets.append(at)
        if len(offsets) == CHUNK:
            yield np.array(offsets)
            offsets = []
        at = process.next_arrival(at)
    yield np.array(offsets, dtype=np.float64)


def schedule(process: ArrivalProcess, duration: float) -> Block:
    """Return all arrivals before `duration`, in seconds from the start, shape (n,), in ascending order.

    >>> from loadgen.attack.arrivals import Constant
    >>> schedule(Constant(2.0), 2.0).tolist()
    [0.5, 1.0, 1.5]
    """
    return np.concatenate(list(blocks(process, duration)))


def first_arrivals(process: ArrivalProcess, n: int) -> Block:
    """Return the first n arrivals of a process that does not end, in seconds from the start, shape (n,)."""
    instants, at = [], 0.0
    for _ in range(n):
        arrival = process.next_arrival(at)
        assert arrival is not None, "only stages end"
        instants.append(at := arrival)
    return np.array(instants)


def trace(path: Path, duration: float = math.inf) -> Iterator[Block]:
    """Yield the instants in a file that are before `duration`, block by block.

    path: a text file, gzipped if its name ends in .gz. Each line starts with an instant, seconds from the start, in
    ascending order. The text after a comma is ignored, and so is a first line that is not a number.
    Raises ValueError and OSError.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    instants: list[float] = []
    last = 0.0
    try:
        # The files of some spreadsheets begin with a byte order mark, which `utf-8-sig` removes.
        with opener(path, "rt", encoding="utf-8-sig", errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    at = float(line.partition(",")[0])
                except ValueError:
                    if number == 1 or not line.strip():
                        continue  # the heading of a CSV file, or an empty line
                    raise ValueError(f"{path}, line {number}: not a number: {line.strip()[:40]!r}") from None
                if not last <= at < math.inf:
                    raise ValueError(f"{path}, line {number}: {at:g} does not come after {last:g}")
                if at >= duration:
                    break
                instants.append(at)
                last = at
                if len(instants) == CHUNK:
                    yield np.array(instants)
                    instants = []
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a gzip file, or is cut short: {error}") from None
    yield np.array(instants, dtype=np.float64)


def write_trace(records: Records, path: Path) -> None:
    """Write the plan as a file that `trace` can read, gzipped.

    Target and body size of each request follow in columns of their own. Equal plans give equal files.
    """
    # A gzip file without name and time depends on its content only. `repr` keeps every bit of an instant.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.write(b"planned,target,body\n")
        for rows in records.chunks():
            columns = records.planned[rows].tolist(), records.target[rows].tolist(), records.body[rows].tolist()
            lines = "".join(f"{at!r},{target},{body}\n" for at, target, body in zip(*columns, strict=True))
            file.write(lines.encode())


def choose_targets(records: Records, weights: Sequence[float], rng: Random) -> None:
    """Draw the URL of each request independently, in proportion to the weights."""
    if len(weights) > 1:
        _fill(records.target, (rng.choices(range(len(weights)), weights, k=n) for n in _chunk_sizes(records)))


def choose_bodies(records: Records, law: ServiceTime) -> None:
    """Draw the body size of each request from the law, in bytes."""

    def size() -> int:
        return min(MAX_BODY_BYTES, round(law.sample(0.0)))  # the law does not depend on the instant

    _fill(records.body, ([size() for _ in range(n)] for n in _chunk_sizes(records)))


def choose_owners(records: Records, processes: int, rng: Random) -> None:
    """Draw the process that sends each request.

    The draws are independent, so the parts of a Poisson plan are Poisson, and together they are the plan.
    """
    if processes > 1:
        _fill(records.owner, (rng.choices(range(processes), k=n) for n in _chunk_sizes(records)))


def _chunk_sizes(records: Records) -> Iterator[int]:
    """Yield how many rows each chunk has."""
    return (min(CHUNK, len(records) - begin) for begin in range(0, len(records), CHUNK))


def _fill(column: NDArray[np.generic], parts: Iterable[Sequence[int]]) -> None:
    """Write the parts one after the other into the column. No list of the whole plan is ever in memory."""
    begin = 0
    for part in parts:
        column[begin : begin + len(part)] = part
        begin += len(part)
