"""esed: Shortest Expected Delay with fixed guesses, which is what a weight in a configuration file amounts to.

Rule: join argmin_i (q_i + 1)/μ̂_i. μ̂_i -> `guess` of the pool. Source: [LASED] *Learning Adaptive SED for heterogeneous
load balancing*, section on estimated SED. Limit: the regret grows linearly wherever a guess is wrong enough.
"""

from __future__ import annotations

from random import Random

from dispatcher.policies.base import ScoredPolicy, check_exponent


class Esed(ScoredPolicy):
    """Shortest expected delay with the guessed rates, never renewed.

    exponent: e in (q + 1)/μ^e, above 0 and at most 1. e = 1 is SED, which minimises the delay of each request by
        itself. e = 0.7 keeps slow pools busier, and the mean over all requests is then close to the least possible.
        With c servers the delay is multiplied by μ^(1 − e). The exponent is our own (`docs/beyond-the-paper.md`);
        regret is always measured with e = 1.
    """

    def __init__(self, *, rng: Random, ties: str = "first", exponent: float = 1.0) -> None:
        super().__init__(rng=rng, ties=ties)
        self.exponent = check_exponent(exponent)
