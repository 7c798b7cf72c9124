"""Upgrades: after a 101 both connections form one tunnel until both sides have ended."""

import asyncio
import socket
import ssl
import time

import pytest
import trustme

from tests.proxy.harness import (
    Recorder,
    UnreadingPool,
    Wire,
    all_clients_gone,
    answer_ok,
    checked_front,
    eventually,
    front,
    get,
    pool_connections,
    status,
    values,
)

UPGRADE = ("Connection: Upgrade", "Upgrade: websocket")


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
            await asyncio.wait_for(wire.send(b"x" * 50_000), 5 if i < 1 else 0.2)

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
async def test_after_a_refused_upgrade_the_connection_goes_on(answer):
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
async def test_an_upgrade_is_forwarded_only_when_it_is_well_formed(fields, asked):
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


async def test_a_tunnel_that_the_dispatcher_closes_is_no_failure_of_its_pool(caplog):
    async with front(switching(echo), answer_ok, timeouts={"drain": 0.05}) as f:
        client, _ = await switched(f)
        f.service.control.remove_pool("p0")
        await client.rest()
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="protocol") == 0
        assert f.metric("lased_internal_errors_total") == 0
    assert not [record for record in caplog.records if record.name == "asyncio"], "an exception in the event loop"


async def test_a_tunnel_teaches_nothing():
    async with front(switching(echo), policy="greedy") as f:
        client, _ = await switched(f)
        client.close()
        await f.wait_idle()
        assert f.metric("lased_service_seconds_count", pool="p0") == 0


UPGRADE_REQUEST = get("/ws", "Connection: Upgrade", "Upgrade: websocket")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


async def test_a_tunnel_through_tls_outlives_unrelated_changes(tmp_path):
    async def echo(reader, writer):
        wire = Wire(reader, writer)
        await wire.until(b"\r\n\r\n")
        await wire.send(SWITCH)
        while await wire.more():
            data, wire.buffer = wire.buffer, b""
            await wire.send(data)
        writer.close()

    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with front(answer_ok, timeouts={"drain": 0.05}) as f:
        f.service.control.drain_pool("p0", True)
        f.service.control.add_pool({"name": "safe", "url": url, "ca": str(tmp_path / "ca")})
        client = await f.client()
        await client.send(UPGRADE_REQUEST)
        await client.until(b"\r\n\r\n")
        f.service.control.drain_pool("p0", False)
        f.service.reloader.reload()
        await asyncio.sleep(0.15)
        await client.send(b"ping")
        assert await client.exactly(4) == b"ping"
    server.close()


async def test_the_last_bytes_of_a_tunnel_arrive_although_the_pool_did_not_read():
    loop = asyncio.get_running_loop()
    with UnreadingPool() as pool, socket.socket() as client:
        async with front(answer_ok) as f:
            await pool.replace_pools_of(f)
            client.connect(f.address)
            client.setblocking(False)
            await loop.sock_sendall(client, UPGRADE_REQUEST)
            await eventually(lambda: pool.connections)
            pool.connections[0].sendall(SWITCH)
            head = b""
            while b"\r\n\r\n" not in head:
                head += await loop.sock_recv(client, 4096)
            await loop.sock_sendall(client, b"first")
            await asyncio.sleep(0.05)  # and stays unread
            client.send(b"more" * 100)
            pool.connections[0].send(b"goodbye")
            pool.connections[0].close()
            time.sleep(0.03)  # noqa: ASYNC251 - so that the dispatcher's write meets the reset before the loop reads
            assert await asyncio.wait_for(loop.sock_recv(client, 4096), 3) == b"goodbye"
            client.close()


