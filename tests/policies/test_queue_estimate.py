"""Beliefs about backlogs and Whittle indices, against the reference values that an independent program gave."""

import math
from random import Random

import numpy as np
import pytest
from scipy import special

from dispatcher.policies.partial_information import whittle_index as whittle
from dispatcher.policies.partial_information.queue_estimate import (
    expected_left,
    lower_gamma,
    psi,
    relaxed,
    static_split,
    upper_gamma,
    with_others,
)

# q, m, e, P(idle), psi
LEFT = [
    (1, 0.5, 0.606530660, 0.393469340, 4.633632),
    (1, 1, 0.367879441, 0.632120559, 2.538825),
    (1, 3, 0.049787068, 0.950212932, 1.218034),
    (2, 1, 1.103638324, 0.264241118, 7.341937),
    (3, 2, 1.218017549, 0.323323584, 5.827023),
    (5, 2.5, 2.561949762, 0.108821981, 20.267882),
    (5, 8, 0.159121107, 0.900367600, 1.395750),
    (12, 12, 1.372414986, 0.538402667, 3.150066),
    (20, 25, 0.370475202, 0.866425166, 1.515818),
    (2.5, 1.2, 1.386323754, 0.208525879, 9.609997),
]


@pytest.mark.parametrize(("q", "m", "left", "idle", "index"), LEFT)
def test_what_is_left_of_a_backlog(q, m, left, idle, index):
    assert expected_left(q, m) == pytest.approx(left, abs=1e-9)
    assert lower_gamma(q, m) == pytest.approx(idle, abs=1e-9)
    assert psi(upper_gamma(q, m), lower_gamma(q, m)) == pytest.approx(index, abs=1e-6)


def test_the_gamma_functions_are_scipys():
    dice = Random(1)
    for _ in range(2000):
        a, x = math.exp(dice.uniform(-3, 5)), math.exp(dice.uniform(-5, 6))
        assert lower_gamma(a, x) == pytest.approx(special.gammainc(a, x), rel=1e-10, abs=1e-15)
        assert upper_gamma(a, x) == pytest.approx(special.gammaincc(a, x), rel=1e-9, abs=1e-15)
    assert (lower_gamma(0, 1), upper_gamma(0, 1), lower_gamma(2, 0)) == (1.0, 0.0, 0.0)


def test_the_index_of_a_pool_that_is_surely_busy_is_a_number():
    assert psi(1.0, 0.0) > psi(1 - 1e-15, 1e-15) > psi(0.9, 0.1) > 1
    assert math.isfinite(psi(1.0, 0.0))


def test_the_limits_of_what_is_left():
    assert [expected_left(0, 1.0), expected_left(4, 0.0), expected_left(3, 1e6)] == [0.0, 4.0, 0.0]
    for q, m in ((1, 0.3), (7, 2.0), (40, 55.0)):
        pmf = [math.exp(j * math.log(m) - m - math.lgamma(j + 1)) for j in range(400)]
        assert expected_left(q, m) == pytest.approx(sum((q - j) * p for j, p in enumerate(pmf) if j < q), abs=1e-12)


@pytest.mark.parametrize(
    ("nu", "q", "t", "left", "busy"),
    [
        (0.3, 1, 2, 0.467471, 0.346288),
        (0.6, 0, 2, 0.606698, 0.421521),
        (0.6, 3, 2, 2.289150, 0.859532),
        (0.6, 8, 8, 4.972550, 0.912749),
        (0.9, 3, 8, 3.230782, 0.822603),
        (0.9, 8, 30, 6.758430, 0.899685),
    ],
)
def test_where_others_send_too(nu, q, t, left, busy):
    assert with_others(q, t, 1.0, nu) == pytest.approx((left, busy), abs=1e-6)
    assert with_others(q, t, 1.0, 0.0) == pytest.approx((expected_left(q, t), upper_gamma(q, t)))
    assert with_others(q, 0.0, 1.0, nu) == (q, float(q > 0))


def test_with_others_is_finite_whatever_it_is_asked():
    dice = Random(2)
    for _ in range(3000):
        mu = math.exp(dice.uniform(-4, 6))
        q, t, nu = dice.choice([0, 1, 5, 60, 900]), math.exp(dice.uniform(-9, 9)) / mu, mu * dice.uniform(0, 3)
        left, busy = with_others(q, t, mu, nu)
        assert 0 <= left <= q + nu * t + 1e-9
        assert 0 <= busy <= 1


def test_the_worked_example():
    """Four pools, nobody with own requests open: (μ, q, t, ν, usual) and what follows."""
    shares = static_split([4, 2, 1, 0.5], 5.2)
    assert shares == pytest.approx([3.101794, 1.364873, 0.550897, 0.182436], abs=1e-6)
    rows = [
        (4, 6, 1, 2.0, 2.195435, 4.681280, 6.325143),
        (2, 3, 2, 1.2, 0.347997, 2.406576, 5.363610),
        (1, 0, 0.2, 0.6, 0.0, 0.011881, 2.253116),
        (0.5, 0, 30, 0.3, 0.0, 0.233061, 3.882877),
    ]
    for (mu, q, t, usual, left, faded, score), share in zip(rows, shares, strict=True):
        assert expected_left(q, mu * t) == pytest.approx(left, abs=1e-6)
        assert relaxed(q, t, mu, usual) == pytest.approx(faded, abs=1e-6)
        assert (relaxed(q, t, mu, usual) + 1) / (mu - share) == pytest.approx(score, abs=1e-5)


