"""Detects that a pool has changed: its recent departures take another amount of work than its earlier ones.

The work of a departure is the work that the pool has done since the departure before, in expected service times. Its
mean is 1 while the fitted curve is right, for every discipline and every routing. Work above `MAX_WORK` is not counted,
so single long requests of a heavy-tailed law have little weight.

Two fading means of the work are compared: the short one covers about 60 departures, the long one about 1,400. The
pool has changed if they differ by more than `Z` standard errors. The standard error is the larger of two: that of
exponential work, and the root mean square of the earlier differences. The second one is right for work that is
correlated, or that the curve describes badly. Source: the test is our own.
"""

from __future__ import annotations

SHORT_GAIN = 1 - 2 ** (-1 / 40)  # weight of the newest departure in the short mean; it fades by half in 40 departures
LONG_GAIN = 1 - 2 ** (-1 / 1000)  # the same for the long mean
MAX_WORK = 4.0  # expected service times
Z = 5.0
MIN_DEPARTURES = 200  # before the first result
MIN_SQUARE = SHORT_GAIN / (2 - SHORT_GAIN)  # the variance of the short mean of exponential work
MAX_SQUARE = 9.0  # a squared difference counts as at most this many usual ones; otherwise a change looks like noise


class Surprise:
    """The test for one pool. All its numbers are in expected service times.

    >>> surprise = Surprise()
    >>> def departures(seconds, times):
    ...     for _ in range(times):
    ...         surprise.spend(seconds)
    ...         yield surprise.depart(service_seconds=0.1)
    >>> any(departures(0.1, times=500)), any(departures(0.3, times=50))
    (False, True)
    """

    __slots__ = ("_departures", "_long", "_short", "_square", "_work")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start the test anew."""
        self._work = 0.0
        self._departures = 0
        self._short = self._long = self._square = 0.0

    def spend(self, seconds: float) -> None:
        """Count work that the pool has done, in seconds."""
        self._work += seconds

    def depart(self, service_seconds: float) -> bool:
        """Count a departure and return whether the pool has changed. service_seconds: its expected work."""
        work = self._work / service_seconds
        if work > MAX_WORK:
            work = MAX_WORK
        self._work = 0.0
        self._departures += 1
        newest = 1 / self._departures  # until enough departures are known, all have the same weight in the means
        self._short += (SHORT_GAIN if newest < SHORT_GAIN else newest) * (work - self._short)
        gain = LONG_GAIN if newest < LONG_GAIN else newest
        square, usual = (self._short - self._long) ** 2, self._square
        if usual < MIN_SQUARE:
            usual = MIN_SQUARE
        self._long += gain * (work - self._long)
        self._square += gain * (min(square, MAX_SQUARE * usual) - self._square)
        return square > Z * Z * usual and self._departures >= MIN_DEPARTURES
