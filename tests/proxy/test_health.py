"""Ejection by failed requests, active health checks, slow start and the floor."""

import asyncio
import errno

import pytest

from dispatcher.proxy.health_checks import check
from dispatcher.registry import registered
from tests.proxy.harness import (
    EMPTY_OK,
    FAILURE,
    OK,
    Pool,
    Recorder,
    answer_ok,
    answers,
    checked_front,
    eventually,
    front,
    get,
    pool_connections,
    pools_up,
    port_without_answer,
    routable_pools,
    status,
    status_codes,
    with_keys,
    with_pools,
)

SOON = {"interval": 0.01, "rise": 2, "fall": 2, "timeout": 0.5}


class Patient:
    """A pool whose health can be set; its requests are answered well, its probes by `well`."""

    def __init__(self, well=True, every=None):
        self.well, self.probes, self.requests = well, 0, 0
        self.every = every  # answers this one of so many requests with 500

    async def __call__(self, wire):
        while True:
            head = await wire.until(b"\r\n\r\n")
            if head.startswith(b"GET /health"):
                self.probes += 1
                await wire.send(EMPTY_OK if self.well else FAILURE)
            else:
                self.requests += 1
                failing = self.every and self.requests % self.every == 0
                await wire.send(FAILURE if failing else EMPTY_OK)


async def test_probes_take_a_pool_out_and_bring_it_back():
    sick, well = Patient(well=False), Patient()
    async with front(sick, well, health={"path": "/health", **SOON}) as f:
        await eventually(lambda: routable_pools(f) == ["p1"])
        assert f.service.health.verdict("p0") == "down"
        assert f.metric("lased_pool_up", pool="p0") == 0
        assert await status_codes(f, 20) == [200] * 20
        assert (sick.requests, well.requests) == (0, 20)
        sick.well = True
        await eventually(lambda: routable_pools(f) == ["p0", "p1"])
        assert f.metric("lased_pool_up", pool="p0") == 1
        assert f.metric("lased_requests_total", pool="p0", code="2xx") == 0, "probes are no requests"


async def test_several_checks_in_a_row_are_needed():
    async with front(Patient(), Patient(), health={"rise": 2, "fall": 3}) as f:
        for well in (False, False, True, False, False):
            f.service.health.checked("p0", well)
        assert f.service.health.is_up("p0")
        f.service.health.checked("p0", False)
        assert not f.service.health.is_up("p0")
        for well in (True, False, True):
            f.service.health.checked("p0", well)
        assert not f.service.health.is_up("p0")
        f.service.health.checked("p0", True)
        assert f.service.health.is_up("p0")


async def test_if_all_pools_are_down_all_are_used():
    pools = [Patient(well=False) for _ in range(3)]
    async with front(*pools, health={"path": "/health", **SOON}) as f:
        await eventually(lambda: all(f.service.health.verdict(f"p{i}") == "down" for i in range(3)))
        assert routable_pools(f) == ["p0", "p1", "p2"]
        assert await status_codes(f, 6) == [200] * 6
        pools[1].well = True
        await eventually(lambda: routable_pools(f) == ["p1"])


async def test_the_floor_keeps_failed_pools_when_too_few_are_left():
    async with front(*[Patient() for _ in range(4)], health={"floor": 0.5}) as f:
        for pool in ("p0", "p1", "p2"):
            for _ in range(3):
                f.service.health.checked(pool, False)
        assert routable_pools(f) == ["p3", "p0", "p1", "p2"] or set(routable_pools(f)) == {"p0", "p1", "p2", "p3"}
        for _ in range(2):
            f.service.health.checked("p0", True)
        assert set(routable_pools(f)) == {"p0", "p3"}


async def test_requests_eject_no_more_than_the_floor_allows():
    pools = [Patient(every=1) for _ in range(4)]
    async with front(*pools, policy="round_robin", health={"passive_failures": 1, "floor": 0.5}) as f:
        await status_codes(f, 40)
        assert len(routable_pools(f)) == 2


async def test_a_pool_that_fails_every_other_request_is_ejected_for_its_share():
    half, well = Patient(every=2), Patient()
    async with front(half, well, policy="round_robin", health={"error_ratio": 0.4, "window": 20}) as f:
        answers = await status_codes(f, 200)
        assert f.service.health.verdict("p0") == "ejected"
        assert answers.count(500) == half.requests // 2 <= 11


