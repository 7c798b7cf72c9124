"""Runs many independent tasks on all cores, or on a Dask cluster, and yields their results as they come.

Tasks that release Python's lock run in threads, the others in processes, and all of them on a Dask cluster if one is
given. All three are executors of `concurrent.futures`, so one loop serves them. If the caller leaves the loop early, by
an exception or Ctrl-C, tasks that have not begun are dropped and running processes are terminated.
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
from typing import Any, Protocol, TypeVar

from dispatcher.errors import ConfigError
from loadgen.sim.compiled import Compiled, obstacle
from loadgen.sim.model import Result, Scenario, simulate

SMALL_SWEEP_ARRIVALS = 300_000  # up to here it is not worth starting processes
DASK_TIMEOUT_SECONDS = 10.0  # in which a scheduler must respond
DASK_WINDOW_TASKS = 2000  # tasks that are submitted to a cluster ahead of its results
WINDOW_TASKS_PER_JOB = 4  # the same for this machine, for each task that runs at a time
UNIT_ARRIVALS = {False: 150_000, True: 4_000_000}  # in a unit of about one second: object-driven, compiled

TaskT = TypeVar("TaskT", bound="Task")


class Engine(StrEnum):
    """How scenarios are run: `object` drives the live service's own objects, `compiled` an equal, faster kernel."""

    AUTO = "auto"
    OBJECT = "object"
    COMPILED = "compiled"


class Task(Protocol):
    """A picklable piece of work.

    compiled: whether it runs without Python's lock, so that threads can run several at a time.
    cost: the work that it takes, in simulated arrivals; infinite if it is not known.
    """

    @property
    def compiled(self) -> bool: ...
    @property
    def cost(self) -> float: ...
    def run(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Unit:
    """Some replications of one scenario.

    index: the scenario's position among the jobs.
    seeds: one for each replication.
    """

    index: int
    scenario: Scenario
    seeds: tuple[int, ...]
    compiled: bool

    @property
    def cost(self) -> float:
        return self.scenario.arrivals * len(self.seeds)

    def run(self) -> list[Result]:
        run = Compiled(self.scenario).simulate if self.compiled else None
        return [run(seed) if run else simulate(self.scenario, seed) for seed in self.seeds]


def is_compiled(scenario: Scenario, engine: Engine) -> bool:
    """Return whether the compiled kernel runs this scenario. Raises ConfigError if it must and cannot."""
    reason = obstacle(scenario)
    if engine is Engine.COMPILED and reason:
        raise ConfigError(f"--engine compiled cannot run this: {reason}")
    return engine is not Engine.OBJECT and not reason


def units(jobs: Sequence[tuple[Scenario, Sequence[int]]], engine: Engine = Engine.AUTO) -> list[Unit]:
    """Divide jobs into units of about a second.

    jobs: pairs of a scenario and its seeds. Raises ConfigError like `is_compiled`.
    """
    divided = []
    for index, (scenario, seeds) in enumerate(jobs):
        compiled = is_compiled(scenario, engine)
        step = max(1, UNIT_ARRIVALS[compiled] // scenario.arrivals)
        divided += [Unit(index, scenario, tuple(seeds[i : i + step]), compiled) for i in range(0, len(seeds), step)]
    return divided


def sweep(tasks: Sequence[TaskT], jobs: int = 0, dask: str = "") -> Iterator[tuple[TaskT, Any]]:
    """Run the tasks, and yield each with its result as soon as it is done, in no particular order.

    jobs: how many run at a time; 0 for one on each core.
    dask: the address of a Dask scheduler; empty for this machine.
    Raises ConfigError if the scheduler does not respond, and every exception that a task raises.
    """
    jobs = jobs or cores()
    interpreted = [task.cost for task in tasks if not task.compiled]
    # Compiled tasks always go to threads, which cost nothing to start.
    runs_here = len(interpreted) == len(tasks) and (jobs == 1 or sum(interpreted) <= SMALL_SWEEP_ARRIVALS)
    if runs_here and not dask:
        yield from ((task, task.run()) for task in tasks)
        return
    with contextlib.ExitStack() as stack:
        if dask:
            remote = stack.enter_context(_dask(dask))
            executors: dict[bool, Executor] = {False: remote, True: remote}
        else:
            executors = {True: stack.enter_context(_stopping(ThreadPoolExecutor(jobs)))}
            if interpreted:
                # A forked process would inherit the locks of the threads above in whatever state they are.
                context = multiprocessing.get_context("spawn")
                processes = ProcessPoolExecutor(jobs, context, initializer=_leave_signals_to_the_parent)
                executors[False] = stack.enter_context(_stopping(processes))
        yield from _windowed(tasks, executors, DASK_WINDOW_TASKS if dask else WINDOW_TASKS_PER_JOB * jobs)


def _windowed(tasks: Sequence[TaskT], executors: dict[bool, Executor], window: int) -> Iterator[tuple[TaskT, Any]]:
    """Submit only a few tasks ahead of those that run, so that neither tasks nor results pile up in memory."""
    submitted: dict[Future[Any], TaskT] = {}
    remaining = iter(tasks)
    while True:
        for task in itertools.islice(remaining, window - len(submitted)):
            submitted[executors[task.compiled].submit(task.run)] = task
        if not submitted:
            return
        for done in wait(submitted, return_when=FIRST_COMPLETED).done:
            yield submitted.pop(done), done.result()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _leave_signals_to_the_parent() -> None:
    """Ignore SIGINT in a worker process, because a Ctrl-C in the terminal reaches the whole process group.

    SIGTERM ends the process, so that the parent can terminate it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _stopping(executor: Executor) -> Iterator[Executor]:
    """Shut the executor down at the end of the block; after an exception, terminate its processes as well."""
    try:
        yield executor
    except BaseException:
        # The executor offers no way to end running tasks. A shutdown clears its processes, so they are listed before.
        workers = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)  # a task that runs may take long; its result is not needed
        for process in workers:
            process.terminate()
        raise
    executor.shutdown()


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    """Yield the executor of a cluster.

    Raises ConfigError if the cluster does not respond, OSError if the connection is lost later.
    """
    try:
        from distributed import Client
    except ImportError:
        raise ConfigError("--dask needs distributed: pip install 'lased-dispatcher[dask]'") from None
    make: Callable[..., Any] = Client
    try:
        client: Any = make(address, timeout=DASK_TIMEOUT_SECONDS)
    except (OSError, ValueError, TimeoutError) as error:
        raise ConfigError(f"--dask {address}: no scheduler answers there ({type(error).__name__})") from error
    try:
        client.wait_for_workers(1, timeout=DASK_TIMEOUT_SECONDS)
        # Of equal tasks that are pure, Dask would run only one.
        yield client.get_executor(pure=False)
    except TimeoutError:
        raise ConfigError(f"--dask {address}: the scheduler has no workers") from None
    except CancelledError as error:
        raise OSError(f"--dask {address}: the cluster went away") from error
    finally:
        client.close()
