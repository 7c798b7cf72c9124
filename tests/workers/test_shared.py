"""The live pools that share their servers: an exact schedule, a limit, clients that leave, and the command."""

import asyncio
import contextlib
import itertools
import math
import sys
from random import Random

import aiohttp
import pytest

from workers.__main__ import pool_maker
from workers.distributions import Fixed, parse
from workers.pool import QueueFullError
from workers.queue_pool import QueuePool
from workers.server import load_report
from workers.sharing_pool import SharingPool


def fixed(seconds):
    return Fixed(1 / seconds, Random(1))


async def timed(pool):
    """The response time of one request, seconds."""
    began = asyncio.get_running_loop().time()
    await pool.serve()
    return asyncio.get_running_loop().time() - began


async def test_requests_that_share_a_server_end_together():
    pool = SharingPool(fixed(0.01))
    times = await asyncio.gather(*(timed(pool) for _ in range(4)))
    assert all(each > 0.04 - 1e-4 for each in times)
    assert (pool.served, pool.begun, pool.busy_time) == (4, 4, pytest.approx(0.04))
    assert (pool.waited, pool.backlog, pool.utilization) == (0.0, 0, 0.0)


async def test_two_servers_serve_two_requests_as_fast_as_one():
    pool = SharingPool(fixed(0.2), servers=2)
    jobs = [asyncio.ensure_future(pool.serve()) for _ in range(2)]
    await asyncio.sleep(0)
    assert pool.utilization == 1.0
    assert 0.1 < pool.until_room <= 0.2
    assert await asyncio.gather(*jobs) == [0.2, 0.2]


async def test_the_schedule_is_exact_however_late_the_timers_are(monkeypatch):
    """Every timer fires 5 ms late; the ends of one request after the other stay 10 ms apart all the same."""
    loop, ends = asyncio.get_running_loop(), []
    on_time = loop.call_at

    class Recording(SharingPool):
        def count_end(self, now, work):
            ends.append(now)
            super().count_end(now, work)

    pool = Recording(fixed(0.01), limit=1)
    monkeypatch.setattr(loop, "call_at", lambda when, *what, **more: on_time(when + 0.005, *what, **more))
    await asyncio.gather(*(pool.serve() for _ in range(10)))
    assert [after - before for before, after in itertools.pairwise(ends)] == pytest.approx([0.01] * 9, abs=1e-9)


async def test_an_infinite_server_serves_every_request_at_once():
    pool = SharingPool(fixed(0.02), servers=math.inf)
    times = await asyncio.gather(*(timed(pool) for _ in range(50)))
    assert all(0.02 - 1e-4 < each < 0.5 for each in times), "one server would take a second"
    assert pool.utilization == 0.0


async def test_a_request_that_waits_is_dropped_if_its_client_leaves_and_one_in_service_goes_on():
    pool = SharingPool(fixed(0.02), limit=2)
    first, second, third, fourth = (asyncio.ensure_future(timed(pool)) for _ in range(4))
    await asyncio.sleep(0)
    assert repr(pool) == "<SharingPool 2 in service, 2 waiting>"
    first.cancel()
    third.cancel()
    assert await second > 0.04 - 1e-4
    assert await fourth > 0.06 - 1e-4, "it waits for 40 ms and is alone then"
    assert (pool.served, pool.dropped, pool.begun) == (3, 1, 3)


async def test_a_full_pool_refuses_and_a_late_timer_turns_no_request_away():
    pool = SharingPool(fixed(0.001), capacity=1)
    first = asyncio.ensure_future(pool.serve())
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await pool.serve()
    loop = asyncio.get_running_loop()
    late = loop.time() + 0.004
    while loop.time() < late:
        pass  # the loop is busy; the first request has ended on the schedule
    assert await pool.serve() == await first == 0.001


async def test_time_that_passes_while_requests_join_breaks_no_order(monkeypatch):
    """Between any two looks at the clock 0.3 ms pass, so ends fall due at every point of the program."""
    loop, now = asyncio.get_running_loop(), itertools.count(asyncio.get_running_loop().time(), 0.0003)
    monkeypatch.setattr(loop, "time", lambda: next(now))
    pool = SharingPool(parse("exp", 500.0, Random(1)), servers=4, limit=6)
    jobs = []
    for k in range(300):
        jobs.append(asyncio.ensure_future(pool.serve()))
        await asyncio.sleep(0)
        if k % 7 == 0:
            jobs[k // 2].cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    assert not [job for job in jobs if not job.cancelled() and job.exception()]
    assert (pool.served + pool.dropped, pool.backlog) == (300, 0)


async def test_a_load_report_counts_the_work_alone():
    pool = SharingPool(fixed(0.01), servers=2)
    await asyncio.gather(*(pool.serve() for _ in range(4)))
    assert "named_metrics.completed=4, named_metrics.busy_seconds=0.04" in load_report(pool, "text")


@contextlib.asynccontextmanager
async def running(*options):
    """The command with these options: its URL and its last line, which is known once it has ended."""
    last = []
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "workers",
        "--listen",
        "127.0.0.1:0",
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        yield f"http://{line.split()[-1]}/", last
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        last.append((await process.communicate())[1].decode())


async def ask(url, n):
    """The times of n requests at once, and what Server-Timing told."""
    loop = asyncio.get_running_loop()

    async def one(session):
        began = loop.time()
        async with session.get(url) as answer:
            assert answer.status == 200
            return loop.time() - began, answer.headers["Server-Timing"]

    async with aiohttp.ClientSession() as session:
        return zip(*await asyncio.gather(*(one(session) for _ in range(n))), strict=True)


PS = ("--discipline", "ps")


@pytest.mark.parametrize(
    ("options", "shortest", "longest"),
    [
        ((*PS,), 8, 8),
        ((*PS, "--servers", "2", "--limit", "4"), 2, 4),
        (("--servers", "inf"), 1, 1),
        (("--servers", "inf", "--limit", "4"), 1, 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
async def test_eight_requests_at_once_take_as_long_as_the_options_say(options, shortest, longest):
    """In services of 50 ms. The requests do not arrive at exactly one instant, hence the slack below."""
    async with running("--rate", "20", "--service", "fixed", *options) as (url, last):
        times, told = await ask(url, 8)
        assert set(told) == {"service;dur=50.000000"}
    assert 0.05 * shortest - 0.03 < min(times) < 0.05 * shortest + 0.15
    assert 0.05 * longest - 0.03 < max(times) < 0.05 * longest + 0.25
    assert "served 8, dropped 0, mean service 50.000000 ms" in last[0]


def test_a_limit_of_first_come_first_served_is_a_number_of_servers():
    law = fixed(1.0)
    assert repr(pool_maker("fcfs", law, 8, 2, 0)(law)) == "<QueuePool 0 of 2 busy, 0 waiting>"
    assert isinstance(pool_maker("fcfs", law, math.inf, 3, 0)(law), QueuePool)
    assert isinstance(pool_maker("fcfs", law, math.inf, 0, 0)(law), SharingPool)