async def test_a_pool_within_its_share_stays():
    half, well = Patient(every=4), Patient()
    async with front(half, well, policy="round_robin", health={"error_ratio": 0.4, "window": 20}) as f:
        await status_codes(f, 200)
        assert f.service.health.verdict("p0") == "up"


async def test_a_pool_that_becomes_much_slower_than_it_was_is_ejected():
    from dispatcher.core.types import Job, Outcome

    async with front(Patient(), Patient(), policy="round_robin", health={"latency_factor": 5.0}) as f:
        router, now = f.service.router, f.service.clock()

        def served(n, seconds):
            nonlocal now
            for _ in range(n):
                ticket = router.route(Job(1), now)
                now += seconds if ticket.pool.id == "p0" else 0.01
                f.service.health.attempt_ended(router.complete(ticket, now, Outcome.OK), failed=False)

        served(600, 0.05)
        assert f.service.health.verdict("p0") == "up", "slow from the start is what it is used to"
        served(100, 1.0)
        assert f.service.health.verdict("p0") == "ejected"
        assert f.service.health.verdict("p1") == "up"


@pytest.mark.parametrize("policy", [name for name in registered() if name != "sed"] + ["sed"])
async def test_a_pool_that_fails_fast_does_not_attract_the_traffic(policy):
    async def slow(wire):
        while True:
            await wire.until(b"\r\n\r\n")
            await asyncio.sleep(0.002)
            await wire.send(EMPTY_OK)

    fast = Patient(every=1)
    async with front(fast, slow, slow, policy=policy) as f:
        answers = [code for some in await asyncio.gather(*(status_codes(f, 50) for _ in range(4))) for code in some]
        assert answers.count(500) <= 15, f"{policy}: {answers.count(500)} of 200"
        await f.wait_idle()


async def test_a_pool_comes_back_slowly_with_slow_start():
    sick, well = Patient(), Patient()
    async with front(sick, well, policy="jsq", health={"slow_start": 1000.0}) as f:
        for verdict in (False, True):
            for _ in range(3):
                f.service.health.checked("p0", verdict)
        assert routable_pools(f) == ["p0", "p1"]
        assert await status_codes(f, 100) == [200] * 100
        assert sick.requests <= 1, "its share is hardly more than nothing yet"
        f.service.router.fleet["p0"].slow_start.began_at -= 500
        before = sick.requests
        await status_codes(f, 400)
        assert 195 <= sick.requests - before <= 205, "half the decisions see it, and it is the first of equals"
        f.service.router.fleet["p0"].slow_start.began_at -= 500
        before = sick.requests
        await status_codes(f, 100)
        assert sick.requests - before == 100
        assert not f.service.router.fleet.limited


async def test_a_pool_that_starts_slowly_serves_when_it_is_alone():
    async with front(Patient(), Patient(), health={"slow_start": 1000.0}) as f:
        for verdict in (False, True):
            for _ in range(3):
                f.service.health.checked("p0", verdict)
        f.service.control.drain_pool("p1", True)
        assert await status_codes(f, 5) == [200] * 5


async def test_ejected_drained_and_probed_down_do_not_undo_each_other():
    async with front(
        Patient(every=1), Patient(), policy="round_robin", health={"passive_failures": 1, "ejection": 0.1}
    ) as f:
        await status_codes(f, 2)
        health = f.service.health
        assert health.verdict("p0") == "ejected"
        f.service.control.drain_pool("p0", True)
        assert health.verdict("p0") == "drained"
        await asyncio.sleep(0.15)
        assert routable_pools(f) == ["p1"], "the end of its ejection does not undo the drain"
        for _ in range(3):
            health.checked("p0", False)
        f.service.control.drain_pool("p0", False)
        assert (health.verdict("p0"), routable_pools(f)) == ("down", ["p1"])
        for _ in range(2):
            health.checked("p0", True)
        assert routable_pools(f) == ["p0", "p1"]


