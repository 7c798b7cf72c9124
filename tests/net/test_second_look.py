"""Faults that an attack on the forwarding path found, each as a test of its kind."""

import asyncio
import gc
import os
import socket
import ssl
import subprocess
import sys
import threading
import time

import aiohttp
import pytest
import trustme

from dispatcher.config import load
from dispatcher.errors import ConfigError, StartError
from dispatcher.platform.sockets import Address, listen_on
from dispatcher.proxy.request_body import RequestBody
from dispatcher.proxy.resolver import Resolver

UPGRADE_REQUEST = get("/ws", "Connection: Upgrade", "Upgrade: websocket")
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def changed(f, **pool):
    """The configuration of the first pool, changed."""
    first, *others = f.service.control.pools()
    f.service.reloader.amend(pools=[first | pool, *others])


# -- names


async def test_a_reload_while_a_name_is_looked_up_costs_nobody_anything(monkeypatch):
    gate, really = asyncio.Event(), Resolver._look_up

    async def slow(self):
        await gate.wait()
        await really(self)

    async with front(answer_ok, health={"path": "/h", "interval": 0.02}) as f:
        port = f.pools[0].port
        monkeypatch.setattr(Resolver, "_look_up", slow)
        changed(f, url=f"http://localhost:{port}")
        asked = asyncio.create_task(f.ask(get("/q")))
        await eventually(lambda: f.in_flight == [1])
        await asyncio.sleep(0.05)  # the probe waits for the name too
        changed(f, url=f"http://127.0.0.1:{port}")
        gate.set()
        assert status(await asked) == 200
        await asyncio.sleep(0.05)
        assert not f.service.health_checks._tasks["p0"].done(), "it is probed still"


async def test_an_address_that_swallows_everything_leaves_time_for_the_others(monkeypatch):
    async def two(self):
        self._addresses, self._fresh_until, self._lookup = ["127.0.0.9", "127.0.0.1"], float("inf"), None

    with socket.socket() as hole, socket.socket() as one, socket.socket() as two_more:
        hole.bind(("127.0.0.9", 0))
        hole.listen(0)
        port = hole.getsockname()[1]
        for filler in (one, two_more):
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.9", port))
        monkeypatch.setattr(Resolver, "_look_up", two)
        async with front(answer_ok, timeouts={"connect": 0.3}) as f:
            good = await Pool(answer_ok, port).open()
            changed(f, url=f"http://localhost:{port}")
            began = time.monotonic()
            for _ in range(4):
                assert status(await f.ask(get("/", "Connection: close"))) == 200
                pool_connections(f).take_idle().close()
            assert time.monotonic() - began < 0.9, "it is known to be dead after the first time"
            await good.close()


# -- tunnels


async def test_a_tunnel_through_tls_outlives_changes_that_are_none_of_its_business(tmp_path):
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


async def test_the_last_words_of_a_tunnel_are_heard_although_the_pool_did_not_listen():
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
            time.sleep(0.03)  # noqa: ASYNC251 - so that our write meets the reset before the loop reads
            assert await asyncio.wait_for(loop.sock_recv(client, 4096), 3) == b"goodbye"
            client.close()


async def test_an_early_answer_is_heard_although_the_pool_did_not_listen():
    loop = asyncio.get_running_loop()
    with UnreadingPool() as pool, socket.socket() as client:
        async with front(answer_ok) as f:
            await pool.replace_pools_of(f)
            client.connect(f.address)
            client.setblocking(False)
            await loop.sock_sendall(client, get("/", "Content-Length: 100000", method="POST"))
            await eventually(lambda: pool.connections)
            await loop.sock_sendall(client, b"x" * 100)
            await asyncio.sleep(0.05)
            client.send(b"more" * 100)
            pool.connections[0].send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            pool.connections[0].close()
            time.sleep(0.03)  # noqa: ASYNC251 - as above
            assert (await asyncio.wait_for(loop.sock_recv(client, 4096), 3)).startswith(b"HTTP/1.1 413")
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
        await asyncio.sleep(0.3)
        await wire.exactly(200_000)
        await wire.send(b"done")
        await wire.rest()

    monkeypatch.setattr(PoolConnection, "connection_made", narrow)
    async with front(slow, timeouts={"idle": 0.1, "tunnel": 30.0}) as f:
        client = await f.client()
        client.writer.write(UPGRADE_REQUEST + b"x" * 200_000)
        await asyncio.sleep(0.05)
        gate.set()
        await client.until(b"\r\n\r\n")
        assert await client.exactly(4) == b"done"


async def test_a_pool_that_switches_with_its_last_words_holds_no_ticket(monkeypatch):
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


