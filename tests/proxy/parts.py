"""What the tests of single messages share: pools that keep the bytes they got and play a part, clients that send in
pieces, and what must hold after every trial. Every pool answers `GET /fresh` plainly, whatever part it plays."""

import asyncio

from tests.net.harness import get, status

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
FRESH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfresh"
EVIL = b"GET /evil HTTP/1.1\r\nHost: evil\r\n\r\n"
ADDED = (b"forwarded:", b"x-forwarded-", b"via:")  # what the dispatcher says for itself


def playing(play):
    """A pool: keeps each head it gets in `seen`, then does `play(wire, head)`."""

    async def script(wire):
        while True:
            head = await wire.until(b"\r\n\r\n")
            if head.startswith(b"GET /fresh "):
                await wire.send(FRESH)
            else:
                script.seen.append(head)
                await play(wire, head)

    script.seen = []
    return script


async def body_of(wire, head):
    """The bytes in which the body behind this head came, chunk framing and all."""
    fields = head.lower()
    if b"\r\ntransfer-encoding: chunked\r\n" in fields:
        return await wire.until(b"0\r\n\r\n")
    length = fields.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
    return await wire.exactly(int(length)) if length else b""


def answering(answer=OK):
    """A pool that reads whole requests, keeps the bytes of their bodies in `bodies`, and answers all alike."""

    async def play(wire, head):
        script.bodies.append(await body_of(wire, head))
        await wire.send(answer)

    script = playing(play)
    script.bodies = []
    return script


def saying(*pieces, then=""):
    """A pool that reads a request and sends these pieces, each as a segment; then goes on, or does `close`, `reset`."""

    async def play(wire, head):
        await body_of(wire, head)
        for piece in pieces:
            await wire.send(piece)
            await asyncio.sleep(0.001)
        if then:
            getattr(wire, then)()
            raise EOFError

    return playing(play)


def swallowing():
    """A pool that answers nothing and keeps what it gets behind the head, to the end of the connection, in `got`."""

    async def play(wire, head):
        script.ended = asyncio.Event()
        script.got = await wire.rest()
        script.ended.set()
        raise EOFError

    script = playing(play)
    script.got = b""
    return script


def own_words(head):
    """The lines of a head as the pool got it, without those that the dispatcher adds for itself."""
    return [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(ADDED)]


def named(head, name):
    """The values of all fields of this name, in order."""
    fields = (line.partition(b":") for line in head.split(b"\r\n")[1:-2])
    return [value.strip() for field, _, value in fields if field.lower() == name]


async def push(client, raw, size=0):
    """Send, in segments of so many bytes; a connection that ends meanwhile is the caller's to find."""
    try:
        for i in range(0, len(raw), size or len(raw)):
            await client.send(raw[i : i + (size or len(raw))])
            await asyncio.sleep(0)
    except ConnectionError:
        pass


async def unharmed(f):
    """Nothing is in flight, no bug of the dispatcher's own was met, and a fresh request is served."""
    await f.wait_idle()
    assert f.metric("lased_internal_errors_total") == 0
    head, body = await f.ask(get("/fresh"))
    assert (status((head,)), body) == (200, b"fresh")
    await f.wait_idle()


async def refused(f, raw, *codes, size=0):
    """The request is answered with one of these codes and nothing more, and its connection ends; returns the code."""
    client = await f.client()
    await push(client, raw, size)
    head, _ = await client.message()
    code = status((head,))
    assert code in codes, head
    assert named(head, b"connection") == [b"close"]
    assert await client.ended(), client.buffer
    return code


async def refused_unseen(f, raw, *codes, size=0):
    """Refused, and no byte of it reached a pool."""
    code = await refused(f, raw, *codes, size=size)
    assert [pool.connections for pool in f.pools] == [[] for _ in f.pools]
    await unharmed(f)
    return code
