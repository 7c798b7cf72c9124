"""Times as HdrHistograms: three digits of precision over any number of them, in bounded memory."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

LEAST, MOST = 1, 86_400_000_000  # microseconds: the resolution, and a day
DIGITS = 3
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}


class Histogram:
    """Of seconds. Percentiles are right to 0.1 % or 1 µs; mean and max are exact."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(LEAST, MOST, DIGITS)
        self._total = self.largest = 0.0
        self.count = 0

    def add(self, times: NDArray[np.float64]) -> None:
        if not len(times):
            return
        self.count += len(times)
        self._total += float(times.sum())
        self.largest = max(self.largest, float(times.max()))
        rounded = np.clip(np.rint(times * 1e6), LEAST, MOST).astype(np.int64)
        for value, count in zip(*(found.tolist() for found in np.unique(rounded, return_counts=True)), strict=True):
            self._counts.record_value(value, count)

    @property
    def mean(self) -> float | None:
        return self._total / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """The smallest value with `share` percent at or below it; None if there are none."""
        if not self.count:
            return None
        rank = max(1, math.ceil(share * self.count / 100 - 1e-9))
        value = self._counts.get_value_at_percentile(100 * rank / self.count)  # which rounds to that rank
        return min(float(value) / 1e6, self.largest)

    def summary(self) -> dict[str, float | None]:
        """mean, percentiles and max, seconds; all None if empty."""
        found = {name: self.percentile(share) for name, share in PERCENTILES.items()}
        return {"mean": self.mean, **found, "max": self.largest if self.count else None}

    def write_hgrm(self, path: Path) -> None:
        """The percentile distribution in milliseconds, as HdrHistogram's plotter reads it."""
        text = io.BytesIO()
        self._counts.output_percentile_distribution(text, 1000.0)
        path.write_bytes(text.getvalue())


def distribution(times: NDArray[np.float64]) -> dict[str, float | None]:
    """mean, percentiles and max of some times, seconds; all None if empty.

    >>> found = distribution(np.array([1.0, 2.0, 4.0]))
    >>> round(found["p50"], 2), found["max"]
    (2.0, 4.0)
    """
    histogram = Histogram()
    histogram.add(times)
    return histogram.summary()
