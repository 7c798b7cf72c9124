"""Whittle indices of a pool that is filled up and seen only then: the paper's two models, in slots. PURE.

Model 1, `finite`: a pick fills the queue to K and earns K − Q. State: τ ≥ 1 slots since the last pick.
Model 2, `blocking`: K jobs are accepted only by an empty queue. State: (q, τ), the backlog last known and its age.
μ: services a slot, Poisson; β: discount, 1 for the average reward. The index W is the least subsidy for idling at which
idling is optimal; join the largest. Source: Chadaga and Modiano, *Load Balancing with Partial Queue Information:
Threshold Optimality and Indexability*; the closed form and the sweep were derived from their model.
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
    """R(τ) = K − E[(K − N)⁺], N Poisson of mean μτ: what a pick at age τ earns, and the myopic index."""
    return k - expected_left(k, mu * tau)


def finite(tau: float, k: float, mu: float, beta: float = 1.0) -> float:
    """W(τ) of Model 1 in closed form: [(1 − β^{τ+1}) R(τ) − β (1 − β^τ) R(τ+1)]/(1 − β); (τ+1) R(τ) − τ R(τ+1) for β =
    1.

    >>> round(finite(3, 5, 1.0, 0.9), 9), round(finite(5, 10, 2.0), 9)
    (1.098771837, 5.311339034)
    """
    now, later = expected_left(k, mu * tau), expected_left(k, mu * (tau + 1))
    if beta == 1.0:
        return k - now - tau * (now - later)
    return k - now - beta * -math.expm1(tau * math.log(beta)) / (1 - beta) * (now - later) if beta else k - now


def idled(gamma: float, k: float, mu: float, beta: float = 1.0, most: int = 1_000_000) -> int:
    """τ*, the slots that are idled between picks at a subsidy γ: W(τ*) ≤ γ < W(τ* + 1), with W(0) = 0."""
    if gamma < 0:
        return 0
    tau = 0
    while tau < most and finite(tau + 1, k, mu, beta) <= gamma:
        tau += 1
    return tau


def value(gamma: float, k: float, mu: float, beta: float) -> float:
    """V(1) of Model 1 at a subsidy γ, β < 1: idle τ* slots, then pick."""
    n = idled(gamma, k, mu, beta)
    return (gamma * (1 - beta**n) / (1 - beta) + beta**n * reward(n + 1, k, mu)) / (1 - beta ** (n + 1))


def continuous(t: float, k: float, mu: float) -> float:
    """The average-reward index where picks cost no time: K times the chance that the pool has wasted a service
    already."""
    return k * lower_gamma(k + 1, mu * t)


@dataclass(frozen=True, slots=True)
class Table:
    """W(q, τ) of Model 2; shape (K, ages), row q − 1, column τ − 1. breakpoints: the subsidies at which the optimal
    policy changes, in the order of the sweep. If they do not fall and every marginal work is positive, the pool is
    indexable."""

    indices: Floats
    breakpoints: Floats
    least_work: float

    @property
    def is_indexable(self) -> bool:
        return bool(np.all(np.diff(self.breakpoints) >= -1e-8) and self.least_work > 0)

    def __call__(self, q: int, tau: int) -> float:
        """Beyond the table, its last age."""
        return float(self.indices[q - 1, min(tau, self.indices.shape[1]) - 1])


def blocking(k: int, mu: float, beta: float = 1.0, ages: int | None = None) -> Table:
    """All indices of Model 2, by a sweep of the subsidy from −∞: at each step the one state whose idling pays next.

    ages: until some threshold reaches so many; by default until K − W < 1e-9 K. Takes about K · ages solutions of K
    linear equations: milliseconds for small K. Raises ValueError.
    """
    if not (1 <= k <= 200 and 0 < mu < math.inf and 0 <= beta <= 1):
        raise ValueError(f"capacity must be from 1 to 200, rate positive, beta from 0 to 1, not {k}, {mu:g}, {beta:g}")
    ages = ages or math.ceil((k + 7 * math.sqrt(k) + 18) / mu) + 2
    kernel = _Kernel(k, mu, ages)
    average = beta == 1.0
    discount = 1.0 if average else beta
    ages_at = np.ones(k, dtype=int)  # T_q
    indices = np.full((k, ages), np.nan)
    breakpoints, least = [], math.inf
    rows = np.arange(k)
    while ages_at.max() < ages:
        base, slope, gain = _solve(kernel, ages_at, discount, average)
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
    """empty[q − 1, τ − 1] = F(q, τ), the chance of an empty queue; moves[q − 1, τ − 1] the law of the backlog after a
    pick."""

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
    """Values of the threshold policy as base + slope · γ, and for the average reward its gain, likewise affine."""
    k = len(ages_at)
    rows = np.arange(k)
    moves, earned = kernel.moves[rows, ages_at - 1], k * kernel.empty[rows, ages_at - 1]
    idle = ages_at - 1
    if average:  # h_q = γ (T_q − 1) + K F + M h − g T_q, h_K = 0: the last column is the gain
        system = np.eye(k) - moves
        system[:, k - 1] = ages_at
        found = np.linalg.solve(system, np.stack([earned, idle.astype(float)], axis=1))
        gain = (float(found[k - 1, 0]), float(found[k - 1, 1]))
        found[k - 1] = 0.0
        return found[:, 0], found[:, 1], gain
    faded = beta**idle
    idled = (1 - faded) / (1 - beta)
    system = np.eye(k) - beta * faded[:, None] * moves
    found = np.linalg.solve(system, np.stack([faded * earned, idled], axis=1))
    return found[:, 0], found[:, 1], (0.0, 0.0)


def _completed(indices: Floats, k: int) -> Floats:
    """Ages that the sweep did not reach get increasing values just below K."""
    for row in indices:
        reached = int(np.sum(~np.isnan(row)))
        last = row[reached - 1] if reached else 0.0
        missing = len(row) - reached
        row[reached:] = last + (k - last) * np.arange(1, missing + 1) / (missing + 1)
    return indices
