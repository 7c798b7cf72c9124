"""Who gets the requests, when pools come, go, fail and fill up, and how the service ends: the ids B of the public
faults of proxies."""

import asyncio
import os
import signal
import time

import pytest

from dispatcher.config import Config
from dispatcher.service import Service


class Line:
    """Pools that write down in one list which of them was asked."""

    def __init__(self):
        self.order = []

    def pool(self, name):
        async def script(wire):
            while True:
                await wire.message()
                self.order.append(name)
                await wire.send(OK)

        return script


@pytest.mark.parametrize("policy", ["power_of_d", "jsq", "sed", "nq", "jiq", "haproxy_leastconn", "nginx_least_conn",
                                    "peak_ewma"])  # fmt: skip
async def test_B01_nothing_goes_to_the_pool_that_is_stuck_while_another_is_idle(policy):
    """Two pools, fifty in flight on one: drawing two of two compares both. (`envoy_least_request` draws with
    replacement and is not here: one in four of its requests would not see the idle one, as its file says.)"""
    stuck, idle = Gated(), Recorder()
    async with checked_front(stuck, idle, policy=policy) as f:
        f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {"true_rate": 1.0})))
        clients = [await f.begin(get()) for _ in range(50)]
        await eventually(lambda: len(stuck.requests) == 50)
        f.service.take_over(with_keys(f, {"true_rate": 1.0}, {"true_rate": 1.0}))
        client = await f.client()
        for _ in range(10):
            await client.send(get() * 30)
            for _ in range(30):
                assert status(await client.message()) == 200
        assert (len(stuck.requests), len(idle.requests)) == (50, 300)
        stuck.gate.set()
        for client in clients:
            assert status(await client.message()) == 200


@pytest.mark.parametrize(
    ("policy", "share"),
    [("sed", (22, 0)), ("jsq", (22, 0)), ("weighted_round_robin", (20, 2)), ("haproxy_leastconn", (11, 11)),
     ("round_robin", (11, 11))],
)  # fmt: skip
async def test_B04_what_an_idle_slow_pool_gets_at_low_load_is_the_policys_rule(policy, share):
    """One request at a time, weights 10 to 1: shortest expected delay leaves the slow pool idle, as (0+1)/10 < (0+1)/1;
    leastconn takes idle pools in turn; turns by weight follow the weights. Each is what its file says."""
    line = Line()
    async with checked_front(line.pool("a"), line.pool("b"), policy=policy) as f:
        f.service.take_over(with_keys(f, {"guess": 10.0, "true_rate": 10.0}, {"guess": 1.0, "true_rate": 1.0}))
        assert await status_codes(f, 22) == [200] * 22
        assert (line.order.count("a"), line.order.count("b")) == share


@pytest.mark.parametrize("weights", [(50, 50), (3, 2), (50, 1), (1, 50), (7, 5), (5, 1, 1)])
async def test_B05_weights_are_interleaved_and_not_served_in_blocks(weights):
    """At every moment each pool has had its share to within one request or, with three pools, two. So fifty of the one
    come in a row only where the other is due after fifty (50 to 1), never as 50 and 50."""
    line, names = Line(), "abc"[: len(weights)]
    async with checked_front(*(line.pool(name) for name in names), policy="weighted_round_robin") as f:
        f.service.take_over(with_keys(f, *({"guess": float(weight)} for weight in weights)))
        total = sum(weights)
        assert await status_codes(f, 2 * total) == [200] * 2 * total
        for name, weight in zip(names, weights, strict=True):
            assert line.order[:total].count(name) == weight
            for n in range(2 * total):
                assert abs(line.order[:n].count(name) - n * weight / total) < len(weights) - 1 + 1e-9


@pytest.mark.parametrize("policy", ["round_robin", "weighted_round_robin", "random", "power_of_d", "jsq", "sed",
                                    "lased", "haproxy_leastconn", "nginx_least_conn", "jiq", "peak_ewma"])  # fmt: skip
