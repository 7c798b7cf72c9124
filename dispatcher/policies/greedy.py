"""greedy: Shortest Expected Delay on estimates renewed after every completion, with no exploration.

Rule: join argmin_i (q_i + 1)/μ̂_i, μ̂_i = N_i/S_i. N_i, S_i -> `means[i]`. Source: [LASED] *Learning Adaptive SED for
heterogeneous load balancing*, the comparison policy. Limit: a pool whose estimate is far too low gets no traffic, so
its estimate is never corrected. The regret is then linear.
"""

from __future__ import annotations

from dispatcher.policies.base import LearningPolicy


class Greedy(LearningPolicy):
    """Shortest expected delay on the latest estimates, without exploration."""
