"""Upgrades: after a 101 the two connections are one, byte for byte, until both sides have ended; before it not."""

import asyncio

import pytest


UPGRADE = ("Connection: Upgrade", "Upgrade: websocket")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def switching(play, rest=b""):
    """A pool that switches, sends `rest` in the same breath and then plays."""

    async def script(wire):
        script.heads.append(await wire.until(b"\r\n\r\n"))
        await wire.send(SWITCH + rest)
        await play(wire)
        script.done.set()

    script.heads, script.done = [], asyncio.Event()
    return script


async def echo(wire):
    while await wire.more():
        data, wire.buffer = wire.buffer, b""
        await wire.send(data)
    wire.writer.write_eof()


async def switched(f, *more):
    client = await f.client()
    await client.send(get("/ws", *UPGRADE) + b"".join(more))
    head = await client.until(b"\r\n\r\n")
    assert status((head,)) == 101
    return client, head


async def test_bytes_pass_both_ways_and_the_ticket_is_held_meanwhile():
    script = switching(echo, b"hello")
    async with front(script) as f:
        client, head = await switched(f, b"early")
        assert b"\r\nUpgrade: websocket\r\n" in head
        assert b"\r\nConnection: upgrade\r\n" in head
        assert b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" in script.heads[0]
        assert await client.exactly(10) == b"helloearly", "what stood behind either head belongs to the tunnel"
        await client.send(b"\x00\xff" * 50)
        assert await client.exactly(100) == b"\x00\xff" * 50
        assert f.in_flight == [1]
        client.writer.write_eof()
        assert await client.rest() == b""
        await f.wait_idle()
        assert f.metric("lased_requests_total", pool="p0", code="1xx") == 1
        assert f.metric("lased_client_aborts_total") == 0
        assert pool_connections(f).connections == 0


async def test_either_side_may_end_its_half_first():
    async def says_and_listens(wire):
        wire.writer.write_eof()
        script.got = await wire.rest()

    script = switching(says_and_listens, b"bye")
    async with front(script) as f:
        client, _ = await switched(f)
        assert await client.rest() == b"bye", "the pool's half is over"
        await client.send(b"still here, ")
        await client.send(b"and done")
        client.writer.write_eof()
        await asyncio.wait_for(script.done.wait(), 5)
        assert script.got == b"still here, and done"
        await f.wait_idle()


async def test_what_a_client_sent_before_it_left_still_arrives():
    async def listens(wire):
        script.got = await wire.rest()

    script = switching(listens)
    async with front(script) as f:
        client, _ = await switched(f)
        client.writer.write(b"x" * 300_000)
        client.close()
        await asyncio.wait_for(script.done.wait(), 5)
        assert len(script.got) == 300_000
        await f.wait_idle()


@pytest.mark.parametrize("who", ["client", "pool"])
async def test_a_reset_on_one_side_is_one_on_the_other(who):
    script = switching(echo)
    async with front(script) as f:
        client, _ = await switched(f)
        (client if who == "client" else f.pools[0].connections[0]).reset()
        if who == "pool":
            assert await client.ended()
        else:
            await eventually(lambda: not f.pools[0].tasks, "the pool still waits")
        await f.wait_idle()


async def test_a_slow_reader_holds_the_other_side_back():
    async def floods(wire):
        for i in range(2000):
            await asyncio.wait_for(wire.send(b"x" * 50_000), 5 if i < 1 else 0.5)

    script = switching(floods)
    async with front(script) as f:
        client, _ = await switched(f)
        client.writer.transport.pause_reading()
        await eventually(lambda: not f.pools[0].tasks, "the pool could send 100 MB that nobody took")
        assert not script.done.is_set()
        client.kill()
        await f.wait_idle()


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno"],
)
async def test_a_refused_upgrade_is_an_answer_and_the_connection_goes_on(answer):
    async def script(wire):
        while True:
            await wire.until(b"\r\n\r\n")
            await wire.send(answer)

    async with front(script) as f:
        client = await f.client()
        await client.send(get("/ws", *UPGRADE) + get("/behind") + get("/more"))
        for _ in range(3):
            assert (await client.message())[1] == b"no"
        await f.wait_idle()


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        (("Connection: upgrade", "Upgrade: WebSocket"), True),
        (("Connection: keep-alive, UPGRADE", "Upgrade: websocket"), True),
        (("Connection: notupgrade", "Upgrade: websocket"), False),
        (("Upgrade: websocket",), False),
        (("Connection: upgrade",), False),
        (("Connection: upgrade, http2-settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"), False),
        (("Connection: upgrade", "Upgrade: websocket", "Content-Length: 2"), False),
    ],
)
async def test_an_upgrade_is_asked_for_only_when_the_client_asks_properly(fields, asked):
    seen = []

    async def script(wire):
        head, _ = await wire.message()
        seen.append(head.lower())
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with front(script) as f:
        await f.ask(get("/", *fields) + (b"hi" if "Content-Length: 2" in fields else b""))
        assert (b"\r\nupgrade: " in seen[0]) is asked
        assert (b"\r\nconnection: upgrade\r\n" in seen[0]) is asked


async def test_a_tunnel_on_which_nothing_moves_is_closed():
    async with front(switching(echo), timeouts={"tunnel": 0.05}) as f:
        client, _ = await switched(f)
        assert await client.ended()
        await f.wait_idle()


async def test_a_drain_lets_tunnels_live_to_the_deadline():
    async with front(switching(echo), timeouts={"drain": 0.1}) as f:
        client, _ = await switched(f)
        drained = asyncio.create_task(f.service.listener.drain())
        await client.send(b"still")
        assert await client.exactly(5) == b"still"
        assert await drained == 1
        assert await client.ended()
        await f.wait_idle()


async def test_the_tunnels_of_a_pool_that_goes_end_after_the_time_of_a_drain():
    async with front(switching(echo), switching(echo), timeouts={"drain": 0.05}) as f:
        client, _ = await switched(f)
        there = next(i for i in (0, 1) if f.in_flight[i])
        f.service.control.remove_pool(f"p{there}")
        await client.send(b"still")
        assert await client.exactly(5) == b"still"
        assert await client.ended()
        await f.wait_idle()


async def test_a_tunnel_teaches_nothing():
    async with front(switching(echo), policy="greedy") as f:
        client, _ = await switched(f)
        client.close()
        await f.wait_idle()
        assert f.metric("lased_service_seconds_count", pool="p0") == 0
