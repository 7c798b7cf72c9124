"""The optimal order of service for a known end: the finite-horizon optimum of a queue with K classes. PURE.

The state is the number of jobs that wait, by class, n_1 ... n_K, up to caps, and the class in service, 0 for none. In a
round the server begins a waiting job or idles. The job in service ends with probability p_k, and a job of class k
arrives with probability l_k. The cost is the number in the system when no round is left. A job that arrives at the cap
of its class costs one for ever, so that losing it is no gain. The recursion runs backwards from the end.

Source: as `workers.scheduling.disciplines`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Acts = NDArray[np.uint8]  # by state: the class to begin, counted from 1; 0 to idle
Decide = Callable[[int, Floats, list[Floats]], Any]  # rounds left, cost of idling, cost of beginning class k -> acts
MIN_GAIN = 1e-12  # idling must cost less than any job by at least this much


@dataclass(frozen=True, slots=True)
class Queue:
    """Describes the classes.

    p: the probability that a job in service ends in a round, by class.
    l: the probability of an arrival in a round, by class.
    caps: the largest numbers of waiting jobs in the table, by class.
    """

    p: tuple[float, ...]
    l: tuple[float, ...]  # noqa: E741 - λ_k
    caps: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(cap + 1 for cap in self.caps)


@dataclass(frozen=True, slots=True)
class Solved:
    """A solution of the recursion.

    values: V_h of the empty system for h = 0, 1, ... rounds left.
    acts: by rounds left and state; those of 0 rounds are not used.
    """

    values: list[float]
    acts: list[Acts]


def recursion(queue: Queue, rounds: int, decide: Decide) -> Solved:
    """Compute the expected number in the system at the end, by rounds left, under decisions that may use the costs."""
    k, shape = len(queue.p), queue.shape
    waiting = np.indices(shape).sum(axis=0).astype(float)
    # By class in service: the first array is that of a free server, and each other state has one job more.
    value = [waiting] + [waiting + 1.0 for _ in range(k)]
    empty = (0,) * k
    values, acts = [float(value[0][empty])], [np.zeros(shape, np.uint8)]
    for left in range(1, rounds + 1):
        after = [_arrivals(queue, cost) for cost in value]
        served = [p * after[0] + (1 - p) * after[i] for i, p in enumerate(queue.p, 1)]
        begun = [_begin(cost, axis) for axis, cost in enumerate(served)]
        act = decide(left, after[0], begun)
        value = [np.choose(act, [after[0], *begun]), *served]
        values.append(float(value[0][empty]))
        acts.append(act)
    return Solved(values, acts)


def _arrivals(queue: Queue, value: Floats) -> Floats:
    """Return the expected value after the arrivals of a round."""
    expected = (1 - math.fsum(queue.l)) * value
    for axis, rate in enumerate(queue.l):
        more = np.roll(value, -1, axis)
        last = [slice(None)] * value.ndim
        last[axis] = slice(-1, None)
        more[tuple(last)] = value[tuple(last)] + 1  # at the cap the job does not fit into the table, but costs one
        expected = expected + rate * more
    return expected


def _begin(served: Floats, axis: int) -> Floats:
    """Return the cost of beginning a job of this class, by the state before; infinite where none waits."""
    cost = np.roll(served, 1, axis)
    first = [slice(None)] * served.ndim
    first[axis] = slice(0, 1)
    cost[tuple(first)] = math.inf
    return cost


def best(left: int, idle: Floats, begun: list[Floats]) -> Acts:
    """Decide for the least cost: of equal classes the first one, and idle only if that costs less."""
    costs = np.stack([*begun, idle + MIN_GAIN])
    # Idling stands last in `costs`, and its act is 0.
    acts: Acts = ((np.argmin(costs, axis=0) + 1) % len(costs)).astype(np.uint8)
    return acts


def in_order(queue: Queue, p: Sequence[float] = ()) -> Acts:
    """Return the acts of SEPT: begin the waiting class of the largest p, and never idle.

    p: the probabilities that the rule uses, if they differ from those of the queue.
    """
    acts = np.zeros(queue.shape, np.uint8)
    waiting = np.indices(queue.shape)
    p = p or queue.p
    for k in sorted(range(len(p)), key=p.__getitem__):  # the largest p comes last and replaces the others
        acts[waiting[k] > 0] = k + 1
    return acts


def follow(acts: Sequence[Acts], otherwise: Acts) -> Decide:
    """Return decisions that follow a table by rounds left, and `otherwise` where more rounds are left."""
    return lambda left, idle, begun: acts[left] if left < len(acts) else otherwise


def optimum(queue: Queue, rounds: int) -> Solved:
    """Compute the optimal order of service."""
    return recursion(queue, rounds, best)


def sept(queue: Queue, rounds: int) -> Solved:
    """Compute the values under SEPT."""
    order = in_order(queue)
    return recursion(queue, rounds, lambda left, idle, begun: order)