async def test_two_pools_at_one_address_are_checked_separately():
    one = Patient()

    async def script(wire):
        head = await wire.until(b"\r\n\r\n")
        await wire.send(EMPTY_OK if b"/good" in head else FAILURE)

    async with front(script, health=SOON) as f:
        port = f.pools[0].port
        f.service.control.add_pool({"name": "other", "url": f"http://127.0.0.1:{port}", "health_path": "/good"})
        f.service.control.add_pool({"name": "bad", "url": f"http://127.0.0.1:{port}", "health_path": "/bad"})
        await eventually(lambda: f.service.health.verdict("bad") == "down")
        assert f.service.health.verdict("other") == "up"
        assert f.service.health.verdict("p0") == "up", "it is not probed at all"
        f.service.control.remove_pool("bad")
        assert one.probes == 0


async def test_the_results_of_checks_end_with_the_checks():
    sick = Patient(well=False)
    async with front(sick, Patient(), health={"path": "/health", **SOON}) as f:
        await eventually(lambda: routable_pools(f) == ["p1"])
        data = f.service.config.model_dump()
        data["health"]["path"] = ""
        f.service.take_over(type(f.service.config).model_validate(data))
        assert routable_pools(f) == ["p0", "p1"]
        seen = sick.probes
        await asyncio.sleep(0.05)
        assert sick.probes <= seen + 1


