"""esed: Shortest Expected Delay with fixed guesses; what a weight in a configuration file amounts to.

Rule: join argmin_i (q_i + 1)/μ̂_i. μ̂_i -> `guess` of the pool, for ever. Source: [LASED] *Learning Adaptive SED for
heterogeneous load balancing*, section on estimated SED. Limit: regret grows linearly wherever a guess is wrong enough.
"""

from __future__ import annotations

from dispatcher.policies.base import SedPolicy


class Esed(SedPolicy):
    """Shortest expected delay with the guessed rates, never renewed."""
