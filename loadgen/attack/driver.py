"""Open-loop traffic: every request leaves at its planned time, however many are unanswered.

Asyncio's own loop, not uvloop: its clock is in whole milliseconds. One process; `sender` runs several on one plan.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from loadgen.attack.client import Client, Sending
from loadgen.attack.pacer import Pacer
from loadgen.attack.records import DROPPED, OPEN, TIMED_OUT, Effort, Records
from loadgen.attack.targets import Request

LONGEST_NAME = 200  # bytes of a pool's name that are kept
LEAD = 0.05  # seconds between setting up and the start of the schedule


@dataclass(frozen=True, slots=True)
class Limits:
    """timeout: seconds from the sending after which a request counts as unanswered. drain: seconds that the run waits
    for answers after the last send, None for as long as the time-out. max_in_flight: what is due while that many
    are open is dropped and counted, 0 for no limit. spin: as the pacer's."""

    timeout: float = 30.0
    drain: float | None = None
    max_in_flight: int = 0
    spin: float = 0.0

    def shared(self, owner: int, processes: int) -> Limits:
        """The part of one of several processes."""
        part, rest = divmod(self.max_in_flight, processes)
        return replace(self, max_in_flight=part + (owner < rest))


class Attack:
    """One run: the rows of `records` that are of `owner`, to the targets of `request`."""

    def __init__(self, request: Request | str, records: Records, limits: Limits | None = None, owner: int = 0) -> None:
        self.records, self.limits = records, limits or Limits()
        self.effort = Effort()
        self._client = Client(Request((request,)) if isinstance(request, str) else request, self._ended)
        self._pacer = Pacer(records.share(owner), self._fire, self.limits.spin)
        self._open: dict[int, Sending] = {}
        self._codes: dict[bytes, int] = {b"": 0}
        self._cap = self.limits.max_in_flight or float("inf")
        self._start = self._counted = 0.0
        self._reached, self._stopped_at, self._patient = 0, 0.0, True
        self._cpu = 0.0
        self._expiry: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Attack {self.effort.sent} of {len(self.records)} sent, {len(self._open)} open>"

    @property
    def sent(self) -> int:
        return self.effort.sent

    @property
    def answered(self) -> int:
        return self.effort.answered

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def settled(self) -> int:
        """Rows before this one will not change any more."""
        return next(iter(self._open), self._reached)

    def stop(self, wait: bool = True) -> None:
        """Send nothing more; what is open is waited for, or not."""
        self._stopped_at = asyncio.get_running_loop().time()
        self._patient = wait
        self._pacer.stop()
        if not wait:
            self._empty.set()

    async def prepare(self) -> None:
        """Look the names up. Raises OSError."""
        await self._client.start()

    async def run(self, start: float | None = None, started: Callable[[float], None] = lambda start: None) -> Records:
        """Send the schedule and wait for the answers. start: the loop's time that offset 0 stands for, told to
        `started`; soon, if none is given."""
        if not self._client.ready:
            await self.prepare()
        loop = asyncio.get_running_loop()
        self._loop_time = loop.time
        self._start = self._counted = loop.time() + LEAD if start is None else start
        started(self._start)
        loop.call_at(self._start, self._begun)
        self._expire(loop)
        try:
            await self._pacer.run(self._start)
            await self._drained()
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            for sending in list(self._open.values()):
                self._client.abort(sending, OPEN)
            self._count()
            self.effort.opened, self.effort.resent = self._client.opened, self._client.resent
            self.effort.received = self._client.received
            self.effort.elapsed, self.effort.cpu = loop.time() - self._start, _cpu() - self._cpu
            await self._client.close()
        return self.records

    def _begun(self) -> None:
        self._cpu = _cpu()

    async def _drained(self) -> None:
        """Wait for what is open, until `drain` after the end of the whole plan or the stop."""
        if not (self._open and self._patient):
            return
        wait = self.limits.timeout + 1.0 if self.limits.drain is None else self.limits.drain
        last = self._stopped_at or self._start + float(self.records.planned[-1])
        self._empty.clear()
        try:
            async with asyncio.timeout_at(max(last + wait, self._loop_time())):
                await self._empty.wait()
        except TimeoutError:
            pass  # what is open is counted as unfinished

    def _fire(self, i: int, planned: float) -> None:
        records, self._reached = self.records, i
        if len(self._open) >= self._cap:
            records.error[i] = DROPPED
            return
        sending = Sending(i, records.target[i], int(records.body[i]))
        self._count()
        self._open[i] = sending
        self.effort.sent += 1
        sending.started = self._counted
        records.sent[i] = self._counted - self._start
        self._client.send(sending)

    def _ended(self, sending: Sending) -> None:
        """The client is through with it."""
        i, records = sending.i, self.records
        self._count()
        del self._open[i]
        self.effort.answered += 1
        if sending.error != OPEN:
            records.done[i] = self._counted - self._start
        records.status[i], records.error[i] = sending.status, sending.error
        code = self._codes.get(sending.pool)
        records.pool[i] = self._named(sending.pool) if code is None else code
        if not self._open:
            self._empty.set()

    def _named(self, pool: bytes) -> int:
        if len(self._codes) > 1000:  # a server that calls itself anew each time
            return 0
        self.records.names.append(pool[:LONGEST_NAME].decode("latin-1"))
        self._codes[pool] = code = len(self._codes)
        return code

    def _count(self) -> None:
        now = self._loop_time()
        self.effort.busy += len(self._open) * (now - self._counted)
        self._counted = now

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what has been open for too long; the oldest is the first of the dictionary."""
        timeout, now = self.limits.timeout, loop.time()
        while (oldest := next(iter(self._open.values()), None)) and oldest.started + timeout <= now:
            self._client.abort(oldest, TIMED_OUT)
        self._expiry = loop.call_at((oldest.started if oldest else now) + timeout, self._expire, loop)


def _cpu() -> float:
    """Seconds that this process has computed."""
    used = os.times()
    return used.user + used.system
