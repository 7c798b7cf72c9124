"""Expected delay, the quantity that Shortest Expected Delay minimises. Policies and regret share this one formula.

With one server it is (q + 1)/μ ([LASED] section 2). With c servers it is max(0, q + 1 − c)/(c μ) + 1/μ: the mean wait
until one of c busy servers is free for the request, plus its own service. c = 1 gives the first formula. The second one
is our choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.policy import PoolView

Floats = NDArray[np.float64]


def work_ahead(pool: PoolView) -> float:
    """Return the expected delay in units of one mean service: delay = work_ahead/μ.

    A comparison of delays can use products of it and needs no division.

    >>> from dispatcher.core.fleet import Pool
    >>> from dispatcher.core.types import PoolSpec
    >>> pool = Pool(PoolSpec("a", servers=2)); pool.in_flight = 3
    >>> work_ahead(pool)
    2.0
    """
    c = pool.servers
    if c == 1:
        return pool.in_flight + 1
    return max(0, pool.in_flight + 1 - c) / c + 1.0


class Delays:
    """The expected delays at many pools at once.

    The operations are those of `work_ahead`, so the results are equal to the bit. The requests in flight are read anew
    at each call of `scores`.

    pools: the pools of a fleet.
    rate: a function that returns the rate of a pool, 1/s.
    weight: a function of a rate. The delay of a pool is its work ahead divided by this weight.
    """

    __slots__ = ("_count", "_index", "_rate", "_servers", "_weight", "pools", "rates", "weights")

    def __init__(
        self, pools: Sequence[PoolView], rate: Callable[[PoolView], float], weight: Callable[[float], float]
    ) -> None:
        self.pools = pools
        self._rate = rate
        self._weight = weight
        self._count = len(pools)
        self._index = {pool.id: i for i, pool in enumerate(pools)}
        self._servers = np.array([pool.servers for pool in pools], dtype=float)
        self.rates = np.array([rate(pool) for pool in pools])
        self.weights = np.array([weight(rate) for rate in self.rates.tolist()])

    def scores(self) -> Floats:
        """Return the delays: shape (n,), in seconds where a weight is a rate."""
        q = np.fromiter([pool.in_flight for pool in self.pools], dtype=float, count=self._count)
        c = self._servers
        scores: Floats = (np.maximum(0.0, q + 1.0 - c) / c + 1.0) / self.weights
        return scores

    def rate_changed(self, pool: str) -> None:
        """Read the rate of one pool anew. Arrays that were returned before keep their values."""
        i = self._index.get(pool)
        if i is not None:
            rate = self._rate(self.pools[i])
            self.rates, self.weights = self.rates.copy(), self.weights.copy()
            self.rates[i], self.weights[i] = rate, self._weight(rate)