async def test_B06_a_pool_that_joins_gets_requests_each_time_it_joins(policy):
    """Added and removed three times, while requests hang on the one that stays: requests come while it is in, and only
    then."""
    stays, joins = Gated(), Recorder()
    async with checked_front(stays, answer_ok, policy=policy) as f:
        new = await Pool(joins).open()
        without = with_keys(f, {"true_rate": 1.0})
        more = {"true_rate": 1.0}
        both = with_pools(f.service, ("p0", f.pools[0].port, more), ("new", new.port, more))

        async def ask(n):
            for _ in range(n):
                await f.begin(get())
            await eventually(lambda: len(stays.requests) + len(joins.requests) == len(f.clients))
            await eventually(lambda: not f.service.router.fleet.count("new"))

        f.service.take_over(without)
        await ask(2)
        for _ in range(3):
            there, before = len(stays.requests), len(joins.requests)
            f.service.take_over(both)
            await ask(8)
            assert len(joins.requests) > before, "it gets nothing"
            f.service.take_over(without)
            came = len(joins.requests)
            await ask(2)
            assert len(joins.requests) == came, "it gets something though it is out"
            assert len(stays.requests) >= there + 2
            assert f.in_flight[0] == len(stays.requests)
        assert f.service.router.fleet.count("new") == 0
        stays.gate.set()
        assert [status(await client.message()) for client in f.clients] == [200] * len(f.clients)
        f.service.take_over(with_keys(f, more, more))
        await new.close()


async def test_B07_requests_that_wait_cost_no_time_of_the_processor():
    """Every pool at its limit, fifty in line: they wait for an event and do not ask again and again."""
    pool = Gated()
    async with checked_front(pool, pool, max_in_flight=1) as f:
        clients = [await f.begin(get()) for _ in range(52)]
        await eventually(lambda: len(queue(f)) == 50)
        decided = f.service.decision_log.count
        before = time.process_time()
        await asyncio.sleep(0.1)
        assert time.process_time() - before < 0.05
        assert f.service.decision_log.count == decided
        pool.gate.set()
        assert [status(await client.message()) for client in clients] == [200] * 52


async def test_B07_with_no_line_to_wait_in_it_is_503_at_once():
    pool = Gated()
    async with checked_front(pool, pool, max_in_flight=1, queue={"size": 0}) as f:
        clients = [await f.begin(get()) for _ in range(2)]
        await eventually(lambda: f.in_flight == [1, 1])
        for _ in range(20):
            answer = await f.ask(get())
            assert status(answer) == 503
            assert b"\r\nRetry-After: " in answer[0]
        assert len(pool.requests) == 2
        pool.gate.set()
        assert [status(await client.message()) for client in clients] == [200, 200]


FAILURES = {
    "a 502": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"nonsense\r\n\r\n",
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("other", ["removed", "ejected", "ejected, then removed"])
async def test_B08_the_only_pool_that_is_left_is_not_banned(failure, other):
    """Whichever way the other one went, one failure of the last does not leave nobody."""
    first, last = Recorder(OK), Recorder(failure)
    async with checked_front(first, last, policy="round_robin", health={"passive_failures": 1, "ejection": 30.0}) as f:
        if "ejected" in other:
            first.answer, last.answer = failure, OK
            while pools_up(f) != [0, 1]:
                await f.ask(get())
            last.answer = failure
        if "removed" in other:
            f.service.take_over(with_pools(f.service, ("p1", f.pools[1].port, {})))
        for _ in range(3):
            assert status(await f.ask(get())) == 502
            await f.wait_idle()
        assert [pool.id for pool in f.service.router.fleet.pools] == ["p1"]
        last.answer = OK
        assert status(await f.ask(get())) == 200


async def test_B08_removing_the_good_one_brings_the_ejected_one_back():
    """The configuration leaves only a pool that is out for half a minute: it is tried at once."""
    first, good = Recorder(FAILURES["a 502"]), Recorder()
    async with checked_front(first, good, policy="round_robin", health={"passive_failures": 1, "ejection": 30.0}) as f:
        while pools_up(f) != [0, 1]:
            await f.ask(get())
        first.answer = OK
        f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {})))
        assert status(await f.ask(get())) == 200


STEPS = [3600.0, -3600.0]


def step_the_clock(monkeypatch, seconds):
    """The wall clock of this process jumps by so much."""
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)


