"""How long jobs take, by their context: a geometric law with a logistic rate, and its estimate. PURE.

A job with context x that is in service ends in a round with probability σ(θ·x). Coefficients are learned one job at a
time by a step of Newton (`Logistic.learn`, d² operations). When the number of jobs has doubled, they are fitted to all
jobs so far (`fit`). A row is (x, rounds in service, whether the job ended).

Source: as `workers.scheduling.disciplines`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Context = tuple[float, ...]
Floats = NDArray[np.float64]
Row = tuple[Context, float, bool]
MAX_MEAN_ROUNDS = 1e9
MIN_EXPONENT = -700.0  # e^700 is near the largest float
FIRST_FIT_ROWS = 64  # rows at the first fit to all of them
FITTED_ROWS = 4096  # rows that are kept to fit the coefficients again
MAX_NEWTON_STEPS = 40
MIN_STEP_SCALE = 1e-3  # a damped step is not made smaller than that
MIN_RELATIVE_GAIN = 1e-24  # Newton's method stops when a step lowers the cost by no more than this part


def chance(theta: Sequence[float], x: Context) -> float:
    """Return σ(θ·x), the probability that a job in service ends in a round."""
    return 1 / mean_rounds(theta, x)


def mean_rounds(theta: Sequence[float], x: Context) -> float:
    """Return 1 + e^(−θ·x), the mean rounds of a job.

    >>> mean_rounds((0.0, 1.0), (1.0, 0.0))
    2.0
    """
    z = 0.0  # a plain loop, because contexts are short and this is called for each job
    for coefficient, component in zip(theta, x, strict=True):
        z += coefficient * component
    return min(1 + math.exp(-z), MAX_MEAN_ROUNDS) if z > MIN_EXPONENT else MAX_MEAN_ROUNDS


class Logistic:
    """Learns the coefficients of a ridge regression, step by step.

    d: the number of components of a context.
    kappa: κ of the penalty κ/2 |θ|².
    max_rows: the number of first rows that are kept. They are fitted exactly whenever there are twice as many as at the
        last fit.

    >>> model = Logistic(2, max_rows=0)
    >>> for x, rounds in (((1.0, 0.0), 1), ((1.0, 1.0), 7)):
    ...     model.learn(x, rounds)
    >>> model.theta[1] < 0
    True
    """

    def __init__(self, d: int, kappa: float = 1.0, max_rows: int = FITTED_ROWS) -> None:
        if d < 1 or not 1e-3 <= kappa <= 1e6:
            raise ValueError(f"a model needs components and a kappa from 0.001 to 1e6, not {d} and {kappa:g}")
        self.kappa = kappa
        self.observations = 0
        self._theta = np.zeros(d)
        self._c: Floats = np.eye(d) / kappa  # the inverse of the Hessian
        self._max_rows = max_rows
        self._rows: list[Row] = []
        self._next_fit = FIRST_FIT_ROWS

    @property
    def theta(self) -> tuple[float, ...]:
        return tuple(self._theta.tolist())

    def learn(self, x: Context, rounds: float, finished: bool = True) -> None:
        """Learn from a job that was in service for so many rounds, to its end or not.

        A number of rounds that is not positive and finite is ignored.
        """
        if not 0 < rounds < math.inf:
            return
        row = np.array(x)
        p = _sigma(float(self._theta @ row))
        weight = rounds * p * (1 - p)
        # The Hessian grows by weight × row rowᵀ. Sherman and Morrison's formula gives its inverse without a solution.
        cx = self._c @ row
        self._c = self._c - np.outer(cx, cx) * (weight / (1 + weight * float(row @ cx)))
        step = (self._c @ row) * (finished - rounds * p)
        # A single surprising job, such as a very long one, must not move the coefficients far.
        size = float(np.linalg.norm(step))
        self._theta = self._theta + step / max(1.0, size)
        self.observations += 1
        if self._max_rows:
            self._keep((x, rounds, finished))

    def _keep(self, row: Row) -> None:
        self._rows.append(row)
        if self.observations == self._next_fit:
            self._next_fit *= 2
            with contextlib.suppress(np.linalg.LinAlgError):  # then the estimate of the single steps stays
                self._theta, self._c = fit(self._rows, self.kappa, self._theta)
        if self.observations == self._max_rows:  # single steps are good enough from here on
            self._max_rows, self._rows = 0, []


def fit(rows: Sequence[Row], kappa: float = 1.0, start: Floats | None = None) -> tuple[Floats, Floats]:
    """Minimise Σ (n ln(1 + e^(x·θ)) − y x·θ) + κ/2 |θ|² by damped Newton steps.

    Return the minimum and the inverse of the Hessian there.

    start: where the steps begin, by default at 0.

    Raises LinAlgError if rounding hides the penalty.
    """
    x = np.array([row[0] for row in rows])
    n, y = np.array([row[1] for row in rows], dtype=float), np.array([row[2] for row in rows], dtype=float)

    def cost(theta: Floats) -> float:
        z = x @ theta
        return float((n * np.logaddexp(0, z) - y * z).sum() + kappa / 2 * theta @ theta)

    theta = np.zeros(x.shape[1]) if start is None else start
    now = cost(theta)
    for _ in range(MAX_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ theta, MIN_EXPONENT, -MIN_EXPONENT)))
        gradient = x.T @ (n * p - y) + kappa * theta
        hessian = (x * (n * p * (1 - p))[:, None]).T @ x + kappa * np.eye(len(theta))
        step = np.linalg.solve(hessian, gradient)
        scale, before = 1.0, now
        while (now := cost(theta - scale * step)) > before and scale > MIN_STEP_SCALE:
            scale /= 2
        if now > before:  # no step lowers the cost, so the rest is rounding
            break
        theta = theta - scale * step
        if float(gradient @ step) <= MIN_RELATIVE_GAIN * abs(now):
            break
    return theta, np.linalg.inv(hessian)


def _sigma(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > MIN_EXPONENT else 0.0
