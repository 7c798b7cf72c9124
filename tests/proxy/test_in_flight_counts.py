"""The in-flight counts after every way in which a request can end.

A count that stays too high shuts a pool out. A count below zero draws all traffic to its pool. Each test therefore
checks the count while other requests are in flight, and that it is zero in the end.
"""

import asyncio
import gc
from collections import Counter

import pytest
from structlog.testing import capture_logs

from dispatcher.proxy.connection_pool import PoolConnection
from dispatcher.proxy.downstream import ClientConnection
from tests.proxy.harness import (
    CHUNKED,
    OK,
    Gated,
    Pool,
    Recorder,
    all_clients_gone,
    answer_ok,
    checked_front,
    client_connections,
    eventually,
    front,
    get,
    loop_turns,
    pool_connections,
    port_without_answer,
    queue,
    scrape,
    status,
    with_pools,
)

HUNDRED = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
ANSWERS = {
    "nothing": b"",
    "half a status line": b"HTTP/1.1 2",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "a head": HUNDRED,
    "half a body": HUNDRED + b"half",
    "half a chunk": CHUNKED + b"5\r\nhe",
    "chunks without an end": CHUNKED + b"5\r\nhello\r\n",
    "a bad chunk": CHUNKED + b"5\r\nhello\r\nzz\r\n",
    "half a trailer": CHUNKED + b"0\r\nX-Sum: ",
    "an interim answer": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "no JSON": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{oops",
    "an invalid service time": b"HTTP/1.1 200 OK\r\nServer-Timing: service;dur=1e999, service;dur=-\r\n"
    b"Content-Length: 0\r\n\r\n",
    "too much": OK + OK,
}


def count_objects(*kinds):
    """How many objects of each of these classes there are."""
    gc.collect()
    counts = Counter(map(type, gc.get_objects()))
    return [counts[kind] for kind in kinds]


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_C01_the_count_is_zero_after_every_kind_of_broken_response(answer, how):
    """Also the gauge that is shown, and the connections: nothing grows with the failures."""

    async def script(wire):
        await wire.message()
        await wire.send(answer)
        await loop_turns(3)
        if how == "reset":
            wire.reset()

    async with checked_front(script) as f:
        for _ in range(8):
            client = await f.begin(get("/x", "Connection: close"))
            await client.rest()
            client.close()
            await f.wait_idle()
        await all_clients_gone(f)
        await eventually(lambda: pool_connections(f).connections == 0)
        assert 'lased_in_flight{pool="p0"} 0.0' in await scrape(f)


async def test_C01_failed_requests_leave_no_objects_behind():
    """A connection that stays in a set after its end would make the memory grow."""

    async def script(wire):
        await wire.message()
        await wire.send(HUNDRED + b"half")
        wire.reset()

    async with checked_front(script) as f:
        before = count_objects(PoolConnection, ClientConnection)
        for _ in range(30):
            client = await f.begin(get("/x", "Connection: close"))
            await client.rest()
            client.kill()
        await all_clients_gone(f)
        await eventually(lambda: pool_connections(f).connections == 0)
        await loop_turns()
        after = count_objects(PoolConnection, ClientConnection)
        assert all(now <= then + 2 for then, now in zip(before, after, strict=True))


async def test_C03_a_pool_that_resets_at_the_very_end_of_its_answer():
    """Closing its connection, and writing to it, fail in every way they can."""

    async def script(wire):
        await wire.message()
        wire.writer.write(OK)
        wire.reset()

    async with checked_front(script) as f:
        for _ in range(20):
            client = await f.begin(get("/x", "Connection: close"))
            await client.rest()
            assert f.in_flight == [0]


@pytest.mark.parametrize(("kind", "step"), [(PoolConnection, "close"), (ClientConnection, "on_exchange_end")])
async def test_C03_a_cleanup_that_fails_does_not_keep_the_count_up(monkeypatch, kind, step):
    """The count is decremented before any cleanup, so a bug there costs one response at most."""
    original = getattr(kind, step)

    def fails(self, *arguments):
        original(self, *arguments)
        raise RuntimeError("tidying up failed")

    async with front(Recorder(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))) as f:
        with capture_logs(), monkeypatch.context() as patched:  # to print tracebacks takes long
            patched.setattr(kind, step, fails)
            for _ in range(3):
                client = await f.begin(get("/x", "Connection: close"))
                await client.rest()
                await f.wait_idle()
        assert f.metric("lased_internal_errors_total") >= 3
        assert status(await f.ask(get())) == 200
        await f.wait_idle()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("where", ["the same address", "another address"])
