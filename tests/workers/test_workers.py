"""The stand-in pools: laws with the right means, the exact schedule, a bounded queue, clients that leave."""

import asyncio
import itertools
import math
from io import BytesIO
from random import Random

import aiohttp
import pytest
from aiohttp import web

from workers.distributions import LAWS, Fixed, parse
from workers.pool import QueueFullError
from workers.profiles import Profiled, parse_profile
from workers.queue_pool import QueuePool
from workers.scheduling.disciplines import Esept, Fcfs, Sept
from workers.server import make_server
from workers.station import Station

SQUARED_CV = {
    "exp": 1.0,
    "fixed": 0.0,
    "lognormal:cv=2": 4.0,
    "lognormal:cv=0.5": 0.25,
    "hyperexp:cv=3": 9.0,
    "pareto:shape=4.5": 1 / (4.5 * 2.5),
}


@pytest.mark.parametrize("text", SQUARED_CV)
def test_every_law_has_the_mean_of_its_rate_and_its_own_spread(text):
    n, rate = 40_000, 20.0
    law = parse(text, rate, Random(7))
    drawn = [law.sample(0.0) for _ in range(n)]
    mean = sum(drawn) / n
    variance = sum((x - mean) ** 2 for x in drawn) / n
    assert law.mean(0.0) == 1 / rate
    assert abs(mean * rate - 1) <= 4 * math.sqrt(SQUARED_CV[text] / n) + 1e-9
    assert variance * rate**2 == pytest.approx(SQUARED_CV[text], rel=0.35, abs=1e-9)
    assert min(drawn) > 0


def test_exponential_draws_are_those_of_the_named_stream():
    law, stream = parse("exp", 5.0, Random("3/work/0")), Random("3/work/0")
    assert [law.sample(0.0) for _ in range(5)] == [stream.expovariate(5.0) for _ in range(5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gauss", "known: exp"),
        ("exp:cv=2", "takes no option cv"),
        ("lognormal:cv=x", "must be a number"),
        ("lognormal:cv=0", "cv must be above 0"),
        ("hyperexp:cv=0.5", "from 1 to 1000"),
        ("lognormal:cv=nan", "cv must be"),
    ],
)
def test_laws_that_are_none_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, 1.0, Random(1))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", LAWS)
def test_rates_that_are_none_are_refused(name, rate):
    with pytest.raises(ValueError, match="rate must be positive"):
        parse(name, rate, Random(1))


def test_a_station_with_servers_is_fcfs():
    station = Station(2)
    assert [station.admit(at, work) for at, work in [(0, 5), (1, 1), (1, 1), (1, 1), (7, 1)]] == [5, 2, 3, 4, 8]


def test_a_station_needs_a_server():
    with pytest.raises(ValueError, match="at least 1 server"):
        Station(0)


async def test_the_schedule_is_exact_however_late_the_timers_are(monkeypatch):
    """Every timer fires 5 ms late; the planned ends stay 10 ms apart all the same."""
    loop, planned = asyncio.get_running_loop(), []
    on_time = loop.call_at

    def late(when, *what, **more):
        planned.append(when)
        return on_time(when + 0.005, *what, **more)

    pool = QueuePool(Fixed(100.0, Random(1)))
    monkeypatch.setattr(loop, "call_at", late)
    await asyncio.gather(*(pool.serve() for _ in range(20)))
    assert [b - a for a, b in itertools.pairwise(planned)] == [pytest.approx(0.01)] * 19
    assert (pool.served, pool.busy_time) == (20, pytest.approx(0.2))