def test_a_state_file_that_cannot_be_written_is_found_out_at_the_start(tmp_path):
    command = [sys.executable, "-m", "dispatcher", "serve", "--pool", "a=http://127.0.0.1:9", "--listen", "127.0.0.1:0"]
    env = os.environ | {"LASED_STATE_FILE": str(tmp_path / "nowhere" / "x"), "LASED_ADMIN": "127.0.0.1:0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: state_file: cannot write")


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


# -- retries


async def test_the_last_refusal_is_handed_on_in_the_pools_own_words():
    busy = answers(503, b"own words", b"Retry-After: 77")
    async with front(busy, busy, policy="round_robin", retry={"on": ["503"], "attempts": 3}) as f:
        head, body = await f.ask(get())
        assert body == b"own words"
        assert b"\r\nRetry-After: 77\r\n" in head
        assert f.metric("lased_retries_total", reason="503") == 1


async def test_so_is_one_where_the_others_are_full():
    gate = asyncio.Event()

    async def held(wire):
        await wire.message()
        await gate.wait()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with front(answers(503, b"own words"), held, policy="round_robin", max_in_flight=1, retry={"on": ["503"]}) as f:
        f.service.control.drain_pool("p0", True)
        holder = await f.client()
        await holder.send(get())
        await eventually(lambda: f.in_flight == [0, 1])
        f.service.control.drain_pool("p0", False)
        assert (await f.ask(get()))[1] == b"own words"
        gate.set()
        assert status(await holder.message()) == 200


async def test_a_429_is_no_failure_of_its_pool():
    limits = answers(429)
    async with front(
        limits, answer_ok, policy="round_robin", retry={"on": ["429"]}, health={"passive_failures": 1}
    ) as f:
        for _ in range(10):
            assert status(await f.ask(get("/x"))) == 200
        assert f.service.health.is_up("p0")
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="429") == 0


async def test_what_was_kept_of_a_body_is_let_go_with_the_request():
    async with front() as f:
        client = await f.client()
        await client.send(get("/", "Content-Length: 60000", method="PUT") + b"x" * 60000)
        await client.message()
        await eventually(lambda: not any(isinstance(thing, RequestBody) for thing in gc.get_objects()))


# -- configuration


async def test_a_healthy_pool_takes_over_from_one_that_is_down():
    async with front(answer_ok, health={"fall": 1}) as f:
        f.service.health.checked("p0", False)
        assert f.service.health.is_routable("p0"), "the last one"
        f.service.control.add_pool({"name": "new", "url": f"http://127.0.0.1:{f.pools[0].port}"})
        assert [pool.id for pool in f.service.router.fleet.pools] == ["new"]


async def test_another_floor_is_in_force_at_once():
    async with front(answer_ok, answer_ok, health={"fall": 1, "floor": 1.0}) as f:
        f.service.health.checked("p0", False)
        assert f.service.health.is_routable("p0")
        f.service.reloader.amend(health=f.service.config.health.model_dump() | {"floor": 0.0})
        assert not f.service.health.is_routable("p0")


async def test_a_policy_and_what_it_needs_may_come_in_one_change():
    async with front(policy="jsq") as f:
        (pool,) = f.service.control.pools()
        f.service.reloader.amend(pools=[pool | {"true_rate": None}])
        f.service.reloader.amend(pools=[pool | {"true_rate": 5.0}], policy={"name": "sed"})
        assert f.service.config.policy.name == "sed"
        f.service.reloader.amend(pools=[pool | {"true_rate": None}], policy={"name": "jsq"})
        assert status(await f.ask(get())) == 200


async def test_a_change_elsewhere_does_not_bring_an_ejected_pool_back_and_a_reload_does():
    async with front(answers(500), answer_ok, answer_ok, policy="round_robin", health={"passive_failures": 1}) as f:
        for _ in range(3):
            await f.ask(get())
        f.service.control.drain_pool("p2", True)
        f.service.control.set_policy({"name": "jsq"})
        assert f.service.health.verdict("p0") == "ejected"
        f.service.take_over(f.service.config, reset_ejections=True)
        assert f.service.health.verdict("p0") == "up"


async def test_names_that_come_and_go_do_not_fill_the_memory():
    async with front() as f:
        for i in range(200):
            f.service.control.add_pool({"name": f"n{i}", "url": "http://127.0.0.1:9"})
            f.service.control.remove_pool(f"n{i}")
        series = [s.labels.get("pool") for family in f.service.registry.collect() for s in family.samples]
        assert "n0" not in series
        assert "n199" in series
        assert len({name for name in series if name}) <= 66
        assert len(f.service.recorder._series) <= 66


