"""Pools that hold one request: exact sums, the timing of slots, and learners against them."""

import math
from random import Random

import pytest

from loadgen.experiments.studies.runner import spread
from loadgen.sim.single_buffer import (
    WORST_RATIO,
    Buffers,
    BufferScenario,
    accepted_by_mix,
    bound,
    boundary,
    equalising,
    hamacher,
    simulate,
)

TABLE = {  # an independent program's: H, P
    (0.5, 0.5): (0.666667, 0.750000),
    (0.9, 0.1): (0.901099, 0.910000),
    (0.3, 0.2): (0.404255, 0.440000),
    (0.2,) * 4: (0.500000, 0.590400),
    (0.18,) * 10: (0.687023, 0.862552),
    (0.8, 0.7, 0.05, 0.05, 0.05, 0.05): (0.867442, 0.951130),
    (0.05, 0.03): (0.077116, 0.078500),
}


@pytest.mark.parametrize("mu", TABLE)
def test_sums_are_those_of_the_table(mu):
    h, p = TABLE[mu]
    assert hamacher(mu) == pytest.approx(h, abs=6e-7)
    assert bound(mu) == pytest.approx(p, abs=6e-7)
    assert accepted_by_mix(mu, equalising(mu)) == pytest.approx(hamacher(mu))


def test_the_sum_folds_by_pairs_and_one_sure_server_takes_all():
    def fold(a, b):
        return (a + b - 2 * a * b) / (1 - a * b)

    dice = Random(1)
    for _ in range(200):
        mu = [dice.uniform(0.001, 0.999) for _ in range(dice.randint(2, 8))]
        folded = mu[0]
        for rate in mu[1:]:
            folded = fold(folded, rate)
        assert hamacher(mu) == pytest.approx(folded, abs=1e-12)
    assert hamacher((0.3, 1.0)) == 1.0


def test_the_worst_ratio_is_where_it_was_proved_to_be():
    c = 1.793282132901
    assert math.exp(c) == pytest.approx(1 + c + c * c)
    assert c / ((1 + c) * (1 - math.exp(-c))) == pytest.approx(WORST_RATIO, abs=1e-12)
    assert hamacher((0.02,) * 90) / bound((0.02,) * 90) == pytest.approx(0.772938, abs=6e-7)


@pytest.mark.parametrize(
    ("queues", "total", "stars"),
    [
        (4, 4.0, (0.567174, 0.506297, 0.500625, 0.500006)),
        (2, 2.0, (0.539773, 0.503772, 0.500375, 0.500004)),
        (8, 2.0, (0.217171, 0.201795, 0.200180, 0.200002)),
    ],
)
def test_the_boundary_of_equal_queues(queues, total, stars):
    for servers, star in zip((10, 100, 1000, 100_000), stars, strict=True):
        assert boundary(queues, servers, total) == pytest.approx(star, abs=6e-7)


def accepted(policy, mu, slots=8_000, seeds=10):
    """Share in the second half: mean and standard error."""
    shares = [
        sum(simulate(policy, BufferScenario(mu, slots), seed).accepted[10:]) / (slots // 2) for seed in range(seeds)
    ]
    return spread(shares)


@pytest.mark.parametrize("mu", [0.5, 0.2, 1.0])
def test_a_server_that_is_always_asked_takes_at_its_rate(mu):
    """The timing convention: one chance between an acceptance and the next possible one."""
    mean, error = accepted("round_robin", (mu,))
    assert abs(mean - mu) <= 4 * error


def test_independent_draws_in_the_equalising_mix_get_the_sum():
    mean, error = accepted("mix", (0.5, 0.3))
    assert hamacher((0.5, 0.3)) == pytest.approx(0.588235, abs=6e-7)
    assert abs(mean - 0.588235) <= 4 * error


@pytest.mark.parametrize("policy", ["exp3_ix/window=0/floor=0", "tsallis_inf", "exp3_ix"])
def test_learners_get_the_sum_less_their_regret(policy):
    mu, slots = (0.3, 0.2), 8_000
    runs = [simulate(policy, BufferScenario(mu, slots), seed) for seed in range(3)]
    mean, error = spread([sum(run.accepted[10:]) / (slots // 2) for run in runs])
    regret = spread([run.regret / (slots // 2) for run in runs])[0]
    assert hamacher(mu) * (1 - max(0.0, regret)) - 4 * error <= mean <= hamacher(mu) + 4 * error
    assert regret < 0.03


def test_even_spacing_gets_more_and_ucb1_hammers_one_server():
    mu = (0.2,) * 4
    assert accepted("exp3_ix/smooth=true", mu, 8_000, 1)[0] > 1.1 * hamacher(mu)
    assert accepted("recharge", mu, 8_000, 1)[0] > 1.1 * hamacher(mu)
    run = simulate("ucb1", BufferScenario(mu, 8_000), 1)
    assert sum(run.accepted[10:]) / 4_000 < 0.8 * hamacher(mu)
    assert run.regret > 800


def test_a_queue_is_stable_below_the_sum_and_not_above():
    mu = (0.5, 0.5)
    slopes = [simulate("mix", BufferScenario(mu, 40_000, (load * hamacher(mu),)), 1).slope for load in (0.9, 1.1)]
    assert abs(slopes[0]) < 0.002
    assert slopes[1] == pytest.approx(0.1 * hamacher(mu), rel=0.3)


def test_of_several_senders_one_is_taken_and_each_as_often():
    run = simulate("round_robin", BufferScenario((1.0,), 10_000, (1.0, 1.0)), 1)
    assert sum(run.accepted) == 10_000
    assert sum(run.sent) == 20_000
    assert run.backlog[-1] == 10_000


def test_rates_change_in_the_middle():
    run = simulate("round_robin", BufferScenario((0.8,), 40_000, (), (0.2,)), 1)
    shares = [count / 2000 for count in run.accepted]
    assert shares[:10] == pytest.approx([0.8] * 10, abs=0.05)
    assert shares[10:] == pytest.approx([0.2] * 10, abs=0.05)


def test_what_is_full_when_rates_change_has_its_next_chance_after_that_slot():
    for seed in range(20):
        servers = Buffers((1e-9,), seed)
        assert servers.offer(0, 0)
        servers.change((1.0,), 10)
        assert not servers.offer(0, 10)
        assert servers.offer(0, 11)


def test_an_odd_number_of_windows_is_refused():
    with pytest.raises(ValueError, match="even"):
        simulate("mix", BufferScenario((0.5,), 100, windows=3), 1)


def test_empty_slots_are_counted_to_the_slot():
    servers = Buffers((1.0,), 1)
    assert servers.offer(0, 3)  # empty in 0, 1, 2, 3
    assert servers.empty_slots(4) == [4]
    assert servers.empty_slots(6) == [6]
    servers = Buffers((1e-9,), 1)
    assert servers.offer(0, 0)
    assert not servers.offer(0, 5)
    assert servers.empty_slots(100) == [1]


def test_equal_seeds_give_equal_runs_and_options_are_checked():
    scene = BufferScenario((0.4, 0.3), 2000, (0.2, 0.2))
    assert simulate("exp3_ix", scene, 3) == simulate("exp3_ix", scene, 3)
    assert simulate("exp3_ix", scene, 3) != simulate("exp3_ix", scene, 4)
    with pytest.raises(Exception, match="has no option"):
        simulate("exp3_ix/windows=3", scene, 1)
