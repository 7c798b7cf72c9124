"""Python's random numbers in compiled code: the Mersenne Twister and the laws of `workers.distributions`, to the bit.

A stream is a record that holds the 624 words of the state of `random.Random`, and how many of them are used. The
functions repeat CPython's `random.py` operation by operation. Both call the C library's log, exp and pow, so the
numbers are the same. Importing this module needs numba (the extra `compiled`).

numba can run `numpy.random.Generator(MT19937)` from the same state, and its numbers are the same as well. The kernel
does not use it, for two measured reasons. As records cannot hold generators, they must be passed in a tuple, and with
that the kernel takes 8 to 30 % more time. And each number of pools is another type of tuple, for which numba compiles
the kernel again, in 1.6 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

N, M = 624, 397  # the words of the state, and the offset in its recurrence (MT19937)
NV_MAGICCONST = 4 * math.exp(-0.5) / math.sqrt(2.0)  # of normalvariate
EXP, FIXED, LOGNORMAL, HYPEREXP, PARETO = range(5)  # laws of service times
STREAM_FIELDS = np.dtype([("words", np.uint32, (N,)), ("used", np.int64)])
Words = NDArray[np.uint32]
Stream = Any  # a record of STREAM_FIELDS
F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function on its first call, to run without Python's lock.

    The code is kept on disk for the next process, if there is a folder for it. Division is the machine's: a divisor of
    0 gives no error, so callers check divisors that may be 0.
    """
    try:
        result = njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba has no folder that it may write into
        result = njit(nogil=True, error_model="numpy")(function)
    return result  # type: ignore[return-value]  # it is called as the function is


def records_of(*streams: Random) -> NDArray[Any]:
    """Copy the states of these streams into an array of STREAM_FIELDS."""
    records = np.zeros(len(streams), STREAM_FIELDS)
    for record, stream in zip(records, streams, strict=True):
        *record["words"], record["used"] = stream.getstate()[1]
    return records


@compiled
def next_word(words: Words, k: int, following: int, far: int) -> np.uint32:
    """Return the new word k of the state, by the recurrence of MT19937 on words k, `following` and `far`."""
    y = (words[k] & np.uint32(0x80000000)) | (words[following] & np.uint32(0x7FFFFFFF))
    return np.uint32(words[far] ^ (y >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (y & np.uint32(1))))


@compiled
def refill(stream: Stream) -> None:
    """Compute the next 624 words of the state."""
    words = stream.words
    # Indices wrap around at N. Three ranges avoid a modulo in each step, as CPython does.
    for k in range(N - M):
        words[k] = next_word(words, k, k + 1, k + M)
    for k in range(N - M, N - 1):
        words[k] = next_word(words, k, k + 1, k + M - N)
    words[N - 1] = next_word(words, N - 1, 0, M - 1)
    stream.used = 0


@compiled
def tempered(y: np.uint32) -> np.uint32:
    """Return the random number that MT19937 yields for a word of its state."""
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    return y ^ (y >> np.uint32(18))


@compiled
def uniform(stream: Stream) -> float:
    """Repeat `random()`: return a number in [0, 1) with 53 bits out of two words.

    Words are always drawn in pairs, so `used` is even.
    """
    if stream.used >= N:
        refill(stream)
    k = stream.used
    stream.used = k + 2
    a, b = tempered(stream.words[k]) >> np.uint32(5), tempered(stream.words[k + 1]) >> np.uint32(6)
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0)  # (a 2^26 + b)/2^53


@compiled
def poisson_instants(stream: Stream, lam: float, instants: NDArray[np.float64]) -> None:
    """Fill in the instants of arrivals, with exponential gaps of mean 1/lam."""
    now = 0.0
    for i in range(instants.size):
        now += -math.log(1.0 - uniform(stream)) / lam
        instants[i] = now


@compiled
def service(stream: Stream, law: int, rate: float, a: float, b: float) -> float:
    """Draw one service time, in seconds.

    law: one of the constants above, from EXP to PARETO.
    a, b: μ and σ of the lognormal law; p of the hyperexponential law; −1/shape and the scale of the Pareto law.
    """
    if law == EXP:
        return -math.log(1.0 - uniform(stream)) / rate
    if law == FIXED:
        return 1.0 / rate
    if law == HYPEREXP:
        branch = a if uniform(stream) < a else 1.0 - a
        return -math.log(1.0 - uniform(stream)) / (2.0 * branch * rate)
    if law == PARETO:
        return math.pow(1.0 - uniform(stream), a) * b
    while True:  # lognormal, by the rejection method of Kinderman and Monahan, as `normalvariate` does
        first = uniform(stream)
        second = 1.0 - uniform(stream)
        z = NV_MAGICCONST * (first - 0.5) / second
        if z * z / 4.0 <= -math.log(second):
            return math.exp(a + z * b)
