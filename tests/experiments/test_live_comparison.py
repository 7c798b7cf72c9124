"""Live comparison: turns in their order, kept and paired; and the balancers that people run, where they are
installed."""

import json
import math
from dataclasses import replace

import aiohttp
import numpy as np
import pytest

from dispatcher.errors import ConfigError
from loadgen.cli.compare import installed
from loadgen.experiments.live import comparison, comparison_report
from loadgen.experiments.live.backends import BackendError, LivePoolSpec, live_pools
from loadgen.experiments.live.balancers import BALANCERS, balancer_system, parse
from loadgen.experiments.live.comparison import METRICS, Comparison, System, SystemResult, policies, run

POOLS = (LivePoolSpec("1", 100.0, 50.0), LivePoolSpec("2", 300.0, 50.0))
COMPARISON = Comparison(
    (System("lased", "lased"), System("sed", "sed"), System("nginx", balancer="nginx")),
    POOLS,
    (120.0, 240.0),
    100,
    rounds=3,
)


def where_installed(name):
    return pytest.param(
        name,
        marks=pytest.mark.skipif(
            BALANCERS[name].program() is None, reason=f"{name} is not installed: {BALANCERS[name].install}"
        ),
    )


def test_systems_take_turns_in_another_order_each_round_on_the_same_traffic():
    turns = [(j, lam, system.label) for j, lam, system in COMPARISON.runs()]
    assert len(turns) == len(set(turns)) == 3 * 2 * 3
    orders = [[label for j, lam, label in turns if (j, lam) == (round_, 120.0)] for round_ in range(3)]
    assert orders == [["lased", "sed", "nginx"], ["sed", "nginx", "lased"], ["nginx", "lased", "sed"]]
    assert [j for j, _, _ in turns] == sorted(j for j, _, _ in turns), "a round is over before the next begins"
    assert len({COMPARISON.mark(*turn) for turn in COMPARISON.runs()}) == len(turns)
    assert COMPARISON.offsets(120.0, 1).tolist() == COMPARISON.offsets(120.0, 1).tolist()
    assert np.allclose(COMPARISON.offsets(240.0, 1) * 2, COMPARISON.offsets(120.0, 1)), "the same dice at every load"


def system_results():
    """lased 10 ms, sed 1 ms less in each round though rounds differ, nginx twice as long."""
    rounds = np.array([0.010, 0.014, 0.012])
    result = []
    for lam in COMPARISON.lams:
        for system, times in zip(COMPARISON.systems, (rounds, rounds - 0.001, 2 * rounds), strict=True):
            regret = np.full(3, math.nan) if system.balancer else np.arange(3.0)
            values = dict.fromkeys(METRICS, times) | {"regret": regret, "shares": np.array([[0.2, 0.8]] * 3)}
            result.append(SystemResult(system, lam, values))
    return result


