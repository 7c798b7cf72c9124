"""Named random generators: one for each source of randomness, so that policies with one seed see the same traffic.

The names in use are `arrivals`, `work/<pool index>` and `policy`. A generator is Python's Mersenne Twister seeded by
the string "<seed>/<name>". Python hashes string seeds with SHA-512, so neighbouring seeds are unrelated.
"""

from __future__ import annotations

from random import Random


def stream(seed: int, name: str) -> Random:
    """Return the random generator of this name.

    >>> stream(1, "arrivals").expovariate(1.0)
    1.2110714310295712
    """
    return Random(f"{seed}/{name}")