async def test_a_full_queue_refuses():
    pool = QueuePool(Fixed(1.0, Random(1)), capacity=2)
    held = [asyncio.ensure_future(pool.serve()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await pool.serve()
    for job in held:
        job.cancel()


async def test_a_late_timer_turns_nobody_away():
    pool = QueuePool(Fixed(1000.0, Random(1)), capacity=1)
    first = asyncio.ensure_future(pool.serve())
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    late = loop.time() + 0.004
    while loop.time() < late:
        pass  # the loop is busy; the first has ended, by the books
    assert await pool.serve() == await first == 0.001
    assert pool.backlog == 0


async def test_a_waiting_job_whose_client_leaves_is_dropped_and_one_in_service_goes_on():
    pool = QueuePool(Fixed(20.0, Random(1)))
    first, second, third = (asyncio.ensure_future(pool.serve()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    assert await third == 0.05
    assert (pool.served, pool.dropped) == (2, 1)


@pytest.fixture
async def serve():
    runners = []

    async def start(pool, **more):
        runner = web.ServerRunner(make_server(pool, "w", **more))
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize("report", [True, False])
async def test_an_answer_tells_who_served_and_how_long(serve, report):
    url = await serve(QueuePool(Fixed(200.0, Random(1))), report=report)
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "any/path", data=BytesIO(b"x" * 3_000_000)) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["X-Pool"] == "w"
        assert answer.headers.get("Server-Timing") == ("service;dur=5.000000" if report else None)


async def test_a_full_pool_answers_503(serve):
    pool = QueuePool(Fixed(0.5, Random(1)), capacity=1)
    url = await serve(pool)
    async with aiohttp.ClientSession() as session:
        first = asyncio.ensure_future(session.get(url))
        while "1 of 1 busy" not in repr(pool):
            await asyncio.sleep(0.001)
        async with session.get(url) as second:
            assert second.status == 503
            assert second.headers["Retry-After"] == "2"  # seconds until a server is expected to be free
        first.cancel()


async def test_a_client_that_leaves_while_it_waits_is_noticed(serve):
    pool = QueuePool(Fixed(5.0, Random(1)))
    url = await serve(pool)
    async with aiohttp.ClientSession() as session:
        first = asyncio.ensure_future(session.get(url))
        second = asyncio.ensure_future(session.get(url))
        while "1 waiting" not in repr(pool):
            await asyncio.sleep(0.001)
        second.cancel()
        (await first).release()
        while not pool.dropped:
            await asyncio.sleep(0.001)
        assert pool.served == 1


def test_a_step_and_a_wave_change_the_rate():
    step, wave = parse_profile("step:at=60,factor=0.2"), parse_profile("wave:period=4,depth=0.5")
    assert [step.factor_at(at) for at in (0.0, 59.9, 60.0, 1e9)] == [1.0, 1.0, 0.2, 0.2]
    assert [round(wave.factor_at(at), 9) for at in (0.0, 1.0, 2.0, 3.0)] == [1.0, 1.5, 1.0, 0.5]
    law = Profiled(Fixed(10.0, Random(1)), step, origin=100.0)
    assert (law.sample(100.0), law.sample(161.0)) == (0.1, 0.5)
    assert law.mean(161.0) == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hop:at=1", "unknown profile 'hop'; known: step, wave"),
        ("step:at=1", "step needs factor"),
        ("step:at=1,factor=0", "factor > 0"),
        ("wave:period=1,depth=1", "0 ≤ depth < 1"),
        ("step:when=1,factor=2", "step takes no option when; valid options: at, factor"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_profile(text)


async def test_a_job_is_served_at_the_speed_of_its_start():
    loop = asyncio.get_running_loop()
    step = parse_profile("step:at=0.03,factor=0.5")
    pool = QueuePool(Profiled(Fixed(20.0, Random(1)), step, origin=loop.time()))
    first, second = await asyncio.gather(pool.serve(), pool.serve())
    assert (first, second) == (0.05, 0.1), "the second one starts after the step, though it came before it"


# -- services that depend on the request


def contextual(**coefficients):
    return parse("logistic:" + ",".join(f"{name}={value}" for name, value in coefficients.items()), 1000.0, Random(1))


def test_a_context_is_what_its_names_say():
    law = contextual(**{"1": 2, "POST": -1, "/report": -3, "body": 0.5, "x2": 1})
    assert law.theta == (2.0, -1.0, -3.0, 0.5, 1.0)
    assert law.context("GET", "/", 0, "") == (1.0, 0.0, 0.0, 0.0, 0.0)
    x = law.context("POST", "/reports/7?a=b", 99, "4, -1.5, 8")
    assert x == (1.0, 1.0, 1.0, pytest.approx(math.log(100) / 10), -1.5)
    assert law.context("GET", "/a/report", 0, "nan,inf,x")[1:] == (0.0, 0.0, 0.0, 10.0)


def test_the_constant_is_there_if_it_is_not_named():
    assert contextual(x1=1).names == ("1", "x1")


def test_services_are_rounds_with_the_mean_of_the_context():
    law, n = contextual(**{"1": 0.5, "x1": -1}), 20_000
    for number, mean in (("0", 1 + math.exp(-0.5)), ("1", 1 + math.exp(0.5))):
        x = law.context("GET", "/", 0, number)
        rounds = [law.service(x) * 1000 for _ in range(n)]
        assert all(abs(each - round(each)) < 1e-9 for each in rounds)
        assert sum(rounds) / n == pytest.approx(mean, abs=4 * math.sqrt(mean * (mean - 1) / n))


@pytest.mark.parametrize(
    "text",
    [
        "logistic:y=1",
        "logistic:x0=1",
        "logistic:post=1",
        "logistic:BODY=1",
        "logistic:x33=1",
        "logistic:1=2,1=3",
        "logistic:1=1e3",
        "logistic:1=nan",
        "logistic:" + ",".join(f"/{k}=1" for k in range(40)),
    ],
)
def test_contexts_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=r"component|coefficient|twice"):
        parse(text, 10.0, Random(1))


async def test_the_discipline_says_who_is_next():
    law = contextual(**{"1": 3, "/slow": -4})
    pool = QueuePool(law, order=Sept(law.theta), tick=law.tick)
    slow, fast = law.context("GET", "/slow", 0, ""), law.context("GET", "/", 0, "")
    ended = []

    async def ask(name, x):
        await pool.serve(x)
        ended.append(name)

    await asyncio.gather(ask("first", slow), ask("slow", slow), ask("fast", fast), ask("fast too", fast))
    assert ended == ["first", "fast", "fast too", "slow"]
    assert pool.served == 4
    assert pool.longest_wait <= pool.waited


async def test_who_came_after_a_server_was_free_is_not_chosen_before_who_waited():
    """A late timer must not let the server idle on the books."""
    law = contextual(**{"1": 20, "/slow": -21})
    pool = QueuePool(law, order=Sept(law.theta), tick=law.tick)
    slow, fast = law.context("GET", "/slow", 0, ""), law.context("GET", "/", 0, "")
    loop, ended = asyncio.get_running_loop(), []

    async def ask(name, x):
        await pool.serve(x)
        ended.append(name)

    jobs = [asyncio.ensure_future(ask(name, x)) for name, x in (("first", fast), ("slow", slow))]
    await asyncio.sleep(0)
    late = loop.time() + 0.005
    while loop.time() < late:
        pass  # the loop is busy; the first has ended, by the books
    await asyncio.gather(*jobs, ask("late", fast))
    assert ended == ["first", "slow", "late"]


async def test_what_ends_teaches_the_discipline_and_who_leaves_is_dropped():
    law = contextual(**{"1": 3, "/slow": -4})
    order = Esept(len(law.theta))
    pool = QueuePool(law, order=order, tick=law.tick)
    jobs = [asyncio.ensure_future(pool.serve(law.context("GET", path, 0, ""))) for path in ("/", "/slow", "/", "/")]
    await asyncio.sleep(0)
    jobs[2].cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    assert order.model.observations == pool.served == 3
    assert (pool.dropped, pool.backlog) == (1, 0)


class Hesitant(Fcfs):
    """Would rather not, five times."""

    asked = 0

    def next(self, now):
        self.asked += 1
        return super().next(now) if self.asked > 5 else None


async def test_a_pool_that_is_better_idle_looks_again_each_round_and_not_more_often(monkeypatch):
    order, loop, timers = Hesitant(), asyncio.get_running_loop(), []
    call_at = loop.call_at
    monkeypatch.setattr(loop, "call_at", lambda when, *what: (timers.append(when), call_at(when, *what))[1])
    pool = QueuePool(Fixed(1000.0, Random(1)), order=order, tick=0.01)
    await asyncio.gather(*(pool.serve() for _ in range(3)))  # three ask at the first instant, rounds do the rest
    assert len(timers) == 5 + 3  # rounds waited, services
    assert pool.longest_wait >= 0.05
    assert order.asked == 5 + 3


async def test_over_http_the_context_comes_from_the_request(serve):
    law = contextual(**{"1": 3, "/slow": -4, "POST": -1, "x1": 1})
    seen = []

    class Seeing(QueuePool):
        async def serve(self, x=()):
            seen.append(x)
            return await super().serve(x)

    url = await serve(Seeing(law, order=Sept(law.theta), tick=law.tick), law=law)
    async with aiohttp.ClientSession() as session:
        async with session.get(url + "slow/1", headers={"X-Job-Context": "0.25"}) as answer:
            assert answer.status == 200
        async with session.post(url, data=b"x" * 10) as answer:
            assert answer.status == 200
    assert seen == [(1.0, 1.0, 0.0, 0.25), (1.0, 0.0, 1.0, 0.0)]
