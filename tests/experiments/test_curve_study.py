"""The study of `curve`: its scenarios, its summary and its verdicts."""

import pytest

from loadgen.experiments.studies.curve import CURVE, QUICK, RULES, Summary, measure, scenarios


def test_every_scenario_can_be_simulated():
    assert len(scenarios()) == 64
    assert set(QUICK) <= set(scenarios())
    for scenario in scenarios().values():
        scene = scenario.scene(300)
        assert scene.rate > 0
        assert all(change.at < 300 for change in scene.changes)
        for pool in scene.pools:
            if pool.text.startswith(("fcfs:", "ps:")):
                assert f":servers={pool.servers}," in pool.text
            assert len(pool.sharing()) == 0


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_runs_in_a_scenario_that_changes(rule):
    result = measure("autoscale F4->16->4 lam150", rule, 600, seed=1)
    assert 0.02 < result["mean"] < result["p99"] < 5
    assert len(result["parts"]) == 2


def results(mean):
    """As the study would have found them, with the mean of `curve` in each scenario given."""
    usual = {"p99": 0.2, "parts": [0.1]}
    return {
        f"{name} | {rule} | {seed}": {"mean": mean if rule == "curve" else 0.1, **usual}
        for name in QUICK
        for rule in RULES
        for seed in (1, 2)
    }


def test_the_summary_compares_with_the_better_of_two_rules():
    result = Summary(results(0.05))
    assert result.ratio(QUICK[0], "curve") == pytest.approx(0.5)
    assert result.overall("steady", "curve") == pytest.approx((0.5, 0.5))
    assert result.against("steady", "curve", "lased") == pytest.approx(0.5)


@pytest.mark.parametrize(("mean", "holds"), [(0.05, True), (0.2, False)])
def test_a_claim_holds_or_fails_by_what_was_measured(mean, holds):
    verdicts = CURVE.verdicts(results(mean), "full")
    below_jsq = next(verdict for verdict in verdicts if "jsq's" in verdict.claim.says)
    assert below_jsq.holds is holds


def test_worst_cases_are_judged_in_full_size_only():
    judged = {verdict.claim.says: verdict.holds for verdict in CURVE.verdicts(results(0.05), "quick")}
    assert sum(holds is None for holds in judged.values()) == 3
