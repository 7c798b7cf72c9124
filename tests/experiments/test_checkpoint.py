"""Checkpoints: results survive a process that is killed in the middle of a write, for every experiment that has one."""

import json
from pathlib import Path

import pytest

from loadgen.experiments.checkpoint import Checkpoint
from loadgen.experiments.live import comparison
from loadgen.experiments.live.backends import LivePoolSpec
from loadgen.experiments.live.comparison import Comparison, System
from loadgen.experiments.run import Plan, run
from loadgen.experiments.spec import load
from loadgen.experiments.studies import runner
from tests.experiments.test_spec import FILE
from tests.experiments.test_studies import Squares

TORN = '{"mark": "cut o'


def tear(path):
    """Leave half a line at the end, as a process does that is killed while it writes."""
    with path.open("a") as file:
        file.write(TORN)


def test_a_result_is_found_under_its_mark_by_a_later_run(tmp_path):
    path = tmp_path / "x.jsonl"
    Checkpoint(path).add("a", {"mean": 1.0})
    later = Checkpoint(path)
    assert later.get("a") == later["a"] == {"mean": 1.0}
    assert "a" in later
    assert later.get("b") is None
    assert "b" not in later
    assert json.loads(path.read_text()) == {"mark": "a", "mean": 1.0}


def test_a_torn_line_costs_only_its_own_result(tmp_path):
    path = tmp_path / "x.jsonl"
    Checkpoint(path).add("a", {"n": 1})
    tear(path)
    second = Checkpoint(path)
    second.add("b", {"n": 2})
    second.add("c", {"n": 3})
    tear(path)
    second.add("d", {"n": 4})
    assert [Checkpoint(path).get(mark) for mark in "abcd"] == [{"n": n} for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("line", ["", "null", "[1]", "{}", '{"mark": ["x"]}', '{"mark": "x"', "\udcff"])
def test_a_line_that_is_not_a_result_is_skipped(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{line}\n{{"mark": "a", "n": 1}}\n', errors="surrogateescape")
    assert Checkpoint(path).get("a") == {"n": 1}


def test_cells_of_earlier_versions_are_read(tmp_path):
    path = tmp_path / "cells.jsonl"
    path.write_text('{"fingerprint": "a", "labels": {}, "seeds": [1], "values": {}}\n')
    assert Checkpoint(path)["a"] == {"labels": {}, "seeds": [1], "values": {}}


def run_experiment(folder: Path, counts: list) -> Path:
    (folder / "trial.toml").write_text(FILE)
    plan = Plan(load(str(folder / "trial.toml")), "quick", folder, jobs=1)
    assert len(run(plan, lambda done, total, part: counts.append((done, total))).cells) == 4
    return folder / "cells.jsonl"


def run_study(folder: Path, counts: list) -> Path:
    results = runner.run(Squares(), "quick", 1, folder, 1, lambda done, total, part: counts.append((done, total)))
    assert results == {"1": {"square": 1}, "2": {"square": 4}, "3": {"square": 9}}
    return folder / "pieces.jsonl"


def run_comparison(folder: Path, counts: list) -> Path:
    pools = (LivePoolSpec("1", 100.0, 50.0),)
    compared = Comparison((System("a", "jsq"), System("b", "sed")), pools, (50.0,), 10, rounds=2)
    results = comparison.run(compared, folder, lambda done, total, part: counts.append((done, total)))
    assert [result["mean_response"].tolist() for result in results] == [[1.0, 2.0], [1.0, 2.0]]
    return folder / "turns.jsonl"


@pytest.mark.parametrize("run_all", [run_experiment, run_study, run_comparison])
def test_a_torn_last_line_and_a_new_run_keep_all_finished_pieces(run_all, tmp_path, monkeypatch):
    """The first run is killed while it writes its last result; the second runs only that one; the third runs none."""

    async def simulate_system(compared, j, lam, system):
        metrics = dict.fromkeys(comparison.METRICS, j + 1.0)
        return {"system": system.label, "lam": lam, "seed": j} | metrics | {"shares": [1.0]}

    monkeypatch.setattr(comparison, "_run_system", simulate_system)
    path = run_all(tmp_path, [])
    text = path.read_text().removesuffix("\n")
    path.write_text(text[: text.rindex("\n") + 30])
    second, third = [], []
    run_all(tmp_path, second)
    run_all(tmp_path, third)
    total = second[-1][1]
    finished = len(text.splitlines()) - 1
    assert second[0][0] == finished * total // (finished + 1)
    assert {done for done, _ in third} == {total}, "nothing is run again"