def test_the_split_leaves_slow_pools_out_and_carries_the_load():
    assert static_split([4, 3, 2, 1, 1, 0.5], 7) == pytest.approx(
        [2.853995, 2.007531, 1.189652, 0.426998, 0.426998, 0.094826], abs=1e-6
    )
    assert static_split([10.0, 0.1], 1.0) == pytest.approx([1.0, 0.0])
    for load in (0.0, 0.3, 5.0, 11.0):
        shares = static_split([4, 3, 2, 1, 1, 0.5], load)
        assert sum(shares) == pytest.approx(load)
        assert all(0 <= share < mu for share, mu in zip(shares, [4, 3, 2, 1, 1, 0.5], strict=True))
    assert all(share < mu for share, mu in zip(static_split([1.0, 2.0], 99.0), [1.0, 2.0], strict=True))


# K, mu, beta, {age: W}
FINITE = [
    (1, 0.5, 0.9, {1: 0.178683244, 2: 0.384599288, 4: 0.699849761, 8: 0.944744589}),
    (2, 0.3, 0.95, {1: 0.032995021, 4: 0.391689311, 16: 1.809202190}),
    (3, 0.8, 0.5, {1: 0.439045222, 8: 2.911888639}),
    (5, 1, 0.9, {1: 0.118930240, 3: 1.098771837, 5: 2.798513060, 8: 4.454694951}),
    (5, 1, 1.0, {1: 0.021110147, 3: 0.692430358, 5: 2.326274932, 8: 4.238148687}),
    (10, 2, 0.95, {1: 0.103905412, 8: 9.571024691}),
    (20, 0.1, 0.999, {50: 0.125444119, 150: 2.642293050, 260: 17.564993461}),
    (50, 5, 0.97, {3: 0.882135022, 10: 32.328918537, 13: 49.273012388}),
    (7, 1.7, 0, {1: 1.699526504, 2: 3.364816602, 6: 6.784670064}),
]


@pytest.mark.parametrize(("k", "mu", "beta", "values"), FINITE)
def test_the_index_of_a_queue_that_is_filled_up(k, mu, beta, values):
    for tau, index in values.items():
        assert whittle.finite(tau, k, mu, beta) == pytest.approx(index, abs=1e-9)


@pytest.mark.parametrize(
    ("k", "mu", "beta", "found"),
    [
        (1, 0.5, 0.9, [(0, 3.93469340), (2, 5.82754454), (6, 9.07110552)]),
        (5, 1, 0.9, [(2, 12.06995332), (4, 27.59976385), (8, 45.29248307)]),
        (20, 0.1, 0.999, [(142, 2079.15110501), (201, 10037.16495557), (266, 18005.89820499)]),
    ],
)
def test_how_long_is_idled_at_a_subsidy_and_what_that_is_worth(k, mu, beta, found):
    for share, (idled, value) in zip((0.1, 0.5, 0.9), found, strict=True):
        assert whittle.idled(share * k, k, mu, beta) == idled
        assert whittle.value(share * k, k, mu, beta) == pytest.approx(value, abs=1e-7)


def test_the_index_where_picks_cost_no_time():
    for k, x, index in ((1, 1, 0.264241118), (5, 2.5, 0.210105191), (10, 12, 6.527705824), (20, 20, 8.818148315)):
        assert whittle.continuous(x, k, 1.0) == pytest.approx(index, abs=1e-9)


BLOCKING = [
    (
        2,
        0.7,
        0.9,
        (1, 2, 3, 4, 6),
        {
            1: (0.41905814, 0.92619347, 1.33881225, 1.62226748, 1.88900813),
            2: (0.11007732, 0.36375270, 0.70528436, 1.04593488, 1.57369070),
        },
    ),
    (2, 0.7, 1.0, (1, 2, 6), {1: (0.35285025, 0.80959860, 1.84059330), 2: (0.09279426, 0.30973868, 1.47140335)}),
    (
        5,
        1,
        0.9,
        (1, 2, 5, 8, 10),
        {
            1: (1.20961506, 2.81001514, 4.82959723, 4.99050196, 4.99866113),
            5: (0.00430749, 0.07889205, 1.31732577, 3.53764311, 4.45990584),
        },
    ),
    (5, 0.3, 0.99, (1, 8, 33), {3: (0.00115369, 0.48547547, 4.86965577), 5: (0.00000505, 0.08988404, 4.14362640)}),
    (10, 2, 1.0, (1, 5, 10), {1: (4.43584239, 9.99421545, 9.99999962), 10: (0.00008454, 1.94620150, 9.61052227)}),
]


@pytest.mark.parametrize(("k", "mu", "beta", "ages", "rows"), BLOCKING)
def test_the_indices_of_a_queue_that_takes_work_only_when_empty(k, mu, beta, ages, rows):
    table = whittle.blocking(k, mu, beta)
    assert table.is_indexable
    for q, values in rows.items():
        assert [table(q, tau) for tau in ages] == pytest.approx(values, abs=1e-7)
    assert np.all(np.diff(table.indices, axis=1) >= -1e-9), "older is more worth a pick"
    assert np.all(np.diff(table.indices, axis=0) <= 1e-9), "fuller is less"


def test_the_sweep_and_one_place_models_agree():
    table = whittle.blocking(3, 0.8, 0.95)
    assert table.breakpoints[:6] == pytest.approx(
        [0.037247, 0.157046, 0.217039, 0.510781, 0.527411, 0.578088], abs=1e-6
    )
    one = whittle.blocking(1, 0.5, 0.9)
    assert [one(1, tau) for tau in (1, 4, 8)] == pytest.approx([whittle.finite(tau, 1, 0.5, 0.9) for tau in (1, 4, 8)])
    for wrong in ((0, 1.0, 1.0), (5, 0.0, 1.0), (5, 1.0, 1.5), (999, 1.0, 1.0)):
        with pytest.raises(ValueError, match="capacity must be"):
            whittle.blocking(*wrong)