async def test_C04_a_pool_that_comes_back_under_its_name_keeps_its_count(times, where):
    """Removed and added again while requests are in flight: they stay counted there, and each leaves once."""
    held, fresh = Gated(), Gated()
    async with checked_front(held, answer_ok) as f:
        other = await Pool(fresh).open()
        keeper = ("p1", f.pools[1].port, {})
        back = ("p0", other.port if where == "another address" else f.pools[0].port, {})
        clients = []
        for i in range(3):
            f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {})))
            clients.append(await f.begin(get(f"/old{i}")))
            await eventually(lambda: len(held.requests) == len(clients))
        for _ in range(times):
            f.service.take_over(with_pools(f.service, keeper))
            assert f.in_flight == [3, 0], "they are still there"
            f.service.take_over(with_pools(f.service, back))
            assert f.in_flight == [3, 0]
        later = await f.begin(get("/new"))
        await eventually(lambda: f.in_flight == [4, 0])
        held.gate.set()
        assert [status(await client.message()) for client in clients] == [200] * 3
        if where == "another address":
            await eventually(lambda: f.in_flight == [1, 0])
        fresh.gate.set()
        assert status(await later.message()) == 200
        await f.wait_idle()
        assert f.service.router.fleet.in_flight == 0
        f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {}), keeper))
        await other.close()


async def test_C04_a_pool_that_comes_back_after_its_last_request_starts_from_zero():
    held = Gated()
    async with checked_front(held, answer_ok) as f:
        both = [(f"p{i}", pool.port, {}) for i, pool in enumerate(f.pools)]
        client = await f.begin(get())
        await eventually(lambda: f.in_flight == [1, 0])
        f.service.take_over(with_pools(f.service, both[1]))
        held.gate.set()
        assert status(await client.message()) == 200
        await f.wait_idle()
        f.service.take_over(with_pools(f.service, *both))
        assert f.service.router.fleet.in_flight == 0
        assert {pool.in_flight for pool in f.service.router.fleet.pools} == {0}


async def test_C05_what_was_never_sent_to_a_pool_does_not_count_down():
    """The dispatcher's own responses, refusals and expired places in the queue complete no request."""
    held = Gated()
    async with checked_front(held, max_in_flight=1, queue={"size": 1, "timeout": 0.05}, timeouts={"head": 0.05}) as f:
        client = await f.begin(get("/held"))
        await eventually(lambda: held.requests)
        via = next(line for line in held.requests[0][0].split(b"\r\n") if line.startswith(b"Via: ")).decode()
        for raw, code in [
            (get("*", "Max-Forwards: 0", method="OPTIONS"), 200),
            (get("/", via), 508),
            (b"GET / HTTP/1.1\r\n\r\n", 400),
            (get("/", method="TRACE"), 405),
            (get("/", *(f"X{i}: 1" for i in range(150))), 431),
            (b"GET / HTTP/3.0\r\n\r\n", 505),
            (b"GET / HT", 408),
            (get("/waits in vain".replace(" ", "-")), 503),
        ]:
            assert status(await f.ask(raw)) == code
            assert f.in_flight == [1], raw
        held.gate.set()
        assert status(await client.message()) == 200
        assert f.in_flight == [0]


PARTINGS = ["client first", "pool first", "the dispatcher cuts too"]


@pytest.mark.parametrize("parting", PARTINGS)
@pytest.mark.parametrize("part", [b"", HUNDRED + b"half", OK])
@pytest.mark.parametrize("pool_ends", ["close", "reset"])
async def test_C07_two_ends_at_once_count_once(parting, part, pool_ends):
    """Client and pool part in the same turn of the loop, before, within and right behind the response. Another
    request on the same pool shows a count that came down twice."""
    held = asyncio.Event()
    ends = {}

    async def script(wire):
        head, _ = await wire.message()
        if b"/held" in head:
            await held.wait()
            await wire.send(OK)
        else:
            ends["pool"] = wire
            await held.wait()

    async with checked_front(script) as f:
        companion = await f.begin(get("/held"))
        client = await f.begin(get("/x"))
        await eventually(lambda: f.in_flight == [2] and "pool" in ends)
        pool = ends["pool"]
        if parting == "pool first":
            pool.writer.write(part)
            getattr(pool, pool_ends)()
            client.reset()
        else:
            client.reset()
            pool.writer.write(part)
            getattr(pool, pool_ends)()
        if parting == "the dispatcher cuts too":
            for connection in client_connections(f):
                if "/x" in repr(connection):
                    connection.reset()
        await eventually(lambda: f.in_flight == [1])
        await loop_turns(50)
        assert f.in_flight == [1]
        held.set()
        assert status(await companion.message()) == 200
        assert f.in_flight == [0]


