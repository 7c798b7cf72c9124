"""Estimates how fast a pool is, and up to how many requests in flight it keeps up.

The model has two numbers. A request takes `service_seconds` (s) while at most `capacity` (c) requests are in flight.
With n > c requests in flight the pool completes c/s requests per second, so a request takes s n/c seconds. A pool of
c servers, a pool that shares c processors and a pool without any limit (c large) are all of this form; c need not be an
integer.

Two log likelihoods are added. Departures with n in flight are Poisson with rate min(n, c)/s. The response time of a
request that joined q others has mean s x_q and a variance proportional to v_q. Here x_q = max(1, (q + 1)/c) and
v_q = 1 + (q + 1 − c)⁺/c². The first likelihood is right for shared pools, the second one for FCFS pools of any service
law.

Symbols: T_n -> `seconds_with[n]`, K_n -> `departures_from[n]`, G_q, Y_q and Z_q -> `response_weight[q]`,
`response_sum[q]` and `response_squares[q]`, N -> `observations`, s0 -> `usual_seconds`, κ -> `PRIOR_WEIGHT`.

Source: the rule is our own, see docs/curve.md.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.estimate import CapacityEstimate
from dispatcher.core.types import Interval
from dispatcher.estimators.mean import Z95, gamma_quantile

Floats = NDArray[np.float64]

CAPACITIES = [2 ** (step / 2) for step in range(21)]  # the values that c may take, 1 to 1024
GRID = np.array(CAPACITIES)
PRIOR_WEIGHT = 2.0  # κ: the number of responses that the usual service time is worth
LIKELIHOOD_BAND = 1.0  # how far the log likelihood of the chosen c may be below the largest one; see `fit`
COUNTS_AHEAD = 2  # c may exceed the largest number in flight so far by this many requests
REFIT_SHARE = 1 / 32  # a new fit is due after this share of the observations
MIN_VARIANCE_SHARE = 1e-6  # of the second moment; it keeps the likelihood of constant response times finite
FIT_EACH_UP_TO = 64  # requests in flight; up to here each new largest number causes a fit
MAX_COUNTS = 4096  # larger numbers in flight share the last element, which bounds memory and time
SUMS = {  # the name of each sum in the state file, and its attribute; "found" is an old name that files contain
    "seconds_with": "seconds_with",
    "departures_from": "departures_from",
    "found": "response_weight",
    "response_sum": "response_sum",
    "response_squares": "response_squares",
}
HALF_CHI_SQUARE_95 = 1.92  # half of the 95 % point of χ² with one degree of freedom


@functools.cache
def _tables(counts: int) -> Floats:
    """Return six functions of capacity c and number in flight n.

    With x the slowdown and v the relative variance of a request that joined n others, the functions are: min(n, c), its
    logarithm, 1/v, x/v, x²/v and log v. The shape is (6, 21, counts): c along the second axis, n along the last one.
    """
    n, c = np.arange(counts, dtype=float), GRID[:, None]
    busy = np.minimum(n, c)
    slowdown = np.maximum(1.0, (n + 1) / c)
    variance = 1 + np.maximum(0.0, n + 1 - c) / c**2
    return np.stack(
        (
            busy,
            np.log(np.maximum(busy, 1.0)),
            1 / variance,
            slowdown / variance,
            slowdown**2 / variance,
            np.log(variance),
        )
    )


class Profile(NamedTuple):
    """The fit for each allowed capacity, as arrays of one shape.

    log_likelihood: up to a constant.
    residual: the sum of squares of the response times around their means, divided by v_q.
    """

    capacity: Floats
    service_seconds: Floats
    log_likelihood: Floats
    residual: Floats


def _rows(largest: int) -> int:
    """Return the number of capacities that are allowed with this largest number in flight."""
    return bisect_left(CAPACITIES, largest + COUNTS_AHEAD)


class ThroughputCurve:
    """The sums and the fitted curve of one pool.

    The sums may be weighted. The parameter `weight` of the methods is the weight of an event that happens now.

    usual_seconds: the service time to assume before the first response.
    servers: a capacity that is allowed from the start, for a pool whose servers are known.

    >>> curve = ThroughputCurve(usual_seconds=1.0)
    >>> for _ in range(20):
    ...     curve.spend(1, 0.1, weight=1.0)
    ...     curve.complete(in_flight=1, joined=0, response_seconds=0.1, weight=1.0)
    >>> curve.fit(weight=1.0, usual_seconds=0.1)
    >>> round(curve.service_seconds, 6)
    0.1
    """

    __slots__ = (
        "capacity",
        "departed",
        "departures_from",
        "fitted",
        "largest",
        "response_squares",
        "response_sum",
        "response_weight",
        "responses",
        "seconds_with",
        "servers",
        "service_seconds",
        "unfitted",
    )

    def __init__(self, usual_seconds: float, servers: int = 1) -> None:
        self.servers = servers
        self.responses = 0  # all have the same weight, and the number is kept when the sums are cleared
        self.clear(usual_seconds)

    def __repr__(self) -> str:
        return f"<ThroughputCurve {self.service_seconds:.4g} s up to {self.capacity:.4g} in flight>"

    def clear(self, usual_seconds: float) -> None:
        """Drop all sums."""
        self.seconds_with = [0.0, 0.0]
        self.departures_from = [0.0, 0.0]
        self.response_weight = [0.0, 0.0]
        self.response_sum = [0.0, 0.0]
        self.response_squares = [0.0, 0.0]
        self.departed = 0.0  # the sum of departures_from
        self.largest = 0
        self.unfitted = 0
        self.fitted: Profile | None = None
        self.service_seconds = usual_seconds
        self.capacity = float(self.servers)

    def observations(self, weight: float) -> float:
        """Return N, the number of responses; older ones count less."""
        return self.departed / weight

    def join(self, in_flight: int) -> bool:
        """Count a request that has joined, and return whether a new fit is due because of a new largest number.

        Above `FIT_EACH_UP_TO` this is so only if the number allows a larger capacity, because each fit takes time.
        in_flight: the requests in flight, with this one.
        """
        self.unfitted += 1  # joins count as well, so that a pool that does not respond is fitted again
        if in_flight <= self.largest:
            return False
        largest_before = self.largest
        self._extend(in_flight)
        return in_flight <= FIT_EACH_UP_TO or _rows(in_flight) > _rows(largest_before)

    def _extend(self, in_flight: int) -> None:
        """Extend the lists so that they hold the sums for this number in flight."""
        self.largest = in_flight
        missing = min(in_flight + 1, MAX_COUNTS) - len(self.response_weight)
        if missing > 0:
            for sums in self._sums():
                sums.extend([0.0] * missing)

    def spend(self, in_flight: int, seconds: float, weight: float) -> None:
        """Count seconds in which the pool had this many requests in flight."""
        if in_flight > self.largest:
            self._extend(in_flight)
        self.seconds_with[min(in_flight, MAX_COUNTS - 1)] += weight * seconds

    def complete(self, in_flight: int, joined: int, response_seconds: float, weight: float) -> None:
        """Count a request that has ended.

        in_flight: the requests in flight before it ended, with this one.
        joined: the requests in flight when it joined, without this one.
        """
        most = max(in_flight, joined + 1)
        if most > self.largest:
            self._extend(most)
        in_flight, joined = min(in_flight, MAX_COUNTS - 1), min(joined, MAX_COUNTS - 1)
        self.departures_from[in_flight] += weight
        self.departed += weight
        self.response_weight[joined] += weight
        self.response_sum[joined] += weight * response_seconds
        self.response_squares[joined] += weight * response_seconds * response_seconds
        self.responses += 1
        self.unfitted += 1

    def scale(self, factor: float) -> None:
        """Multiply all sums by a factor. This is needed when the weights have grown large."""
        for sums in self._sums():
            sums[:] = [factor * value for value in sums]
        self.departed *= factor

    def _sums(self) -> tuple[list[float], ...]:
        """Return the sums in the order of `SUMS`."""
        return self.seconds_with, self.departures_from, self.response_weight, self.response_sum, self.response_squares

    @property
    def work(self) -> float:
        """The seconds of work; a second counts once for each request that the pool works on."""
        return sum(seconds * min(n, self.capacity) for n, seconds in enumerate(self.seconds_with))

    def dump(self, weight: float) -> dict[str, list[float]]:
        """Return the sums for `load`, in units of an event that happens now.

        Capacity and number of responses are lists of one element.
        """
        sums = {key: [value / weight for value in getattr(self, name)] for key, name in SUMS.items()}
        return {"capacity": [self.capacity], "responses": [self.responses], **sums}

    def load(self, dumped: Mapping[str, Sequence[float]], weight: float) -> None:
        """Take over what `dump` returned.

        Raises ValueError if these cannot be such sums; nothing has changed then.
        """
        missing = [key for key in ("capacity", "responses", *SUMS) if not dumped.get(key)]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        lists = [[weight * value for value in dumped[key]] for key in SUMS]
        if len({len(values) for values in lists}) != 1 or not 2 <= len(lists[0]) <= MAX_COUNTS:
            raise ValueError(f"its sums must have one length, from 2 to {MAX_COUNTS}")
        for name, values in zip(SUMS.values(), lists, strict=True):
            setattr(self, name, values)
        self.departed = sum(self.departures_from)
        self.largest = len(self.response_weight) - 1
        self.capacity = max(1.0, dumped["capacity"][0])
        self.responses = int(dumped["responses"][0])

    def is_fit_due(self, weight: float) -> bool:
        """Return whether enough has been counted since the last fit."""
        return self.unfitted * weight >= REFIT_SHARE * self.departed

    def fit(self, weight: float, usual_seconds: float) -> None:
        """Set `service_seconds` and `capacity`: the largest capacity that is nearly as likely as the likeliest one.

        A capacity that is taken too small keeps away the requests that would correct it. One that is too large attracts
        them.

        usual_seconds: the service time of the prior.
        """
        self.unfitted = 0
        self.fitted = profile = self.profile(weight, usual_seconds)
        likelihoods = profile.log_likelihood.tolist()
        enough = max(likelihoods) - LIKELIHOOD_BAND
        chosen = max(i for i, likelihood in enumerate(likelihoods) if likelihood >= enough)
        self.capacity = CAPACITIES[chosen]
        self.service_seconds = float(profile.service_seconds[chosen])

    def profile(self, weight: float, usual_seconds: float) -> Profile:
        """Return the service time and the log likelihood for each capacity that is allowed so far."""
        n, size = self.departed / weight, len(self.response_weight)
        prior = PRIOR_WEIGHT * usual_seconds
        # Few responses do not justify a large capacity, however many requests were in flight at once.
        most = max(min(self.largest + COUNTS_AHEAD, 1 + n), self.servers)
        rows = min(bisect_left(CAPACITIES, most) + 1, len(CAPACITIES))
        sums = np.array(
            (
                self.seconds_with,
                self.departures_from,
                self.response_squares,
                self.response_sum,
                self.response_weight,
                self.response_weight,
            )
        )
        # Tables of a few sizes, powers of two, serve all pools from the cache.
        tables = _tables(1 << (size - 1).bit_length())[:, :rows, :size]
        work, log_busy, second, mixed, norm, log_variance = (tables @ sums[:, :, None] / weight)[:, :, 0]

        # The prior adds κ responses of the usual time, that found the pool idle.
        work += prior
        second += prior * usual_seconds
        residual = np.maximum(second - (mixed + prior) ** 2 / (norm + PRIOR_WEIGHT), MIN_VARIANCE_SHARE * second)
        likelihood = log_busy - log_variance / 2 - (n + PRIOR_WEIGHT) * np.log(work * np.sqrt(residual))
        return Profile(GRID[:rows], work / (n + PRIOR_WEIGHT), likelihood, residual)

    def variation(self, weight: float) -> float:
        """Return the squared coefficient of variation of the service times at the last fit; 1 before the first one."""
        if self.fitted is None:
            return 1.0
        residual = float(self.fitted.residual[CAPACITIES.index(self.capacity)])
        return residual / (self.departed / weight + PRIOR_WEIGHT) / self.service_seconds**2

    def estimate(self, weight: float) -> CapacityEstimate:
        """Return the fitted values with 95 % intervals; (0, inf) while there is less than one response."""
        n, s, c, profile = self.departed / weight, self.service_seconds, self.capacity, self.fitted
        unknown = CapacityEstimate(self.responses, *(Interval(value, 0.0, math.inf) for value in (s, c, c / s)))
        if n < 1 or profile is None:
            return unknown
        columns = (profile.capacity, profile.service_seconds, profile.log_likelihood, profile.residual)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        enough = max(likelihood for _, _, likelihood, _ in rows) - HALF_CHI_SQUARE_95
        likely = [row for row in rows if row[2] >= enough] + [(c, s, enough, 0.0)]
        variation = max(residual / seconds**2 for _, seconds, _, residual in likely) / (n + PRIOR_WEIGHT)
        sample_size = n / max(1.0, variation)  # exponential responses that would determine s as precisely
        if sample_size < 1:
            return unknown
        down, up = gamma_quantile(sample_size, -Z95) / sample_size, gamma_quantile(sample_size, Z95) / sample_size
        throughputs = [capacity / seconds for capacity, seconds, _, _ in likely]
        slowest = max(row[1] for row in likely) / down if down > 0 else math.inf
        # Every interval includes its value, also where the sums have changed since the fit.
        return CapacityEstimate(
            self.responses,
            Interval(s, min(s, min(row[1] for row in likely) / up), max(s, slowest)),
            Interval(c, min(row[0] for row in likely), max(row[0] for row in likely)),
            Interval(c / s, min(c / s, min(throughputs) * down), max(c / s, max(throughputs) * up)),
        )
