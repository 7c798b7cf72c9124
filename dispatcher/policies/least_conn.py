"""least_conn: each request joins the pool with the least (q + 1)/w, where w is the weight, `guess` times `servers`.

Rule: argmin (q_i + 1)/w_i, where q_i is the number of requests in flight. The request to be routed is counted, so the
rule compares the pools as they would be after it joined. Source: Linux Virtual Server, scheduler `sed` (ip_vs_sed.c).

Three policies here are close to it:
- `nginx_least_conn` compares q_i/w_i. All idle pools then tie, and weighted round robin decides among them.
- `haproxy_leastconn` gives an idle pool the score 0. An idle pool then goes before every busy one, however slow it is.
- `esed` is the same rule for pools of one server. For more servers it counts only the requests that have to wait.
Here an idle pool has the score 1/w_i, so a fast pool with few requests can go before a slow idle one.

Limits: the weights are fixed, so a wrong guess stays wrong. With equal weights the rule is that of `jsq`.
"""

from __future__ import annotations

from dispatcher.core.policy import PoolView
from dispatcher.policies.base import ScoredPolicy


class LeastConn(ScoredPolicy):
    """Least (requests in flight + 1)/weight; the weight is guess × servers.

    ties: `first` (the first pool of the fleet), `random`, `slowest` or `fastest` (by the guess).
    """

    def score(self, pool: PoolView, now: float) -> float:
        return (pool.in_flight + 1) / self.weight(pool.id)
