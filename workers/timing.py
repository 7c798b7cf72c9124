"""An event loop whose timers are good to some tens of microseconds.

asyncio waits in epoll, which counts milliseconds, so its timers fire 0.5 ms late on average. select(2) counts
microseconds and can wait for the epoll descriptor like for any other. So this loop first waits in select, and then asks
epoll what has happened.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from typing import Any

if sys.platform == "linux":

    class PreciseSelector(selectors.EpollSelector):
        """Waits for epoll with the time-outs of select."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
            # Without a timeout nothing needs precision: epoll itself waits, or only looks.
            if timeout is not None and timeout > 0:
                select.select([self], [], [], timeout)
                timeout = 0
            return super().select(timeout)

else:  # only Linux has epoll
    PreciseSelector = selectors.DefaultSelector


def precise_loop() -> asyncio.AbstractEventLoop:
    """Make a new event loop with precise timers."""
    return asyncio.SelectorEventLoop(PreciseSelector())
