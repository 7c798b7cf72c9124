"""IPv6 addresses and Unix sockets on both sides of the dispatcher."""

import asyncio
import os

import pytest

from dispatcher.config import Config
from dispatcher.errors import StartError
from dispatcher.platform.sockets import Address, listen_on
from tests.proxy.harness import (
    OK,
    Wire,
    checked_front,
    front,
    get,
    status,
    with_keys,
)


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
        assert f.service.connection_pools["local"].connections == 1, "kept alive"
        with pytest.raises(StartError, match=r"front\.sock is in use"):
            listen_on("listen", Address(path=path), 1)
        wire.close()
        await f.wait_idle()
    assert "front.sock" not in os.listdir(tmp_path)
    server.close()


async def test_B18_a_pool_may_have_an_ipv6_address():
    """The pool is dialled, and a Host header with such an address keeps its brackets."""
    heads = []

    async def serve(reader, writer):
        wire = Wire(reader, writer)
        heads.append((await wire.message())[0])
        await wire.send(OK)
        writer.close()

    try:
        server = await asyncio.start_server(serve, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    port = server.sockets[0].getsockname()[1]
    async with checked_front() as f:
        data = f.service.config.model_dump()
        data["pools"][0]["url"] = f"http://[::1]:{port}"
        f.service.take_over(Config.model_validate(data))
        for host, target in ((f"[::1]:{port}", "/"), ("[2001:db8::1]", "/"), ("x", f"http://[::1]:{port}/p")):
            assert status(await f.ask(get(target, host=host))) == 200
        f.service.take_over(with_keys(f, {}))
    server.close()
    expected = [f"Host: [::1]:{port}", "Host: [2001:db8::1]", f"Host: [::1]:{port}"]
    assert [head.split(b"\r\n")[1].decode() for head in heads] == expected
