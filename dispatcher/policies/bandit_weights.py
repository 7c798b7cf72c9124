"""Weights to draw from: a tree of sums for weights that change one at a time, an array for weights that all change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from dispatcher.core.expected_delay import Floats


class Weights(Protocol):
    """A list of weights of 0 or more, numbered from 0."""

    @property
    def total(self) -> float:
        """The sum of all weights."""
        ...

    def __getitem__(self, i: int) -> float: ...
    def find(self, at: float) -> int:
        """Return the number of the weight whose part of [0, total) contains `at`.

        Its weight is 0 only if all weights are 0.
        """
        ...


class SumTree:
    """A binary tree whose inner nodes hold the sums of their children.

    Each change computes the sums above it anew from their children, so rounding errors do not accumulate.

    >>> tree = SumTree([1.0, 2.0, 3.0])
    >>> tree[1] = 5.0
    >>> tree.total, tree.find(0.9), tree.find(1.0), tree.find(8.9)
    (9.0, 0, 1, 2)
    """

    __slots__ = ("_n", "_sums", "_width")

    def __init__(self, weights: Iterable[float] = ()) -> None:
        self.fill(weights)

    def __repr__(self) -> str:
        return f"<SumTree of {self._n}: {self.total:g}>"

    def __len__(self) -> int:
        return self._n

    @property
    def total(self) -> float:
        return self._sums[1]

    def fill(self, weights: Iterable[float]) -> None:
        """Replace all weights."""
        leaves = list(weights)
        self._n = len(leaves)
        self._width = width = 1 << max(0, self._n - 1).bit_length()
        self._sums = sums = [0.0] * width + leaves + [0.0] * (width - self._n)
        for i in range(width - 1, 0, -1):
            sums[i] = sums[2 * i] + sums[2 * i + 1]

    def append(self, weight: float) -> None:
        if self._n < self._width:
            self._n += 1
            self[self._n - 1] = weight
        else:
            self.fill([*self._sums[self._width :], weight])

    def __getitem__(self, i: int) -> float:
        return self._sums[self._width + i]

    def __setitem__(self, i: int, weight: float) -> None:
        sums = self._sums
        i += self._width
        sums[i] = weight
        while i > 1:
            i >>= 1
            sums[i] = sums[2 * i] + sums[2 * i + 1]

    def find(self, at: float) -> int:
        sums, width, i = self._sums, self._width, 1  # node 1 is the root, and node i has the children 2 i and 2 i + 1
        while i < width:
            i *= 2
            left = sums[i]
            # A right branch of weight 0 is never taken; rounding could lead there.
            if at >= left and sums[i + 1]:
                at -= left
                i += 1
        return i - width


class WeightArray:
    """An array of weights. It suits policies that change all weights at each step."""

    __slots__ = ("total", "weights")

    def __init__(self, weights: Floats) -> None:
        self.weights = weights
        self.total = float(weights.sum())

    def __getitem__(self, i: int) -> float:
        return float(self.weights[i])

    def find(self, at: float) -> int:
        sums = np.cumsum(self.weights)
        # `at` may not be below the last sum, because that sum and `total` are rounded differently.
        return int(np.searchsorted(sums, min(at, np.nextafter(sums[-1], 0.0)), side="right"))
