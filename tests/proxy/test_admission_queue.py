"""Requests that wait because every pool has reached its limit of requests in flight.

The queue is bounded in length and time, keeps its order, and loses no request.
"""

import asyncio
import time

import pytest

from tests.proxy.harness import (
    OK,
    Gated,
    Pool,
    Recorder,
    answer_ok,
    checked_front,
    eventually,
    front,
    get,
    loop_turns,
    pools_up,
    queue,
    status,
    with_pools,
)


class Gates:
    """A pool that answers each request when its gate opens."""

    def __init__(self):
        self.seen = []
        self.gates = {}

    async def __call__(self, wire):
        while True:
            head = await wire.until(b"\r\n\r\n")
            target = head.split(b" ")[1].decode()
            self.seen.append(target)
            self.gates[target] = asyncio.Event()
            await self.gates[target].wait()
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def limited(gates, **queue):
    return front(gates, gates, max_in_flight=1, queue=queue)


async def three(f, gates):
    """Two that are being served and one that waits."""
    clients = [await f.begin(get(f"/{i}")) for i in range(2)]
    await eventually(lambda: len(gates.seen) == 2)
    clients.append(await f.begin(get("/2")))
    await eventually(lambda: len(queue(f)) > 0)
    return clients


async def test_a_request_waits_and_goes_to_the_pool_with_a_free_slot():
    gates = Gates()
    async with limited(gates) as f:
        clients = await three(f, gates)
        assert len(gates.seen) == 2
        gates.gates["/1"].set()
        await eventually(lambda: "/2" in gates.seen)
        for gate in gates.gates.values():
            gate.set()
        assert [status(await client.message()) for client in clients] == [200] * 3
        await f.wait_idle()
        assert len(queue(f)) == 0


async def test_the_queue_keeps_its_order():
    gates = Gates()
    async with limited(gates) as f:
        clients = await three(f, gates)
        for i in range(3, 6):
            clients.append(await f.begin(get(f"/{i}")))
            await eventually(lambda: len(queue(f)) == len(clients) - 2)
        for i in range(6):
            await eventually(lambda i=i: f"/{i}" in gates.gates)
            gates.gates[f"/{i}"].set()
            assert status(await clients[i].message()) == 200
        assert gates.seen == [f"/{i}" for i in range(6)]
        await f.wait_idle()


async def test_a_request_whose_client_leaves_the_queue_is_never_sent():
    gates = Gates()
    async with limited(gates) as f:
        clients = await three(f, gates)
        clients.append(await f.begin(get("/3")))
        await eventually(lambda: len(queue(f)) == 2)
        gates.gates["/0"].set()
        clients[2].reset()
        await eventually(lambda: "/3" in gates.seen or "/2" in gates.seen)
        for _ in range(3):
            for gate in list(gates.gates.values()):
                gate.set()
            await asyncio.sleep(0.02)
        assert status(await clients[3].message()) == 200
        await f.wait_idle()
        assert len(queue(f)) == 0


async def test_a_full_queue_and_a_long_wait_are_503_and_counted():
    gates = Gates()
    async with limited(gates, size=1, timeout=0.2) as f:
        clients = await three(f, gates)
        answer = await f.ask(get("/3"))
        assert status(answer) == 503
        assert b"Retry-After: 1" in answer[0]
        assert status(await clients[2].message()) == 503
        assert f.metric("lased_rejected_total", reason="queue_full") == 1
        assert f.metric("lased_rejected_total", reason="queue_timeout") == 1
        for gate in gates.gates.values():
            gate.set()
        assert [status(await client.message()) for client in clients[:2]] == [200] * 2
        await f.wait_idle()
        assert status(await asyncio.wait_for(opened(f, gates, "/4"), 5)) == 200


async def opened(f, gates, target):
    client = await f.begin(get(target))
    await eventually(lambda: target in gates.gates)
    gates.gates[target].set()
    return await client.message()


async def test_a_pool_that_joins_serves_the_first_in_the_queue():
    gates = Gates()
    async with limited(gates) as f:
        clients = await three(f, gates)
        fresh = await Pool(answer_ok).open()
        old = [(f"p{i}", pool.port, {"max_in_flight": 1}) for i, pool in enumerate(f.pools)]
        f.service.take_over(with_pools(f.service, *old, ("new", fresh.port, {})))
        assert (await clients[2].message())[1] == b"/2"
        for gate in gates.gates.values():
            gate.set()
        assert [status(await client.message()) for client in clients[:2]] == [200] * 2
        await f.wait_idle()
        await fresh.close()


async def test_B07_requests_that_wait_cost_no_time_of_the_processor():
    """Fifty queued requests wait for an event; they do not poll."""
    pool = Gated()
    async with checked_front(pool, pool, max_in_flight=1) as f:
        clients = [await f.begin(get()) for _ in range(52)]
        await eventually(lambda: len(queue(f)) == 50)
        decided = f.service.decision_log.count
        before = time.process_time()
        await asyncio.sleep(0.1)
        assert time.process_time() - before < 0.05
        assert f.service.decision_log.count == decided
        pool.gate.set()
        assert [status(await client.message()) for client in clients] == [200] * 52


