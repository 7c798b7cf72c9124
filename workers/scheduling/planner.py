"""What to serve next where the end is known: the finite-horizon optimum of a queue with K classes, by recursion. PURE.

State: jobs waiting by class, n_1 … n_K, up to caps; and the class in service, 0 for none. A round: begin a waiting job
or idle; the one in service is done with chance p_k; one of class k arrives with chance l_k. The cost is the number in
the system when no round is left. A job that finds its class at the cap counts one for ever, so that nothing is gained
by losing it. Source: as `workers.scheduling.disciplines`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Acts = NDArray[np.uint8]  # by state: the class to begin, from 1; 0 to idle
Decide = Callable[[int, Floats, list[Floats]], Any]  # rounds left, cost of idling, cost of beginning class k -> acts
WORTH = 1e-12  # less than that is no reason to idle


@dataclass(frozen=True, slots=True)
class Queue:
    """By class. p: chance of being done in a round. l: of an arrival in a round. caps: most jobs waiting that are told
    apart."""

    p: tuple[float, ...]
    l: tuple[float, ...]  # noqa: E741 - λ_k
    caps: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(cap + 1 for cap in self.caps)


@dataclass(frozen=True, slots=True)
class Solved:
    """values: V_h of the empty system, h = 0, 1, …. acts: by h (0: unused) and state."""

    values: list[float]
    acts: list[Acts]


def recursion(queue: Queue, rounds: int, decide: Decide) -> Solved:
    """Expected number in the system with h rounds left, under decisions that may look at costs."""
    k, shape = len(queue.p), queue.shape
    waiting = np.indices(shape).sum(axis=0).astype(float)
    value = [waiting] + [waiting + 1.0 for _ in range(k)]
    empty = (0,) * k
    values, acts = [float(value[0][empty])], [np.zeros(shape, np.uint8)]
    for left in range(1, rounds + 1):
        after = [_arrivals(queue, each) for each in value]
        served = [p * after[0] + (1 - p) * after[i] for i, p in enumerate(queue.p, 1)]
        begun = [_begin(each, axis) for axis, each in enumerate(served)]
        act = decide(left, after[0], begun)
        value = [np.choose(act, [after[0], *begun]), *served]
        values.append(float(value[0][empty]))
        acts.append(act)
    return Solved(values, acts)


def _arrivals(queue: Queue, value: Floats) -> Floats:
    found = (1 - math.fsum(queue.l)) * value
    for axis, rate in enumerate(queue.l):
        more = np.roll(value, -1, axis)
        last = [slice(None)] * value.ndim
        last[axis] = slice(-1, None)
        more[tuple(last)] = value[tuple(last)] + 1
        found = found + rate * more
    return found


def _begin(served: Floats, axis: int) -> Floats:
    """The cost of beginning a job of this class, by the state before; infinite where none waits."""
    found = np.roll(served, 1, axis)
    first = [slice(None)] * served.ndim
    first[axis] = slice(0, 1)
    found[tuple(first)] = math.inf
    return found


def best(left: int, idle: Floats, begun: list[Floats]) -> Acts:
    """What costs least; of classes that cost the same the quickest, and idling only if that is cheaper."""
    costs = np.stack([*begun, idle + WORTH])
    found: Acts = ((np.argmin(costs, axis=0) + 1) % len(costs)).astype(np.uint8)
    return found


def in_order(queue: Queue, p: Sequence[float] = ()) -> Acts:
    """The quickest class that waits, never idle: SEPT. p: what is believed of the classes, if not the truth."""
    found = np.zeros(queue.shape, np.uint8)
    waiting = np.indices(queue.shape)
    believed = p or queue.p
    for k in sorted(range(len(believed)), key=believed.__getitem__):
        found[waiting[k] > 0] = k + 1
    return found


def follow(acts: Sequence[Acts], otherwise: Acts) -> Decide:
    """Decisions from a table by rounds left; where it does not reach, another."""
    return lambda left, idle, begun: acts[left] if left < len(acts) else otherwise


def optimum(queue: Queue, rounds: int) -> Solved:
    return recursion(queue, rounds, best)


def sept(queue: Queue, rounds: int) -> Solved:
    order = in_order(queue)
    return recursion(queue, rounds, lambda left, idle, begun: order)