async def test_a_reload_with_a_full_disk_behind_the_log_is_a_reload():
    async with front(access_log={"path": "/dev/full"}) as f:
        await f.ask(get())
        f.service.on_sighup()
        assert f.metric("lased_config_last_reload_success") == 1
        await f.ask(get())


async def test_a_log_that_nobody_reads_stops_nobody(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    async with front(access_log={"path": str(path)}) as f:
        client = await f.client()
        for _ in range(30):
            await client.send(get("/x", "User-Agent: " + "a" * 8000))
            await client.message()
        f.service.access_log.writer.flush()
        assert not await asyncio.to_thread(f.service.access_log.writer._idle.wait, 0.1), "its thread is stuck"
        await client.send(get("/still"))
        assert (await client.message())[1] == b"/still"
        os.set_blocking(reading, True)
        threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reading, 65536), b"")], daemon=True).start()
        assert await asyncio.to_thread(f.service.access_log.writer.wait_idle)


def test_a_token_of_digits_is_a_token_and_a_wrong_one_is_not_shown(tmp_path):
    flags = {"pools": [{"name": "a", "url": "http://x"}]}
    assert load(None, {"LASED_ADMIN_TOKEN": "1234567890123456"}, flags).token == "1234567890123456"  # noqa: S105
    path = tmp_path / "x.toml"
    path.write_text("admin_token = 9876543210987654\n[[pools]]\nname = 'a'\nurl = 'http://x'\n")
    with pytest.raises(ConfigError, match="admin_token: must be a string") as refused:
        load(path, {}, {})
    assert "9876" not in str(refused.value)


# -- the admin side


async def raw(f, head, body=b""):
    """The status of an admin request, byte for byte."""
    reader, writer = await asyncio.open_connection(*f.admin)
    writer.write(head + body)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' + b"[" * 30000,
        b'{"name":"lased","options":{"n0":Infinity}}',
        b'{"name":"lased","options":{"c":NaN}}',
        b'{"name":"lased","options":{"c":' + b"9" * 4000 + b"}}",
        b'{"name":"envoy_least_request","options":{"choice_count":1000000000}}',
        b'{"name":"greedy","options":{"estimator":"window:size=1e400"}}',
        b'{"name":"\\ud800"}',
        b'{"name":"\xff"}',
        b'{"name":"antigravity:geohash"}',
        b'{"name":3}',
        b'{"name":[]}',
        b"{}x",
    ],
)
async def test_odd_policies_are_the_callers_fault(body):
    async with front() as f:
        head = b"POST /policy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        assert await raw(f, head + b"Content-Length: %d\r\n\r\n" % len(body), body) == 400
        charset = head.replace(b"json\r\n", b"json; charset=foo\r\n")
        assert await raw(f, charset + b"Content-Length: %d\r\n\r\n" % len(body), body) == 400
        assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "host", ["evil.example", "", "localhost:x", "localhost:999999", "\x80", "a@127.0.0.1", "[::1", "::1]"]
)
async def test_odd_hosts_are_not_ours(host):
    async with front() as f:
        assert await raw(f, f"GET /state HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("latin1")) in (
            400,
            421,
        )


async def test_changes_that_come_at_once_are_all_answered():
    async with front() as f:
        url = f"http://{f.admin[0]}:{f.admin[1]}"

        async def call(session, i):
            entry = {"name": f"n{i % 7}", "url": "http://127.0.0.1:9"}
            async with session.post(f"{url}/pools", json=entry) as answer:
                codes.add(answer.status)
            async with session.delete(f"{url}/pools/n{i % 7}") as answer:
                codes.add(answer.status)

        codes = set()
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(call(session, i) for i in range(60)))
        assert codes <= {200, 201, 400, 404}


# -- sockets


async def test_a_connection_counts_before_its_handshake_is_done(tmp_path):
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pem"))
    async with front(tls={"certificate": str(tmp_path / "pem")}, limits={"connections": 3}) as f:
        silent = [await f.client() for _ in range(10)]
        await eventually(lambda: handshakes(f) == 3)
        ended = [await client.ended() for client in silent[3:]]
        assert all(ended)
        for client in silent[:3]:
            client.kill()
        await eventually(lambda: not handshakes(f))


def test_a_socket_whose_backlog_is_full_is_alive(tmp_path):
    code = f"from dispatcher.platform.sockets import *; listen_on('listen', Address(path={str(tmp_path / 's')!r}), 5)"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(tmp_path / "s"))
        live.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(str(tmp_path / "s"))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
        assert "in use by another program" in done.stderr
        with pytest.raises(StartError, match="in use"):
            listen_on("listen", Address(path=str(tmp_path / "s")), 5)
        for each in waiting:
            each.close()
