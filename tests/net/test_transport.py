"""What the bytes travel on: TLS on both sides, IPv6, Unix sockets, names that move, ports that are handed over."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from dispatcher.errors import ConfigError, StartError, UpstreamUnreachable
from dispatcher.platform.sockets import Address, inherited, listen_on
from dispatcher.proxy.resolver import Resolver

CA = trustme.CA()


@pytest.fixture
def pem(tmp_path):
    """Certificates as files: ours(*names) -> path, and the authority's."""
    CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def issue(*names, file="server.pem", by=CA):
        path = tmp_path / file
        by.issue_cert(*names).private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    issue.ca = str(tmp_path / "ca.pem")
    return issue


def trusting():
    context = ssl.create_default_context()
    CA.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


async def secure_client(f, context=None, name="localhost"):
    reader, writer = await asyncio.open_connection(*f.address, ssl=context or trusting(), server_hostname=name)
    wire = Wire(reader, writer)
    f.clients.append(wire)
    return wire


async def test_clients_are_served_tls_and_the_pool_is_told(pem):
    seen = []

    async def script(wire):
        while True:
            seen.append(await wire.until(b"\r\n\r\n"))
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with front(script, tls={"certificate": pem("localhost")}) as f:
        client = await secure_client(f)
        secured = client.writer.get_extra_info("ssl_object")
        assert secured.version() in ("TLSv1.2", "TLSv1.3")
        assert secured.selected_alpn_protocol() == "http/1.1"
        for _ in range(2):
            await client.send(get())
            assert (await client.message())[1] == b"ok"
        assert b"\r\nX-Forwarded-Proto: https\r\n" in seen[0]
        await f.wait_idle()


async def test_bodies_pass_through_tls_on_both_sides_untouched(pem):
    data = os.urandom(700_000)

    async def handle(reader, writer):
        wire = Wire(reader, writer)
        try:
            while True:
                _, body = await wire.message()
                await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except (EOFError, ConnectionError):
            writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA.issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with front(tls={"certificate": pem("localhost")}) as f:
        f.service.control.add_pool({"name": "safe", "url": f"https://127.0.0.1:{port}", "ca": pem.ca})
        f.service.control.remove_pool("p0")
        client = await secure_client(f)
        for _ in range(2):
            await client.send(get("/", f"Content-Length: {len(data)}", method="POST") + data)
            assert (await client.message())[1] == data
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="safe", reason="connect") == 0
    server.close()


