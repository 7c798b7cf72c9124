"""Sends open-loop traffic: every request leaves at its planned time, however many responses are still missing.

The driver needs asyncio's own event loop, because uvloop's clock has a resolution of a millisecond. It runs in one
process; `worker_process` runs several of them on one plan.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from loadgen.attack.client import Client, PendingRequest
from loadgen.attack.pacer import Pacer
from loadgen.attack.records import DROPPED, OPEN, TIMED_OUT, Effort, Records
from loadgen.attack.targets import Request

MAX_POOL_NAME_BYTES = 200
MAX_POOL_NAMES = 1000
START_DELAY_SECONDS = 0.05  # from the end of the preparation to the start of the schedule


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run.

    timeout: seconds after which a request counts as failed.
    drain: seconds that the run waits for responses after the last request; None for as long as the timeout.
    max_in_flight: a request that is due while this many are open is dropped and counted; 0 for no limit.
    spin: as in `Pacer`.
    """

    timeout: float = 30.0
    drain: float | None = None
    max_in_flight: int = 0
    spin: float = 0.0

    def share(self, owner: int, processes: int) -> Limits:
        """Return the limits of one of several processes."""
        part, rest = divmod(self.max_in_flight, processes)
        return replace(self, max_in_flight=part + (owner < rest))


class Attack:
    """One run of one process: sends the rows of `records` that belong to `owner`.

    request: what is sent; a URL stands for a plain GET. records: the plan, which the run completes.
    """

    def __init__(self, request: Request | str, records: Records, limits: Limits | None = None, owner: int = 0) -> None:
        self.records, self.limits = records, limits or Limits()
        self.effort = Effort()
        self._client = Client(Request((request,)) if isinstance(request, str) else request, self._on_finished)
        self._pacer = Pacer(records.share(owner), self._send, self.limits.spin)
        self._open: dict[int, PendingRequest] = {}  # by row, the oldest first
        self._pool_codes: dict[bytes, int] = {b"": 0}
        self._max_open = self.limits.max_in_flight or float("inf")
        self._start = self._integrated_until = 0.0
        self._last_row, self._stopped_at, self._drains = 0, 0.0, True
        self._cpu_at_start = 0.0
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._all_finished = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Attack {self.effort.sent} of {len(self.records)} sent, {len(self._open)} open>"

    @property
    def sent(self) -> int:
        return self.effort.sent

    @property
    def finished(self) -> int:
        """Requests that have a response, or have failed."""
        return self.effort.finished

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def first_open_row(self) -> int:
        """The first row that can still change."""
        return next(iter(self._open), self._last_row)

    def stop(self, drain: bool = True) -> None:
        """Send nothing more. drain: whether `run` still waits for the open requests."""
        self._stopped_at = asyncio.get_running_loop().time()
        self._drains = drain
        self._pacer.stop()
        if not drain:
            self._all_finished.set()

    async def prepare(self) -> None:
        """Resolve the host names. Raises OSError."""
        await self._client.start()

    async def run(self, start: float | None = None, on_start: Callable[[float], None] = lambda start: None) -> Records:
        """Send the schedule, wait for the responses, and return the records.

        start: the time of the event loop at which the schedule begins; None for as soon as possible.
        on_start: called with that time.
        """
        if not self._client.ready:
            await self.prepare()
        loop = asyncio.get_running_loop()
        self._loop_time = loop.time
        self._start = self._integrated_until = loop.time() + START_DELAY_SECONDS if start is None else start
        on_start(self._start)
        loop.call_at(self._start, self._note_cpu)  # the time for preparation does not count
        self._check_timeouts(loop)
        try:
            await self._pacer.run(self._start)
            await self._drain()
        finally:
            if self._timeout_timer is not None:
                self._timeout_timer.cancel()
            for pending in list(self._open.values()):
                self._client.abort(pending, OPEN)
            self._integrate()
            self.effort.opened, self.effort.resent = self._client.opened, self._client.resent
            self.effort.received = self._client.received
            self.effort.elapsed, self.effort.cpu = loop.time() - self._start, _cpu_seconds() - self._cpu_at_start
            await self._client.close()
        return self.records

    def _note_cpu(self) -> None:
        self._cpu_at_start = _cpu_seconds()

    async def _drain(self) -> None:
        """Wait for open requests, until `drain` seconds after the end of the whole plan or after `stop`."""
        if not (self._open and self._drains):
            return
        # A second more than the timeout, so that every open request can time out before the run ends.
        wait = self.limits.timeout + 1.0 if self.limits.drain is None else self.limits.drain
        last = self._stopped_at or self._start + float(self.records.planned[-1])
        self._all_finished.clear()  # it was set whenever no request was open during the run
        try:
            async with asyncio.timeout_at(max(last + wait, self._loop_time())):
                await self._all_finished.wait()
        except TimeoutError:
            pass  # the requests that are still open are counted as unfinished

    def _send(self, row: int, planned: float) -> None:
        records, self._last_row = self.records, row
        if len(self._open) >= self._max_open:
            records.error[row] = DROPPED
            return
        pending = PendingRequest(row, records.target[row], int(records.body[row]))
        self._integrate()
        self._open[row] = pending
        self.effort.sent += 1
        pending.sent_at = self._integrated_until
        records.sent[row] = self._integrated_until - self._start
        self._client.send(pending)

    def _on_finished(self, pending: PendingRequest) -> None:
        row, records = pending.row, self.records
        self._integrate()
        del self._open[row]
        self.effort.finished += 1
        if pending.error != OPEN:  # a request that is open when the run ends was never done
            records.done[row] = self._integrated_until - self._start
        records.status[row], records.error[row] = pending.status, pending.error
        code = self._pool_codes.get(pending.pool)
        records.pool[row] = self._add_pool(pending.pool) if code is None else code
        if not self._open:
            self._all_finished.set()

    def _add_pool(self, pool: bytes) -> int:
        # A server that sends a new name in every response must not fill the memory.
        if len(self._pool_codes) > MAX_POOL_NAMES:
            return 0
        self.records.names.append(pool[:MAX_POOL_NAME_BYTES].decode("latin-1"))
        self._pool_codes[pool] = code = len(self._pool_codes)
        return code

    def _integrate(self) -> None:
        """Add the time since the last call to the integral of the open requests over time.

        It must be called before the number of open requests changes.
        """
        now = self._loop_time()
        self.effort.busy += len(self._open) * (now - self._integrated_until)
        self._integrated_until = now

    def _check_timeouts(self, loop: asyncio.AbstractEventLoop) -> None:
        """Abort the requests that have reached the timeout, and schedule the next check."""
        timeout, now = self.limits.timeout, loop.time()
        # All requests have one timeout, so the oldest one reaches it first, and one timer is enough for all.
        while (oldest := next(iter(self._open.values()), None)) and oldest.sent_at + timeout <= now:
            self._client.abort(oldest, TIMED_OUT)
        self._timeout_timer = loop.call_at((oldest.sent_at if oldest else now) + timeout, self._check_timeouts, loop)


def _cpu_seconds() -> float:
    """Return the processor time that this process has used."""
    used = os.times()
    return used.user + used.system