@pytest.mark.parametrize("step", STEPS)
async def test_B15_a_jump_of_the_wall_clock_ends_no_wait_early_or_late(monkeypatch, step):
    """One in flight, one in line, one client idle, one pool out: none of them notices; deadlines still fire."""
    held = Gated()
    timeouts = {"keepalive": 1.0, "answer": 1.0, "head": 1.0, "idle": 1.0}
    async with checked_front(held, None, max_in_flight=1, timeouts=timeouts, health={"passive_failures": 1}) as f:
        idle = await f.client()
        clients = [await f.begin(get("/0"))]
        await eventually(lambda: held.requests)
        assert status(await f.ask(get())) in (502, 503)
        await eventually(lambda: pools_up(f) == [1, 0])
        clients.append(await f.begin(get("/1")))
        await eventually(lambda: len(queue(f)) > 0)
        with monkeypatch.context() as stepping:
            step_the_clock(stepping, step)
            await asyncio.sleep(0.02)
            assert f.in_flight == [1, 0]
            assert pools_up(f) == [1, 0]
            held.gate.set()
            assert [status(await client.message()) for client in clients] == [200, 200]
            await idle.send(get())
            assert status(await idle.message()) == 200


@pytest.mark.parametrize("step", STEPS)
async def test_B15_nor_does_it_keep_a_deadline_from_firing(monkeypatch, step):
    async def silent(wire):
        await wire.rest()

    async with checked_front(silent, timeouts={"answer": 0.05, "keepalive": 0.05}) as f:
        client = await f.begin(get())
        await eventually(lambda: f.in_flight == [1])
        with monkeypatch.context() as stepping:
            step_the_clock(stepping, step)
            assert status(await asyncio.wait_for(client.message(), 1)) == 504
            assert await asyncio.wait_for(client.ended(), 1)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("policy", ["greedy", "peak_ewma"])
async def test_B16_nor_does_it_show_in_any_time_that_was_measured(monkeypatch, step, policy):
    """It jumps while each request is in flight, and the times still add up to what passed."""

    async def script(wire):
        while True:
            await wire.message()
            step_the_clock(stepping, step)
            await asyncio.sleep(0.001)
            await wire.send(OK)

    with monkeypatch.context() as stepping:
        async with front(script, policy=policy) as f:
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            assert await status_codes(f, 10) == [200] * 10
            await f.wait_idle()
            passed = loop.time() - began_at
            assert 0.009 < f.metric("lased_request_duration_seconds_sum", pool="p0") <= passed
            assert 0 < f.metric("lased_service_seconds_sum", pool="p0") <= passed
            rate = f.service.router.policy.estimates()["p0"].rate
            assert policy != "greedy" or 10 / passed * 0.9 < rate < 1100


