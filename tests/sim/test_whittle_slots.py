"""Servers that are seen only when they are picked: exact rewards and simulated ones, against an independent
program's."""

import numpy as np
import pytest

from loadgen.experiments.studies.whittle import SYSTEMS
from loadgen.sim import whittle_slots

EXACT = {
    "A": (7.32502877, 7.30282783, 7.31888529, 5.99703847, 4.98639734, 7.35412774),
    "C": (8.82929437, 8.79557890, None, 6.69616735, 5.42262799, 8.89306746),
    "E": (4.03100983, 4.03100983, 4.03100983, 4.03100983, 3.03985204, 4.03100983),
    "F": (19.23901268, 19.23901268, 19.12481653, 13.22641228, 11.21738097, 19.61239211),
    "H": (3.32648474, 3.32648474, 3.31420122, 3.27524546, 2.78076577, 3.34168719),
}
SIMULATED = {  # blocking: policy, reward
    "A": {
        "whittle": 6.1419,
        "myopic": 6.1085,
        "round_robin": 5.2157,
        "random": 4.1010,
        "jsq": 6.4083,
        "jsq-f": 6.5732,
        "jsq-2": 5.2760,
        "jiq": 6.4067,
    },
    "E": {"whittle": 3.5098, "jsq": 4.1291, "jiq": 4.1303},
}


@pytest.mark.parametrize("system", EXACT)
def test_long_run_rewards_of_the_first_model_are_exact(system):
    servers = whittle_slots.BatchServers(*SYSTEMS[system])
    index, discounted, myopic, robin, dice, bound = EXACT[system]
    assert whittle_slots.exact_index_policy(servers, whittle_slots.whittle_tables(servers, 1.0))[0] == pytest.approx(
        index, abs=1e-7
    )
    assert whittle_slots.exact_index_policy(servers, whittle_slots.whittle_tables(servers, 0.95))[0] == pytest.approx(
        discounted, abs=1e-7
    )
    if myopic:  # in C its index saturates, and the last bit decides
        assert whittle_slots.exact_index_policy(servers, whittle_slots.myopic_tables(servers))[0] == pytest.approx(
            myopic, abs=1e-7
        )
    assert whittle_slots.exact_round_robin(servers) == pytest.approx(robin, abs=1e-7)
    assert whittle_slots.exact_random(servers) == pytest.approx(dice, abs=1e-7)
    assert whittle_slots.bound(servers) == pytest.approx(bound, abs=1e-6)


@pytest.mark.parametrize("system", SIMULATED)
def test_the_second_model_simulated(system):
    """Within 4 standard errors of both."""
    servers = whittle_slots.BatchServers(*SYSTEMS[system], blocking=True)
    for policy, reward in SIMULATED[system].items():
        rewards = whittle_slots.simulate(servers, policy, 400, 100, 60, 1)
        error = rewards.std(ddof=1) / len(rewards) ** 0.5
        assert abs(rewards.mean() - reward) < 4 * np.hypot(error, 0.003), policy


def test_what_is_no_policy_is_refused():
    with pytest.raises(ValueError, match="unknown policy in slots 'x'"):
        whittle_slots.make_rule("x", whittle_slots.BatchServers((3,), (1.0,)), np.random.default_rng(1))
