"""Throughput curves: their values, their greatest value, and texts that describe none."""

import math

import pytest

from workers.curves import parse_curve

CURVES = [  # text, rates by the number of requests, the greatest rate
    ("fcfs:servers=4,seconds=0.04", {0: 0, 1: 25, 3: 75, 4: 100, 90: 100}, 100),
    ("ps:servers=2,seconds=0.02", {1: 50, 2: 100, 9: 100}, 100),
    ("infinite:seconds=0.05", {0: 0, 1: 20, 100: 2000}, math.inf),
    ("infinite:seconds=0.05,limit=4", {3: 60, 4: 80, 9: 80}, 80),
    ("soft:a=0.1,seconds=0.02", {1: 50, 2: 100 / 1.1, 11: 275}, 500),
    ("soft:a=0,seconds=0.5", {10: 20}, math.inf),
    ("soft:a=0.1,seconds=0.02,limit=11", {11: 275, 40: 275}, 275),
    ("soft:a=2,seconds=1", {1: 1, 2: 2 / 3}, 1),
    ("retrograde:servers=4,peak=8,seconds=0.02", {2: 100, 4: 200, 8: 200, 16: 100, 32: 50}, 200),
    ("limited:servers=2,limit=64,seconds=0.005", {1: 200, 2: 400, 100: 400}, 400),
    ("table:10,18,24", {0: 0, 1: 10, 2: 18, 3: 24, 99: 24}, 24),
    ("table:10,30,5", {2: 30, 3: 5, 4: 5}, 30),
]


@pytest.mark.parametrize(("text", "rates", "capacity"), CURVES, ids=[text for text, _, _ in CURVES])
def test_a_curve_has_the_rates_that_its_text_says(text, rates, capacity):
    curve = parse_curve(text)
    assert {n: curve.rate(n) for n in rates} == pytest.approx(rates)
    assert curve.capacity == pytest.approx(capacity)
    assert max(curve.rate(n) for n in range(200)) <= curve.capacity * (1 + 1e-12)


@pytest.mark.parametrize(
    ("text", "crowded", "knee"),
    [
        ("fcfs:servers=4,seconds=0.04", 100, 4),
        ("infinite:seconds=0.05", math.inf, math.inf),
        ("infinite:seconds=0.05,limit=4", 80, 4),
        ("soft:a=0.1,seconds=0.02", 500, math.inf),
        ("soft:a=2,seconds=1", 0.5, math.inf),
        ("retrograde:servers=4,peak=8,seconds=0.02", 0, math.inf),
        ("retrograde:servers=4,peak=8,seconds=0.02,limit=16", 100, 16),
        ("table:10,30,5", 5, 3),
    ],
)
def test_an_overloaded_pool_completes_what_its_curve_ends_at(text, crowded, knee):
    curve = parse_curve(text)
    assert curve.crowded == pytest.approx(crowded)
    assert curve.knee == knee


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown curve ''; known: fcfs, ps, infinite, soft, retrograde, limited, table"),
        ("lifo:seconds=1", "unknown curve 'lifo'"),
        ("fcfs:servers=4", "fcfs needs seconds"),
        ("fcfs:seconds=1,servers=x", "'servers' must be a number, not 'x'"),
        ("fcfs:seconds=1,servers=2,servers=3", "names 'servers' twice"),
        ("fcfs:seconds=1,servers=2,peak=3", "fcfs takes no option peak; valid options: servers, seconds, limit"),
        ("fcfs:seconds=1,servers=0.5", "servers must be at least 1, not 0.5"),
        ("fcfs:seconds=0,servers=1", "seconds must be positive, not 0"),
        ("fcfs:seconds=nan,servers=1", "seconds must be positive, not nan"),
        ("limited:seconds=1,servers=2", "limited needs limit"),
        ("infinite:seconds=1,limit=1.5", "limit must be a whole number of at least 1, not 1.5"),
        ("soft:a=-1,seconds=1", "a must be 0 or more, not -1"),
        ("retrograde:servers=4,peak=2,seconds=1", "1 <= servers <= peak must hold"),
        ("table:", "a table needs at least one rate"),
        ("table:1,0", "every rate must be positive"),
        ("table:1,x", "a rate must be a number, not 'x'"),
    ],
)
def test_a_text_that_describes_no_curve_is_refused(text, message):
    with pytest.raises(ValueError, match=r"^(unknown )?curve ") as raised:
        parse_curve(text)
    assert message in str(raised.value)
