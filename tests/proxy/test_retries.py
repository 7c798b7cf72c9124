"""Retries: which requests are sent again, to which pool, with which body, and how often."""

import asyncio

import pytest

from dispatcher.proxy.retry_budget import RetryBudget
from dispatcher.settings import LiveSettings, Retry, Settings
from tests.proxy.harness import (
    ENDS,
    OK,
    Pieces,
    Pool,
    Recorder,
    all_clients_gone,
    answer_ok,
    answers,
    checked_front,
    consecutive_failures,
    eventually,
    front,
    get,
    loop_turns,
    pool_connections,
    port_without_answer,
    status,
    values,
    with_pools,
)

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"


def put(body, method="PUT"):
    return get("/x", f"Content-Length: {len(body)}", method=method) + body


async def test_by_default_a_503_is_not_retried():
    first = Recorder(BUSY)
    async with front(first, answer_ok, policy="round_robin") as f:
        assert (await f.ask(get()))[1] == b"busy"
        assert first.bodies == [b""]
        assert f.metric("lased_retries_total", reason="503") == 0


async def test_a_status_is_tried_at_another_pool_with_the_same_body_and_counts_against_the_first():
    first, second = Recorder(BUSY), Recorder(FINE)
    async with front(first, second, policy="round_robin", retry={"on": ["503"]}) as f:
        assert (await f.ask(put(b"hello")))[1] == b"fine"
        assert (first.bodies, second.bodies) == ([b"hello"], [b"hello"])
        assert f.metric("lased_retries_total", reason="503") == 1
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="503") == 1
        assert consecutive_failures(f, "p0") == 1
        await f.wait_idle()


async def test_a_body_that_comes_in_pieces_is_replayed_whole():
    first, second = Recorder(BUSY), Recorder(FINE)

    async def early(wire):
        await wire.until(b"\r\n\r\n")
        await wire.exactly(3)
        await wire.send(BUSY)
        await wire.rest()

    async with front(early, second, policy="round_robin", retry={"on": ["503"]}) as f:
        client = await f.client()
        await client.send(put(b"abcdef")[:-3])
        await asyncio.sleep(0.05)
        await client.send(b"def")
        assert (await client.message())[1] == b"fine"
        assert second.bodies == [b"abcdef"]
        await f.wait_idle()
    assert not first.bodies


@pytest.mark.parametrize(
    ("settings", "request_", "why"),
    [
        ({"on": ["503"]}, put(b"x", "POST"), "a POST may do something"),
        ({"on": ["503"], "buffer_bytes": 10}, put(b"x" * 11), "the body is not kept"),
        ({"on": ["503"], "attempts": 1}, get(), "there is one attempt"),
        ({"on": ["503"], "budget": 0.0, "per_second": 0.0}, get(), "there is no budget"),
        ({"on": ["500", "timeout"]}, get(), "it is not asked for"),
    ],
)
async def test_a_request_that_may_not_be_retried_gets_the_pools_response(settings, request_, why):
    first = Recorder(BUSY)
    async with front(first, first, policy="round_robin", retry=settings) as f:
        answer = await f.ask(request_)
        assert (status(answer), answer[1]) == (503, b"busy"), why
        assert len(first.bodies) == 1
        await f.wait_idle()


async def test_a_post_is_retried_if_configured():
    first, second = Recorder(BUSY), Recorder(FINE)
    async with front(first, second, policy="round_robin", retry={"on": ["503", "non_idempotent"]}) as f:
        assert (await f.ask(put(b"x", "POST")))[1] == b"fine"
        assert second.bodies == [b"x"]


async def test_the_last_attempt_gives_what_it_got():
    first = Recorder(BUSY)
    async with front(*[first] * 4, policy="round_robin", retry={"on": ["503"], "attempts": 3}) as f:
        assert (await f.ask(get()))[1] == b"busy"
        assert len(first.bodies) == 3
        await f.wait_idle()


async def test_without_another_pool_nothing_is_retried():
    first = Recorder(BUSY)
    async with front(first, retry={"on": ["503", "reset"]}) as f:
        assert (await f.ask(get()))[1] == b"busy"
        assert len(first.bodies) == 1


