"""What the event-driven simulators share: a queue of events, and a Router in front of simulated pools.

`model`, `several_dispatchers`, `reordering` and `pools` simulate different pools, but all of them do the same for each
arrival: they run the events up to its instant, let the live Router choose a pool, and let the request join that pool.
The loop over arrivals is four lines and stays in each simulator, because it is where their stories differ. The order of
events and the treatment of a broken policy must not differ, so they are here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dispatcher.core.policy import Policy, Recorder
from dispatcher.core.router import Router
from dispatcher.core.types import Added, PoolSpec


class EventQueue:
    """Calls actions in the order of their instants; at equal instants in the order in which they were scheduled.

    >>> events, calls = EventQueue(), []
    >>> events.schedule(2.0, calls.append, "second")
    >>> events.schedule(1.0, calls.append, "first")
    >>> events.run_until(1.5)
    >>> calls
    ['first']
    """

    __slots__ = ("_heap", "_scheduled")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._scheduled = 0

    def schedule(self, at: float, action: Callable[..., Any], *arguments: Any) -> None:
        """Call `action(*arguments)` at the instant `at`, in seconds."""
        self._scheduled += 1  # the number decides at equal instants, so actions are never compared
        heapq.heappush(self._heap, (at, self._scheduled, action, arguments))

    def run_until(self, now: float) -> None:
        """Run all events up to and at `now`, and those that they schedule up to then.

        A simulator calls this before each arrival. So a request that ends at the instant of an arrival ends first.
        """
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= now:
            _, _, action, arguments = pop(heap)
            action(*arguments)

    def run_all(self) -> None:
        """Run all events that are left."""
        self.run_until(math.inf)


class FaultRaiser(Recorder):
    """Raises the fault of a policy, because the simulation of a broken policy is not a result."""

    def faulted(self, error: Exception, now: float) -> None:
        raise error


def make_router(
    policy: Policy, specs: Iterable[PoolSpec], recorders: Sequence[Recorder] = (), infer: bool = False
) -> Router:
    """Make a live Router that has these pools from instant 0 on, and that raises each fault of its policy.

    infer: whether the router reconstructs service times that are not reported, as the live service does.
    """
    # The raiser comes first, so that no other recorder sees the fault.
    router = Router(policy, [FaultRaiser(), *recorders], infer)
    for spec in specs:
        router.apply(Added(spec), 0.0)
    return router
