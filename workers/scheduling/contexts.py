"""What a request tells of the work that it brings: its context, and services that depend on it. PURE.

A context is named by its components, each with the coefficient of the truth: `1` is the constant, `POST` whether that
is the method, `/report` whether the path begins so, `body` ln(1 + bytes)/10, `x1`, `x2`, … the numbers of the header
X-Job-Context, separated by commas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from workers.scheduling.logistic import Context, chance, mean_rounds

HEADER = "X-Job-Context"
MOST = 32  # components
LARGEST = 10.0  # number of the header, either way
_NUMBERED = re.compile(r"x([1-9]|[12][0-9]|3[0-2])")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Logistic:
    """Services of a whole number of rounds, of which each is the last with chance σ(θ·x).

    rate: rounds a second. coefficients: θ by the names of the components; the constant is always one of them.
    """

    rate: float
    rng: Random
    coefficients: Mapping[str, float]
    names: tuple[str, ...] = field(init=False)
    theta: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        given = {"1": 0.0} | dict(self.coefficients)
        for name, value in given.items():
            known = name in ("1", "body") or name.startswith("/") or name in METHODS or _NUMBERED.fullmatch(name)
            if not known:
                raise ValueError(f"a context has no component {name!r}; there are: 1, POST, /path, body, x1, ..., x32")
            if not -100 <= value <= 100:
                raise ValueError(f"the coefficient of {name} must be from -100 to 100, not {value:g}")
        if len(given) > MOST:
            raise ValueError(f"a context has at most {MOST} components, not {len(given)}")
        object.__setattr__(self, "names", tuple(given))
        object.__setattr__(self, "theta", tuple(given.values()))

    @property
    def tick(self) -> float:
        """Seconds of a round."""
        return 1 / self.rate

    def context(self, method: str, path: str, size: int, header: str) -> Context:
        """Of a request: its method, its path, bytes of body, and X-Job-Context.

        >>> law = Logistic(100.0, Random(1), {"POST": -1.0, "/report": -2.0, "x2": 1.0})
        >>> law.names, law.context("POST", "/report/7", 0, "0.5, -0.25")
        (('1', 'POST', '/report', 'x2'), (1.0, 1.0, 1.0, -0.25))
        """
        numbers = numbers_of(header)
        found = []
        for name in self.names:
            if name == "1":
                found.append(1.0)
            elif name == "body":
                found.append(math.log1p(size) / 10)
            elif name.startswith("/"):
                found.append(float(path.startswith(name)))
            elif numbered := _NUMBERED.fullmatch(name):
                k = int(numbered[1])
                found.append(numbers[k - 1] if k <= len(numbers) else 0.0)
            else:
                found.append(float(method == name))
        return tuple(found)

    def service(self, x: Context) -> float:
        """Seconds, drawn."""
        p, u = chance(self.theta, x), 1 - self.rng.random()
        rounds = 1 if p >= 1 else max(1, math.ceil(math.log(u) / math.log1p(-p)))
        return rounds / self.rate

    def sample(self, now: float) -> float:
        """Of a request of which nothing is known."""
        return self.service(self._nothing)

    def mean(self, now: float) -> float:
        """As `sample`."""
        return mean_rounds(self.theta, self._nothing) / self.rate

    @property
    def _nothing(self) -> Context:
        return tuple(float(name == "1") for name in self.names)


def numbers_of(text: str) -> list[float]:
    """The header's numbers, none larger than `LARGEST` either way; what is no number counts 0.

    >>> numbers_of("0.5,oops,1e9")
    [0.5, 0.0, 10.0]
    """
    found = []
    for part in text.split(",")[:MOST]:
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        found.append(0.0 if math.isnan(value) else min(max(value, -LARGEST), LARGEST))
    return found