@pytest.mark.parametrize(("cause", "pool"), [("reset", Pieces(then="close")), ("timeout", None)])
async def test_silence_is_retried_elsewhere_if_configured(cause, pool):
    async def silent(wire):
        await wire.until(b"\r\n\r\n")
        await wire.rest()

    async with front(
        pool or silent, answer_ok, policy="round_robin", retry={"on": [cause]}, timeouts={"answer": 0.05}
    ) as f:
        assert (await f.ask(get("/there")))[1] == b"/there"
        assert f.metric("lased_retries_total", reason=cause) == 1
        await f.wait_idle()


async def test_a_request_whose_client_left_is_not_sent_again():
    second = Recorder(FINE)

    async def waits(wire):
        await wire.until(b"\r\n\r\n")
        asked.set()
        await wire.rest()

    asked = asyncio.Event()
    async with front(waits, second, policy="round_robin", retry={"on": ["reset", "timeout", "503"]}) as f:
        client = await f.client()
        await client.send(get())
        await asked.wait()
        client.close()
        await f.wait_idle()
        assert not second.bodies


def test_the_budget_is_a_share_of_requests_and_so_many_a_second():
    budget = RetryBudget(LiveSettings(Settings(retry=Retry(budget=0.2, per_second=10.0))))
    granted = 0
    for i in range(10_000):  # 100 s at 100 requests a second, each of which would like a retry
        budget.earn()
        granted += budget.spend(i / 100)
    assert 0.2 * 10_000 + 10 * 100 <= granted + 1 <= 0.2 * 10_000 + 10 * 100 + 11


def test_a_long_silence_saves_up_no_more_than_ten_seconds():
    budget = RetryBudget(LiveSettings(Settings(retry=Retry(budget=0.0, per_second=10.0))))
    assert budget.spend(0.0)
    assert sum(budget.spend(1e6) for _ in range(1000)) == 100


async def test_pools_that_fail_do_not_double_the_load():
    first = Recorder(BUSY)
    async with front(first, first, policy="round_robin", retry={"on": ["503"], "budget": 0.2, "per_second": 0.0}) as f:
        client = await f.client()
        for _ in range(100):
            await client.send(get())
            assert (await client.message())[1] == b"busy"
        assert len(first.bodies) <= 121


async def test_the_last_refusal_is_forwarded_unchanged():
    busy = answers(503, b"own words", b"Retry-After: 77")
    async with front(busy, busy, policy="round_robin", retry={"on": ["503"], "attempts": 3}) as f:
        head, body = await f.ask(get())
        assert body == b"own words"
        assert b"\r\nRetry-After: 77\r\n" in head
        assert f.metric("lased_retries_total", reason="503") == 1


async def test_the_refusal_is_forwarded_if_the_other_pools_are_full():
    gate = asyncio.Event()

    async def held(wire):
        await wire.message()
        await gate.wait()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with front(
        answers(503, b"own words"), held, policy="round_robin", max_in_flight=1, retry={"on": ["503"]}
    ) as f:
        f.service.control.drain_pool("p0", True)
        holder = await f.client()
        await holder.send(get())
        await eventually(lambda: f.in_flight == [0, 1])
        f.service.control.drain_pool("p0", False)
        assert (await f.ask(get()))[1] == b"own words"
        gate.set()
        assert status(await holder.message()) == 200


async def test_a_429_is_no_failure_of_its_pool():
    limits = answers(429)
    async with front(
        limits, answer_ok, policy="round_robin", retry={"on": ["429"]}, health={"passive_failures": 1}
    ) as f:
        for _ in range(10):
            assert status(await f.ask(get("/x"))) == 200
        assert f.service.health.is_up("p0")
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="429") == 0


async def test_a_dead_kept_alive_connection_is_tried_again_once_for_a_get():
    async def dies_on_the_second(wire):
        await wire.message()
        await wire.send(OK)
        await wire.message()
        wire.reset()

    async with front(dies_on_the_second) as f:
        client = await f.client()
        for _ in range(4):
            await client.send(get())
            assert status(await client.message()) == 200
        await f.wait_idle()
        assert f.metric("lased_retries_total", reason="stale") == 3


async def test_a_post_is_not_sent_twice():
    async def dies_on_the_second(wire):
        await wire.message()
        await wire.send(OK)
        head, _ = await wire.message()
        posts.append(head)
        wire.reset()

    posts = []
    async with front(dies_on_the_second) as f:
        client = await f.client()
        await client.send(get())
        await client.message()
        await client.send(get("/", "Content-Length: 2", method="POST") + b"hi")
        assert status(await client.message()) == 502
        assert len(posts) == 1


