"""Keep-alive on both sides, the reuse of pools' connections, and retries: the ids K of the public faults of proxies.

Nothing is answered with an error that one more try could have answered well, and nothing that may act twice is sent
twice.
"""

import asyncio

import pytest




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


class Leaves(Recorder):
    """A pool that closes its connections after each answer without having said so."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    async def __call__(self, wire):
        self.requests.append(await wire.message())
        await wire.send(OK)
        wire.leave(self.how)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_K01_a_connection_that_its_pool_has_closed_is_not_used_again(how, method):
    """The end was seen before the next request: a fresh connection, no retry, not even for a POST an error."""
    pool = Leaves(how)
    async with checked_front(pool) as f:
        client = await f.client()
        for _ in range(5):
            await client.send(get("/", "Content-Length: 2", method=method) + b"hi")
            assert (await client.message())[1] == b"ok"
            await eventually(lambda: pool_connections(f).connections == 0)
        assert len(pool.requests) == len(f.pools[0].connections) == 5
        assert f.metric("lased_retries_total", reason="stale") == 0


@pytest.mark.parametrize("how", ENDS)
async def test_K01_no_get_fails_however_closely_its_pool_closes_behind_the_answer_before(how):
    """The next request races the end of its connection, at every distance of some turns of the loop."""
    async with checked_front(Leaves(how)) as f:
        client = await f.client()
        for i in range(40):
            await client.send(get())
            assert status(await client.message()) == 200
            await loop_turns(i % 8)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_K01_what_dies_with_an_old_connection_is_tried_once_more_on_a_fresh_one(how, method):
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
async def test_K01_there_is_no_third_try(how):
    """The fresh connection fails too: that is the pool's answer."""
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
async def test_K02_what_may_act_twice_reaches_a_pool_once(how, method, framing, body):
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


async def test_K02_nor_is_it_sent_to_another_pool():
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


@pytest.mark.parametrize("timer", ["answer", "idle"])
async def test_K05_time_that_a_connection_lay_idle_does_not_count_against_its_next_request(timer):
    """The pool takes its time over the second request too; together they are over every timeout, each is not."""

    async def script(wire):
        while True:
            await wire.message()
            await asyncio.sleep(0.03)
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha")
            await asyncio.sleep(0.03)
            await wire.send(b"lf")

    async with checked_front(script, timeouts={timer: 0.1}) as f:
        client = await f.client()
        for pause in (0.12, 0):
            await client.send(get())
            assert (await client.message())[1] == b"half"
            await asyncio.sleep(pause)
        assert len(f.pools[0].connections) == 1, "it was the same connection"


async def test_K05_the_time_for_which_idle_connections_are_kept_cuts_none_that_is_in_use():
    gate = asyncio.Event()

    async def script(wire):
        await wire.message()
        await wire.send(OK)
        await wire.message()
        await gate.wait()
        await wire.send(OK)

    async with checked_front(script, timeouts={"pool_idle": 0.04}) as f:
        client = await f.client()
        await client.send(get())
        await client.message()
        await asyncio.sleep(0.02)
        await client.send(get())
        await asyncio.sleep(0.06)
        gate.set()
        assert status(await client.message()) == 200
        assert len(f.pools[0].connections) == 1
        await eventually(lambda: pool_connections(f).connections == 0, "an idle connection is kept beyond its time")


async def test_K07_a_request_at_the_very_end_of_keep_alive_is_served_or_was_never_read():
    """Clients come back at the timeout, some milliseconds before and behind: whom the dispatcher closes on finds his
    request unsent to any pool, so that he may repeat it safely."""
    pool, limit = Recorder(), 0.05
    async with checked_front(pool, timeouts={"keepalive": limit}) as f:

        async def returns(i):
            client = await f.begin(get("/first"))
            assert status(await client.message()) == 200
            await asyncio.sleep(limit + (i - 15) * 0.0004)
            try:
                await client.send(get(f"/again{i}"))
                return status(await client.message()), i
            except (EOFError, ConnectionError):
                assert client.buffer == b""
                return 0, i

        answers = await asyncio.gather(*(returns(i) for i in range(30)))
        assert {code for code, _ in answers} <= {0, 200}
        served = {b"/again%d" % i for code, i in answers if code}
        assert set(pool.targets) - {b"/first"} == served


@pytest.mark.parametrize(
    "request_",
    [
        get("/", "Keep-Alive: timeout=3600, max=1000", "Connection: keep-alive"),
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nKeep-Alive: timeout=3600\r\n\r\n",
        get("/") + b"\r\n",
        get("/", "Content-Length: 2", method="POST") + b"hi",
    ],
    ids=["asks for longer", "1.0", "an empty line behind", "with a body"],
)
async def test_K08_an_idle_client_is_closed_at_the_keep_alive_timeout_whatever_it_wishes(request_):
    async with checked_front(timeouts={"keepalive": 0.05, "head": 5.0, "idle": 5.0}) as f:
        client = await f.begin(request_)
        began_at = asyncio.get_running_loop().time()
        assert status(await client.message()) == 200
        assert await client.ended()
        assert 0.04 < asyncio.get_running_loop().time() - began_at < 1


async def test_K08_each_request_starts_the_keep_alive_timeout_anew():
    async with checked_front(timeouts={"keepalive": 0.06}) as f:
        client = await f.client()
        for _ in range(4):
            await client.send(get())
            assert status(await client.message()) == 200
            await asyncio.sleep(0.03)


@pytest.mark.parametrize("first", ["refuses", "does not answer"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("held_back", [False, True])
async def test_K13_a_body_is_complete_at_the_pool_that_takes_it_at_last(first, framing, held_back):
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
async def test_K15_no_second_try_for_a_client_that_has_left_during_the_first(leave):
    """The old connection dies after its client: nobody is there to try again for."""
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


async def test_K15_a_client_that_leaves_while_a_pool_is_dialled_is_sent_to_no_other():
    """And the dial itself is given up: its connection is not made for nobody."""
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