@pytest.mark.parametrize("raw", [get(), get("/", "Content-Length: 5", method="POST") + b"he", get() * 3])
@pytest.mark.parametrize("leave", ["reset", "close"])
async def test_C08_a_client_that_leaves_right_after_its_request_frees_its_slot(raw, leave):
    """At every distance of a few turns of the loop: before the request is read, routed, sent, answered. The pool may
    have one request in flight, so a slot that is lost would be the last."""

    async def script(wire):
        while True:
            await wire.message()
            await loop_turns(4)
            await wire.send(OK)

    async with checked_front(script, max_in_flight=1) as f:
        for i in range(40):
            client = await f.client()
            client.writer.write(raw)
            await loop_turns(i % 14)
            getattr(client, leave)()
        await all_clients_gone(f)
        assert status(await asyncio.wait_for(f.ask(get()), 1)) == 200
        assert f.in_flight == [0]


@pytest.mark.parametrize("leave", ["reset", "close", "half"])
@pytest.mark.parametrize("flows", [True, False])
async def test_C09_a_client_that_leaves_within_a_stream_ends_it(leave, flows):
    """While events flow and while the stream is silent; several at once, and the others' streams go on."""
    ended = []

    async def script(wire):
        await wire.message()
        await wire.send(CHUNKED + b"5\r\nfirst\r\n")
        with_end = asyncio.ensure_future(wire.rest())
        while not with_end.done():
            if flows or go.is_set():
                await wire.send(b"4\r\nmore\r\n")
            await asyncio.sleep(0.001)
        ended.append(wire)

    go = asyncio.Event()
    noise = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    async with checked_front(script) as f:
        clients = [await f.begin(get()) for _ in range(6)]
        for client in clients:
            await client.until(b"first")
        assert f.in_flight == [6]
        for client in clients[:5]:
            client.writer.write_eof() if leave == "half" else getattr(client, leave)()
        await eventually(lambda: f.in_flight == [1], f.in_flight)
        await eventually(lambda: len(ended) == 5)
        assert f.metric("lased_client_aborts_total") == 5
        go.set()
        clients[5].buffer = b""
        await clients[5].until(b"more")
        clients[5].reset()
        await all_clients_gone(f)
    gc.collect()
    await loop_turns(3)
    assert [context for context in noise if "tests" not in str(context)] == []


