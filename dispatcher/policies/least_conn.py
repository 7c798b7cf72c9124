"""least_conn: weighted least connections; the least (q + 1)/w, where w is the weight, `guess` times `servers`.

Rule: argmin (q_i + 1)/w_i. The request to be routed is counted, so the pools are compared as they would be after it
joined. Source: Linux Virtual Server, its scheduler `sed` (ip_vs_sed.c).

`nginx_least_conn` compares q_i/w_i: all its idle pools tie, and weighted round robin decides among them.
`haproxy_leastconn` gives an idle pool the key 0, so an idle pool goes before every busy one, however slow it is.
This policy gives an idle pool 1/w_i: a fast pool with few requests can go before a slow idle one. `esed` is the same
rule for pools of one server; for more servers it counts only the requests that wait for one.

Limits: the weights are fixed, so a wrong guess stays wrong; with equal weights the rule is that of `jsq`.
"""

from __future__ import annotations

from dispatcher.core.interfaces import PoolView
from dispatcher.policies.base import IndexPolicy


class LeastConn(IndexPolicy):
    """Least (requests in flight + 1)/weight, where the weight is guess × servers.

    ties: `first` (the first pool of the fleet), `random`, `slowest`, `fastest` (by the guess).
    """

    def score(self, pool: PoolView, now: float) -> float:
        return (pool.in_flight + 1) / self.weight(pool.id)
