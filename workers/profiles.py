"""How the speed of a pool changes with time, as a factor on its rate. PURE: no clock.

A profile is named as in a command: `step:at=60,factor=0.2` is a fifth as fast from 60 s on, and
`wave:period=60,depth=0.5` has the factor 1 ± 0.5, as a sine. The whole service of a job runs at the speed of the
instant at which it starts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from workers.distributions import ServiceTime
from workers.spec import make_from_spec


class Profile(Protocol):
    """A positive factor on a rate, by instant."""

    def factor_at(self, now: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Step:
    """The factor is 1 before the instant `at`, in seconds from the start, and `factor` from then on."""

    at: float
    factor: float

    def __post_init__(self) -> None:
        if not (self.at >= 0 and 0 < self.factor < math.inf):
            raise ValueError(f"a step needs at ≥ 0 and factor > 0, not {self.at:g} and {self.factor:g}")

    def factor_at(self, now: float) -> float:
        return self.factor if now >= self.at else 1.0


@dataclass(frozen=True, slots=True)
class Wave:
    """The factor is 1 + depth sin(2πt/period), with 0 ≤ depth < 1; period in seconds."""

    period: float
    depth: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.period < math.inf and 0 <= self.depth < 1):
            raise ValueError(f"a wave needs period > 0 and 0 ≤ depth < 1, not {self.period:g} and {self.depth:g}")

    def factor_at(self, now: float) -> float:
        return 1 + self.depth * math.sin(2 * math.pi * now / self.period)


@dataclass(frozen=True, slots=True)
class Profiled:
    """A law of service times whose rate follows a profile.

    origin: the instant at which the profile's time is 0.
    """

    law: ServiceTime
    profile: Profile
    origin: float = 0.0

    def sample(self, now: float) -> float:
        return self.law.sample(now) / self.profile.factor_at(now - self.origin)

    def mean(self, now: float) -> float:
        return self.law.mean(now) / self.profile.factor_at(now - self.origin)


PROFILES: dict[str, Callable[..., Profile]] = {"step": Step, "wave": Wave}


@functools.cache
def parse_profile(text: str) -> Profile:
    """Make the profile that `text` describes. Raises ValueError with one clear line.

    >>> parse_profile("step:at=60,factor=0.2").factor_at(61.0)
    0.2
    """
    return make_from_spec(text, "profile", PROFILES)
