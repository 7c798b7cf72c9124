"""Requests beyond what the pools may have in flight: they wait in turn, bounded in number and time; nobody is lost."""

import asyncio



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


async def test_it_waits_and_goes_where_room_is():
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


async def test_nobody_overtakes():
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


async def test_one_that_leaves_while_it_waits_is_never_sent_and_the_next_goes():
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


async def test_a_pool_that_joins_lets_the_first_in_line_go():
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
