"""Python's random streams in compiled code: the Mersenne Twister and the laws of `workers.distributions`, to the bit.

A stream is a record: the 624 words of `random.Random`'s state and how many of them are used up. The
functions repeat CPython's `random.py` operation by operation; both call the C library's log, exp and pow, so the
numbers are the same ones. Importing this module needs numba (the extra `compiled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

N, M = 624, 397
NV_MAGICCONST = 4 * math.exp(-0.5) / math.sqrt(2.0)  # of normalvariate
EXP, FIXED, LOGNORMAL, HYPEREXP, PARETO = range(5)
STREAM_FIELDS = np.dtype([("words", np.uint32, (N,)), ("used", np.int64)])
Words = NDArray[np.uint32]
Stream = Any  # a record of STREAM_FIELDS
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compiled on its first call, without Python's lock; kept on disk for the next process, where there is a folder for
    it. Division is the machine's: divisors are checked by hand where they may be 0."""
    try:
        made = njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba finds no folder that it may write into
        made = njit(nogil=True, error_model="numpy")(function)
    return made  # type: ignore[return-value]  # it is called as the function is


def records_of(*streams: Random) -> NDArray[Any]:
    """The states of these streams, of STREAM_FIELDS."""
    records = np.zeros(len(streams), STREAM_FIELDS)
    for record, stream in zip(records, streams, strict=True):
        *record["words"], record["used"] = stream.getstate()[1]
    return records


@compiled
def mixed(words: Words, k: int, following: int, far: int) -> np.uint32:
    y = (words[k] & np.uint32(0x80000000)) | (words[following] & np.uint32(0x7FFFFFFF))
    return np.uint32(words[far] ^ (y >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (y & np.uint32(1))))


@compiled
def refill(stream: Stream) -> None:
    """Make the next 624 words."""
    words = stream.words
    for k in range(N - M):
        words[k] = mixed(words, k, k + 1, k + M)
    for k in range(N - M, N - 1):
        words[k] = mixed(words, k, k + 1, k + M - N)
    words[N - 1] = mixed(words, N - 1, 0, M - 1)
    stream.used = 0


@compiled
def tempered(y: np.uint32) -> np.uint32:
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    return y ^ (y >> np.uint32(18))


@compiled
def uniform(stream: Stream) -> float:
    """random(), in [0, 1): 53 bits out of two words. Streams are drawn from by pairs, so `used` is even."""
    if stream.used >= N:
        refill(stream)
    k = stream.used
    stream.used = k + 2
    a, b = tempered(stream.words[k]) >> np.uint32(5), tempered(stream.words[k + 1]) >> np.uint32(6)
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0)


@compiled
def poisson_instants(stream: Stream, lam: float, instants: NDArray[np.float64]) -> None:
    """Fill in arrivals with exponential gaps of mean 1/lam."""
    now = 0.0
    for i in range(instants.size):
        now += -math.log(1.0 - uniform(stream)) / lam
        instants[i] = now


@compiled
def service(stream: Stream, law: int, rate: float, a: float, b: float) -> float:
    """One service time, seconds. a, b: lognormal μ, σ; hyperexponential p; Pareto −1/shape, scale."""
    if law == EXP:
        return -math.log(1.0 - uniform(stream)) / rate
    if law == FIXED:
        return 1.0 / rate
    if law == HYPEREXP:
        branch = a if uniform(stream) < a else 1.0 - a
        return -math.log(1.0 - uniform(stream)) / (2.0 * branch * rate)
    if law == PARETO:
        return math.pow(1.0 - uniform(stream), a) * b
    while True:
        first = uniform(stream)
        second = 1.0 - uniform(stream)
        z = NV_MAGICCONST * (first - 0.5) / second
        if z * z / 4.0 <= -math.log(second):
            return math.exp(a + z * b)
