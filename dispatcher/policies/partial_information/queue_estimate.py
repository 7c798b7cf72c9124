"""Estimates of the backlog of a pool that was observed some time ago. PURE.

Symbols: q is the backlog at the observation, μ is the pool's rate, and t is the seconds since the observation. m = μt
is the number of services that were possible since. N is a Poisson variable of mean m. ν is the arrivals per second that
others send.

Source: Chadaga and Modiano, *Load Balancing with Partial Queue Information*. The forms for single requests and for
several dispatchers were derived from it (`docs/many-dispatchers.md`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

RELAXATION = 0.1  # in units of the pool's rate: how fast an observed backlog fades into the usual one
TINY = 1e-300  # replaces a zero divisor
MAX_LOAD = 0.999  # of the sum of the rates; the split has a solution below 1 only
MIN_DRIFT = 1e-4  # the least difference of μ and ν, in units of their sum


def lower_gamma(a: float, x: float) -> float:
    """Return P(a, x), the regularised lower incomplete gamma function.

    For whole a it is the probability that a Poisson variable of mean x is at least a. The series is used for x below
    a + 1, otherwise `upper_gamma`.

    >>> round(lower_gamma(5, 2.5), 9), lower_gamma(0, 1.0)
    (0.108821981, 1.0)
    """
    if a <= 0:
        return 1.0
    if x <= 0:
        return 0.0
    if x >= a + 1:
        return 1.0 - upper_gamma(a, x)
    # The series is Σ x^k/(a (a + 1) … (a + k)).
    term = total = 1 / a
    n = a
    while term > total * 1e-17:
        n += 1
        term *= x / n
        total += term
    return min(1.0, total * math.exp(a * math.log(x) - x - math.lgamma(a)))


def upper_gamma(a: float, x: float) -> float:
    """Return Q(a, x) = 1 − P(a, x), without cancellation where it is small.

    Lentz's continued fraction is used for x from a + 1 on.

    >>> round(upper_gamma(5, 8), 6)
    0.099632
    """
    if a <= 0:
        return 0.0
    if x < a + 1:
        return 1.0 - lower_gamma(a, x)
    b = x + 1 - a
    c, d = 1 / TINY, 1 / b
    h = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2
        d = 1 / (step * d + b or TINY)  # Lentz's method replaces a zero divisor by a tiny one
        c = b + step / c or TINY
        h *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return h * math.exp(a * math.log(x) - x - math.lgamma(a))


def expected_left(q: float, m: float) -> float:
    """Return e(q, m) = E[(q − N)⁺]: what is left of q jobs after m possible services and no arrival.

    >>> round(expected_left(3, 2.0), 9), expected_left(4, 0.0)
    (1.218017549, 4.0)
    """
    if q <= 0:
        return 0.0
    if m <= 0:
        return float(q)
    if m > q + 12 * math.sqrt(q) + 45:  # the result would be below the precision of a float
        return 0.0
    return max(0.0, (q - m) * upper_gamma(q, m) + math.exp(q * math.log(m) - m - math.lgamma(q)))


def psi(busy: float, idle: float) -> float:
    """Return the index of sending one request, in mean services: ψ(p) = 1 + p (1 − ln p)(1 − p)^−(1.8 − 0.52 p).

    ψ is a fit to the Whittle index of the routing arm, which depends on p only. The pool of the least ψ/μ is the best.

    busy: p, the probability that the pool is busy.
    idle: 1 − p. It is a parameter of its own because it may be tiny.

    >>> round(psi(0.5, 0.5), 4), psi(0.0, 1.0)
    (3.4618, 1.0)
    """
    if busy <= 0:
        return 1.0
    # The power is computed as a logarithm and cut off, because it overflows for tiny `idle`.
    power = -(1.8 - 0.52 * busy) * math.log(max(idle, TINY))
    return 1 + busy * (1 - math.log(busy)) * math.exp(min(power, 600.0))


def with_others(q: float, t: float, mu: float, nu: float) -> tuple[float, float]:
    """Return E[Q] and P(busy) after t seconds in which others sent ν requests per second.

    The model is a reflected Brownian motion with the drift and variance of the birth-death process. It starts half a
    job higher and is read half a job lower, and it is kept between pathwise bounds. For ν < μ the error is at most
    0.053 jobs and 0.042 in P(busy).
    """
    m = mu * t
    alone, empty = expected_left(q, m), lower_gamma(q, m)  # as if the others sent nothing
    if t <= 0:
        return float(q), float(q > 0)
    if nu <= 0:
        return alone, 1 - empty
    spread = mu + nu
    c = mu - nu
    if abs(c) < MIN_DRIFT * spread:  # the formula divides by the drift
        c = math.copysign(MIN_DRIFT * spread, c or 1.0)
    x, sd, k = q + 0.5, math.sqrt(spread * t), spread / (2 * c)
    a, b = (c * t - x) / sd, (c * t + x) / sd
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    below = _normal(-a)
    # Φ is used as a logarithm here, because its factor overflows where Φ underflows.
    left = k + sd * density - (c * t - x + k) * below - k * math.exp(2 * c * x / spread + _log_normal(-b)) - 0.5
    busy = (nu + c * below - spread * density / sd) / mu
    # Bounds: without the others, and with all of their arrivals on top of that.
    return (
        min(max(left, alone), alone + nu * t),
        min(max(busy, 1 - empty), 1 - empty * math.exp(-nu * t)),
    )


def relaxed(q: float, t: float, mu: float, usual: float) -> float:
    """Return an observed backlog that has faded into the usual one: q̄ + (q − q̄) exp(−0.1 μt).

    The rule needs no ν. Others react to the backlog as well, so in the long run it neither vanishes nor grows.

    usual: q̄.
    """
    return usual + (q - usual) * math.exp(-RELAXATION * mu * t)


def static_split(rates: Sequence[float], load: float) -> list[float]:
    """Return λ*_i, the static split of a load that minimises the mean delay of independent M/M/1 queues.

    It is μ_i − √μ_i (Σμ − Λ)/Σ√μ over the fastest pools for which that is positive, and 0 for the others.

    rates: μ_i, per second.
    load: Λ, requests per second. A load beyond the sum of the rates counts as 99.9 % of that sum.

    >>> [round(share, 6) for share in static_split([4, 3, 2, 1, 1, 0.5], 7)]
    [2.853995, 2.007531, 1.189652, 0.426998, 0.426998, 0.094826]
    """
    load = min(max(load, 0.0), MAX_LOAD * sum(rates))
    order = sorted(range(len(rates)), key=lambda i: -rates[i])
    total, roots = sum(rates), sum(math.sqrt(rate) for rate in rates)
    shares = [0.0] * len(rates)
    # The slowest pools are left out one by one, until the slowest one in use gets a positive share.
    for used in range(len(order), 0, -1):
        slack = (total - load) / roots
        slowest = rates[order[used - 1]]
        if math.sqrt(slowest) > slack or used == 1:
            for i in order[:used]:
                shares[i] = max(0.0, rates[i] - math.sqrt(rates[i]) * slack)
            break
        total, roots = total - slowest, roots - math.sqrt(slowest)
    return shares


def _normal(x: float) -> float:
    """Return Φ(x), the normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _log_normal(x: float) -> float:
    """Return ln Φ(x). Where Φ itself would underflow, the asymptotic series is used."""
    if x > -30:
        return math.log(_normal(x))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2)
