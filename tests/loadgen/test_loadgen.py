"""Schedules, pacing, stamps and summaries; and an attack on a server that answers as told."""

import asyncio
import math
from random import Random

import numpy as np
import pytest
from aiohttp import web

from loadgen.attack.arrivals import Constant, Poisson, parse
from loadgen.attack.driver import Attack, Limits
from loadgen.attack.histogram import distribution
from loadgen.attack.pacer import Pacer
from loadgen.attack.records import Records
from loadgen.attack.schedule import schedule


def test_a_poisson_schedule_is_the_stream_summed_up_and_not_rescaled():
    offsets = schedule(Poisson(100.0, Random("1/arrivals")), 50.0)
    stream, at, expected = Random("1/arrivals"), 0.0, []
    while (at := at + stream.expovariate(100.0)) < 50.0:
        expected.append(at)
    assert offsets.tolist() == expected
    assert abs(len(offsets) - 5000) < 4 * math.sqrt(5000)
    assert np.all(np.diff(offsets) > 0)


def test_poisson_gaps_are_exponential():
    gaps = np.sort(np.diff(schedule(Poisson(50.0, Random(5)), 200.0)))
    n = len(gaps)
    distance = np.max(np.abs(np.arange(1, n + 1) / n - (1 - np.exp(-50.0 * gaps))))
    assert distance < 1.95 / math.sqrt(n), "Kolmogorov and Smirnov at the level 0.001"


def test_a_constant_schedule_is_even():
    assert schedule(Constant(4.0), 1.01).tolist() == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(("name", "rate", "message"), [("x", 1.0, "unknown"), ("poisson", 0.0, "positive"),
                                                       ("constant", math.inf, "positive")])  # fmt: skip
def test_processes_that_are_none(name, rate, message):
    with pytest.raises(ValueError, match=message):
        parse(name, rate, Random(1))


@pytest.mark.parametrize("duration", [0.0, -1.0, math.inf, 1e12])
def test_durations_that_are_none(duration):
    with pytest.raises(ValueError, match=r"duration|over 50,000,000"):
        schedule(Constant(10.0), duration)


async def test_the_pacer_fires_all_in_order_and_never_early():
    loop, fired = asyncio.get_running_loop(), []
    offsets = schedule(Poisson(2000.0, Random(3)), 0.2)
    pacer = Pacer(enumerate(offsets.tolist()), lambda i, planned: fired.append((i, planned, loop.time())))
    start = loop.time() + 0.01
    await pacer.run(start)
    assert [i for i, _, _ in fired] == list(range(len(offsets)))
    assert [planned for _, planned, _ in fired] == (start + offsets).tolist()
    assert all(at >= planned for _, planned, at in fired)


async def test_a_late_pacer_sends_late_rather_than_never():
    loop, fired = asyncio.get_running_loop(), []
    pacer = Pacer(enumerate([0.0, 0.1, 0.2]), lambda i, planned: fired.append(i))
    await pacer.run(loop.time() - 10)
    assert fired == [0, 1, 2]


async def test_a_stopped_pacer_stops():
    loop, fired = asyncio.get_running_loop(), []
    pacer = Pacer(enumerate((np.arange(1000) * 0.001).tolist()), lambda i, planned: (fired.append(i), pacer.stop()))
    await pacer.run(loop.time())
    assert fired == [0]


def test_percentiles_are_values_that_happened_to_three_digits():
    values = np.arange(1, 1001) / 1000
    assert distribution(values) == pytest.approx({"mean": 0.5005, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99,
                                                  "p999": 0.999, "p9999": 1.0, "max": 1.0}, rel=1e-3)  # fmt: skip


@pytest.fixture
async def target():
    """A server that keeps the first request until the last has come: only an open loop gets through."""
    seen, gate = [], asyncio.Event()

    async def handle(request):
        seen.append(request.path)
        if len(seen) == 150:
            gate.set()
        await gate.wait()
        return web.Response(text="ok", headers={"X-Pool": "a"}, status=500 if len(seen) == 1 else 200)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/x"
    gate.set()
    await runner.cleanup()


async def test_nothing_caps_the_requests_in_flight(target):
    attack = Attack(target, Records(np.arange(150) * 0.001), Limits(timeout=20.0))
    done = await attack.run()
    assert (attack.sent, attack.finished, attack.in_flight) == (150, 150, 0)
    assert done.completed.all()
    assert set(done.pools) == {"a"}


async def test_what_is_not_answered_in_time_counts_as_failed(target):
    attack = Attack(target, Records(np.array([0.0, 0.01])), Limits(timeout=0.2))
    done = await attack.run()
    assert done.status.tolist() == [0, 0]
    assert attack.in_flight == 0


@pytest.mark.parametrize(("text", "lam"), [("mmpp:ratio=5,period=20", 3.0), ("wave:depth=0.8,period=50", 3.0)])
def test_a_process_of_varying_rate_has_the_mean_it_says(text, lam):
    """Over 100 long windows, within 4 standard errors of their spread."""
    process, width, windows = parse(text, lam, Random(3)), 1000.0, 100
    counts = [0] * windows
    at = process.next_arrival(0.0)
    while at < width * windows:
        counts[int(at / width)] += 1
        at = process.next_arrival(at)
    mean = sum(counts) / windows
    error = (sum((count - mean) ** 2 for count in counts) / (windows - 1) / windows) ** 0.5
    assert abs(mean - lam * width) <= 4 * error


def test_bursts_are_burstier_and_waves_follow_the_clock():
    def counts(text):
        process, found, at = parse(text, 10.0, Random(1)), [0] * 200, 0.0
        while (at := process.next_arrival(at)) < 2000.0:
            found[int(at / 10)] += 1
        return found

    def dispersion(found):
        mean = sum(found) / len(found)
        return sum((count - mean) ** 2 for count in found) / len(found) / mean

    assert dispersion(counts("poisson")) == pytest.approx(1.0, abs=0.4)
    assert dispersion(counts("mmpp:ratio=9,period=60")) > 10
    crest, trough = (sum(counts("wave:depth=1,period=40")[i::4]) for i in (0, 2))  # quarters; the first holds sin > 0
    assert crest > 4 * trough


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mmpp:ratio=0.5", "ratio ≥ 1"),
        ("wave:depth=2", "0 ≤ depth ≤ 1"),
        ("poisson:x=1", "takes no option x"),
        ("constant:x=1", "takes no option x"),
        ("mmpp:ratio=a", "'ratio' must be a number"),
    ],
)
def test_a_process_that_cannot_be_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, 1.0, Random(1))