async def test_C11_dials_that_time_out_give_their_slots_back():
    """Each queued request gets its turn and its 504. Once the pool accepts again, the next request is served at
    once."""
    with port_without_answer() as port:
        async with checked_front(max_in_flight=1, timeouts={"connect": 0.03}) as f:
            good = f.pools[0].port
            f.service.take_over(with_pools(f.service, ("p0", port, {"max_in_flight": 1})))
            clients = [await f.begin(get()) for _ in range(5)]
            assert [status(await client.message()) for client in clients] == [504] * 5
            await f.wait_idle()
            assert len(queue(f)) == 0
            f.service.take_over(with_pools(f.service, ("p0", good, {"max_in_flight": 1})))
            assert (await f.ask(get("/back")))[1] == b"/back"


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", HUNDRED + b"half", CHUNKED + b"5\r\nhe"])
async def test_C12_a_connection_whose_client_has_left_is_closed_and_never_used_again(part):
    """Further bytes on it would become the next client's response."""
    gate = asyncio.Event()
    wires = []

    async def script(wire):
        wires.append(wire)
        await wire.message()
        if len(wires) > 1:
            await wire.send(OK)
            return
        await wire.send(part)
        await gate.wait()
        await wire.send((HUNDRED + b"x" * 100)[len(part) :] + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    async with checked_front(script) as f:
        first = await f.begin(get("/first"))
        await eventually(lambda: wires)
        await loop_turns()
        first.reset()
        await all_clients_gone(f)
        second = await f.begin(get("/second"))
        gate.set()
        assert (await second.message())[1] == b"ok"
        assert len(wires) == 2
        assert await wires[0].ended()


@pytest.mark.parametrize("change", ["none", "other numbers", "another address"])
async def test_C13_a_reload_does_not_forget_what_is_in_flight(change):
    """Ten long requests on A, a reload, ten more: they go to the pool that is new, for A is as busy as before."""
    a, b = Gated(), Gated()
    async with checked_front(a, b) as f:
        f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {})))
        clients = [await f.begin(get(f"/{i}")) for i in range(10)]
        await eventually(lambda: f.in_flight == [10, 0] and len(a.requests) == 10)
        moved = await Pool(a).open()
        port = moved.port if change == "another address" else f.pools[0].port
        numbers = {"guess": 3.0, "max_in_flight": 50} if change == "other numbers" else {}
        both = ("p0", port, numbers), ("p1", f.pools[1].port, {})
        f.service.take_over(with_pools(f.service, *both))
        clients += [await f.begin(get(f"/{i}")) for i in range(10, 20)]
        await eventually(lambda: sum(f.in_flight) == 20 and len(a.requests) + len(b.requests) == 20)
        assert f.in_flight == [10, 10]
        f.service.take_over(with_pools(f.service, *both))
        assert f.in_flight == [10, 10]
        a.gate.set()
        b.gate.set()
        assert [status(await client.message()) for client in clients] == [200] * 20
        await f.wait_idle()
        f.service.take_over(with_pools(f.service, *((f"p{i}", p.port, {}) for i, p in enumerate(f.pools))))
        await moved.close()


@pytest.mark.parametrize(
    "abandoned", ["the pool sends nothing", "the pool stops", "the client sends no more", "the client reads nothing"]
)
async def test_C16_a_stream_that_both_sides_abandon_is_completed(abandoned):
    """No end, no error, no reset, from neither side: the deadlines bring the count back."""
    over = asyncio.Event()

    async def script(wire):
        await wire.until(b"\r\n\r\n")
        if abandoned == "the pool stops":
            await wire.send(HUNDRED + b"half")
        elif abandoned == "the client reads nothing":
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 67108864\r\n\r\n")
            for _ in range(1024):
                await wire.send(b"x" * 65536)
        await over.wait()

    async with checked_front(script, max_in_flight=1, timeouts={"answer": 0.06, "idle": 0.06}) as f:
        more = abandoned == "the client sends no more"
        client = await f.client()
        client.writer.transport.pause_reading()
        await client.send(get("/", "Content-Length: 9", method="POST") + (b"half" if more else b"the whole"))
        await eventually(lambda: f.in_flight == [1])
        await f.wait_idle()
        assert not client.writer.transport.is_closing()
        over.set()


async def test_requests_and_decisions_are_counted():
    async with front(answer_ok, answer_ok) as f:
        for _ in range(4):
            await f.ask(get())
        await f.wait_idle()
        counted = sum(f.metric("lased_requests_total", pool=p, code="2xx") for p in ("p0", "p1"))
        decided = sum(f.metric("lased_decisions_total", pool=p, phase="exploit") for p in ("p0", "p1"))
        assert (counted, decided) == (4, 4)
        await eventually(lambda: f.metric("lased_request_duration_seconds_count", pool="p0") == 4)


async def test_a_bug_of_the_dispatcher_is_a_500_and_counted(monkeypatch):
    async with front() as f:
        monkeypatch.setattr("dispatcher.proxy.exchange.forward_request", lambda *_: 1 / 0)
        assert status(await f.ask(get())) == 500
        assert f.metric("lased_internal_errors_total") == 1
        await f.wait_idle()


async def test_a_log_that_cannot_be_written_does_not_keep_the_count_up(monkeypatch):
    class BrokenLog:
        def warning(self, event, **details):
            raise BrokenPipeError

    monkeypatch.setattr("dispatcher.service.log", BrokenLog())
    async with front(None) as f:  # a pool that refuses connections: each failed attempt is logged
        for _ in range(3):
            assert status(await f.ask(get())) == 502
        await f.wait_idle()
