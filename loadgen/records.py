"""The raw stamps of a run: three for each request, planned, sent and done. Every report is a function of them."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UNFINISHED = 0  # status of a request that got no answer


class Records:
    """n requests. Times are seconds from the start of the run; NaN where a thing has not happened.

    planned, sent, done: shape (n,). status: HTTP status, 0 for no answer. pools: who answered, by X-Pool; "" unknown.
    """

    def __init__(self, planned: NDArray[np.float64]) -> None:
        n = len(planned)
        self.planned = planned
        self.sent = np.full(n, np.nan)
        self.done = np.full(n, np.nan)
        self.status = np.zeros(n, dtype=np.int16)
        self.pools = [""] * n
        self.errors: Counter[str] = Counter()  # kinds of failure that left a request without a status

    def __len__(self) -> int:
        return len(self.planned)

    @property
    def completed(self) -> NDArray[np.bool_]:
        """Answered with a status below 400."""
        return (self.status >= 200) & (self.status < 400)

    @property
    def response(self) -> NDArray[np.float64]:
        """done − planned of the completed ones: what a user would have waited, whoever was late."""
        return np.asarray((self.done - self.planned)[self.completed])

    @property
    def service(self) -> NDArray[np.float64]:
        """done − sent of the completed ones: what the system took, the generator's lateness left out."""
        return np.asarray((self.done - self.sent)[self.completed])

    @property
    def lateness(self) -> NDArray[np.float64]:
        """sent − planned of all that were sent."""
        late = self.sent - self.planned
        return np.asarray(late[~np.isnan(late)])

    def write_csv(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("planned", "sent", "done", "status", "pool"))
            writer.writerows(
                zip(
                    self.planned.tolist(),
                    self.sent.tolist(),
                    self.done.tolist(),
                    self.status.tolist(),
                    self.pools,
                    strict=True,
                )
            )
