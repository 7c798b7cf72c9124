"""The context of a request: what is known of its work, and services that depend on it. PURE.

The components of a context have names, and each has a true coefficient. `1` is the constant. `POST` is 1 if that is the
method, and `/report` is 1 if the path begins so. `body` is ln(1 + bytes)/10. `x1`, `x2`, ... are the numbers of the
header X-Job-Context, which are separated by commas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from workers.scheduling.logistic import Context, chance, mean_rounds

HEADER = "X-Job-Context"
MAX_COMPONENTS = 32
MAX_HEADER_NUMBER = 10.0  # absolute value of a number in the header
_NUMBERED = re.compile(r"x([1-9]|[12][0-9]|3[0-2])")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Logistic:
    """A law of services that take a whole number of rounds. Each round is the last with probability σ(θ·x).

    rate: rounds per second.
    coefficients: θ, by the names of the components. The constant is always one of them.
    """

    rate: float
    rng: Random
    coefficients: Mapping[str, float]
    names: tuple[str, ...] = field(init=False)
    theta: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        coefficients = {"1": 0.0} | dict(self.coefficients)
        for name, value in coefficients.items():
            is_component = name in ("1", "body") or name.startswith("/") or name in METHODS or _NUMBERED.fullmatch(name)
            if not is_component:
                raise ValueError(f"a context has no component {name!r}; there are: 1, POST, /path, body, x1, ..., x32")
            if not -100 <= value <= 100:
                raise ValueError(f"the coefficient of {name} must be from -100 to 100, not {value:g}")
        if len(coefficients) > MAX_COMPONENTS:
            raise ValueError(f"a context has at most {MAX_COMPONENTS} components, not {len(coefficients)}")
        object.__setattr__(self, "names", tuple(coefficients))
        object.__setattr__(self, "theta", tuple(coefficients.values()))

    @property
    def tick(self) -> float:
        """The seconds of a round."""
        return 1 / self.rate

    def context(self, method: str, path: str, size: int, header: str) -> Context:
        """Return the context of a request from its method, its path, the bytes of its body, and X-Job-Context.

        >>> law = Logistic(100.0, Random(1), {"POST": -1.0, "/report": -2.0, "x2": 1.0})
        >>> law.names, law.context("POST", "/report/7", 0, "0.5, -0.25")
        (('1', 'POST', '/report', 'x2'), (1.0, 1.0, 1.0, -0.25))
        """
        numbers = numbers_of(header)
        context = []
        for name in self.names:
            if name == "1":
                context.append(1.0)
            elif name == "body":
                context.append(math.log1p(size) / 10)  # at most about 3, of the order of the other components
            elif name.startswith("/"):
                context.append(float(path.startswith(name)))
            elif numbered := _NUMBERED.fullmatch(name):
                k = int(numbered[1])
                context.append(numbers[k - 1] if k <= len(numbers) else 0.0)
            else:
                context.append(float(method == name))
        return tuple(context)

    def service(self, x: Context) -> float:
        """Draw the service time of a request with context x, in seconds."""
        # The inverse of the geometric distribution function, at u in (0, 1].
        p, u = chance(self.theta, x), 1 - self.rng.random()
        rounds = 1 if p >= 1 else max(1, math.ceil(math.log(u) / math.log1p(-p)))
        return rounds / self.rate

    def sample(self, now: float) -> float:
        """Draw the service time of a request of which only the constant is known, in seconds."""
        return self.service(self._constant_only)

    def mean(self, now: float) -> float:
        """Return the mean of `sample`, in seconds."""
        return mean_rounds(self.theta, self._constant_only) / self.rate

    @property
    def _constant_only(self) -> Context:
        return tuple(float(name == "1") for name in self.names)


def numbers_of(text: str) -> list[float]:
    """Read the numbers of the header, cut to `MAX_HEADER_NUMBER` in absolute value. Other text counts as 0.

    >>> numbers_of("0.5,oops,1e9")
    [0.5, 0.0, 10.0]
    """
    numbers = []
    for part in text.split(",")[:MAX_COMPONENTS]:
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        numbers.append(0.0 if math.isnan(value) else min(max(value, -MAX_HEADER_NUMBER), MAX_HEADER_NUMBER))
    return numbers