def test_what_is_shown_is_paired(tmp_path):
    result = comparison_report.as_json(COMPARISON, system_results())
    assert [load["load"] for load in result["loads"]] == [0.3, 0.6]
    difference = result["loads"][0]["differences"]["sed"]["mean_response"]
    assert difference["mean"] == pytest.approx(-0.001)
    assert difference["high"] - difference["low"] < 1e-9, "what rounds have in common falls out"
    assert "regret" not in result["loads"][0]["differences"]["nginx"]
    assert json.dumps(result, allow_nan=False)
    one, first = system_results()[2], system_results()[0]
    assert comparison_report.percent(one, first, "mean_response").startswith("+100.0 ± ")
    comparison_report.draw(COMPARISON, system_results(), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    comparison_report.write_rows(COMPARISON, system_results(), tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 2 * 3 * 3
    table = comparison_report.table(COMPARISON, system_results(), 120.0)
    assert table.row_count == 3
    assert "load 0.3: 120 requests a second to pools of 100 and 300" in table.title


def test_a_finished_run_is_not_run_again(tmp_path):
    given = Comparison((System("sed", "sed"),), POOLS, (200.0,), 40, rounds=1)
    progress = []
    (first,) = run(given, tmp_path, lambda *words: progress.append(words))
    (again,) = run(given, tmp_path, lambda *words: progress.append(words))
    assert progress == [(0, 1, "sed, round 1"), (1, 1, ""), (1, 1, "")]
    assert again["mean_response"].tolist() == first["mean_response"].tolist()
    assert first["regret"].tolist() == [0.0]
    assert 0 < first["mean_response"][0] < 1.0


def test_a_turn_of_before_the_code_changed_is_not_taken_for_one_of_after(monkeypatch):
    turn = next(COMPARISON.runs())
    before = COMPARISON.mark(*turn)
    assert COMPARISON.mark(*turn) == before
    monkeypatch.setattr(comparison, "sources", lambda: "changed")
    assert COMPARISON.mark(*turn) != before


def test_what_is_not_known_is_refused_before_anything_runs():
    for text, message in (("pound", "there is no balancer 'pound'"), ("nginx/x", "nginx has no rule 'x'")):
        with pytest.raises(ConfigError, match=message):
            parse(text)
    with pytest.raises(ConfigError, match="has no option 'n'"):
        policies("lased/n=1", 1)
    assert [system.label for system in policies("lased,lased/n0=3", 2)] == ["lased", "lased/n0=3"]


def test_with_several_dispatchers_each_policy_is_behind_one_and_behind_them_all():
    systems = policies("sed,partial_sed/rule=relax+f", 1, 3)
    assert [(system.label, system.dispatchers) for system in systems] == [
        ("sed × 1", 1),
        ("sed × 3", 3),
        ("partial_sed/rule=relax+f × 1", 1),
        ("partial_sed/rule=relax+f × 3", 3),
    ]
    assert systems[3].options == {"rule": "relax+f", "replicas": 3}
    assert systems[1].options == {}, "it knows no others"


@pytest.mark.parametrize("name", [where_installed(name) for name in BALANCERS])
@pytest.mark.parametrize("rule", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
async def test_a_balancer_of_every_rule_forwards_to_all_its_pools(name, rule, tmp_path):
    async with (
        live_pools(POOLS, tmp_path) as (_, addresses),
        balancer_system(BALANCERS[name], BALANCERS[name].rules[rule], list(addresses.values()), tmp_path) as url,
        aiohttp.ClientSession() as session,
    ):
        seen = set()
        for _ in range(40):
            async with session.get(url) as answer:
                assert answer.status == 200
                seen.add(answer.headers["X-Pool"])
    assert seen == {"1", "2"}


@pytest.mark.parametrize(
    ("name", "strategy"), [("traefik", '"strategy": "leasttime"'), ("caddy", '"policy": "least_conn"')]
)
def test_the_default_rule_and_every_pool_are_in_the_configuration(name, strategy, tmp_path):
    balancer, rule = parse(name)
    text = balancer.configuration(tmp_path, 80, ["127.0.0.1:1", "127.0.0.1:2"], rule)
    assert strategy in text
    assert "127.0.0.1:1" in text
    assert "127.0.0.1:2" in text
    assert "weight" not in text
    json.loads(text)


async def test_a_balancer_that_ends_at_once_is_an_error_with_its_last_words(tmp_path):
    failing = replace(BALANCERS["nginx"], program=lambda: "/bin/sh", arguments=("-c", "echo no licence >&2; exit 1"))
    with pytest.raises(BackendError, match="nginx did not start: no licence"):
        async with balancer_system(failing, "least_conn", ["127.0.0.1:1"], tmp_path):
            pass


def test_one_that_is_not_installed_is_left_out_and_said(monkeypatch, capsys):
    for name in ("envoy", "nginx"):
        there = name == "nginx"
        monkeypatch.setitem(
            BALANCERS, name, replace(BALANCERS[name], program=lambda there=there: "/bin/x" * there or None)
        )
    assert [system.balancer for system in installed("envoy,nginx/random")] == ["nginx/random"]
    said = capsys.readouterr().err.replace("\n", " ").strip()
    assert said == f"envoy is not installed and is left out: {BALANCERS['envoy'].install}"
