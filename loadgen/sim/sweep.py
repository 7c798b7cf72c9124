"""Many replications of many scenarios on all cores, or on the cores of others; results as they come.

The unit of work is a scenario with a few seeds. Compiled scenarios run in threads, as the kernel releases Python's
lock; the others in processes; both on a Dask cluster if there is one. All three are `concurrent.futures` executors, so
there is one loop. Leaving it early, by an exception or Ctrl-C, drops what has not begun and leaves the rest to itself.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dispatcher.errors import ConfigError
from loadgen.sim.compiled import Compiled, obstacle
from loadgen.sim.model import Result, Scenario, simulate

SMALL = 300_000  # arrivals of an object-driven sweep that are not worth starting processes for
DASK_SECONDS = 10.0  # until a scheduler must have answered
DASK_WINDOW = 2000  # units handed to a cluster ahead of its results
UNIT = {False: 150_000, True: 4_000_000}  # arrivals of one unit of work, object-driven and compiled: about a second


class Engine(StrEnum):
    """How scenarios are run: `object` drives the live service's own objects, `compiled` the kernel that equals them."""

    AUTO = "auto"
    OBJECT = "object"
    COMPILED = "compiled"


@dataclass(frozen=True, slots=True)
class Unit:
    """Some replications of the scenario of this index."""

    index: int
    scenario: Scenario
    seeds: tuple[int, ...]
    compiled: bool

    def run(self) -> list[Result]:
        run = Compiled(self.scenario).simulate if self.compiled else None
        return [run(seed) if run else simulate(self.scenario, seed) for seed in self.seeds]


def is_compiled(scenario: Scenario, engine: Engine) -> bool:
    """Whether the kernel is to run it. Raises ConfigError if it must and cannot."""
    reason = obstacle(scenario)
    if engine is Engine.COMPILED and reason:
        raise ConfigError(f"--engine compiled cannot run this: {reason}")
    return engine is not Engine.OBJECT and not reason


def units(jobs: Sequence[tuple[Scenario, Sequence[int]]], engine: Engine = Engine.AUTO) -> list[Unit]:
    """The jobs, each a scenario and its seeds, cut into units of about a second."""
    found = []
    for index, (scenario, seeds) in enumerate(jobs):
        compiled = is_compiled(scenario, engine)
        step = max(1, UNIT[compiled] // scenario.arrivals)
        found += [Unit(index, scenario, tuple(seeds[i : i + step]), compiled) for i in range(0, len(seeds), step)]
    return found


def sweep(work: Sequence[Unit], jobs: int = 0, dask: str = "") -> Iterator[tuple[Unit, list[Result]]]:
    """Run the units, and give each back with its results as soon as it is done, in no particular order.

    jobs: how many at a time, 0 for as many as there are cores. dask: the address of a scheduler. Raises ConfigError if
    there is none, and whatever a unit raises.
    """
    jobs = jobs or cores()
    arrivals = sum(unit.scenario.arrivals * len(unit.seeds) for unit in work if not unit.compiled)
    here = all(not unit.compiled for unit in work) and (jobs == 1 or arrivals <= SMALL)
    if here and not dask:
        yield from ((unit, unit.run()) for unit in work)
        return
    with contextlib.ExitStack() as stack:
        if dask:
            remote = stack.enter_context(_dask(dask))
            pools: dict[bool, Executor] = {False: remote, True: remote}
        else:
            pools = {True: stack.enter_context(stopping(ThreadPoolExecutor(jobs)))}
            if arrivals:
                context = multiprocessing.get_context("spawn")
                processes = ProcessPoolExecutor(jobs, context, initializer=leave_signals_to_the_parent)
                pools[False] = stack.enter_context(stopping(processes))
        yield from _windowed(work, pools, DASK_WINDOW if dask else 4 * jobs)


def _windowed(
    work: Sequence[Unit], pools: dict[bool, Executor], window: int
) -> Iterator[tuple[Unit, list[Result]]]:  # fmt: skip
    """Submit a few units ahead of what is running, so that neither they nor their results pile up."""
    asked: dict[Future[list[Result]], Unit] = {}
    left = iter(work)
    while True:
        for unit in itertools.islice(left, window - len(asked)):
            asked[pools[unit.compiled].submit(unit.run)] = unit
        if not asked:
            return
        for done in wait(asked, return_when=FIRST_COMPLETED).done:
            yield asked.pop(done), done.result()


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def leave_signals_to_the_parent() -> None:
    """For the processes of an executor: a Ctrl-C of the terminal reaches them, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def stopping(executor: Executor) -> Iterator[Executor]:
    """The executor; broken off, it stops what it has begun."""
    try:
        yield executor
    except BaseException:
        workers = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)  # what has begun may take long, and nobody waits for it
        for process in workers:
            process.terminate()
        raise
    executor.shutdown()


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    """The executor of a cluster. Raises ConfigError if there is none, OSError if it goes away."""
    try:
        from distributed import Client
    except ImportError:
        raise ConfigError("--dask needs distributed: pip install 'lased-dispatcher[dask]'") from None
    make: Callable[..., Any] = Client
    try:
        client: Any = make(address, timeout=DASK_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise ConfigError(f"--dask {address}: no scheduler answers there ({type(error).__name__})") from error
    try:
        client.wait_for_workers(1, timeout=DASK_SECONDS)
        yield client.get_executor(pure=False)
    except TimeoutError:
        raise ConfigError(f"--dask {address}: the scheduler has no workers") from None
    except CancelledError as error:
        raise OSError(f"--dask {address}: the cluster went away") from error
    finally:
        client.close()