async def test_B18_a_pool_may_have_an_ipv6_address():
    """It is dialled, and the Host of whoever asks for such an address keeps its brackets."""
    heads = []

    async def serve(reader, writer):
        wire = Wire(reader, writer)
        heads.append((await wire.message())[0])
        await wire.send(OK)
        writer.close()

    try:
        server = await asyncio.start_server(serve, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    port = server.sockets[0].getsockname()[1]
    async with checked_front() as f:
        data = f.service.config.model_dump()
        data["pools"][0]["url"] = f"http://[::1]:{port}"
        f.service.take_over(Config.model_validate(data))
        for host, target in ((f"[::1]:{port}", "/"), ("[2001:db8::1]", "/"), ("x", f"http://[::1]:{port}/p")):
            assert status(await f.ask(get(target, host=host))) == 200
        f.service.take_over(with_keys(f, {}))
    server.close()
    expected = [f"Host: [::1]:{port}", "Host: [2001:db8::1]", f"Host: [::1]:{port}"]
    assert [head.split(b"\r\n")[1].decode() for head in heads] == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_B19_a_signal_ends_the_service_in_good_order(number, capsys):
    """A slow request ends and its client has all of it; the idle client is closed; the busy one is told that this
    answer is its last; nobody else gets in; it is over as soon as the last one is, long before the deadline."""
    pool = Gated()
    backend = await Pool(pool).open()
    config = {
        "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "timeouts": {"drain": 5.0},
        "pools": [{"name": "p0", "url": f"http://127.0.0.1:{backend.port}"}],
    }  # fmt: skip
    service = Service(Config.model_validate(config))
    running = asyncio.ensure_future(service.run_until_signal())
    try:
        await in_good_order(service, running, backend, pool, number, capsys)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await backend.close()
        await loop_turns()


async def in_good_order(service, running, backend, pool, number, capsys):
    printed = ""
    while "admin on" not in printed:
        assert not running.done()
        await asyncio.sleep(0.002)
        printed += capsys.readouterr().out
    host, port = printed.split()[2].rsplit(":", 1)
    f = Front(service, (host, int(port)), None, [backend])
    idle = await f.client()
    pool.gate.set()
    busy = await f.begin(get("/busy/1"))
    assert status(await busy.message()) == 200
    await idle.send(get("/idle"))
    assert status(await idle.message()) == 200
    pool.gate.clear()
    slow = await f.begin(get("/slow"))
    await busy.send(get("/busy/2") + get("/busy/3"))
    await eventually(lambda: f.in_flight == [2])
    os.kill(os.getpid(), number)
    assert await idle.ended()
    with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the platform likes
        await f.client()
    assert not running.done()
    pool.gate.set()
    for client in (slow, busy):
        head, body = await client.message()
        assert (status((head,)), body) == (200, b"ok")
        assert b"Connection: close" in head
        assert await client.ended()
        client.close()  # as long as it does not, the dispatcher waits a little for it to read what there is
    await asyncio.wait_for(running, 1)
    idle.close()
    assert b"/busy/3" not in pool.targets
    assert f.in_flight == [0]


async def test_B20_all_down_is_an_error_at_once():
    async with checked_front(None, None, None, None) as f:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        for _ in range(5):
            assert status(await f.ask(get())) in (502, 503)
            assert status(await f.ask(get("/", "Content-Length: 2", method="POST") + b"hi")) in (502, 503)
        assert loop.time() - began_at < 0.5


async def test_B20_pools_that_do_not_answer_a_dial_are_a_504_in_bounded_time():
    """Three pools are dialled and no more, each for as long as it may take to connect."""
    with port_without_answer() as port:
        async with front(answer_ok, timeouts={"connect": 0.03}) as f:
            f.service.take_over(with_pools(f.service, *((f"p{i}", port, {}) for i in range(6))))
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            assert status(await f.ask(get())) == 504
            assert 0.08 < loop.time() - began_at < 0.5
            await f.wait_idle()
            assert f.service.router.fleet.in_flight == 0
            f.service.take_over(with_keys(f, {}))
            assert status(await f.ask(get())) == 200


@pytest.mark.parametrize("policy", ["jsq", "round_robin", "lased"])
@pytest.mark.parametrize("recovers", [0, 1, 2])
async def test_B21_when_all_are_broken_and_one_recovers_requests_find_it(policy, recovers):
    """No restart, no reload: who was taken out is tried again, whoever it was that was left in."""
    pools = [Recorder(FAILURES["a 502"]) for _ in range(3)]
    async with checked_front(*pools, policy=policy, health={"passive_failures": 1, "ejection": 0.02}) as f:
        for _ in range(8):
            assert status(await f.ask(get())) == 502
        pools[recovers].answer = OK
        good, end = 0, asyncio.get_running_loop().time() + 2
        while good < 10:
            good = good + 1 if status(await f.ask(get())) == 200 else 0
            assert asyncio.get_running_loop().time() < end, "it is not found, or not kept to"
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("before", [b"", get("/first")], ids=["its first request", "a later one"])
async def test_B22_a_head_that_trickles_has_an_absolute_deadline(before):
    """Each byte comes well within it, and none moves it. No pool hears of a request whose head is not whole."""
    pool = Recorder()
    async with checked_front(pool, timeouts={"head": 0.1, "keepalive": 5.0, "idle": 5.0}) as f:
        client = await f.begin(before)
        if before:
            assert status(await client.message()) == 200
        began_at = asyncio.get_running_loop().time()
        answered = asyncio.ensure_future(client.message())
        for byte in get("/trickles", "X: " + "x" * 500):
            if answered.done():
                break
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.005)
        assert status(await answered) == 408
        assert 0.09 < asyncio.get_running_loop().time() - began_at < 0.5
        assert b"/trickles" not in pool.targets
        assert len(f.pools[0].connections) == len(pool.requests)
        assert await client.ended()


