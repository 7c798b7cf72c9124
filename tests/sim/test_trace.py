"""Decision by decision against recorded traces: state, choice, regret and episode exactly, times and rates to 1e-9."""

import csv
from functools import partial
from pathlib import Path

import pytest

from dispatcher.errors import PolicyError
from dispatcher.policies.jsq import Jsq
from loadgen.sim.compiled import Compiled
from loadgen.sim.model import Scenario, simulate
from loadgen.sim.replicate import write_trace

TRACES = Path(__file__).parent.parent / "traces"
SCENARIOS = {  # file: policy, λ, μ, guesses, seed
    "lased_starved": ("lased", 1.0, (5.0, 10.0), (5.0, 0.1), 1),
    "greedy_starved": ("greedy", 1.0, (5.0, 10.0), (5.0, 0.1), 1),
    "lased_busy": ("lased", 1.494, (0.75, 0.91), (0.74, 0.92), 2),
    "esed_busy": ("esed", 1.494, (0.75, 0.91), (0.74, 0.92), 2),
    "optimistic_equal": ("optimistic", 1.8, (1.0, 1.0), (1.0, 10.0), 3),
    "sed_unequal": ("sed", 3.6, (1.0, 5.0), (1.0, 1.0), 4),
}
EXACT = ("n", "q1", "q2", "server", "phase", "regret", "episode")
CLOSE = ("time", "rate1", "rate2")


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("engine", ["object", "compiled"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_reproduces_the_trace(name, engine, tmp_path):
    expected = rows_of(TRACES / f"{name}.csv")
    policy, lam, mu, guess, seed = SCENARIOS[name]
    scenario = Scenario(policy, lam, mu, guess, len(expected))
    run = Compiled(scenario).simulate if engine == "compiled" else partial(simulate, scenario)
    result = run(seed, keep_rows=True)
    write_trace(result.rows, tmp_path / "trace.csv")
    got = rows_of(tmp_path / "trace.csv")
    assert list(got[0]) == list(expected[0])
    for wanted, row in zip(expected, got, strict=True):
        assert [row[key] for key in EXACT] == [wanted[key] for key in EXACT], f"decision {wanted['n']}"
        assert [float(row[key]) for key in CLOSE] == pytest.approx(
            [float(wanted[key]) for key in CLOSE], rel=1e-9, abs=1e-9
        )


def test_the_traffic_is_the_same_for_every_policy():
    results = [
        simulate(Scenario(policy, 1.0, (1.0, 2.0), (1.0, 1.0), 300), 5, keep_rows=True) for policy in ("jsq", "lased")
    ]
    assert [row.time for row in results[0].rows] == [row.time for row in results[1].rows]


class Broken(Jsq):
    """Divides by nothing at the fifth decision."""

    decided = 0

    def score(self, pool, now):
        self.decided += 1
        return pool.in_flight / (0 if self.decided > 10 else 1)


def test_a_broken_policy_is_no_result():
    with pytest.raises(PolicyError, match=r"Broken\.choose broke its contract: ZeroDivisionError"):
        simulate(Scenario("tests.sim.test_trace:Broken", 1.0, (1.0, 2.0), (1.0, 1.0), 100), 1)
