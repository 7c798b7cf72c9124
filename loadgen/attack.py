"""Open-loop traffic: every request leaves at its planned time, however many are unanswered.

Asyncio's own loop, not uvloop: its clock is in whole milliseconds and it may call too early. aiohttp's connector has
no limit (its default of 100 would turn open load into closed), keeps connections alive, decodes and stores nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import numpy as np
from numpy.typing import NDArray

from loadgen.exposition import Exposition
from loadgen.pacer import Pacer
from loadgen.records import UNFINISHED, Records

LEAD = 0.05  # seconds between setting up and the start of the schedule


class Attack:
    """One run against one URL.

    offsets: planned sends, seconds from the start. timeout: after which a request counts as unanswered; also how long
    the run waits for answers after the last send. exposition: told of each send and answer.
    """

    def __init__(
        self, url: str, offsets: NDArray[np.float64], timeout: float = 30.0, exposition: Exposition | None = None
    ) -> None:
        self.url = url
        self._exposition = exposition
        self.records = Records(offsets)
        self.sent = 0
        self.answered = 0
        self._timeout = timeout
        self._pacer = Pacer(offsets, self._fire)
        self._open: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._start = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def stop(self) -> None:
        """Send nothing more; what is open is waited for."""
        self._pacer.stop()

    async def run(self, started: Callable[[float], None] = lambda start: None) -> Records:
        """Send the schedule and wait for the answers. started: told the loop time that offset 0 stands for."""
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=10.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=self._timeout),
        ) as self._session:
            self._start = loop.time() + LEAD
            started(self._start)
            try:
                await self._pacer.run(self._start)
                if self._open:
                    await asyncio.wait(self._open, timeout=self._timeout)
            finally:
                for task in self._open:
                    task.cancel()
                await asyncio.gather(*self._open, return_exceptions=True)
        return self.records

    def _fire(self, i: int, planned: float) -> None:
        task = asyncio.get_running_loop().create_task(self._one(i))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _one(self, i: int) -> None:
        assert self._session is not None
        loop, records = asyncio.get_running_loop(), self.records
        records.sent[i] = loop.time() - self._start
        self.sent += 1
        if self._exposition is not None:
            self._exposition.sent(records.planned[i], records.sent[i])
        try:
            async with self._session.get(self.url, allow_redirects=False) as answer:
                await answer.read()
                records.status[i] = answer.status
                records.pools[i] = answer.headers.get("X-Pool", "")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            records.status[i] = UNFINISHED  # a failed request is a result, not an error of the run
            records.errors[type(error).__name__] += 1
        records.done[i] = loop.time() - self._start
        self.answered += 1
        if self._exposition is not None:
            self._exposition.over(records.planned[i], records.sent[i], records.done[i], int(records.status[i]))
