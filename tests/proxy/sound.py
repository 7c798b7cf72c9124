"""What these tests share: pools that record or hold, ports that never answer a dial, and the check that a dispatcher is
sound afterwards."""

import asyncio
import contextlib
import socket

from tests.net.harness import Wire, answer_ok, eventually, front, get, status

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Records:
    """A pool that keeps what it reads and answers every request with the same bytes."""

    def __init__(self, answer=OK):
        self.answer = answer
        self.seen = []

    async def __call__(self, wire):
        while True:
            self.seen.append(await wire.message())
            await wire.send(self.answer)

    @property
    def targets(self):
        return [head.split(b" ")[1] for head, _ in self.seen]


class Holds(Records):
    """A pool that answers only once its gate is open."""

    def __init__(self, answer=OK):
        super().__init__(answer)
        self.gate = asyncio.Event()

    async def __call__(self, wire):
        while True:
            self.seen.append(await wire.message())
            await self.gate.wait()
            await wire.send(self.answer)


def fields(head):
    """The lines of a head without its first."""
    return head.split(b"\r\n")[1:-2]


def values(head, name):
    """The values of all fields of this name, in any letter case."""
    pairs = (line.partition(b":") for line in fields(head))
    return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]


def queue(f):
    return f.service.context.queue


def upstream(f, pool="p0"):
    return f.service.pool_connections[pool]


def pools_up(f):
    return [f.metric("lased_pool_up", pool=f"p{i}") for i in range(len(f.pools))]


async def asking(f, raw):
    """A client that has sent this and not read yet."""
    client = await f.client()
    await client.send(raw)
    return client


async def alone(f):
    """All clients are gone, and all counts at zero."""
    await eventually(lambda: repr(f.service.listener).startswith("<Listener 0 connections"), repr(f.service.listener))
    await f.wait_idle()


async def turns(n=20):
    """Let the loop turn so often."""
    for _ in range(n):
        await asyncio.sleep(0)


async def scrape(f, path="/metrics"):
    """What the admin side says."""
    wire = Wire(*await asyncio.open_connection(*f.admin))
    await wire.send(b"GET %s HTTP/1.0\r\n\r\n" % path.encode())
    text = await wire.rest()
    wire.close()
    return text.decode()


async def well(f):
    """Nothing is in flight, nobody waits, nothing of our own went wrong, and fresh requests are served."""
    await f.wait_idle()
    await eventually(lambda: len(queue(f)) == 0, "somebody waits in line")
    assert f.metric("lased_internal_errors_total") == 0
    assert f.metric("lased_policy_errors_total") == 0
    for pool in f.pools:
        pool.script = answer_ok
        if not pool.server.is_serving():
            await pool.open()
        for wire in pool.connections:
            wire.kill()
    for _ in range(len(f.pools) + 1):
        assert status(await asyncio.wait_for(f.ask(get("/after")), 2)) == 200
    await f.wait_idle()


@contextlib.asynccontextmanager
async def sound(*scripts, **config):
    """A dispatcher as `front` makes it, which must be well when the block has ended."""
    async with front(*scripts, **config) as f:
        yield f
        await well(f)


@contextlib.contextmanager
def deaf_port():
    """A port whose dials neither succeed nor fail: its line of connections to be accepted is full."""
    with socket.socket() as listening, contextlib.ExitStack() as held:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(3):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listening.getsockname())
        yield listening.getsockname()[1]
