"""Several dispatchers in front of the same pools: rules against reference values of an independent program."""

import numpy as np
import pytest

from loadgen.sim.several_dispatchers import DispatcherScenario, simulate

UNEQUAL = (4.0, 3.0, 2.0, 1.0, 1.0, 0.5)
SHARED = {  # load, dispatchers: rule, mean time in system
    (0.7, 1): {"relax+fk": 0.61, "stale": 0.74, "poisson": 0.82, "sed oracle": 0.74, "improved oracle": 0.61},
    (0.7, 4): {"relax+fk": 0.78, "relax+f": 0.90, "psi+f": 0.78, "stale": 0.95, "poisson": 1.30, "least2": 1.19},
}


@pytest.mark.parametrize("rule", ["sed oracle", "relax+fk"])
def test_one_dispatcher_in_small(rule):
    mean = simulate(rule, DispatcherScenario(UNEQUAL, 0.7, 1, 4000), 1).mean()
    assert mean == pytest.approx(SHARED[0.7, 1][rule], rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "dispatchers"), SHARED)
def test_rules_of_several_dispatchers(load, dispatchers):
    """Against the reference with its error of 5 %, and ours of 3 seeds; within 4 of both together."""
    for rule, mean in SHARED[load, dispatchers].items():
        scene = DispatcherScenario(UNEQUAL, load, dispatchers, 6000)
        means = [simulate(rule, scene, seed).mean() for seed in (1, 2, 3)]
        error = np.std(means, ddof=1) / 3**0.5
        assert abs(np.mean(means) - mean) < 4 * np.hypot(error, 0.05 * mean), (rule, means)


def test_belief_in_departures_alone_piles_up_where_many_dispatch():
    scene = DispatcherScenario(UNEQUAL, 0.9, 16, 2000)
    poisson, stale, relax = (simulate(rule, scene, 1).mean() for rule in ("poisson", "stale", "relax+fk"))
    assert poisson > 1.5 * stale
    assert relax < 0.9 * stale


def test_on_one_seed_all_rules_meet_the_same_requests():
    scene = DispatcherScenario((2.0, 1.0), 0.5, 2, 300)
    again = [simulate("relax+fk", scene, 4).tolist() for _ in range(2)]
    assert again[0] == again[1]
    assert len(again[0]) == 270, "a tenth is warm-up"