@pytest.mark.parametrize(
    ("answer", "well"),
    [
        (EMPTY_OK, True),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", False),
        (FAILURE, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut", False),
        (b"nonsense\r\n\r\n", False),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", False),
        (b"", False),
    ],
)
async def test_a_probe_wants_a_whole_good_answer(answer, well):
    async def script(wire):
        seen.append(await wire.until(b"\r\n\r\n"))
        await wire.send(answer)

    seen = []
    async with front(script) as f:
        assert await check(pool_connections(f), "/health?x", 1.0) is well
        assert seen[0].startswith(b"GET /health?x HTTP/1.1\r\nHost: 127.0.0.1:")
        await eventually(lambda: not pool_connections(f).connections)


async def test_a_probe_of_a_silent_or_absent_pool_fails_in_time():
    async def silent(wire):
        await wire.rest()

    async with front(silent, None) as f:
        assert await check(pool_connections(f), "/", 0.05) is False
        assert await check(f.service.connection_pools["p1"], "/", 1.0) is False
        await eventually(lambda: not pool_connections(f).connections)


async def test_a_pool_may_be_removed_while_it_is_ejected_or_probed():
    async with front(
        Patient(every=1), Patient(), policy="round_robin", health={"passive_failures": 1, "path": "/health", **SOON}
    ) as f:
        await status_codes(f, 2)
        f.service.control.remove_pool("p0")
        fresh = await Pool(answer_ok).open()
        f.service.control.add_pool({"name": "p0", "url": f"http://127.0.0.1:{fresh.port}"})
        assert routable_pools(f) == ["p0", "p1"] or set(routable_pools(f)) == {"p0", "p1"}
        assert await status_codes(f, 4) == [200] * 4
        await fresh.close()


async def test_a_pool_that_only_fails_is_taken_out_and_comes_back():
    broken = True

    async def script(wire):
        while True:
            await wire.message()
            await wire.send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n" if broken else OK)

    async with front(script, answer_ok, health={"passive_failures": 3, "ejection": 0.15}) as f:
        codes = [status(await f.ask(get())) for _ in range(12)]
        assert codes.count(500) == 3, "JSQ would send it everything: it is always idle"
        assert f.metric("lased_pool_up", pool="p0") == 0
        broken = False
        await eventually(lambda: f.metric("lased_pool_up", pool="p0") == 1)
        assert {status(await f.ask(get())) for _ in range(6)} == {200}


async def test_the_last_pool_is_never_taken_out():
    async with front(None, None, health={"passive_failures": 1}) as f:
        for _ in range(6):
            assert status(await f.ask(get())) == 502
        assert len(f.service.router.fleet.pools) == 1


async def test_a_healthy_pool_takes_over_from_one_that_is_down():
    async with front(answer_ok, health={"fall": 1}) as f:
        f.service.health.checked("p0", False)
        assert f.service.health.is_routable("p0"), "the last one"
        f.service.control.add_pool({"name": "new", "url": f"http://127.0.0.1:{f.pools[0].port}"})
        assert [pool.id for pool in f.service.router.fleet.pools] == ["new"]


async def test_another_floor_is_in_force_at_once():
    async with front(answer_ok, answer_ok, health={"fall": 1, "floor": 1.0}) as f:
        f.service.health.checked("p0", False)
        assert f.service.health.is_routable("p0")
        f.service.reloader.amend(health=f.service.config.health.model_dump() | {"floor": 0.0})
        assert not f.service.health.is_routable("p0")


async def test_a_change_elsewhere_does_not_bring_an_ejected_pool_back_and_a_reload_does():
    async with front(answers(500), answer_ok, answer_ok, policy="round_robin", health={"passive_failures": 1}) as f:
        for _ in range(3):
            await f.ask(get())
        f.service.control.drain_pool("p2", True)
        f.service.control.set_policy({"name": "jsq"})
        assert f.service.health.verdict("p0") == "ejected"
        f.service.take_over(f.service.config, reset_ejections=True)
        assert f.service.health.verdict("p0") == "up"


async def test_a_stale_connection_does_not_eject_a_returned_pool():
    async def dies_after_one(wire):
        await wire.message()
        await wire.send(OK)
        await wire.message()
        wire.reset()

    async with front(dies_after_one, answer_ok, health={"passive_failures": 1}) as f:
        client = await f.client()
        for _ in range(6):
            await client.send(get())
            assert status(await client.message()) == 200
        await f.wait_idle()
        assert f.metric("lased_retries_total", reason="stale") > 0
        assert f.metric("lased_pool_up", pool="p0") == 1


async def test_a_request_from_before_an_ejection_does_not_eject_the_pool_again():
    held = asyncio.Event()

    async def script(wire):
        head, _ = await wire.message()
        if b"/held" in head:
            await held.wait()
        else:
            await wire.send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

    health = {"passive_failures": 2, "ejection": 0.2}
    async with front(script, answer_ok, policy="round_robin", health=health) as f:
        old = await f.client()
        await old.send(get("/held"))
        await eventually(lambda: f.in_flight == [1, 0])
        while f.metric("lased_pool_up", pool="p0"):
            await f.ask(get())
        await eventually(lambda: f.metric("lased_pool_up", pool="p0") == 1)
        held.set()
        assert status(await old.message()) == 502
        await f.wait_idle()
        assert f.metric("lased_pool_up", pool="p0") == 1


async def test_too_many_open_files_is_no_failure_of_a_pool(monkeypatch):
    async with front(answer_ok, answer_ok, health={"passive_failures": 1}) as f:

        async def exhausted(*_, **__):
            raise OSError(errno.EMFILE, "Too many open files")

        for pool in f.service.connection_pools.values():
            monkeypatch.setattr(pool, "_connect", exhausted)
        for _ in range(4):
            assert status(await f.ask(get())) == 503
        await f.wait_idle()
        assert [f.metric("lased_pool_up", pool=p) for p in ("p0", "p1")] == [1, 1]


FAILURES = {
    "a 502": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"nonsense\r\n\r\n",
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("other", ["removed", "ejected", "ejected, then removed"])
async def test_B08_the_only_pool_that_is_left_is_not_banned(failure, other):
    """However the other pool went, one failure does not eject the last pool."""
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


async def test_B20_with_every_pool_down_the_error_comes_at_once():
    async with checked_front(None, None, None, None) as f:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        for _ in range(5):
            assert status(await f.ask(get())) in (502, 503)
            assert status(await f.ask(get("/", "Content-Length: 2", method="POST") + b"hi")) in (502, 503)
        assert loop.time() - began_at < 0.5


async def test_B20_pools_that_accept_no_connection_cause_a_504_in_bounded_time():
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
    """An ejected pool is tried again without a restart or a reload, whichever pool was the last one left."""
    pools = [Recorder(FAILURES["a 502"]) for _ in range(3)]
    async with checked_front(*pools, policy=policy, health={"passive_failures": 1, "ejection": 0.02}) as f:
        for _ in range(8):
            assert status(await f.ask(get())) == 502
        pools[recovers].answer = OK
        good, end = 0, asyncio.get_running_loop().time() + 2
        while good < 10:
            good = good + 1 if status(await f.ask(get())) == 200 else 0
            assert asyncio.get_running_loop().time() < end, "no ten requests in a row were served"
            await asyncio.sleep(0.001)
