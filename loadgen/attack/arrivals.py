"""Arrival processes: the instants at which requests are sent. PURE: no clock, no sockets.

A process has a name as on the command line: `poisson`, `gamma:burstiness=0.5`, `onoff:on=1,off=4`. A changing rate is a
change of the clock: a process with one arrival per unit of time is mapped to the instants at which the expected number
of arrivals is the same. This gives an inhomogeneous Poisson process from a Poisson one, and an even ramp from a
constant one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.spec import make_from_spec

Times = NDArray[np.float64]
# Lower bound of the periods of a process, in mean gaps. `Switching` draws each switch, so it would need hundreds of
# draws for each arrival below that.
MIN_PERIOD_GAPS = 0.01


class ArrivalProcess(Protocol):
    """A process of arrivals. All times are seconds from the start."""

    def next_arrival(self, after: float) -> float | None:
        """Return the next arrival, or None at the end. after: the previous arrival, or 0."""
        ...

    def rate(self, at: float) -> float:
        """Return the expected arrivals a second at an instant; the long-run rate if the current one is hidden."""
        ...

    def expected(self, at: Times) -> Times | None:
        """Return the expected arrivals before each instant, or None if the process is not Poisson.

        Between two arrivals of a Poisson process this number grows by an exponential variable of mean 1 at any rate.
        """
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Gaps are exponential with mean 1/lam."""

    lam: float
    rng: Random

    def next_arrival(self, after: float) -> float | None:
        return after + self.rng.expovariate(self.lam)

    def rate(self, at: float) -> float:
        return self.lam

    def expected(self, at: Times) -> Times:
        return self.lam * at


@dataclass(frozen=True, slots=True)
class Constant:
    """Gaps are all 1/lam."""

    lam: float

    def next_arrival(self, after: float) -> float | None:
        # Counting the arrivals avoids the rounding errors that repeated additions of 1/lam would pile up.
        return (round(after * self.lam) + 1) / self.lam

    def rate(self, at: float) -> float:
        return self.lam

    def expected(self, at: Times) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gaps are independent gamma variables with mean 1/lam and shape `burstiness`.

    Shape 1 is Poisson; smaller shapes give clusters, larger ones more even gaps. The squared coefficient of variation
    of a gap is 1/burstiness. The name `burstiness` is that of vLLM's load generator.
    """

    lam: float
    rng: Random
    burstiness: float = 0.5

    def __post_init__(self) -> None:
        if not 0.01 <= self.burstiness <= 1e6:
            raise ValueError(f"gamma needs burstiness from 0.01 to 1e6, not {self.burstiness:g}")

    def next_arrival(self, after: float) -> float | None:
        return after + self.rng.gammavariate(self.burstiness, 1 / (self.burstiness * self.lam))

    def rate(self, at: float) -> float:
        return self.lam

    def expected(self, at: Times) -> None:
        return None


class Switching:
    """A Markov-modulated Poisson process, whose rate switches between two levels at exponential times.

    levels: arrivals a second; the process starts in the first. stay: mean seconds in each level.
    """

    def __init__(self, rng: Random, levels: tuple[float, float], stay: tuple[float, float]) -> None:
        self._levels, self._stay, self._rng = levels, stay, rng
        self._second, self._until = False, rng.expovariate(1 / stay[0])

    def next_arrival(self, after: float) -> float | None:
        while True:
            level = self._levels[self._second]
            at = after + self._rng.expovariate(level) if level else math.inf
            if at <= self._until:
                return at
            # The exponential law has no memory, so the gap can be drawn again from the switch on.
            after, self._second = self._until, not self._second
            self._until += self._rng.expovariate(1 / self._stay[self._second])

    def rate(self, at: float) -> float:
        return sum(level * stay for level, stay in zip(self._levels, self._stay, strict=True)) / sum(self._stay)

    def expected(self, at: Times) -> None:
        return None


def mmpp(lam: float, rng: Random, ratio: float = 5.0, period: float = 100.0) -> Switching:
    """Return a process that switches between a low level and `ratio` times that level, and starts low.

    lam: mean rate. period: mean seconds of both levels together.
    """
    least = MIN_PERIOD_GAPS / lam
    if not (1 <= ratio < math.inf and least <= period < math.inf):
        raise ValueError(f"mmpp needs ratio ≥ 1 and period ≥ {least:g}, not {ratio:g} and {period:g}")
    low = 2 * lam / (1 + ratio)  # both levels last equally long, so lam is their mean
    return Switching(rng, (low, ratio * low), (period / 2, period / 2))


def onoff(lam: float, rng: Random, on: float = 1.0, off: float = 1.0) -> Switching:
    """Return a process that switches between silence and Poisson traffic, and starts silent.

    lam: mean rate over both. on, off: mean seconds of traffic and of silence.
    """
    least = MIN_PERIOD_GAPS / lam
    if not (least <= on < math.inf and least <= off < math.inf):
        raise ValueError(f"onoff needs on and off of at least {least:g} seconds, not {on:g} and {off:g}")
    return Switching(rng, (0.0, lam * (on + off) / on), (off, on))


@dataclass(frozen=True, slots=True)
class Wave:
    """Arrivals are Poisson with rate lam (1 + depth sin(2πt/period)). They are drawn by thinning. period: seconds."""

    lam: float
    rng: Random
    depth: float = 0.8
    period: float = 1000.0

    def __post_init__(self) -> None:
        least = MIN_PERIOD_GAPS / self.lam
        if not (0 <= self.depth <= 1 and least <= self.period < math.inf):
            raise ValueError(f"a wave needs 0 ≤ depth ≤ 1 and period ≥ {least:g}, not {self.depth:g}, {self.period:g}")

    def next_arrival(self, after: float) -> float | None:
        top = self.lam * (1 + self.depth)
        while True:
            after += self.rng.expovariate(top)
            if self.rng.random() * top <= self.rate(after):
                return after

    def rate(self, at: float) -> float:
        return self.lam * (1 + self.depth * math.sin(2 * math.pi * at / self.period))

    def expected(self, at: Times) -> Times:
        turn = 2 * math.pi / self.period
        # The integral of the rate from 0 to `at`.
        return np.asarray(self.lam * (at + self.depth * (1 - np.cos(turn * at)) / turn))


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the traffic whose rate changes linearly from `begin` to `end` arrivals a second."""

    seconds: float
    begin: float
    end: float

    @property
    def arrivals(self) -> float:
        """The expected number of arrivals."""
        return self.seconds * (self.begin + self.end) / 2

    def expected(self, at: Times) -> Times:
        """Return the expected arrivals in the first `at` seconds of the stage."""
        return self.begin * at + (self.end - self.begin) * at * at / (2 * self.seconds)

    def instant(self, expected: float) -> float:
        """Return the inverse of `expected`, in seconds from the beginning of the stage."""
        if not expected:
            return 0.0  # the quotient below is 0/0 for a stage that begins with rate 0
        # This form of the quadratic's root also holds for slope 0. A rounding error can make the radicand negative
        # at the end of a ramp down to 0.
        slope = (self.end - self.begin) / self.seconds
        return 2 * expected / (self.begin + math.sqrt(max(0.0, self.begin**2 + 2 * slope * expected)))