async def test_a_pool_that_refuses_is_passed_over():
    async with front(None, answer_ok) as f:
        for _ in range(3):
            assert status(await f.ask(get())) == 200
        await f.wait_idle()
        assert f.metric("lased_upstream_errors_total", pool="p0", reason="connect") == 3
        assert f.metric("lased_retries_total", reason="connect") == 3


async def test_a_body_is_complete_after_a_failed_connection():
    async def echo(wire):
        _, body = await wire.message()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    body = bytes(range(256)) * 4096
    async with front(None, echo) as f:
        assert (await f.ask(get("/", f"Content-Length: {len(body)}", method="POST") + body))[1] == body


async def test_when_no_pool_accepts_the_response_is_502_and_the_connection_goes_on():
    async with front(None, None) as f:
        client = await f.client()
        for _ in range(3):
            await client.send(get())
            assert status(await client.message()) == 502
        await f.wait_idle()


class Mortal(Recorder):
    """A pool whose first connections answer so many requests each and die over the next one."""

    def __init__(self, how, answered=1, mortal=1000):
        super().__init__()
        self.how, self.answered, self.mortal = how, answered, mortal
        self.connections = 0

    async def __call__(self, wire):
        self.connections += 1
        mortal = self.connections <= self.mortal
        left = self.answered
        while left or not mortal:
            left -= 1
            self.requests.append(await wire.message())
            await wire.send(OK)
        self.requests.append(await wire.message())
        wire.leave(self.how)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_K01_a_request_whose_old_connection_breaks_is_sent_once_more(how, method):
    """Also with other old connections at hand, which are as dead: the second try takes none of them."""
    gate = asyncio.Event()
    pool = Mortal(how, mortal=3)

    async def script(wire):
        if len(f.pools[0].connections) <= 3:
            await eventually(lambda: len(f.pools[0].connections) == 3)
        await gate.wait()
        await pool(wire)

    async with checked_front(script) as f:
        clients = [await f.begin(get("/first")) for _ in range(3)]
        await eventually(lambda: f.in_flight == [3])
        gate.set()
        for client in clients:
            assert status(await client.message()) == 200
        await f.wait_idle()
        assert pool_connections(f).connections == 3
        client = await f.begin(get("/again", method=method))
        assert status(await client.message(head_only=method == "HEAD")) == 200
        assert pool.targets.count(b"/again") == 2
        assert pool.requests[-1] == pool.requests[-2], "both tries are the same to the byte"
        assert f.metric("lased_retries_total", reason="stale") == 1


