"""Arrival processes and schedules: their means, their laws, and mistakes in their texts."""

import math
from random import Random

import numpy as np
import pytest

from loadgen.attack.arrivals import Constant, Poisson, Stage, Stages, parse, parse_stages
from loadgen.attack.plan import Traffic
from loadgen.attack.schedule import schedule


def ks(values):
    """Kolmogorov and Smirnov's distance from uniform, and its bound at the level 0.001."""
    values, n = np.sort(values), len(values)
    up = np.arange(1, n + 1) / n
    return max(np.max(up - values), np.max(values - up + 1 / n)), 1.95 / math.sqrt(n)


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


@pytest.mark.parametrize(
    ("name", "rate", "message"),
    [("x", 1.0, "unknown"), ("poisson", 0.0, "positive"), ("constant", math.inf, "positive")],
)
def test_processes_that_are_none(name, rate, message):
    with pytest.raises(ValueError, match=message):
        parse(name, rate, Random(1))


@pytest.mark.parametrize("duration", [0.0, -1.0, math.inf, 1e12])
def test_durations_that_are_none(duration):
    with pytest.raises(ValueError, match=r"duration|over 50,000,000"):
        schedule(Constant(10.0), duration)


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
        process, result, at = parse(text, 10.0, Random(1)), [0] * 200, 0.0
        while (at := process.next_arrival(at)) < 2000.0:
            result[int(at / 10)] += 1
        return result

    def dispersion(result):
        mean = sum(result) / len(result)
        return sum((count - mean) ** 2 for count in result) / len(result) / mean

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


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_mean_and_the_spread_they_say(burstiness):
    gaps = np.diff(schedule(parse(f"gamma:burstiness={burstiness}", 20.0, Random(1)), 2000.0))
    n, variance = len(gaps), 1 / burstiness / 20**2
    assert abs(gaps.mean() - 1 / 20) < 4 * math.sqrt(variance / n)
    fourth = np.mean((gaps - gaps.mean()) ** 4)
    assert abs(gaps.var() - variance) < 4 * math.sqrt((fourth - variance**2) / n)


def test_on_and_off():
    result = schedule(parse("onoff:on=0.5,off=1.5", 40.0, Random(2)), 4000.0)
    assert abs(len(result) / 4000.0 - 40.0) < 4 * 40.0 * math.sqrt(2 / (4000.0 / 2))
    silent = np.diff(result) > 0.25  # at 160 a second no gap inside a burst is that long
    assert silent.sum() * 2.0 == pytest.approx(4000.0, rel=0.2)


@pytest.mark.parametrize(
    ("text", "stages"),
    [("poisson", None), ("sine:depth=0.9,period=7", None), ("poisson", "5s@20,10s@20..200,5s@0,10s@100..0")],
)
def test_what_is_expected_between_arrivals_is_exponential_whatever_the_rate_does(text, stages):
    traffic = Traffic(text, None if stages else 300.0, None if stages else 30.0, stages, seed=4)
    instants = np.concatenate(list(traffic.blocks()))
    expected = traffic.process().expected(instants)
    distance, bound = ks(-np.expm1(-np.diff(expected)))
    assert distance < bound


def test_stages_end_and_are_never_stretched():
    stages = parse_stages("10s@50,1m@50..200,5s@0")
    assert stages == [Stage(10, 50, 50), Stage(60, 50, 200), Stage(5, 0, 0)]
    even = Stages(Constant(1.0), stages)
    result = schedule(even, 100.0)
    assert len(result) == 8000, "500 and 7,500"
    assert result[499] == pytest.approx(10.0), "an arrival is where the expected number reaches its own"
    assert result[-1] == pytest.approx(70.0)
    assert np.searchsorted(result, 40.0) == pytest.approx(500 + 30 * (50 + 125) / 2, abs=1)
    assert [even.rate(at) for at in (0, 10, 40, 69.999, 72, 80)] == pytest.approx([50, 50, 125, 200, 0, 0], rel=1e-3)


def test_a_ramp_from_nothing_begins_and_a_stage_without_traffic_passes():
    assert schedule(Stages(Constant(1.0), parse_stages("4s@0..2,1s@0,1s@1")), 9.0).tolist() == pytest.approx(
        [2.0, math.sqrt(8.0), math.sqrt(12.0), 4.0, 6.0], rel=1e-9
    )


@pytest.mark.parametrize("text", ["", "10", "10s", "@5", "10s@", "10s@5..", "10s@-1", "0s@5", "1d@5", "10s@5,,5s@1"])
def test_stages_that_are_none(text):
    with pytest.raises(ValueError, match=r"stages are SECONDS@RATE|must be longer"):
        parse_stages(text)
