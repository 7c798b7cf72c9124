"""Arrival processes: when requests are to be sent. PURE: no clock, no sockets.

A process is named as one types it: `poisson`, `gamma:burstiness=0.5`, `onoff:on=1,off=4`. Rates that change are a
change of clock: a process of one arrival a unit, each put where the expected number of arrivals reaches its instant.
That is an inhomogeneous Poisson process if the one of the unit is Poisson, and ramps evenly if it is constant.
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


class ArrivalProcess(Protocol):
    """Instants of arrival, seconds from the start."""

    def next_arrival(self, after: float) -> float | None:
        """The first arrival after `after`, which is the one before it; None if there is none."""
        ...

    def rate(self, at: float) -> float:
        """Expected arrivals a second at this instant; on the long run where that is hidden."""
        ...

    def expected(self, at: Times) -> Times | None:
        """Of a Poisson process: arrivals expected before each instant, so that what is expected between two arrivals is
        exponential of mean 1, whatever the rate does. None for others."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Exponential gaps of mean 1/lam."""

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
    """Even gaps of 1/lam."""

    lam: float

    def next_arrival(self, after: float) -> float | None:
        return (round(after * self.lam) + 1) / self.lam

    def rate(self, at: float) -> float:
        return self.lam

    def expected(self, at: Times) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Gamma:
    """Independent gamma gaps of mean 1/lam and shape `burstiness`: 1 is Poisson, less comes in clumps, more is evener.

    The squared coefficient of variation of a gap is 1/burstiness. The name is that of vLLM's load generator.
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
    """Poisson arrivals whose rate jumps between two levels at exponential times (a Markov-modulated Poisson process).

    levels: arrivals a second; stay: mean seconds in each. Starts in the first.
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
            after, self._second = self._until, not self._second  # memoryless: draw anew from the jump on
            self._until += self._rng.expovariate(1 / self._stay[self._second])

    def rate(self, at: float) -> float:
        return sum(level * stay for level, stay in zip(self._levels, self._stay, strict=True)) / sum(self._stay)

    def expected(self, at: Times) -> None:
        return None


def mmpp(lam: float, rng: Random, ratio: float = 5.0, period: float = 100.0) -> Switching:
    """Low and high, the high level `ratio` times the low one, both for period / 2 on average; mean lam. Starts low."""
    if not (1 <= ratio < math.inf and 0.01 / lam <= period < math.inf):
        raise ValueError(f"mmpp needs ratio ≥ 1 and period ≥ {0.01 / lam:g}, not {ratio:g} and {period:g}")
    low = 2 * lam / (1 + ratio)
    return Switching(rng, (low, ratio * low), (period / 2, period / 2))


def onoff(lam: float, rng: Random, on: float = 1.0, off: float = 1.0) -> Switching:
    """Silence, then Poisson traffic, for `off` and `on` seconds on average; mean lam over both. Starts silent."""
    if not (0.01 / lam <= on < math.inf and 0.01 / lam <= off < math.inf):
        raise ValueError(f"onoff needs on and off of at least {0.01 / lam:g} seconds, not {on:g} and {off:g}")
    return Switching(rng, (0.0, lam * (on + off) / on), (off, on))


@dataclass(frozen=True, slots=True)
class Wave:
    """Poisson arrivals at lam (1 + depth sin(2πt/period)), as over a day; by thinning."""

    lam: float
    rng: Random
    depth: float = 0.8
    period: float = 1000.0

    def __post_init__(self) -> None:
        if not (0 <= self.depth <= 1 and 0.01 / self.lam <= self.period < math.inf):
            least = 0.01 / self.lam
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
        return np.asarray(self.lam * (at + self.depth * (1 - np.cos(turn * at)) / turn))


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of traffic whose rate goes in a straight line from `begin` to `end` arrivals a second."""

    seconds: float
    begin: float
    end: float

    @property
    def arrivals(self) -> float:
        """Expected in all."""
        return self.seconds * (self.begin + self.end) / 2

    def before(self, at: Times) -> Times:
        """Arrivals expected in the first `at` seconds."""
        return self.begin * at + (self.end - self.begin) * at * at / (2 * self.seconds)

    def reached(self, expected: float) -> float:
        """When `before` is this."""
        if not expected:
            return 0.0
        slope = (self.end - self.begin) / self.seconds
        return 2 * expected / (self.begin + math.sqrt(max(0.0, self.begin**2 + 2 * slope * expected)))


class Stages:
    """Stage after stage, then nothing. unit: the arrivals of a process of rate 1, whose clock the stages bend."""

    def __init__(self, unit: ArrivalProcess, stages: Sequence[Stage]) -> None:
        self._unit, self.stages = unit, tuple(stages)
        self._at = 0.0  # the last arrival, by the unit's clock

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def arrivals(self) -> float:
        """Expected in all."""
        return sum(stage.arrivals for stage in self.stages)

    def next_arrival(self, after: float) -> float | None:
        reached = self._unit.next_arrival(self._at)
        assert reached is not None, "the processes of a unit do not end"
        self._at = left = reached
        begun = 0.0
        for stage in self.stages:
            if left <= stage.arrivals:
                return begun + stage.reached(left)
            left -= stage.arrivals
            begun += stage.seconds
        return None

    def expected(self, at: Times) -> Times | None:
        total, begun = np.zeros(len(at)), 0.0
        for stage in self.stages:
            total += stage.before(np.clip(at - begun, 0.0, stage.seconds))
            begun += stage.seconds
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
    """ "10s@50,30s@50..200": ten seconds at 50 a second, then in thirty up to 200. Raises ValueError.

    >>> parse_stages("1m@50..200")
    [Stage(seconds=60.0, begin=50.0, end=200.0)]
    """
    found = []
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
            raise ValueError(f"a stage must last some time, not {part!r}")
        found.append(stage)
    return found


def _constant(lam: float, rng: Random) -> Constant:
    return Constant(lam)


PROCESSES: dict[str, Callable[..., ArrivalProcess]] = {
    "poisson": Poisson,
    "constant": _constant,
    "gamma": Gamma,
    "mmpp": mmpp,
    "onoff": onoff,
    "sine": Wave,
    "wave": Wave,
}


def parse(text: str, lam: float, rng: Random) -> ArrivalProcess:
    """Make the process that `text` describes, as in `mmpp:ratio=5,period=100`.

    lam: arrivals per second.
    rng: the random numbers of the process.

    Raises ValueError with one clear line.
    """
    if not 0 < lam < math.inf:
        raise ValueError(f"the rate must be positive, not {lam:g}")
    return make_from_spec(text, "arrivals", PROCESSES, lam, rng)