@pytest.mark.parametrize("how", ENDS)
async def test_K01_there_is_no_third_attempt(how):
    """The fresh connection fails too: that is the pool's response."""
    pool = Mortal(how)

    async def script(wire):
        if len(f.pools[0].connections) > 1:
            pool.answered = 0
        await pool(wire)

    async with checked_front(script) as f:
        client = await f.begin(get("/first"))
        assert status(await client.message()) == 200
        await client.send(get("/again"))
        assert status(await client.message()) == 502
        assert pool.targets == [b"/first", b"/again", b"/again"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize(
    ("method", "framing", "body"),
    [
        ("POST", "Content-Length: 2", b"hi"),
        ("POST", "Content-Length: 0", b""),
        ("POST", "Transfer-Encoding: chunked", b"2\r\nhi\r\n0\r\n\r\n"),
        ("PATCH", "Content-Length: 2", b"hi"),
        ("LOCK", "X: no body", b""),
    ],
)
async def test_K02_a_request_that_may_act_twice_reaches_a_pool_once(how, method, framing, body):
    """A connection that dies over it leaves open whether it was done: 502, and the client decides (RFC 9110 9.2.2)."""
    pool = Mortal(how)
    async with checked_front(pool) as f:
        client = await f.client()
        await client.send(get("/first"))
        assert status(await client.message()) == 200
        await client.send(get("/once", framing, method=method) + body)
        assert status(await client.message()) == 502
        await loop_turns()
        assert pool.targets.count(b"/once") == 1
        await client.send(get("/next"))
        assert status(await client.message()) == 200, "the client's connection is as good as before"


async def test_K02_a_request_that_may_act_twice_is_not_sent_to_another_pool():
    """A second pool that would take it changes nothing."""
    pool, other = Mortal("reset"), Recorder()
    async with checked_front(pool, other) as f:
        client = await f.client()
        await client.send(get("/first"))
        await client.message()
        await client.send(get("/once", "Content-Length: 2", method="POST") + b"hi")
        assert status(await client.message()) == 502
        assert pool.targets.count(b"/once") == 1
        assert other.requests == []


@pytest.mark.parametrize("first", ["refuses", "does not answer"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("held_back", [False, True])
async def test_K13_a_body_is_complete_at_the_pool_that_accepts_it(first, framing, held_back):
    """Two pools do not accept a connection; the third gets every byte, also those that came meanwhile."""
    body = bytes(range(256)) * 4096
    raw = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if framing == "chunked" else body
    field = "Transfer-Encoding: chunked" if framing == "chunked" else f"Content-Length: {len(body)}"
    pool = Recorder()
    with port_without_answer() as port:
        async with checked_front(None, None, pool, timeouts={"connect": 0.04}) as f:
            if first == "does not answer":
                ports = [port, f.pools[1].port, f.pools[2].port]
                f.service.take_over(with_pools(f.service, *((f"p{i}", p, {}) for i, p in enumerate(ports))))
            client = await f.client()
            sending = asyncio.ensure_future(client.send(get("/", field, method="POST") + raw[: len(raw) // 2]))
            if held_back:
                await eventually(lambda: f.pools[2].connections)
            await sending
            await client.send(raw[len(raw) // 2 :])
            assert status(await client.message()) == 200
            ((head, got),) = pool.requests
            assert got == body
            assert values(head, b"content-length") == ([b"%d" % len(body)] if framing == "length" else [])
            assert values(head, b"transfer-encoding") == ([b"chunked"] if framing == "chunked" else [])
            assert sum(f.metric("lased_retries_total", reason=r) for r in ("connect", "connect_timeout")) == 2


@pytest.mark.parametrize("leave", ["reset", "close"])
async def test_K15_no_second_attempt_for_a_client_that_left_during_the_first(leave):
    """The old connection breaks after its client has left."""
    gate = asyncio.Event()
    seen = []

    async def script(wire):
        seen.append(await wire.message())
        await wire.send(OK)
        seen.append(await wire.message())
        await gate.wait()
        wire.reset()

    async with checked_front(script) as f:
        client = await f.client()
        await client.send(get())
        await client.message()
        await client.send(get())
        await eventually(lambda: len(seen) == 2)
        getattr(client, leave)()
        await all_clients_gone(f)
        gate.set()
        await loop_turns()
        assert len(seen) == 2
        assert len(f.pools[0].connections) == 1
        assert f.metric("lased_retries_total", reason="stale") == 0


async def test_K15_a_request_whose_client_leaves_during_a_dial_is_sent_to_no_pool():
    """The dial itself is given up."""
    other = Recorder()
    with port_without_answer() as port:
        async with front(answer_ok, other, timeouts={"connect": 0.05}) as f:
            ports = [("p0", port, {}), ("p1", f.pools[1].port, {})]
            f.service.take_over(with_pools(f.service, *ports))
            client = await f.begin(get())
            await eventually(lambda: f.in_flight == [1, 0])
            client.reset()
            await all_clients_gone(f)
            await asyncio.sleep(0.08)
            assert other.requests == f.pools[1].connections == []
            assert f.metric("lased_retries_total", reason="connect_timeout") == 0
            assert f.metric("lased_client_aborts_total") == 1
            assert status(await f.ask(get())) == 200, "the other pool, once the first has not answered in time"
            await f.wait_idle()


async def test_K13_a_pool_that_joins_is_dialled_like_any_other():
    """Retries look at the pools that are there at the time of the retry, not of the request."""
    late = await Pool(answer_ok).open()
    with port_without_answer() as port:
        async with front(answer_ok, timeouts={"connect": 0.05}) as f:
            f.service.take_over(with_pools(f.service, ("p0", port, {})))
            client = await f.begin(get("/late", "Content-Length: 2", method="POST") + b"hi")
            await eventually(lambda: f.in_flight == [1])
            f.service.take_over(with_pools(f.service, ("p0", port, {}), ("late", late.port, {})))
            assert (await client.message())[1] == b"/late"
            await f.wait_idle()
    await late.close()
