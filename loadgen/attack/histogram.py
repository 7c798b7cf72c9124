"""Counts times in HdrHistograms: three digits of precision for any number of times, in bounded memory."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

MIN_MICROSECONDS, MAX_MICROSECONDS = 1, 86_400_000_000  # the resolution, and a day
DIGITS = 3
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}


class Histogram:
    """A histogram of times in seconds. Percentiles are exact to 0.1 % or 1 µs; mean and maximum are exact."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(MIN_MICROSECONDS, MAX_MICROSECONDS, DIGITS)
        self._total = self.largest = 0.0
        self.count = 0

    def add(self, times: NDArray[np.float64]) -> None:
        if not len(times):
            return
        self.count += len(times)
        self._total += float(times.sum())
        self.largest = max(self.largest, float(times.max()))
        rounded = np.clip(np.rint(times * 1e6), MIN_MICROSECONDS, MAX_MICROSECONDS).astype(np.int64)
        values, counts = np.unique(rounded, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self._counts.record_value(value, count)

    @property
    def mean(self) -> float | None:
        return self._total / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """Return the smallest time with `share` percent of the times at or below it; None without times."""
        if not self.count:
            return None
        # 1e-9 undoes rounding errors above a whole number. The library rounds to the rank that is passed to it.
        rank = max(1, math.ceil(share * self.count / 100 - 1e-9))
        value = self._counts.get_value_at_percentile(100 * rank / self.count)
        # A bucket's value can be above all times in it.
        return min(float(value) / 1e6, self.largest)

    def summary(self) -> dict[str, float | None]:
        """Return mean, percentiles and max in seconds; all are None without times."""
        percentiles = {name: self.percentile(share) for name, share in PERCENTILES.items()}
        return {"mean": self.mean, **percentiles, "max": self.largest if self.count else None}

    def write_hgrm(self, path: Path) -> None:
        """Write the percentile distribution in milliseconds, in the format of HdrHistogram's plotter."""
        text = io.BytesIO()
        self._counts.output_percentile_distribution(text, 1000.0)
        path.write_bytes(text.getvalue())


def distribution(times: NDArray[np.float64]) -> dict[str, float | None]:
    """Return mean, percentiles and max of some times in seconds; all are None without times.

    >>> summary = distribution(np.array([1.0, 2.0, 4.0]))
    >>> round(summary["p50"], 2), summary["max"]
    (2.0, 4.0)
    """
    histogram = Histogram()
    histogram.add(times)
    return histogram.summary()
