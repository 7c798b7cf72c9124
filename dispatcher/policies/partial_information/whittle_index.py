"""Whittle indices of a pool that is observed only when it is filled: the paper's two models, in time slots. PURE.

Model 1, `finite`: a pick fills the queue to K and earns K − Q. The state is τ ≥ 1, the slots since the last pick.
Model 2, `blocking`: K jobs are accepted only by an empty queue. The state is (q, τ): the last known backlog and its
age. μ is the number of services per slot, Poisson. β is the discount, 1 for the average reward. The index W is the
least subsidy for idling at which idling is optimal; the pool of the largest index is picked.

Source: Chadaga and Modiano, *Load Balancing with Partial Queue Information: Threshold Optimality and Indexability*. The
closed form and the sweep were derived from their model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.policies.partial_information.queue_estimate import expected_left, lower_gamma

Floats = NDArray[Any]  # of floats


def reward(tau: float, k: float, mu: float) -> float:
    """Return R(τ) = K − E[(K − N)⁺] with N Poisson of mean μτ: what a pick at age τ earns. It is the myopic index."""
    return k - expected_left(k, mu * tau)


def finite(tau: float, k: float, mu: float, beta: float = 1.0) -> float:
    """Return W(τ) of Model 1 in closed form.

    It is [(1 − β^{τ+1}) R(τ) − β (1 − β^τ) R(τ+1)]/(1 − β), and (τ+1) R(τ) − τ R(τ+1) for β = 1.

    >>> round(finite(3, 5, 1.0, 0.9), 9), round(finite(5, 10, 2.0), 9)
    (1.098771837, 5.311339034)
    """
    now, later = expected_left(k, mu * tau), expected_left(k, mu * (tau + 1))
    if beta == 1.0:
        return k - now - tau * (now - later)
    return k - now - beta * -math.expm1(tau * math.log(beta)) / (1 - beta) * (now - later) if beta else k - now


def idled(gamma: float, k: float, mu: float, beta: float = 1.0, most: int = 1_000_000) -> int:
    """Return τ*, the optimal number of idle slots between picks at a subsidy γ.

    It satisfies W(τ*) ≤ γ < W(τ* + 1), with W(0) = 0. most: an upper bound of the result.
    """
    if gamma < 0:
        return 0
    tau = 0
    while tau < most and finite(tau + 1, k, mu, beta) <= gamma:
        tau += 1
    return tau


def value(gamma: float, k: float, mu: float, beta: float) -> float:
    """Return the value V(1) of Model 1 at a subsidy γ, for β < 1. The optimal policy idles τ* slots, then picks."""
    n = idled(gamma, k, mu, beta)
    return (gamma * (1 - beta**n) / (1 - beta) + beta**n * reward(n + 1, k, mu)) / (1 - beta ** (n + 1))


def continuous(t: float, k: float, mu: float) -> float:
    """Return the average-reward index if picks take no time.

    It is K times the probability that the pool has wasted a service already. t: seconds since the last pick.
    """
    return k * lower_gamma(k + 1, mu * t)


@dataclass(frozen=True, slots=True)
class Table:
    """The indices W(q, τ) of Model 2.

    A pool is indexable if the breakpoints do not decrease and every marginal work is positive.

    indices: shape (K, ages); the index of (q, τ) stands in row q − 1 and column τ − 1.
    breakpoints: the subsidies at which the optimal policy changes, in the order of the sweep.
    least_work: the least marginal work.
    """

    indices: Floats
    breakpoints: Floats
    least_work: float

    @property
    def is_indexable(self) -> bool:
        return bool(np.all(np.diff(self.breakpoints) >= -1e-8) and self.least_work > 0)

    def __call__(self, q: int, tau: int) -> float:
        """Return the index of (q, τ). Beyond the table its last age counts."""
        return float(self.indices[q - 1, min(tau, self.indices.shape[1]) - 1])


def blocking(k: int, mu: float, beta: float = 1.0, ages: int | None = None) -> Table:
    """Compute the Whittle indices of Model 2.

    The subsidy is raised from −∞. At each step exactly one state becomes optimal to idle in, and the present subsidy is
    its index. This takes about K · ages solutions of K linear equations: milliseconds for small K.

    k: K, from 1 to 200.
    ages: the sweep stops when some threshold reaches this age. By default it stops when K − W < 1e-9 K.
    Raises ValueError if an argument is out of range.
    """
    if not (1 <= k <= 200 and 0 < mu < math.inf and 0 <= beta <= 1):
        raise ValueError(f"capacity must be from 1 to 200, rate positive, beta from 0 to 1, not {k}, {mu:g}, {beta:g}")
    ages = ages or math.ceil((k + 7 * math.sqrt(k) + 18) / mu) + 2
    kernel = _Kernel(k, mu, ages)
    average = beta == 1.0
    discount = 1.0 if average else beta
    ages_at = np.ones(k, dtype=int)  # T_q: at the lowest subsidy every pick is made at once
    indices = np.full((k, ages), np.nan)
    breakpoints, least = [], math.inf
    rows = np.arange(k)
    while ages_at.max() < ages:
        base, slope, gain = _solve(kernel, ages_at, discount, average)
        # For each backlog: the subsidy at which a pick at the present threshold equals one more slot of idling.
        now, then = kernel.moves[rows, ages_at - 1], kernel.moves[rows, ages_at]
        earned = k * (kernel.empty[rows, ages_at - 1] - discount * kernel.empty[rows, ages_at])
        moved = now - discount * then
        work = 1 - discount * (moved @ slope) - gain[1]
        gammas = (earned + discount * (moved @ base) + gain[0]) / work
        q = int(np.argmin(gammas))
        least = min(least, float(work[q]))
        indices[q, ages_at[q] - 1] = gammas[q]
        breakpoints.append(float(gammas[q]))
        ages_at[q] += 1
    return Table(_completed(indices, k), np.array(breakpoints), least)


class _Kernel:
    """The transitions of Model 2 for each backlog q and age τ.

    empty: F(q, τ), the probability of an empty queue, at [q − 1, τ − 1].
    moves: the distribution of the backlog after a pick, at [q − 1, τ − 1].
    """

    def __init__(self, k: int, mu: float, ages: int) -> None:
        self.empty, self.moves = np.zeros((k, ages)), np.zeros((k, ages, k))
        factorials = np.array([math.lgamma(j + 1) for j in range(k + 1)])
        for tau in range(1, ages + 1):
            x = mu * tau
            mass = np.exp(np.arange(k + 1) * math.log(x) - x - factorials)
            for q in range(1, k + 1):
                empty = lower_gamma(q, x)
                self.empty[q - 1, tau - 1] = empty
                self.moves[q - 1, tau - 1, :q] = mass[q - 1 :: -1] if q > 1 else mass[:1]
                self.moves[q - 1, tau - 1, k - 1] += empty


def _solve(
    kernel: _Kernel, ages_at: NDArray[np.int64], beta: float, average: bool
) -> tuple[Floats, Floats, tuple[float, float]]:
    """Return the values of the threshold policy as base and slope of γ, and its gain for the average reward likewise.

    ages_at: T_q, the threshold of each backlog, shape (K,).
    average: whether the reward is the average one.
    """
    k = len(ages_at)
    rows = np.arange(k)
    moves, earned = kernel.moves[rows, ages_at - 1], k * kernel.empty[rows, ages_at - 1]
    idle = ages_at - 1
    if average:  # h_q = γ (T_q − 1) + K F + M h − g T_q with h_K = 0, so the last column is free for the gain
        system = np.eye(k) - moves
        system[:, k - 1] = ages_at
        values = np.linalg.solve(system, np.stack([earned, idle.astype(float)], axis=1))
        gain = (float(values[k - 1, 0]), float(values[k - 1, 1]))
        values[k - 1] = 0.0
        return values[:, 0], values[:, 1], gain
    faded = beta**idle
    idled = (1 - faded) / (1 - beta)
    system = np.eye(k) - beta * faded[:, None] * moves
    values = np.linalg.solve(system, np.stack([faded * earned, idled], axis=1))
    return values[:, 0], values[:, 1], (0.0, 0.0)


def _completed(indices: Floats, k: int) -> Floats:
    """Fill in the ages that the sweep did not reach, with increasing values just below K."""
    for row in indices:
        reached = int(np.sum(~np.isnan(row)))
        last = row[reached - 1] if reached else 0.0
        missing = len(row) - reached
        row[reached:] = last + (k - last) * np.arange(1, missing + 1) / (missing + 1)
    return indices
