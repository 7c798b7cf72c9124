"""Random bytes from both sides break nothing, leak nothing and block nothing."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.proxy.harness import (
    front,
    get,
)

WORDS = [
    b"GET ",
    b"POST ",
    b"OPTIONS * ",
    b"/ ",
    b"/%zz ",
    b"http://a/b ",
    b"HTTP/1.1\r\n",
    b"HTTP/1.0\r\n",
    b"HTTP/1.9\r\n",
    b"Host: a\r\n",
    b"Host: a b\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\n",
    b"Upgrade: x\r\n",
    b"Expect: 100-continue\r\n",
    b"TE: trailers\r\n",
    b"X: \x00\r\n",
    b"X: \xff\r\n",
    b" folded\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"hello",
    b"5\r\n",
    b"0\r\n",
    b"ffffffffffffffff\r\n",
    b"5;a=b\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 101 S\r\n",
    b"HTTP/1.1 103 E\r\n",
    b"HTTP/1.1 204 N\r\n",
    b"HTTP/2 ",
    b"HTTP/1.1 999 X\r\n",
    b"Trailer: x\r\n",
    b"\x16\x03\x01\x02",
    b"Max-Forwards: 0\r\n",
    b"Via: 1.1 x\r\n",
]
HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\n"
PIECES = st.lists(st.sampled_from(WORDS) | st.binary(max_size=20), max_size=14)
SHORT = {"head": 0.03, "keepalive": 0.03, "answer": 0.03, "idle": 0.03, "tunnel": 0.03, "drain": 0.03}
QUICK = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
THOROUGH = settings(QUICK, max_examples=300)


async def survives(f):
    await f.wait_idle()
    for client in f.clients:
        client.kill()
    assert f.metric("lased_internal_errors_total") == 0
    assert f.metric("lased_policy_errors_total") == 0


async def ask_so(pieces):
    """Send these pieces to a dispatcher, one by one, to the end that it makes of it."""
    async with front(timeouts=SHORT) as f:
        client = await f.client()
        try:
            for piece in pieces:
                await client.send(piece)
                await asyncio.sleep(0)
            await client.rest()
        except ConnectionError:
            pass  # cut short: its right
        assert (await f.ask(get("/fresh")))[1] == b"/fresh"
        await survives(f)


async def answer_so(pieces, fields):
    """Have a pool answer with these pieces."""

    async def script(wire):
        await wire.until(b"\r\n\r\n")
        for piece in pieces:
            await wire.send(piece)
            await asyncio.sleep(0)

    async with front(script, timeouts=SHORT, health={"passive_failures": 0}) as f:
        client = await f.client()
        await client.send(get("/x", *fields))
        await client.rest()
        await survives(f)


REQUESTS = given(st.sampled_from([b"", HEAD]), PIECES)
RESPONSES = given(
    st.sampled_from([b"", ANSWER]),
    PIECES,
    st.sampled_from([(), ("Connection: upgrade", "Upgrade: x"), ("Connection: close",), ("TE: trailers",)]),
)


@QUICK
@REQUESTS
def test_no_request_breaks_anything(begin, pieces):
    asyncio.run(ask_so([begin, *pieces]))


@QUICK
@RESPONSES
def test_no_response_breaks_anything(begin, pieces, fields):
    asyncio.run(answer_so([begin, *pieces], fields))


@pytest.mark.slow
@THOROUGH
@REQUESTS
def test_no_request_of_many_breaks_anything(begin, pieces):
    asyncio.run(ask_so([begin, *pieces]))


@pytest.mark.slow
@THOROUGH
@RESPONSES
def test_no_response_of_many_breaks_anything(begin, pieces, fields):
    asyncio.run(answer_so([begin, *pieces], fields))
