"""The driver and its pacer: requests are sent at their planned instants, however many are open."""

import asyncio
from random import Random

import numpy as np
import pytest
from aiohttp import web

from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack, Limits
from loadgen.attack.pacer import Pacer
from loadgen.attack.records import Records
from loadgen.attack.schedule import schedule


async def test_the_pacer_fires_all_in_order_and_never_early():
    loop, fired = asyncio.get_running_loop(), []
    offsets = schedule(Poisson(2000.0, Random(3)), 0.2)
    pacer = Pacer(enumerate(offsets.tolist()), lambda i, planned: fired.append((i, planned, loop.time())))
    start = loop.time() + 0.01
    await pacer.run(start)
    assert [i for i, _, _ in fired] == list(range(len(offsets)))
    assert [planned for _, planned, _ in fired] == (start + offsets).tolist()
    assert all(at >= planned for _, planned, at in fired)


async def test_a_late_pacer_sends_late_rather_than_never():
    loop, fired = asyncio.get_running_loop(), []
    pacer = Pacer(enumerate([0.0, 0.1, 0.2]), lambda i, planned: fired.append(i))
    await pacer.run(loop.time() - 10)
    assert fired == [0, 1, 2]


async def test_a_stopped_pacer_stops():
    loop, fired = asyncio.get_running_loop(), []
    pacer = Pacer(enumerate((np.arange(1000) * 0.001).tolist()), lambda i, planned: (fired.append(i), pacer.stop()))
    await pacer.run(loop.time())
    assert fired == [0]


@pytest.fixture
async def target():
    """A server that keeps the first request until the last has come: only an open loop gets through."""
    seen, gate = [], asyncio.Event()

    async def handle(request):
        seen.append(request.path)
        if len(seen) == 150:
            gate.set()
        await gate.wait()
        return web.Response(text="ok", headers={"X-Pool": "a"}, status=500 if len(seen) == 1 else 200)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/x"
    gate.set()
    await runner.cleanup()


async def test_nothing_caps_the_requests_in_flight(target):
    attack = Attack(target, Records(np.arange(150) * 0.001), Limits(timeout=20.0))
    done = await attack.run()
    assert (attack.sent, attack.finished, attack.in_flight) == (150, 150, 0)
    assert done.completed.all()
    assert set(done.pools) == {"a"}


async def test_what_is_not_answered_in_time_counts_as_failed(target):
    attack = Attack(target, Records(np.array([0.0, 0.01])), Limits(timeout=0.2))
    done = await attack.run()
    assert done.status.tolist() == [0, 0]
    assert attack.in_flight == 0
