"""Pipelined requests on one connection."""

import asyncio

from tests.proxy.harness import (
    OK,
    Recorder,
    Scripted,
    assert_unharmed,
    front,
    get,
    stable,
    status,
)


async def test_pipelined_requests_are_answered_in_order():
    async def slow_first(wire):
        while True:
            head, _ = await wire.message()
            target = head.split(b" ")[1]
            if target == b"/0":
                await asyncio.sleep(0.02)
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(target), target))

    async with front(slow_first, slow_first) as f:
        client = await f.client()
        await client.send(b"".join(get(f"/{i}", "X: " + "p" * 300) for i in range(300)))
        assert [(await client.message())[1] for _ in range(300)] == [b"/%d" % i for i in range(300)]


async def test_a_flood_of_pipelined_requests_is_read_only_as_it_is_answered():
    go = asyncio.Event()

    async def gated(wire):
        while True:
            await wire.message()
            await go.wait()
            await wire.send(OK)

    async with front(gated) as f:
        client = await f.client()
        request = get("/", "X: " + "p" * 950)
        sent = 0

        async def push():
            nonlocal sent
            while sent < 20000:
                await client.send(request * 20)
                sent += 20

        pushing = asyncio.create_task(push())
        await stable(lambda: sent, 0.1)
        assert sent < 15000, "reading goes on though nothing is answered"
        assert f.in_flight == [1]
        go.set()
        for _ in range(200):
            assert (await client.message())[1] == b"ok"
        pushing.cancel()


async def test_a_head_larger_than_what_is_kept_unread_gets_through():
    async with front(limits={"head_bytes": 200_000}) as f:
        client = await f.client()
        large = get("/large", "X: " + "x" * 150_000)
        await client.send(get() + large[:140_000])
        assert status(await client.message()) == 200
        await client.send(large[140_000:])
        assert (await client.message())[1] == b"/large"


async def test_F21_a_flood_of_pipelined_requests_waits_outside_and_is_answered_in_order():
    go, count, pad = asyncio.Event(), 1200, "X: " + "x" * 14000

    async def holds_the_first(wire, head):
        await go.wait()
        target = head.split(b" ")[1]
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))

    script = Scripted(holds_the_first)
    async with front(script) as f:
        client = await f.client()
        flood = b"".join(get(f"/{i}", pad) for i in range(count))
        client.writer.write(flood)
        waits, before = client.writer.transport.get_write_buffer_size, -1
        while waits() != before:  # until nothing moves any more; others are served meanwhile
            before = waits()
            for _ in range(20):
                assert (await f.ask(get("/fresh")))[1] == b"/fresh"
        assert before > len(flood) // 4, "the dispatcher took in what it cannot serve yet"
        assert len(script.heads) == 1
        assert f.in_flight == [1]
        go.set()
        for i in range(count):
            assert (await client.message())[1] == b"/%d" % i
        assert len(script.heads) == count
        await assert_unharmed(f)


async def test_F21_many_small_ones_are_answered_in_order_and_once_each():
    script = Recorder()
    async with front(script) as f:
        client = await f.client()
        client.writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % i for i in range(1500)))
        for _ in range(1500):
            assert (await client.message())[1] == b"ok"
        assert [head.split(b" ")[1] for head in script.heads] == [b"/%d" % i for i in range(1500)]
        await assert_unharmed(f)
