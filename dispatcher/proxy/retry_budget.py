"""How many retries there may be: a share of the requests, and so many a second. PURE.

The budget keeps retries from multiplying an overload.
"""

from __future__ import annotations

from dispatcher.settings import LiveSettings

BURST_SECONDS, BURST_REQUESTS = 10, 100  # the budget saves up what this time and this many requests earn


class RetryBudget:
    """Counts what requests earn and retries spend.

    >>> from dispatcher.settings import LiveSettings, Retry, Settings
    >>> budget = RetryBudget(LiveSettings(Settings(retry=Retry(budget=0.5, per_second=0.0))))
    >>> for _ in range(3):
    ...     budget.earn()
    >>> budget.spend(0.0), budget.spend(0.0)
    (True, False)
    """

    __slots__ = ("_retries", "_settings", "_spent_at")

    def __init__(self, settings: LiveSettings) -> None:
        self._settings = settings
        self._retries = settings.retry.per_second
        self._spent_at: float | None = None

    def earn(self) -> None:
        """A request was admitted."""
        retry = self._settings.retry
        most = BURST_REQUESTS * retry.budget + BURST_SECONDS * retry.per_second
        self._retries = min(self._retries + retry.budget, most)

    def spend(self, now: float) -> bool:
        """Spend one retry. Return whether there was one. now: seconds, never decreasing."""
        retry = self._settings.retry
        if self._spent_at is not None:
            most = BURST_REQUESTS * retry.budget + BURST_SECONDS * retry.per_second
            self._retries = min(self._retries + (now - self._spent_at) * retry.per_second, most)
        self._spent_at = now
        if self._retries < 1.0:
            return False
        self._retries -= 1.0
        return True
