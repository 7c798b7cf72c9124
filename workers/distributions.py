"""Laws of service times, as pure samplers. A law is named as in a command: `exp`, `lognormal:cv=2`. PURE.

Every law has a rate R as parameter, so that its mean is 1/R seconds whatever its shape is. `sample` draws from the
stream of random numbers that the law got. Exponential draws are `expovariate`, one per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from workers.scheduling.contexts import Logistic
from workers.spec import make_from_spec


class ServiceTime(Protocol):
    """A law of service times, in seconds. now: the instant, for laws that change with time."""

    def sample(self, now: float) -> float: ...
    def mean(self, now: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """The exponential law, which has no memory; cv = 1."""

    rate: float
    rng: Random

    def sample(self, now: float) -> float:
        return self.rng.expovariate(self.rate)

    def mean(self, now: float) -> float:
        return 1 / self.rate


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the mean; cv = 0."""

    rate: float
    rng: Random

    def sample(self, now: float) -> float:
        return 1 / self.rate

    def mean(self, now: float) -> float:
        return 1 / self.rate


@dataclass(frozen=True, slots=True)
class Lognormal:
    """The exponential of a normal number with σ² = ln(1 + cv²), scaled to the mean."""

    rate: float
    rng: Random
    cv: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.cv <= 1000:
            raise ValueError(f"cv must be above 0 and at most 1000, not {self.cv:g}")

    def sample(self, now: float) -> float:
        variance = math.log(1 + self.cv**2)
        # The mean of the law is exp(μ + σ²/2), so this μ makes it 1/R.
        return self.rng.lognormvariate(-variance / 2 - math.log(self.rate), math.sqrt(variance))

    def mean(self, now: float) -> float:
        return 1 / self.rate


@dataclass(frozen=True, slots=True)
class Hyperexponential:
    """A mixture of two exponential laws: branch i has probability p_i and rate 2 p_i R. p follows from cv² ≥ 1."""

    rate: float
    rng: Random
    cv: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.cv <= 1000:
            raise ValueError(f"cv of a hyperexponential must be from 1 to 1000, not {self.cv:g}")

    def sample(self, now: float) -> float:
        square = self.cv**2
        # Both branches contribute the same to the mean ("balanced means"), which leaves p to give the variance.
        p = (1 + math.sqrt((square - 1) / (square + 1))) / 2
        branch = p if self.rng.random() < p else 1 - p
        return self.rng.expovariate(2 * branch * self.rate)

    def mean(self, now: float) -> float:
        return 1 / self.rate


@dataclass(frozen=True, slots=True)
class Pareto:
    """P(X > x) = (x_m/x)^shape, scaled to the mean, with shape > 1. Up to shape 2 the variance is infinite."""

    rate: float
    rng: Random
    shape: float = 2.5

    def __post_init__(self) -> None:
        if not 1 < self.shape < math.inf:
            raise ValueError(f"shape of a Pareto law must be above 1, or it has no mean, not {self.shape:g}")

    def sample(self, now: float) -> float:
        return self.rng.paretovariate(self.shape) * ((self.shape - 1) / (self.shape * self.rate))

    def mean(self, now: float) -> float:
        return 1 / self.rate


@dataclass(frozen=True, slots=True)
class Classes:
    """Two classes of requests: a small `share` takes `factor` times as long as the others. Both are exponential."""

    rate: float
    rng: Random
    share: float = 0.02
    factor: float = 100.0

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 < self.factor < math.inf):
            raise ValueError(
                f"share must be from 0 to 1 and factor positive, not share={self.share:g}, factor={self.factor:g}"
            )

    def sample(self, now: float) -> float:
        factor = self.factor if self.rng.random() < self.share else 1.0
        # The mean service of the usual class, such that the mean over both classes is 1/R.
        usual = 1 / (self.rate * (1 - self.share + self.share * self.factor))
        return factor * usual * self.rng.expovariate(1.0)

    def mean(self, now: float) -> float:
        return 1 / self.rate


LAWS: dict[str, Callable[..., ServiceTime]] = {
    "exp": Exponential,
    "fixed": Fixed,
    "lognormal": Lognormal,
    "hyperexp": Hyperexponential,
    "pareto": Pareto,
    "classes": Classes,
    # Its options are the names of components, which cannot all be parameters of a function.
    "logistic": lambda rate, rng, **coefficients: Logistic(rate, rng, coefficients),
}


def parse(text: str, rate: float, rng: Random) -> ServiceTime:
    """Make the law that `text` describes, at this rate. Raises ValueError with one clear line.

    >>> parse("lognormal:cv=0.5", 10.0, Random(1)).mean(0.0)
    0.1
    >>> parse("gauss", 10.0, Random(1))
    Traceback (most recent call last):
    ...
    ValueError: unknown service law 'gauss'; known: exp, fixed, lognormal, hyperexp, pareto, classes, logistic
    """
    if not 0 < rate < math.inf:
        raise ValueError(f"the rate must be positive, not {rate:g}")
    return make_from_spec(text, "service law", LAWS, rate, rng)
