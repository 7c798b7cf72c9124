"""The pool that a request is sent to, for several policies."""

import pytest

from tests.proxy.harness import (
    OK,
    Gated,
    Pool,
    Recorder,
    answer_ok,
    checked_front,
    eventually,
    get,
    status,
    status_codes,
    with_keys,
    with_pools,
)


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


@pytest.mark.parametrize(
    "policy", ["power_of_d", "jsq", "sed", "nq", "jiq", "haproxy_leastconn", "nginx_least_conn", "peak_ewma"]
)
async def test_B01_nothing_goes_to_the_pool_that_is_stuck_while_another_is_idle(policy):
    """A draw of two out of two pools compares both, with fifty requests in flight on one.

    `envoy_least_request` is left out because it draws with replacement: one in four draws misses the idle pool.
    """
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
    [
        ("sed", (22, 0)),
        ("jsq", (22, 0)),
        ("weighted_round_robin", (20, 2)),
        ("haproxy_leastconn", (11, 11)),
        ("round_robin", (11, 11)),
    ],
)
async def test_B04_what_an_idle_slow_pool_gets_at_low_load_is_the_policys_rule(policy, share):
    """Requests come one at a time, with weights 10 to 1.

    Shortest expected delay leaves the slow pool idle, as (0+1)/10 < (0+1)/1. Least connections takes idle pools in
    turn. Weighted round robin follows the weights."""
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


@pytest.mark.parametrize(
    "policy",
    [
        "round_robin",
        "weighted_round_robin",
        "random",
        "power_of_d",
        "jsq",
        "sed",
        "lased",
        "haproxy_leastconn",
        "nginx_least_conn",
        "jiq",
        "peak_ewma",
    ],
)
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
