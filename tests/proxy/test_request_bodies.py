"""The body of a request on its way to a pool."""

import gc

import pytest

from dispatcher.errors import BadRequest
from dispatcher.proxy.request_body import RequestBody
from tests.proxy.harness import OK, Recorder, eventually, front, get, status


def test_everything_that_has_arrived_goes_on_at_once():
    body = RequestBody(is_chunked=False, max_bytes=0, max_replay_bytes=None)
    body.add(b"one ")
    body.add(b"two")
    assert body.unsent_bytes == 7
    assert body.take(is_complete=False) == b"one two"
    assert body.unsent_bytes == 0
    assert body.take(is_complete=True) == b""


def test_small_pieces_of_a_chunked_body_become_one_chunk():
    body = RequestBody(is_chunked=True, max_bytes=0, max_replay_bytes=None)
    for _ in range(20):
        body.add(b"x")
    assert body.take(is_complete=False) == b"14\r\n" + b"x" * 20 + b"\r\n"
    assert body.take(is_complete=False) == b""
    assert body.take(is_complete=True) == b"0\r\n\r\n"


def test_another_attempt_begins_at_the_beginning():
    body = RequestBody(is_chunked=False, max_bytes=0, max_replay_bytes=100)
    body.add(b"sent")
    assert body.take(is_complete=False) == b"sent"
    body.add(b" and not sent")
    body.rewind()
    assert body.take(is_complete=True) == b"sent and not sent"
    body.rewind()
    assert body.take(is_complete=True) == b"sent and not sent", "a third attempt is possible, too"


@pytest.mark.parametrize(("size", "possible"), [(100, True), (101, False)])
def test_a_body_over_the_buffer_cannot_be_sent_again(size, possible):
    body = RequestBody(is_chunked=False, max_bytes=0, max_replay_bytes=100)
    body.add(b"x" * size)
    body.take(is_complete=False)
    assert body.can_be_replayed is possible


def test_a_request_that_must_not_be_repeated_keeps_nothing():
    assert not RequestBody(is_chunked=False, max_bytes=0, max_replay_bytes=None).can_be_replayed


def test_a_body_over_its_limit_is_refused():
    body = RequestBody(is_chunked=True, max_bytes=10, max_replay_bytes=None)
    body.add(b"x" * 10)
    with pytest.raises(BadRequest, match="over 10 bytes") as refused:
        body.add(b"x")
    assert refused.value.status == 413


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_bodies_pass_in_both_directions(framing):
    body = bytes(range(256)) * 2000

    async def echo(wire):
        while True:
            _, got = await wire.message()
            if framing == "length":
                await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(got) + got)
            else:
                await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for i in range(0, len(got), 7000):
                    piece = got[i : i + 7000]
                    await wire.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                await wire.send(b"0\r\n\r\n")

    async with front(echo) as f:
        client = await f.client()
        for _ in range(3):
            if framing == "length":
                await client.send(get("/", f"Content-Length: {len(body)}", method="POST") + body)
            else:
                await client.send(get("/", "Transfer-Encoding: chunked", method="POST"))
                await client.send(b"%x;ext=1\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            assert (await client.message())[1] == body
        await f.wait_idle()


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "FOO", "QUERY"])
async def test_any_method_may_carry_a_body(method):
    script = Recorder()
    async with front(script) as f:
        await f.ask(get("/", "Content-Length: 5", method=method) + b"hello")
    assert script.requests[0][0].startswith(method.encode() + b" / ")
    assert script.requests[0][1] == b"hello"


async def test_a_kept_body_is_freed_with_its_request():
    async with front() as f:
        client = await f.client()
        await client.send(get("/", "Content-Length: 60000", method="PUT") + b"x" * 60000)
        await client.message()
        await eventually(lambda: not any(isinstance(thing, RequestBody) for thing in gc.get_objects()))


async def test_tiny_chunks_are_joined():
    seen = []

    async def script(wire):
        seen.append(await wire.until(b"0\r\n\r\n"))
        await wire.send(OK)

    async with front(script) as f:
        client = await f.client()
        await client.send(get("/", "Transfer-Encoding: chunked", method="POST"))
        await eventually(lambda: f.pools[0].connections)
        await client.send(b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
        assert status(await client.message()) == 200
    assert seen[0].count(b"\r\n") < 200, "the pool got every tiny chunk for itself"
    assert seen[0].partition(b"\r\n\r\n")[2].count(b"x") == 5000
