"""This module measures the capacity of pools with clients that each have one request at a time.

The clients speak to the pools directly and at the same time, because pools of one machine share its processors.
"""

import asyncio

from loadgen.attack.client import Client, PendingRequest
from loadgen.attack.targets import Request
from loadgen.experiments.live.backends import BackendError
from tests.bench.applications.work import NUMBER

WARM_SECONDS = 0.5
SECONDS = 3.0


class ClosedLoop:
    """This runs `clients[i]` clients at pool i. Request numbers begin at `first`, beyond those of the turns."""

    def __init__(self, addresses, clients, first=1_000_000):
        self._client = Client(Request(tuple(f"http://{address}/" for address in addresses), number=NUMBER), self._over)
        self._clients, self._next = clients, first
        self._open = self._answers = self._failed = 0
        self._stopped = False
        self._empty = asyncio.Event()

    async def run(self, seconds):
        """Returns answers a second of all pools, without the first WARM_SECONDS. Raises BackendError."""
        await self._client.start()
        for target, clients in enumerate(self._clients):
            for _ in range(clients):
                self._send(target)
        await asyncio.sleep(WARM_SECONDS)
        before = self._answers
        await asyncio.sleep(seconds)
        found = (self._answers - before) / seconds if seconds else 0.0
        self._stopped = True
        await self._empty.wait()
        await self._client.close()
        if self._failed:
            raise BackendError(f"{self._failed} requests failed while the capacity was measured")
        return found

    def _send(self, target):
        self._open += 1
        self._next += 1
        self._client.send(PendingRequest(self._next, target, 0))

    def _over(self, sending):
        self._open -= 1
        self._answers += 1
        self._failed += sending.status != 200
        if not self._stopped:
            self._send(sending.target)
        elif not self._open:
            self._empty.set()


async def measure(row, addresses, seconds=SECONDS):
    """Returns requests a second that the pools answer when each has two requests per thread."""
    return await ClosedLoop(addresses, [2 * pool.threads * pool.workers for pool in row.pools]).run(seconds)


async def warm(row, addresses):
    """Makes the servers start their threads and load their code before the first turn."""
    await ClosedLoop(addresses, [min(32, 2 * pool.threads * pool.workers) for pool in row.pools]).run(0.0)