@pytest.mark.parametrize(
    ("names", "by", "keys", "works"),
    [
        (["127.0.0.1"], CA, {}, True),
        (["other.example"], CA, {}, False),
        (["other.example"], CA, {"server_name": "other.example"}, True),
        (["127.0.0.1"], trustme.CA(), {}, False),
        (["127.0.0.1"], trustme.CA(), {"verify": False}, True),
        (["127.0.0.1"], CA, {"ca": ""}, False),
    ],
)
async def test_the_certificate_of_a_pool_is_verified(pem, names, by, keys, works):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    by.issue_cert(*names).configure_cert(context)
    asked = []
    context.sni_callback = lambda _, name, __: asked.append(name)

    async def handle(reader, writer):
        try:
            await answer_ok(Wire(reader, writer))
        except (EOFError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with front() as f:
        f.service.control.add_pool({"name": "safe", "url": f"https://127.0.0.1:{port}", "ca": pem.ca, **keys})
        f.service.control.remove_pool("p0")
        assert status(await f.ask(get())) == (200 if works else 502)
        assert f.metric("lased_upstream_errors_total", pool="safe", reason="connect") == (0 if works else 1)
        if "server_name" in keys:
            assert asked == ["other.example"]
        await f.wait_idle()
    server.close()


async def test_another_certificate_is_used_after_a_reload(pem):
    path = pem("localhost")
    async with front(tls={"certificate": path}) as f:
        first = (await secure_client(f)).writer.get_extra_info("ssl_object").getpeercert(True)
        pem("localhost")
        f.service.reloader.reload()
        second = (await secure_client(f)).writer.get_extra_info("ssl_object").getpeercert(True)
        assert first != second
        Path(path).write_text("no certificate")
        with pytest.raises(ConfigError, match="tls: cannot use"):
            f.service.reloader.reload()
        third = (await secure_client(f)).writer.get_extra_info("ssl_object").getpeercert(True)
        assert third == second


async def test_old_tls_and_plain_text_are_turned_away(pem):
    async with front(tls={"certificate": pem("localhost")}) as f:
        old = trusting()
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await secure_client(f, old)
        plain = await f.client()
        await plain.send(get())
        assert b"200" not in await plain.rest()
        assert (await (await secure_client(f)).send(get())) is None
        await f.wait_idle()


async def test_a_client_that_leaves_inside_a_tls_answer_is_a_client_that_left(pem):
    async def endless(wire):
        await wire.until(b"\r\n\r\n")
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while True:
            await wire.send(b"x" * 100_000)

    async with front(endless, tls={"certificate": pem("localhost")}) as f:
        client = await secure_client(f)
        await client.send(get())
        await client.exactly(100_000)
        client.kill()
        await f.wait_idle()
        await eventually(lambda: f.metric("lased_client_aborts_total") == 1)


async def test_a_tunnel_through_tls_ends_with_either_side(pem):
    async def script(wire):
        await wire.until(b"\r\n\r\n")
        await wire.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello")
        assert await wire.exactly(4) == b"ping"
        await wire.send(b"pong")
        wire.writer.close()

    async with front(script, tls={"certificate": pem("localhost")}) as f:
        client = await secure_client(f)
        await client.send(get("/", "Connection: upgrade", "Upgrade: x"))
        await client.until(b"\r\n\r\n")
        await client.send(b"ping")
        assert await client.rest() == b"hellopong"
        await f.wait_idle()


async def test_ipv6_on_both_sides():
    seen = []

    async def handle(reader, writer):
        wire = Wire(reader, writer)
        seen.append(await wire.until(b"\r\n\r\n"))
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    try:
        server = await asyncio.start_server(handle, "::1", 0)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    port = server.sockets[0].getsockname()[1]
    async with front(listen="[::1]:0") as f:
        f.service.control.add_pool({"name": "six", "url": f"http://[::1]:{port}"})
        f.service.control.remove_pool("p0")
        client = await f.client()
        await client.send(get("/", host=f"[::1]:{f.address[1]}"))
        assert (await client.message())[1] == b"ok"
        mine = client.writer.get_extra_info("sockname")[1]
        assert b"\r\nX-Forwarded-For: ::1\r\n" in seen[0]
        assert b'\r\nForwarded: for="[::1]:%d";host="[::1]:%d";proto=http\r\n' % (mine, f.address[1]) in seen[0]
    server.close()


async def test_unix_sockets_on_both_sides(tmp_path):
    seen = []

    async def handle(reader, writer):
        wire = Wire(reader, writer)
        while True:
            seen.append(await wire.until(b"\r\n\r\n"))
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    path, pool = str(tmp_path / "front.sock"), str(tmp_path / "pool.sock")
    server = await asyncio.start_unix_server(handle, pool)
    async with front(listen=f"unix:{path}") as f:
        f.service.control.add_pool({"name": "local", "url": f"unix:{pool}"})
        f.service.control.remove_pool("p0")
        wire = Wire(*await asyncio.open_unix_connection(path))
        for _ in range(2):
            await wire.send(get())
            assert (await wire.message())[1] == b"ok"
        assert b"\r\nX-Forwarded-For: unknown\r\n" in seen[0]
        assert f.service.pool_connections["local"].connections == 1, "kept alive"
        with pytest.raises(StartError, match=r"front\.sock is in use"):
            listen_on("listen", Address(path=path), 1)
        wire.close()
        await f.wait_idle()
    assert "front.sock" not in os.listdir(tmp_path)
    server.close()


def test_the_file_of_a_dead_process_is_replaced(tmp_path):
    path = str(tmp_path / "x.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    (fresh,) = listen_on("listen", Address(path=path), 1)
    fresh.close()
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StartError, match="in use"):
        listen_on("listen", Address(path=str(tmp_path / "file")), 1)
    assert (tmp_path / "file").read_text() == "precious"


# -- names


class FakeLookup:
    """Stands for the loop's: answers what it is told."""

    def __init__(self, monkeypatch, *answers):
        self.answers, self.asked = list(answers), 0
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self, raising=False)

    async def __call__(self, host, port, **_):
        self.asked += 1
        answer = self.answers[min(self.asked, len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]


def new_resolver(ttl=0.0, moved=lambda gone: None, failed=lambda reason: None):
    return Resolver(Address("pool.example", 80), lambda: ttl, moved, failed)


@pytest.fixture
def resolver(monkeypatch):
    """Only where the loop lets itself be given another resolver."""

    def make(*answers):
        try:
            return FakeLookup(monkeypatch, *answers)
        except AttributeError:
            pytest.skip("uvloop's loop takes no other resolver")

    return make


async def test_all_addresses_are_used_in_turn(resolver):
    resolver(["10.0.0.1", "10.0.0.2"])
    there = new_resolver()
    assert [(await there.addresses())[0] for _ in range(4)] == ["10.0.0.2", "10.0.0.1"] * 2


async def test_a_name_is_looked_up_again_when_it_is_old(resolver):
    gone = []
    asked = resolver(["10.0.0.1"], ["10.0.0.2"])
    there = new_resolver(0.01, gone.append)
    assert await there.addresses() == ["10.0.0.1"]
    await asyncio.sleep(0.02)
    there.refresh_if_old()
    await eventually(lambda: gone == [{"10.0.0.1"}])
    assert await there.addresses() == ["10.0.0.2"]
    assert asked.asked >= 2
    there.close()


async def test_a_resolver_that_fails_changes_nothing(resolver):
    failed = []
    asked = resolver(["10.0.0.1"], socket.gaierror(-3, "Temporary failure"))
    there = new_resolver(0.01, failed=failed.append)
    await there.addresses()
    await asyncio.sleep(0.02)
    there.refresh_if_old()
    await eventually(lambda: failed)
    assert await there.addresses() == ["10.0.0.1"]
    assert "Temporary failure" in failed[0]
    assert asked.asked >= 2
    there.close()


async def test_a_name_that_was_never_found_is_an_unreachable_pool(resolver):
    asked = resolver(socket.gaierror(-2, "Name or service not known"))
    there = new_resolver(1.0)
    for _ in range(3):
        with pytest.raises(UpstreamUnreachable):
            await there.addresses()
    assert asked.asked == 1, "not at every request"


async def test_a_pool_that_moves_is_followed_and_its_old_connections_let_go(resolver):
    old, new = await Pool(answer_ok).open(), Pool(answer_ok)
    new.server = await asyncio.start_server(new.accept, "127.0.0.2", old.port)
    asked = resolver(["127.0.0.1"], ["127.0.0.2"])
    async with front(timeouts={"dns": 0.03}) as f:
        f.service.control.add_pool({"name": "named", "url": f"http://pool.example:{old.port}"})
        f.service.control.remove_pool("p0")
        client = await f.client()
        await client.send(get())
        assert status(await client.message()) == 200
        assert (len(old.connections), len(new.connections)) == (1, 0)
        await asyncio.sleep(0.05)
        for _ in range(20):
            await client.send(get())
            assert status(await client.message()) == 200
            await asyncio.sleep(0.001)
        assert len(new.connections) == 1
        assert asked.asked >= 2
        await f.wait_idle()
    await old.close()
    await new.close()


async def test_an_address_that_is_dead_is_passed_over(resolver):
    pool = await Pool(answer_ok).open()
    resolver(["127.0.0.1", "127.0.0.9"])
    async with front() as f:
        f.service.control.add_pool({"name": "named", "url": f"http://pool.example:{pool.port}"})
        f.service.control.remove_pool("p0")
        for _ in range(4):
            assert status(await f.ask(get("/", "Connection: close"))) == 200
        assert f.metric("lased_upstream_errors_total", pool="named", reason="connect") == 0
    await pool.close()


# -- ports from and for others


def test_sockets_from_systemd_are_taken_by_name(tmp_path):
    code = (
        "import os; os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "from dispatcher.platform.sockets import inherited, bound\n"
        "given = {key: [str(bound(s)) for s in there] for key, there in inherited(os.environ).items()}\n"
        "print(given, 'LISTEN_FDS' in os.environ)"
    )
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        ports = [each.getsockname()[1] for each in (a, b)]
        command = f'exec 3<&{a.fileno()} 4<&{b.fileno()}; exec {sys.executable} -c "$CODE"'
        done = subprocess.run(
            ["bash", "-c", command], pass_fds=(a.fileno(), b.fileno()), capture_output=True, text=True, check=True,
            env={**os.environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "http:admin", "CODE": code},
        )  # fmt: skip
    assert done.stdout == f"{{'listen': ['127.0.0.1:{ports[0]}'], 'admin': ['127.0.0.1:{ports[1]}']}} False\n"


def test_sockets_that_are_meant_for_another_process_are_left():
    assert inherited({"LISTEN_PID": "1", "LISTEN_FDS": "1"}) == {}
    assert inherited({}) == {}


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
