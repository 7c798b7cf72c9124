"""Long runs: an overload that passes, and 200,000 requests with every kind of fault."""

import asyncio
import gc
from random import Random

import psutil
import pytest

from tests.proxy.harness import (
    Pool,
    busy_connections,
    eventually,
    front,
    get,
    status,
)
from tests.proxy.test_stress import SHORT, moody, moody_client

pytestmark = pytest.mark.slow
MEGA = 1e6
N = 200_000


def resident():
    gc.collect()
    return psutil.Process().memory_info().rss


async def test_after_a_minute_of_overload_it_is_as_before():
    async def slow(wire):  # 200 a second, one at a time
        while True:
            await wire.until(b"\r\n\r\n")
            await asyncio.sleep(0.005)
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def one(f, answers):
        wire = await f.client()
        began = loop.time()
        try:
            await wire.send(get())
            answers.append((status(await wire.message()), loop.time() - began))
        finally:
            wire.kill()
            f.clients.remove(wire)

    async def offer(f, rate, seconds):
        answers, tasks, start = [], set(), loop.time()
        for i in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + i / rate - loop.time()))
            tasks.add(task := asyncio.create_task(one(f, answers)))
            task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.wait(tasks)
        return answers

    loop = asyncio.get_running_loop()
    async with front(slow, max_in_flight=1, queue={"size": 50, "timeout": 0.5}) as f:
        before = await offer(f, 50, 2)
        await offer(f, 500, 5)
        memory = resident()
        during = await offer(f, 500, 55)
        grown = (resident() - memory) / MEGA
        after = await offer(f, 50, 2)
        served = sum(code == 200 for code, _ in during)
        print(f"{served} of {len(during)} served in overload, memory +{grown:.1f} MB")
        assert {code for code, _ in before} == {code for code, _ in after} == {200}
        assert {code for code, _ in during} == {200, 503}
        assert served > 0.5 * 55 / 0.0065, "the pool is kept busy"
        assert max(seconds for code, seconds in during if code == 200) < 1.0
        assert sorted(seconds for _, seconds in after)[95] < 0.05
        assert grown < 10
        await f.wait_idle()


async def test_two_hundred_thousand_requests_in_which_everything_goes_wrong():
    dice, wrong, rows = Random(7), [], []
    pools = [moody(dice) for _ in range(3)]
    health = {"passive_failures": 3, "ejection": 0.05, "path": "/health", "interval": 0.2, "slow_start": 0.1}
    retry = {"on": ["connect", "stale", "reset", "503"]}
    settings = {"timeouts": SHORT, "health": health, "retry": retry, "queue": {"size": 100, "timeout": 0.2}}
    async with front(*pools, policy="lased", max_in_flight=40, shadow=["jsq"], **settings) as f:
        service, over = f.service, asyncio.Event()

        async def lives(n):
            i = 0
            while service.decision_log.count < N and not over.is_set():
                i += 1
                try:
                    await moody_client(f, dice, f"{n}-{i}", wrong)
                except (EOFError, ConnectionError, TimeoutError):
                    pass  # refused, cut, or left without an answer

        async def operator():
            """Reloads, drains, switches policies, kills pools and lets them come back."""
            fresh = None
            while not over.is_set():
                await asyncio.sleep(0.2)
                what = dice.randrange(6)
                if what == 0:
                    service.reloader.reload()
                elif what == 1:
                    service.control.set_policy(
                        {"name": dice.choice(["lased", "jsq", "greedy", "round_robin", "optimistic"])}
                    )
                elif what == 2:
                    service.control.drain_pool("p1", dice.random() < 0.3)
                elif what == 3 and fresh is None:
                    fresh = await Pool(moody(dice)).open()
                    service.control.add_pool({"name": "extra", "url": f"http://127.0.0.1:{fresh.port}"})
                elif what == 4 and fresh is not None:
                    await fresh.close()
                    await asyncio.sleep(0.05)
                    service.control.remove_pool("extra")
                    fresh = None
                else:
                    for client in f.clients[:-200]:
                        client.kill()
                    del f.clients[:-200]
                    for pool in f.pools:  # which remember all that they ever had
                        del pool.connections[:-200]
                    rows.append((service.decision_log.count, resident()))
            if fresh is not None:
                await fresh.close()

        watching = asyncio.create_task(operator())
        watching.add_done_callback(lambda _: over.set())
        try:
            await asyncio.gather(*(lives(n) for n in range(30)))
        finally:
            over.set()
            await watching
        for client in f.clients:
            client.kill()
        await eventually(lambda: not any(service.router.fleet.count(pool) for pool in ("p0", "p1", "p2", "extra")))
        await eventually(lambda: repr(service.listener) == "<Listener 0 connections>")
        assert service.router.fleet.in_flight == 0
        assert f.metric("lased_internal_errors_total") == 0
        assert f.metric("lased_policy_errors_total") == 0
        await eventually(lambda: not busy_connections(f))
    assert wrong == []
    half = next(memory for count, memory in rows if count > N / 2)
    print(
        f"{service.decision_log.count} requests, memory from the half to the end +{(rows[-1][1] - half) / MEGA:.1f} MB"
    )
    assert rows[-1][1] - half < 15 * MEGA