async def test_B22_a_silent_connection_is_closed():
    async with checked_front(timeouts={"head": 0.04}) as f:
        assert await asyncio.wait_for((await f.client()).ended(), 1)
        await all_clients_gone(f)
        assert f.pools[0].connections == []


async def test_B22_a_body_may_be_slow_but_may_not_stop():
    """Bytes that keep coming are a slow client and no attack; silence is ended, and is not the pool's."""
    async with checked_front(answer_ok, answer_ok, timeouts={"idle": 0.06}, health={"passive_failures": 1}) as f:
        client = await f.begin(get("/slow", "Content-Length: 12", method="POST"))
        for _ in range(12):
            await client.send(b"x")
            await asyncio.sleep(0.01)
        assert (await client.message())[1] == b"/slow"
        await client.send(get("/stops", "Content-Length: 12", method="POST") + b"x")
        assert status(await client.message()) == 408
        await f.wait_idle()
        assert pools_up(f) == [1, 1]


async def test_B23_after_an_overload_all_is_as_before():
    """Forty requests at once for a pool that takes one, with five places in line and little patience: some are served,
    the others told to come back; then the next one is served at once and nothing is left of it."""
    waits = asyncio.Lock()

    async def script(wire):
        while True:
            await wire.message()
            async with waits:
                await asyncio.sleep(0.005)
            await wire.send(OK)

    async with checked_front(script, max_in_flight=1, queue={"size": 5, "timeout": 0.02}) as f:
        for _ in range(2):
            clients = [await f.client() for _ in range(40)]
            for client in clients:
                await client.send(get())
            codes = [status(await client.message()) for client in clients]
            assert set(codes) == {200, 503}
            await f.wait_idle()
            assert len(queue(f)) == 0
            for client in clients[:5]:
                await client.send(get())
                assert status(await client.message()) == 200, "the client that was refused is served on its connection"
        assert pools_up(f) == [1]


async def test_B24_the_share_follows_expected_delay_and_not_the_rates():
    """Rates 10 to 1: of n requests in flight the slow pool has none up to n = 10, one up to 21, two up to 30. Its share
    is not 1 in 11 at low load, and should not be: each request goes where (q + 1)/rate is least, ties to the first."""
    fast, slow = Gated(), Gated()
    async with checked_front(fast, slow, policy="sed") as f:
        f.service.take_over(with_keys(f, {"true_rate": 10.0}, {"true_rate": 1.0}))
        clients = []
        for n in range(1, 31):
            clients.append(await f.begin(get()))
            await eventually(lambda n=n: sum(f.in_flight) == n)
            expected = 0 if n <= 10 else 1 if n <= 21 else 2
            assert f.in_flight == [n - expected, expected]
        fast.gate.set()
        slow.gate.set()
        assert [status(await client.message()) for client in clients] == [200] * 30


@pytest.mark.parametrize("policy", ["greedy", "lased"])
async def test_B26_the_rate_that_is_learned_is_the_pools_and_not_its_queues(policy):
    """A pool serves one after the other. Alone a request takes one service, in a crowd of eight more than four on the
    average; what is learned is one service either way, so that a queue does not make a pool look slow, and empty."""
    loop = asyncio.get_running_loop()
    one_at_a_time, took = asyncio.Lock(), []

    async def script(wire):
        while True:
            await wire.message()
            async with one_at_a_time:
                began_at = loop.time()
                await asyncio.sleep(0.004)
                took.append(loop.time() - began_at)
            await wire.send(OK)

    async with front(script, policy=policy) as f:
        clients = [await f.client() for _ in range(8)]
        for crowd in (1, 8, 1, 8, 8, 1, 8):
            for client in clients[:crowd]:
                await client.send(get())
            for client in clients[:crowd]:
                assert status(await client.message()) == 200
            await f.wait_idle()
            truth = len(took) / sum(took)
            assert f.service.router.policy.estimates()["p0"].rate == pytest.approx(truth, rel=0.4)
