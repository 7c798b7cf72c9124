"""Named random streams: one for each source of chance, so that two policies on one seed see the same traffic.

Names in use: `arrivals`, `work/<pool index>`, `policy`. A stream is Python's Mersenne Twister seeded by the string
"<seed>/<name>"; string seeds go through SHA-512, so neighbouring seeds give unrelated streams.
"""

from __future__ import annotations

from random import Random


def stream(seed: int, name: str) -> Random:
    """The stream of this name.

    >>> stream(1, "arrivals").expovariate(1.0)
    1.2110714310295712
    """
    return Random(f"{seed}/{name}")
