"""Draining a pool, a listener or the whole service, and the handover of a port."""

import asyncio
import os
import signal
import socket

import pytest

from dispatcher.config import Config
from dispatcher.service import Service
from tests.proxy.harness import (
    EMPTY_OK,
    OK,
    Front,
    Gated,
    Pool,
    Wire,
    answer_ok,
    eventually,
    front,
    get,
    loop_turns,
    routable_pools,
    silent,
    status,
    status_codes,
)


async def test_a_1_0_client_cut_by_the_drain_sees_a_reset():
    async def script(wire):
        await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await asyncio.sleep(60)

    async with front(script, timeouts={"drain": 0.05}) as f:
        client = await f.client()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        await client.until(b"hello")
        assert await f.service.listener.drain() == 1
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(), 5)


async def test_a_client_that_becomes_idle_during_the_drain_is_closed():
    async def big(wire):
        while True:
            await wire.message()
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3000000)

    async with front(big, timeouts={"drain": 5.0}) as f:
        client = await f.client()
        await client.send(get())
        await client.until(b"\r\n\r\n")
        await asyncio.sleep(0.1)
        draining = asyncio.ensure_future(f.service.listener.drain())
        while await client.more():
            client.buffer = b""
        assert await asyncio.wait_for(draining, 4) == 0


async def test_a_drain_lets_requests_end_and_takes_no_more(monkeypatch):
    monkeypatch.setattr("dispatcher.proxy.downstream.LINGER_SECONDS", 0.1)
    go = asyncio.Event()

    async def gated(wire):
        await wire.message()
        await go.wait()
        await wire.send(OK)

    async with front(gated) as f:
        idle, busy = await f.client(), await f.client()
        await busy.send(get())
        await eventually(lambda: f.in_flight == [1])
        draining = asyncio.create_task(f.service.listener.drain())
        assert await idle.ended()
        assert not f.service.listener.is_ready
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the platform likes
            await f.client()
        go.set()
        head, body = await busy.message()
        assert b"Connection: close" in head
        assert body == b"ok"
        assert await draining == 0
        assert f.in_flight == [0]


async def test_a_drain_has_a_deadline():
    async with front(silent, timeouts={"drain": 0.05}) as f:
        client = await f.client()
        await client.send(get())
        await eventually(lambda: f.in_flight == [1])
        assert await f.service.listener.drain() == 1
        await f.wait_idle()


async def test_a_second_process_takes_the_port_over_and_no_request_is_lost():
    with socket.socket() as chooser:
        chooser.bind(("127.0.0.1", 0))
        port = chooser.getsockname()[1]
    over = asyncio.Event()
    answers = []

    async def clients():
        while not over.is_set():
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            await wire.send(get())
            answers.append(status(await wire.message()))
            wire.close()

    share = {"listen": f"127.0.0.1:{port}", "reuse_port": True}
    async with front(**share) as second, front(**share) as first:
        running = [asyncio.create_task(clients()) for _ in range(8)]
        await eventually(lambda: len(answers) > 100)
        assert await first.service.listener.drain() == 0
        before = len(answers)
        await eventually(lambda: len(answers) > before + 100)
        over.set()
        await asyncio.gather(*running)
        assert set(answers) == {200}
        assert second.service.router.fleet.in_flight == 0


async def test_a_drained_pool_ends_what_it_has_and_gets_nothing_new():
    gate = asyncio.Event()

    async def held(wire):
        await wire.until(b"\r\n\r\n")
        await gate.wait()
        await wire.send(EMPTY_OK)

    async with front(held, answer_ok) as f:
        client = await f.client()
        await client.send(get())
        await eventually(lambda: f.in_flight == [1, 0])
        f.service.control.drain_pool("p0", True)
        assert f.service.health.verdict("p0") == "drained"
        assert await status_codes(f, 10) == [200] * 10
        assert f.in_flight == [1, 0]
        gate.set()
        assert status(await client.message()) == 200
        await f.wait_idle()
        f.service.control.drain_pool("p0", False)
        assert routable_pools(f) == ["p0", "p1"]


async def test_if_all_pools_are_drained_the_status_is_503():
    async with front(answer_ok, answer_ok) as f:
        for pool in ("p0", "p1"):
            f.service.control.drain_pool(pool, True)
        assert routable_pools(f) == []
        assert await status_codes(f, 1) == [503]
        f.service.control.drain_pool("p0", False)
        assert await status_codes(f, 1) == [200]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_B19_a_signal_ends_the_service_in_good_order(number, capsys):
    """A slow request ends completely, the idle client is closed, and the busy client gets Connection: close.

    New connections are refused. The service ends with the last request, long before the deadline.
    """
    pool = Gated()
    backend = await Pool(pool).open()
    config = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "timeouts": {"drain": 5.0},
        "pools": [{"name": "p0", "url": f"http://127.0.0.1:{backend.port}"}],
    }
    service = Service(Config.model_validate(config))
    running = asyncio.ensure_future(service.run_until_signal())
    try:
        await in_good_order(service, running, backend, pool, number, capsys)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await backend.close()
        await loop_turns()


async def in_good_order(service, running, backend, pool, number, capsys):
    printed = ""
    while "admin on" not in printed:
        assert not running.done()
        await asyncio.sleep(0.002)
        printed += capsys.readouterr().out
    host, port = printed.split()[2].rsplit(":", 1)
    f = Front(service, (host, int(port)), None, [backend])
    idle = await f.client()
    pool.gate.set()
    busy = await f.begin(get("/busy/1"))
    assert status(await busy.message()) == 200
    await idle.send(get("/idle"))
    assert status(await idle.message()) == 200
    pool.gate.clear()
    slow = await f.begin(get("/slow"))
    await busy.send(get("/busy/2") + get("/busy/3"))
    await eventually(lambda: f.in_flight == [2])
    os.kill(os.getpid(), number)
    assert await idle.ended()
    with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the platform likes
        await f.client()
    assert not running.done()
    pool.gate.set()
    for client in (slow, busy):
        head, body = await client.message()
        assert (status((head,)), body) == (200, b"ok")
        assert b"Connection: close" in head
        assert await client.ended()
        client.close()  # as long as it does not, the dispatcher waits a little for it to read what there is
    await asyncio.wait_for(running, 1)
    idle.close()
    assert b"/busy/3" not in pool.targets
    assert f.in_flight == [0]
