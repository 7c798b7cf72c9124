"""The periodic jobs of the service. Each job runs until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import structlog

from dispatcher.core.router import Router
from dispatcher.long_episodes import LongEpisodes
from dispatcher.persistence.learned_state import LearnedState
from dispatcher.telemetry.process_metrics import ProcessMetrics

log = structlog.get_logger()

LAG_INTERVAL_SECONDS = 0.25
FLUSH_INTERVAL_SECONDS = 0.5
SAVE_INTERVAL_SECONDS = 10.0
EPISODE_INTERVAL_SECONDS = 1.0


class OutputFile(Protocol):
    """A file that collects lines and writes them when it is flushed."""

    def flush(self) -> None: ...
    def close(self) -> None: ...


async def measure_lag(clock: Callable[[], float], metrics: ProcessMetrics) -> None:
    """Record by how much the event loop is late."""
    while True:
        start = clock()
        await asyncio.sleep(LAG_INTERVAL_SECONDS)
        metrics.observe_lag(clock() - start - LAG_INTERVAL_SECONDS)


async def check_episodes(router: Router) -> None:
    """Log a warning about each episode that is open for very long."""
    episodes = LongEpisodes()
    while True:
        await asyncio.sleep(EPISODE_INTERVAL_SECONDS)
        if warning := episodes.check(router.policy):
            log.warning("episode_is_long", reason=warning)


async def save_state(learned: LearnedState, router: Router) -> None:
    """Write the state file, so that a crash loses little of what was learned."""
    while True:
        await asyncio.sleep(SAVE_INTERVAL_SECONDS)
        learned.save(router.policy)


async def write_files(files: Mapping[str, OutputFile]) -> None:
    """Write collected lines. files: each file by its key in the configuration."""
    while True:
        await asyncio.sleep(FLUSH_INTERVAL_SECONDS)
        for key, file in files.items():
            with _log_write_errors(key):
                file.flush()


def close_files(files: Mapping[str, OutputFile]) -> None:
    """Write what is left and close the files."""
    for key, file in files.items():
        with _log_write_errors(key):
            file.close()


def log_failure(job: asyncio.Task[None]) -> None:
    """Log a job that ended by an exception: a job should only end by being cancelled."""
    if not job.cancelled() and (error := job.exception()) is not None:
        log.error("background_job_failed", job=repr(job.get_coro()), exc_info=error)


@contextlib.contextmanager
def _log_write_errors(key: str) -> Iterator[None]:
    """Log an error instead of raising it: a full disk must not end the service."""
    try:
        yield
    except OSError as error:
        log.error("not_written", key=key, error=error.strerror)
