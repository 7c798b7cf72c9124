"""A dispatcher that runs in the test's own loop, with raw sockets on both sides.

The pools are scripts and the clients are written by hand. `front` starts the dispatcher and its pools;
`checked_front` also checks in the end that the dispatcher is as good as new.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field

from dispatcher.config import Config
from dispatcher.service import Service

WAIT = 5.0  # seconds after which a test that waits has failed
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
EMPTY_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
FAILURE = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
FRESH = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n/fresh"
EVIL = b"GET /evil HTTP/1.1\r\nHost: evil\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDS = ["close", "reset"]  # how a side of a connection may end it
ADDED_HEADERS = (b"forwarded:", b"x-forwarded-", b"via:")  # what the dispatcher adds to a request


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
        """Read a message: (head, body), without the framing of chunks."""
        head = await self.until(b"\r\n\r\n")
        if head_only or head.startswith((b"HTTP/1.1 1", b"HTTP/1.1 204", b"HTTP/1.1 304")):
            return head, b""
        return head, (await self.body(head))[1]

    async def body(self, head):
        """Read the body that follows this head: (its bytes as they came, its data)."""
        (length,) = values(head, b"content-length") or [b""]
        if [value.lower() for value in values(head, b"transfer-encoding")] == [b"chunked"]:
            return await self._chunked_body()
        if length:
            data = await self.exactly(int(length))
        else:
            data = await self.rest() if head.startswith(b"HTTP") else b""
        return data, data

    async def _chunked_body(self):
        raw = data = b""
        size = -1
        while size:
            line = await self.until(b"\r\n")
            size = int(line.strip(), 16)
            piece = await self.exactly(size)
            end = await self.exactly(2)
            assert end == b"\r\n"
            data += piece
            raw += line + piece + end
        return raw, data

    def close(self):
        self.writer.close()

    def kill(self):
        """Close at once, if that has not happened yet."""
        try:
            self.writer.transport.abort()
        except AttributeError:
            pass  # asyncio's transports cannot take it twice

    def leave(self, how):
        """End this side: "close", "reset", or "half" for the sending side alone."""
        if how == "half":
            self.writer.write_eof()
        else:
            getattr(self, how)()

    def reset(self):
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.kill()


async def answer_ok(wire):
    """Answer every request with its target."""
    while True:
        head, _ = await wire.message()
        target = head.split(b" ")[1]
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(target), target))


async def silent(wire):
    """Read one request and never answer it."""
    await wire.message()
    await wire.rest()


class Recorder:
    """A pool script that keeps every request and answers all of them with the same bytes.

    `GET /fresh` is answered plainly and is not kept, whatever the script does with other requests.
    """

    def __init__(self, answer=OK):
        self.answer = answer
        self.heads = []
        self.raw_bodies = []  # with the framing of chunks
        self.requests = []  # (head, body) of each request that was read to its end

    async def __call__(self, wire):
        while True:
            head = await wire.until(b"\r\n\r\n")
            if head.startswith(b"GET /fresh "):
                await wire.send(FRESH)
            else:
                self.heads.append(head)
                await self.respond(wire, head)

    async def respond(self, wire, head):
        await self.read_body(wire, head)
        await wire.send(self.answer)

    async def read_body(self, wire, head):
        raw, body = await wire.body(head)
        self.raw_bodies.append(raw)
        self.requests.append((head, body))

    @property
    def bodies(self):
        return [body for _, body in self.requests]

    @property
    def targets(self):
        return [head.split(b" ")[1] for head, _ in self.requests]


def answers(code, body=b"no", *headers):
    """A recorder whose responses have this status code, this body and these header lines."""
    lines = [b"HTTP/1.1 %d X" % code, b"Content-Length: %d" % len(body), *headers, b"", body]
    return Recorder(b"\r\n".join(lines))


def pouring(head, total=64 << 20):
    async def script(wire):
        await wire.until(b"\r\n\r\n")
        await wire.send(head)
        for _ in range(total >> 16):
            await wire.send(b"x" * 65536)

    return script


class Gated(Recorder):
    """A recorder that answers only while its gate is open."""

    def __init__(self, answer=OK):
        super().__init__(answer)
        self.gate = asyncio.Event()

    async def respond(self, wire, head):
        await self.read_body(wire, head)
        await self.gate.wait()
        await wire.send(self.answer)


class Scripted(Recorder):
    """A recorder whose response is `play(wire, head)`, which also reads the body."""

    def __init__(self, play):
        super().__init__()
        self.respond = play


class Pieces(Recorder):
    """A recorder that sends these pieces, each as a segment of its own, and then does `then`: "", "close", "reset"."""

    def __init__(self, *pieces, then=""):
        super().__init__()
        self.pieces, self.then = pieces, then

    async def respond(self, wire, head):
        await self.read_body(wire, head)
        for piece in self.pieces:
            await wire.send(piece)
            await asyncio.sleep(0.001)
        if self.then:
            getattr(wire, self.then)()
            raise EOFError


class Swallows(Recorder):
    """A recorder that answers nothing. received: everything behind the head, to the end of the connection."""

    def __init__(self):
        super().__init__()
        self.received = b""
        self.ended = asyncio.Event()

    async def respond(self, wire, head):
        self.received = await wire.rest()
        self.ended.set()
        raise EOFError


@dataclass
class Pool:
    """A pool server. script: it serves each connection; connections: all that were ever made."""

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


class UnreadingPool:
    """A pool of plain sockets that closes with unread data, so that its kernel sends a reset."""

    def __init__(self):
        self.listening, self.connections = socket.create_server(("127.0.0.1", 0)), []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        connection, _ = self.listening.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        self.connections.append(connection)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listening.close()

    async def replace_pools_of(self, f):
        f.service.reloader.amend(pools=[{"name": "t", "url": f"http://127.0.0.1:{self.listening.getsockname()[1]}"}])


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

    async def begin(self, raw):
        """Return a client that has sent this and has read nothing yet."""
        client = await self.client()
        await client.send(raw)
        return client

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


async def stable(value, seconds=0.04):
    """Wait until value() is the same after this time as before it, and return it."""
    before = None
    while value() != before:
        before = value()
        await asyncio.sleep(seconds)
    return before


@contextlib.asynccontextmanager
async def front(*scripts, policy="jsq", max_in_flight=0, **config):
    """Run a dispatcher with one pool for each script.

    scripts: None stands for a pool whose port refuses connections.
    policy: None for the default policy.
    config: more keys of the configuration.
    """
    pools = [await Pool(script or answer_ok).open() for script in scripts or (answer_ok,)]
    entries = [
        {"name": f"p{i}", "url": f"http://127.0.0.1:{pool.port}", "true_rate": 1.0, "max_in_flight": max_in_flight}
        for i, pool in enumerate(pools)
    ]
    policy_key = {"policy": {"name": policy}} if policy else {}
    service = Service(
        Config.model_validate(
            {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "pools": entries, **policy_key, **config}
        )
    )
    async with service.running() as (address, admin):
        for pool, script in zip(pools, scripts, strict=False):
            if script is None:
                await pool.close()  # not before: a port that is free could become one of the dispatcher's own
        running = Front(service, (address.host, address.port), (admin.host, admin.port), pools)
        try:
            yield running
        finally:
            for client in running.clients:
                client.kill()
            for pool in pools:
                await pool.close()


@contextlib.asynccontextmanager
async def checked_front(*scripts, **config):
    """Run a dispatcher as `front` does, and check in the end that it serves as if nothing had happened."""
    async with front(*scripts, **config) as f:
        yield f
        await f.wait_idle()
        for pool in f.pools:
            pool.script = answer_ok
            if not pool.server.is_serving():
                await pool.open()
            for wire in pool.connections:
                wire.kill()
        await assert_unharmed(f, requests=len(f.pools) + 1)


# Requests and headers


def get(target="/x", *fields, method="GET", host="test"):
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *fields]
    return "\r\n".join(lines).encode("latin1") + b"\r\n\r\n"


def status(answer):
    return int(answer[0].split(b" ")[1])


def values(head, name):
    """The values of all headers with this name, in their order."""
    pairs = (line.partition(b":") for line in header_lines(head))
    return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]


def header_lines(head):
    """The lines of a head without its first line."""
    return head.split(b"\r\n")[1:-2]


def original_lines(head):
    """The lines of a head that a pool received, without those that the dispatcher adds."""
    return [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(ADDED_HEADERS)]


async def send_in_pieces(client, raw, size=0):
    """Send in segments of this size, 0 for a single one. An end of the connection is left to the caller to notice."""
    try:
        for i in range(0, len(raw), size or len(raw)):
            await client.send(raw[i : i + (size or len(raw))])
            await asyncio.sleep(0)
    except ConnectionError:
        pass


async def loop_turns(n=20):
    """Let the event loop turn n times."""
    for _ in range(n):
        await asyncio.sleep(0)


async def status_codes(f, n):
    """The status codes of n requests on one connection."""
    client = await f.client()
    codes = []
    for _ in range(n):
        await client.send(get())
        codes.append(status(await client.message()))
    client.close()
    return codes


# Checks


async def assert_unharmed(f, requests=1):
    """Nothing is in flight or waits, the dispatcher met no error of its own, and fresh requests are served."""
    await f.wait_idle()
    await eventually(lambda: len(queue(f)) == 0, "a request waits in the queue")
    assert f.metric("lased_internal_errors_total") == 0
    assert f.metric("lased_policy_errors_total") == 0
    for _ in range(requests):
        head, body = await asyncio.wait_for(f.ask(get("/fresh")), 2)
        assert (status((head,)), body) == (200, b"/fresh")
    await f.wait_idle()


async def assert_refused(f, raw, *codes, size=0):
    """The response has one of these status codes, nothing follows it, and the connection ends. Returns the code."""
    client = await f.client()
    await send_in_pieces(client, raw, size)
    head, _ = await client.message()
    code = status((head,))
    assert code in codes, head
    assert values(head, b"connection") == [b"close"]
    assert await client.ended(), client.buffer
    return code


async def assert_refused_unseen(f, raw, *codes, size=0):
    """The request is refused, and no byte of it reached a pool."""
    code = await assert_refused(f, raw, *codes, size=size)
    assert [pool.connections for pool in f.pools] == [[] for _ in f.pools]
    await assert_unharmed(f)
    return code


# Views of the running dispatcher


def queue(f):
    return f.service.context.queue


def pool_connections(f, pool="p0"):
    return f.service.connection_pools[pool]


def client_connections(f):
    """The open connections of clients."""
    return list(f.service.listener._connections)


def handshakes(f):
    """How many TLS handshakes are under way."""
    return len(f.service.listener._handshakes)


def busy_connections(f):
    """How many connections to pools are neither idle nor closed."""
    return sum(pool.connections - pool.idle_connections for pool in f.service.connection_pools.values())


def write_buffer_bytes(f, pool="p0"):
    """Bytes that wait in the dispatcher to be sent, to clients and to one pool."""
    ends = [c.transport for c in client_connections(f)] + [c.transport for c in pool_connections(f, pool)._all]
    return sum(end.get_write_buffer_size() for end in ends if end is not None)


def consecutive_failures(f, pool):
    """How many requests in a row failed at this pool."""
    return f.service.health._states[pool].consecutive_failures


def pools_with_metrics(f):
    """The names of the pools that metrics are kept for."""
    return list(f.service.recorder._series)


def completions(f):
    """A list to which every completion from now on is added."""
    router, done = f.service.router, []
    complete = router.complete

    def complete_and_keep(*arguments, **keys):
        completion = complete(*arguments, **keys)
        done.append(completion)
        return completion

    router.complete = complete_and_keep
    return done


def pools_up(f):
    return [f.metric("lased_pool_up", pool=f"p{i}") for i in range(len(f.pools))]


def routable_pools(f):
    """The names of the pools that the policy chooses from."""
    return [pool.id for pool in f.service.router.fleet.pools]


async def all_clients_gone(f):
    """Wait until no client is connected and nothing is in flight."""
    await eventually(lambda: repr(f.service.listener).startswith("<Listener 0 connections"), repr(f.service.listener))
    await f.wait_idle()


async def scrape(f, path="/metrics"):
    """The text that the admin side sends for this path."""
    wire = Wire(*await asyncio.open_connection(*f.admin))
    await wire.send(b"GET %s HTTP/1.0\r\n\r\n" % path.encode())
    text = await wire.rest()
    wire.close()
    return text.decode()


# Changes of the configuration


def with_pools(service, *pools, **change):
    """The configuration in force, with other pools. pools: (name, port, more keys) of each."""
    data = service.config.model_dump() | change
    data["pools"] = [{"name": name, "url": f"http://127.0.0.1:{port}", **more} for name, port, more in pools]
    return Config.model_validate(data)


def with_keys(f, *keys):
    """The configuration in force with only the first pools of a front. keys: more keys of each pool."""
    return with_pools(f.service, *((f"p{i}", f.pools[i].port, more) for i, more in enumerate(keys)))


# Ports


@contextlib.contextmanager
def port_without_answer():
    """A port at which connection attempts neither succeed nor fail, because its backlog is full."""
    with socket.socket() as listening, contextlib.ExitStack() as held:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(3):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listening.getsockname())
        yield listening.getsockname()[1]
