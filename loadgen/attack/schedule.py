"""Plans: the instants of a run, drawn beforehand as absolute offsets or read from a trace, and what is sent at each.

So that sending can neither drift nor bend them, and the same seed gives the same traffic to everybody. Nothing is ever
rescaled: a Poisson schedule over T seconds has a random count. Blocks, not one array: a plan may be larger than memory.
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

MOST = 500_000_000  # arrivals of one schedule
BODY = (1 << 32) - 1  # bytes of the largest body
Block = NDArray[np.float64]


def blocks(process: ArrivalProcess, duration: float) -> Iterator[Block]:
    """All arrivals before `duration`, some at a time. Raises ValueError."""
    if not 0 < duration < math.inf:
        raise ValueError(f"the duration must be positive, not {duration:g}")
    expected = process.arrivals if isinstance(process, Stages) else process.rate(0.0) * duration
    if expected > MOST:
        raise ValueError(f"over {MOST:,} requests: lower the rate or the duration")
    offsets, at = [], process.next_arrival(0.0)
    while at is not None and at < duration:
        offsets.append(at)
        if len(offsets) == CHUNK:
            yield np.array(offsets)
            offsets = []
        at = process.next_arrival(at)
    yield np.array(offsets, dtype=np.float64)


def schedule(process: ArrivalProcess, duration: float) -> Block:
    """All arrivals before `duration`, in seconds from the start; shape (n,), not decreasing.

    >>> from loadgen.attack.arrivals import Constant
    >>> schedule(Constant(2.0), 2.0).tolist()
    [0.5, 1.0, 1.5]
    """
    return np.concatenate(list(blocks(process, duration)))


def trace(path: Path, duration: float = math.inf) -> Iterator[Block]:
    """Instants read from a file: seconds from the start, one a line, not decreasing; what follows a comma is left
    alone, and so is a first line that is no number. `.gz` is unpacked. Raises ValueError, OSError."""
    opener = gzip.open if path.suffix == ".gz" else open
    found: list[float] = []
    last = 0.0
    try:
        with opener(path, "rt", encoding="utf-8-sig", errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    at = float(line.partition(",")[0])
                except ValueError:
                    if number == 1 or not line.strip():
                        continue
                    raise ValueError(f"{path}, line {number}: not a number: {line.strip()[:40]!r}") from None
                if not last <= at < math.inf:
                    raise ValueError(f"{path}, line {number}: {at:g} does not come after {last:g}")
                if at >= duration:
                    break
                found.append(at)
                last = at
                if len(found) == CHUNK:
                    yield np.array(found)
                    found = []
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a gzip file, or is cut short: {error}") from None
    yield np.array(found, dtype=np.float64)


def write_trace(records: Records, path: Path) -> None:
    """The plan as `trace` reads it, with what is sent at each instant in columns of their own; gzip, always alike."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.write(b"planned,target,body\n")
        for rows in records.chunks():
            columns = records.planned[rows].tolist(), records.target[rows].tolist(), records.body[rows].tolist()
            lines = "".join(f"{at!r},{target},{body}\n" for at, target, body in zip(*columns, strict=True))
            file.write(lines.encode())


def choose_targets(records: Records, weights: Sequence[float], rng: Random) -> None:
    """Which URL each request goes to: independent draws in proportion to the weights."""
    if len(weights) > 1:
        _fill(records.target, (rng.choices(range(len(weights)), weights, k=n) for n in _sizes(records)))


def choose_bodies(records: Records, law: ServiceTime) -> None:
    """How many bytes go with each request: the law's draws, rounded, at least 0."""
    _fill(records.body, ([min(BODY, round(law.sample(0.0))) for _ in range(n)] for n in _sizes(records)))


def choose_owners(records: Records, processes: int, rng: Random) -> None:
    """Which process sends each request. Thinning by independent draws: the parts of a Poisson plan are Poisson, and
    together they are the plan, whatever it is."""
    if processes > 1:
        _fill(records.owner, (rng.choices(range(processes), k=n) for n in _sizes(records)))


def _sizes(records: Records) -> Iterator[int]:
    return (min(CHUNK, len(records) - begin) for begin in range(0, len(records), CHUNK))


def _fill(column: NDArray[np.generic], parts: Iterable[Sequence[int]]) -> None:
    begin = 0
    for part in parts:
        column[begin : begin + len(part)] = part
        begin += len(part)