async def test_much_behind_the_upgrade_request_is_the_tunnels(monkeypatch):
    from dispatcher.proxy.upstream import PoolConnection

    gate, really = asyncio.Event(), PoolConnection.connection_made

    def narrow(self, transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        really(self, transport)

    async def slow(wire):
        await wire.until(b"\r\n\r\n")
        await gate.wait()
        await wire.send(SWITCH)
        await asyncio.sleep(0.12)
        await wire.exactly(200_000)
        await wire.send(b"done")
        await wire.rest()

    monkeypatch.setattr(PoolConnection, "connection_made", narrow)
    async with front(slow, timeouts={"idle": 0.04, "tunnel": 30.0}) as f:
        client = await f.client()
        client.writer.write(UPGRADE_REQUEST + b"x" * 200_000)
        await asyncio.sleep(0.05)
        gate.set()
        await client.until(b"\r\n\r\n")
        assert await client.exactly(4) == b"done"


async def test_a_101_that_is_read_after_a_reset_leaves_nothing_in_flight(monkeypatch):
    async def leaves(wire):
        await wire.until(b"\r\n\r\n")
        wire.reset()

    async with front(leaves) as f:
        monkeypatch.setattr(
            "dispatcher.proxy.upstream.unread_data", lambda _: [SWITCH]
        )  # what lay there when the reset was met
        client = await f.client()
        await client.send(UPGRADE_REQUEST)
        await client.rest()
        await f.wait_idle()
        assert f.metric("lased_internal_errors_total") == 0


async def test_a_tunnel_that_begins_when_its_pool_is_gone_ends_like_the_others():
    gate = asyncio.Event()

    async def switch(wire):
        await wire.until(b"\r\n\r\n")
        await gate.wait()
        await wire.send(SWITCH)
        await wire.rest()

    async with front(switch, answer_ok, timeouts={"drain": 0.05}) as f:
        gone = pool_connections(f)
        client = await f.client()
        await client.send(UPGRADE_REQUEST)
        await eventually(lambda: f.in_flight == [1, 0])
        f.service.control.remove_pool("p0")
        await asyncio.sleep(0.1)
        gate.set()
        await client.until(b"\r\n\r\n")
        assert await client.ended()
        await eventually(lambda: not gone.connections)


WEBSOCKET = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw=="]
REFUSALS = {
    "length": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied",
    "chunked": b"HTTP/1.1 401 Who\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndenied\r\n0\r\n\r\n",
    "to the end": b"HTTP/1.1 503 No\r\nConnection: close\r\n\r\ndenied",
    "answered plainly": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ndenied",
}


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
async def test_W02_a_refused_upgrade_is_a_response_like_any_other(answer):
    """All of it reaches the client, on a connection that goes on; the pool's are kept or closed, never lost."""

    async def script(wire):
        while True:
            await wire.message()
            await wire.send(answer)
            if b"close" in answer:
                return

    async with checked_front(script) as f:
        client = await f.client()
        for _ in range(20):
            await client.send(get("/ws", *WEBSOCKET))
            head, body = await client.message()
            assert head.split(b"\r\n")[0] == answer.split(b"\r\n")[0]
            assert body == b"denied"
            assert f.in_flight == [0]
        client.close()
        for _ in range(5):
            assert (await f.ask(get("/ws", *WEBSOCKET)))[1] == b"denied"
        await all_clients_gone(f)
        assert pool_connections(f).connections <= 1


@pytest.mark.parametrize("raw", [b"5\r\nhello\r\n0\r\n\r\n", b"hello"])
@pytest.mark.parametrize("token", ["foo", "websocket", "h2c", "TLS/1.0"])
async def test_W04_a_declined_upgrade_with_a_body_leaves_the_requests_behind_it_whole(raw, token):
    """The body is read as the body it is, and what is pipelined behind it is answered, each request once."""
    pool = Recorder()
    field = "Content-Length: 5" if raw == b"hello" else "Transfer-Encoding: chunked"
    async with checked_front(pool) as f:
        upgrade = get("/up", f"Upgrade: {token}", "Connection: upgrade", field, method="POST") + raw
        client = await f.begin(upgrade + get("/2") + get("/3"))
        for _ in range(3):
            assert (await client.message())[1] == b"ok"
        assert [(head.split(b" ")[1], body) for head, body in pool.requests] == [
            (b"/up", b"hello"),
            (b"/2", b""),
            (b"/3", b""),
        ]
        await client.send(get("/4"))
        assert status(await client.message()) == 200
        assert client.buffer == b""


@pytest.mark.parametrize("asked", [[], WEBSOCKET])
async def test_W06_a_426_keeps_its_upgrade_header(asked):
    """Its Upgrade field is part of the response (RFC 9110 15.5.22), and so is the option that nominates it."""
    upgrade = b"Upgrade: TLS/1.0, HTTP/3\r\nConnection: Upgrade\r\n"
    answer = b"HTTP/1.1 426 Upgrade Required\r\n" + upgrade + b"Content-Length: 4\r\n\r\nmust"
    async with checked_front(Recorder(answer)) as f:
        client = await f.client()
        for _ in range(2):
            await client.send(get("/", *asked))
            head, body = await client.message()
            assert head.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
            assert values(head, b"upgrade") == [b"TLS/1.0, HTTP/3"]
            assert [value.lower() for value in values(head, b"connection")] == [b"upgrade"]
            assert body == b"must"
        assert len(f.pools[0].connections) == 1
