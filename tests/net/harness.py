"""Raw sockets on both sides of a dispatcher that runs in the test's own loop: scripted pools, hand-written clients."""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field

from dispatcher.config import Config
from dispatcher.service import Service

WAIT = 5.0  # seconds after which a test that waits has failed


class Wire:
    """One end of a connection, with a buffer of its own."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.buffer = b""

    async def more(self):
        """Read once more; False at the end of the stream (or a reset)."""
        try:
            data = await asyncio.wait_for(self.reader.read(65536), WAIT)
        except ConnectionError:
            return False
        self.buffer += data
        return bool(data)

    async def until(self, mark):
        """Everything up to and with `mark`."""
        while mark not in self.buffer:
            if not await self.more():
                raise EOFError(f"ended before {mark!r}: {self.buffer!r}")
        head, _, self.buffer = self.buffer.partition(mark)
        return head + mark

    async def exactly(self, n):
        while len(self.buffer) < n:
            if not await self.more():
                raise EOFError(f"ended after {len(self.buffer)} of {n} bytes: {self.buffer[:200]!r}")
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    async def rest(self):
        """Everything to the end of the stream."""
        while await self.more():
            pass
        return self.buffer

    async def ended(self):
        """Whether the other side closes, and sends nothing before."""
        return not await self.more() and not self.buffer

    async def send(self, data):
        if self.writer.transport.is_closing():
            raise ConnectionResetError("closed already")  # of which loops make errors of different kinds
        self.writer.write(data)
        await self.writer.drain()

    async def message(self, head_only=False):
        """A message: (head, body), its body read by Content-Length or in chunks; `trailing` chunk framing taken off."""
        head = await self.until(b"\r\n\r\n")
        fields = head.lower()
        if head_only or head.startswith((b"HTTP/1.1 1", b"HTTP/1.1 204", b"HTTP/1.1 304")):
            return head, b""
        if b"\r\ntransfer-encoding: chunked" in fields:
            body = b""
            while size := int((await self.until(b"\r\n")).strip(), 16):
                body += await self.exactly(size)
                assert await self.exactly(2) == b"\r\n"
            assert await self.until(b"\r\n") == b"\r\n"
            return head, body
        if b"\r\ncontent-length:" in fields:
            length = int(fields.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
            return head, await self.exactly(length)
        return head, b"" if not head.startswith(b"HTTP") else await self.rest()

    def close(self):
        self.writer.close()

    def kill(self):
        """Close at once, if that has not happened yet."""
        try:
            self.writer.transport.abort()
        except AttributeError:
            pass  # asyncio's transports cannot take it twice

    def reset(self):
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.kill()


async def answer_ok(pool):
    """The default script: every request is answered with its target."""
    while True:
        head, _ = await pool.message()
        target = head.split(b" ")[1]
        await pool.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(target), target))


@dataclass
class Pool:
    """A scripted pool. seen: the requests' heads, as the scripts read them; connections: all that were ever made."""

    script: object
    port: int = 0
    connections: list = field(default_factory=list)
    tasks: set = field(default_factory=set)
    server: object = None

    async def open(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def accept(self, reader, writer):
        wire = Wire(reader, writer)
        self.connections.append(wire)
        task = asyncio.current_task()
        self.tasks.add(task)
        try:
            await self.script(wire)
        except (EOFError, ConnectionError, asyncio.CancelledError):
            pass  # the other side is gone, or the test over
        finally:
            self.tasks.discard(task)
            writer.close()

    async def close(self):
        """Refuse connections from now on, and break those that are open."""
        self.server.close()
        for wire in self.connections:
            wire.kill()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.sleep(0)


class Front:
    """A running dispatcher and its pools."""

    def __init__(self, service, address, admin, pools):
        self.service, self.address, self.admin, self.pools = service, address, admin, pools
        self.clients = []

    @property
    def in_flight(self):
        return [self.service.router.fleet.count(f"p{i}") for i in range(len(self.pools))]

    async def client(self):
        reader, writer = await asyncio.open_connection(*self.address, limit=1024)
        wire = Wire(reader, writer)
        self.clients.append(wire)
        return wire

    async def ask(self, raw, head_only=False):
        """One request on a connection of its own: (head, body)."""
        client = await self.client()
        await client.send(raw)
        answer = await client.message(head_only)
        client.close()
        return answer

    def metric(self, name, **labels):
        return self.service.registry.get_sample_value(name, labels) or 0.0

    async def wait_idle(self):
        """All counts are back at zero."""
        await eventually(lambda: not any(self.in_flight), f"in flight: {self.in_flight}")


async def eventually(condition, what="it never came true"):
    """Wait until the condition holds: on events of the loop, bounded by WAIT."""
    loop = asyncio.get_running_loop()
    end = loop.time() + WAIT
    while not condition():
        assert loop.time() < end, what
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def front(*scripts, policy="jsq", max_in_flight=0, **config):
    """A dispatcher before one pool a script (None: a pool whose port refuses connections). policy: None for the
    default."""
    pools = [await Pool(script or answer_ok).open() for script in scripts or (answer_ok,)]
    entries = [
        {"name": f"p{i}", "url": f"http://127.0.0.1:{pool.port}", "true_rate": 1.0, "max_in_flight": max_in_flight}
        for i, pool in enumerate(pools)
    ]
    named = {"policy": {"name": policy}} if policy else {}
    service = Service(
        Config.model_validate({"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "pools": entries, **named, **config})
    )
    async with service.running() as (address, admin):
        for pool, script in zip(pools, scripts, strict=False):
            if script is None:
                await pool.close()  # not before: a port that is free could become one of the dispatcher's own
        there = Front(service, (address.host, address.port), (admin.host, admin.port), pools)
        try:
            yield there
        finally:
            for client in there.clients:
                client.kill()
            for pool in pools:
                await pool.close()


def get(target="/x", *fields, method="GET", host="test"):
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *fields]
    return "\r\n".join(lines).encode("latin1") + b"\r\n\r\n"


def status(answer):
    return int(answer[0].split(b" ")[1])
