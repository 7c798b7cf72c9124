"""Expected delay, the quantity that Shortest Expected Delay minimises. One formula, shared by policies and regret.

One server: (q + 1) / μ ([LASED] section 2). With c servers (chosen): max(0, q + 1 − c)/(c μ) + 1/μ, the mean wait until
one of c busy servers gets to the request plus its own service; c = 1 gives the first formula back.
"""

from __future__ import annotations

from dispatcher.core.interfaces import PoolView


def work_ahead(pool: PoolView) -> float:
    """The delay in units of one mean service: delay = work_ahead / μ. Comparing products of it needs no division.

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
