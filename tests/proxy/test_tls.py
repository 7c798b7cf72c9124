"""TLS on both sides of the dispatcher."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest
import trustme

from dispatcher.errors import ConfigError
from tests.proxy.harness import Wire, answer_ok, eventually, front, get, status

CA = trustme.CA()


@pytest.fixture
def pem(tmp_path):
    """A factory that writes certificates to files and returns the path; `ca` is the path of the authority's
    certificate."""
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


async def test_clients_are_served_tls_and_the_pool_gets_the_protocol(pem):
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


async def test_a_client_that_leaves_inside_a_tls_response_is_an_abort(pem):
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