class Stages:
    """A sequence of stages, after which the process ends. unit: a process of rate 1, whose clock the stages change."""

    def __init__(self, unit: ArrivalProcess, stages: Sequence[Stage]) -> None:
        self._unit, self.stages = unit, tuple(stages)
        self._at = 0.0  # the last arrival, on the clock of the unit process

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def arrivals(self) -> float:
        """The expected number of arrivals in all stages."""
        return sum(stage.arrivals for stage in self.stages)

    def next_arrival(self, after: float) -> float | None:
        arrival = self._unit.next_arrival(self._at)
        assert arrival is not None, "a unit process does not end"
        self._at = remaining = arrival  # an instant of the unit process is an expected number of arrivals
        begin = 0.0
        for stage in self.stages:
            if remaining <= stage.arrivals:
                return begin + stage.instant(remaining)
            remaining -= stage.arrivals
            begin += stage.seconds
        return None

    def expected(self, at: Times) -> Times | None:
        total, begin = np.zeros(len(at)), 0.0
        for stage in self.stages:
            total += stage.expected(np.clip(at - begin, 0.0, stage.seconds))
            begin += stage.seconds
        return self._unit.expected(total)

    def rate(self, at: float) -> float:
        for stage in self.stages:
            if at < stage.seconds:
                return stage.begin + (stage.end - stage.begin) * at / stage.seconds
            at -= stage.seconds
        return 0.0


_STAGE = re.compile(
    r"(?P<n>\d+(?:\.\d+)?)(?P<unit>[smh]?)@(?P<begin>\d+(?:\.\d+)?)(?:\.\.(?P<end>\d+(?:\.\d+)?))?", re.ASCII
)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_stages(text: str) -> list[Stage]:
    """Parse stages such as "10s@50,30s@50..200": ten seconds at 50 a second, then a ramp to 200 in thirty seconds.

    Raises ValueError.

    >>> parse_stages("1m@50..200")
    [Stage(seconds=60.0, begin=50.0, end=200.0)]
    """
    stages = []
    for part in text.split(","):
        match = _STAGE.fullmatch(part.strip())
        try:
            if match is None:
                raise ValueError
            begin = float(match["begin"])
            stage = Stage(float(match["n"]) * _UNITS[match["unit"]], begin, float(match["end"] or begin))
        except ValueError:
            raise ValueError(
                f"stages are SECONDS@RATE or SECONDS@FROM..TO, as in 10s@50,30s@50..200, not {part!r}"
            ) from None
        if not stage.seconds > 0:
            raise ValueError(f"a stage must be longer than 0 s, not {part!r}")
        stages.append(stage)
    return stages


def _constant(lam: float, rng: Random) -> Constant:
    return Constant(lam)


PROCESSES: dict[str, Callable[..., ArrivalProcess]] = {
    "poisson": Poisson,
    "constant": _constant,
    "gamma": Gamma,
    "mmpp": mmpp,
    "onoff": onoff,
    "sine": Wave,
    "wave": Wave,  # another name of the same process
}


def parse(text: str, lam: float, rng: Random) -> ArrivalProcess:
    """Make the process that `text` describes, as in `mmpp:ratio=5,period=100`.

    lam: arrivals a second. rng: the random generator of the process.
    Raises ValueError with one clear line.
    """
    if not 0 < lam < math.inf:
        raise ValueError(f"the rate must be positive, not {lam:g}")
    return make_from_spec(text, "arrivals", PROCESSES, lam, rng)