async def test_B07_without_a_queue_the_response_is_503_at_once():
    pool = Gated()
    async with checked_front(pool, pool, max_in_flight=1, queue={"size": 0}) as f:
        clients = [await f.begin(get()) for _ in range(2)]
        await eventually(lambda: f.in_flight == [1, 1])
        for _ in range(20):
            answer = await f.ask(get())
            assert status(answer) == 503
            assert b"\r\nRetry-After: " in answer[0]
        assert len(pool.requests) == 2
        pool.gate.set()
        assert [status(await client.message()) for client in clients] == [200, 200]


async def test_B23_after_an_overload_all_is_as_before():
    """Forty requests arrive at once for a pool with one slot and a queue of five. Some are served and the others get
    a 503. The next request is then served at once."""
    waits = asyncio.Lock()

    async def script(wire):
        while True:
            await wire.message()
            async with waits:
                await asyncio.sleep(0.005)
            await wire.send(OK)

    async with checked_front(script, max_in_flight=1, queue={"size": 5, "timeout": 0.02}) as f:
        for _ in range(2):
            clients = [await f.client() for _ in range(40)]
            for client in clients:
                await client.send(get())
            codes = [status(await client.message()) for client in clients]
            assert set(codes) == {200, 503}
            await f.wait_idle()
            assert len(queue(f)) == 0
            for client in clients[:5]:
                await client.send(get())
                assert status(await client.message()) == 200, "the client that was refused is served on its connection"
        assert pools_up(f) == [1]


async def in_line(f, held, n):
    """One that is served and n that wait, as clients."""
    clients = [await f.begin(get("/0"))]
    await eventually(lambda: len(held.requests) == 1)
    for i in range(1, n + 1):
        clients.append(await f.begin(get(f"/{i}")))
        await eventually(lambda i=i: len(queue(f)) == i)
    return clients


class Tickets(Recorder):
    """A recorder that answers one request for each release of its semaphore."""

    def __init__(self):
        super().__init__()
        self.permits = asyncio.Semaphore(0)

    async def __call__(self, wire):
        while True:
            self.requests.append(await wire.message())
            await self.permits.acquire()
            await wire.send(OK)


@pytest.mark.parametrize("order", ["leaves, then room", "room, then leaves", "room one turn later"])
@pytest.mark.parametrize("who", [1, 2])
async def test_C15_a_slot_that_is_freed_as_a_client_leaves_the_queue_goes_to_the_next(order, who):
    """The next request leaves the queue in the same loop turn in which the slot is freed."""
    pool = Tickets()
    async with checked_front(pool, max_in_flight=1) as f:
        clients = await in_line(f, pool, 3)
        if order == "room, then leaves":
            pool.permits.release()
        clients[who].reset()
        if order == "room one turn later":
            await loop_turns(1)
        if order != "room, then leaves":
            pool.permits.release()
        for _ in range(3):
            pool.permits.release()
        for i in {0, 1, 2, 3} - {who}:
            assert status(await clients[i].message()) == 200
        await f.wait_idle()
        assert len(queue(f)) == 0


async def test_C15_a_slot_that_a_leaving_client_frees_wakes_the_next_request_at_once():
    """The slot is freed by an abort, not by a response."""
    pool = Tickets()
    async with checked_front(pool, max_in_flight=1) as f:
        clients = await in_line(f, pool, 2)
        clients[0].reset()
        await eventually(lambda: len(pool.requests) == 2)
        assert pool.targets == [b"/0", b"/1"]
        assert len(queue(f)) == 1
        for _ in range(3):
            pool.permits.release()
        assert [status(await client.message()) for client in clients[1:]] == [200, 200]


async def test_C15_the_length_of_the_queue_is_exact_after_a_client_left_it():
    """As many may stand in it as before: not one fewer, not one more."""
    pool = Tickets()
    async with checked_front(pool, max_in_flight=1, queue={"size": 2}) as f:
        clients = await in_line(f, pool, 2)
        for _ in range(3):
            clients.pop(1).reset()
            await eventually(lambda: len(queue(f)) == 1)
            clients.append(await f.begin(get("/late")))
            await eventually(lambda: len(queue(f)) == 2)
            assert status(await f.ask(get("/one-too-many"))) == 503
        for _ in range(9):
            pool.permits.release()
        assert [status(await client.message()) for client in clients] == [200] * 3
        assert b"/one-too-many" not in pool.targets


async def test_C15_a_place_that_expires_as_a_slot_is_freed_blocks_no_request():
    """The first request expires at about the time at which the slot is freed; the next one goes on."""
    pool = Tickets()
    async with checked_front(pool, max_in_flight=1, queue={"timeout": 0.03}) as f:
        for i in range(6):
            first, second = await f.begin(get("/a")), await f.begin(get("/b"))
            await asyncio.sleep(0.027 + i * 0.001)
            pool.permits.release()
            pool.permits.release()
            assert {status(await first.message()), status(await second.message())} <= {200, 503}
            await f.wait_idle()
            await eventually(lambda: len(queue(f)) == 0)
            while not pool.permits.locked():
                await pool.permits.acquire()
