"""Whole experiments: files and verdicts, interruption and resumption, and the same on real processes."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from loadgen.experiments import claims, pictures, reproduce, results
from loadgen.experiments import spec as specs
from loadgen.experiments.reproduce import Plan
from loadgen.experiments.spec import Cell
from loadgen.sim.model import Scenario
from loadgen.sim.sweep import Engine
from tests.experiments.test_spec import FILE


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "trial.toml"
    path.write_text(FILE)
    return Plan(specs.load(str(path)), "quick", tmp_path / "out", jobs=1)


def silent(done, total, cell):
    pass


def test_files_table_and_picture(plan):
    found = reproduce.run(plan, silent)
    reproduce.write(plan, found, claims.judge(plan.spec, found))
    pictures.draw(plan.spec, found, plan.folder / "trial.png")
    with (plan.folder / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 2, "a row a replication and cell"
    assert [row["seed"] for row in rows[:2]] == ["1", "2"]
    manifest = json.loads((plan.folder / "manifest.json").read_text())
    assert manifest["experiment"]["axes"]["rho"] == [0.3, 0.6]
    assert {"version", "seeds", "host", "python", "engine", "backend"} <= set(manifest)
    assert (plan.folder / "trial.png").read_bytes().startswith(b"\x89PNG")


def test_both_engines_measure_the_same(plan, tmp_path):
    import dataclasses

    engines = (Engine.OBJECT, Engine.COMPILED)
    found = [
        reproduce.run(dataclasses.replace(plan, engine=engine, folder=tmp_path / engine), silent) for engine in engines
    ]
    for first, second in zip(found[0].cells, found[1].cells, strict=True):
        assert all((first[name] == second[name]).all() for name in first.values)


def test_an_interrupted_run_goes_on_where_it_was(plan, monkeypatch):
    class PulledError(Exception):
        pass

    def pull_after_two(done, total, cell):
        if done == 4:
            raise PulledError

    with pytest.raises(PulledError):
        reproduce.run(plan, pull_after_two)
    kept = (plan.folder / "cells.jsonl").read_text().splitlines()
    assert len(kept) == 2
    with (plan.folder / "cells.jsonl").open("a") as file:
        file.write(kept[0][:50])  # the power went off
    told = []
    found = reproduce.run(plan, lambda done, total, cell: told.append(done))
    assert told == [4, 6, 8], "two cells of two replications were there already"
    assert len(found.cells) == 4
    again = []
    reproduce.run(plan, lambda done, total, cell: again.append(done))
    assert again == [8], "nothing is run twice, and a line that was cut off does no harm"


def test_another_seed_is_another_run(plan):
    import dataclasses

    reproduce.run(plan, silent)
    told = []
    reproduce.run(dataclasses.replace(plan, seed=5), lambda done, total, cell: told.append(done))
    assert told[0] == 0


def test_changed_code_is_another_run(tmp_path, monkeypatch):
    """A policy of one's own, edited between two runs into the same folder."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_own.py").write_text(
        "from dispatcher.policies.jsq import Jsq\n\n\nclass Mine(Jsq):\n    'Mine.'\n"
    )
    cell = Cell({}, Scenario("mine_own:Mine", 1.0, (1.0, 2.0), (1.0, 2.0), 50))
    before = results.fingerprint(cell, range(3), "sim")
    with (tmp_path / "mine_own.py").open("a") as file:
        file.write("    depth = 3\n")
    results._source_of.cache_clear()
    assert results.fingerprint(cell, range(3), "sim") != before
    assert results.fingerprint(cell, range(3), "live", 20.0) != results.fingerprint(cell, range(3), "live", 60.0)


def lased_loadgen(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-m", "loadgen", *arguments], capture_output=True, text=True, timeout=120, check=False, **more
    )


def test_the_command_says_what_it_found(tmp_path):
    done = lased_loadgen("reproduce", "starvation", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("shown      ") == 4
    assert "NOT SHOWN" not in done.stdout
    folder = tmp_path / "starvation-quick-sim"
    assert {path.name for path in folder.iterdir()} == {
        "cells.jsonl", "manifest.json", "rows.csv", "starvation.png", "verdicts.json"
    }  # fmt: skip
    again = lased_loadgen("reproduce", "starvation", "--out", str(tmp_path), "--json")
    assert [verdict["holds"] for verdict in json.loads(again.stdout)["verdicts"]] == [True] * 4


@pytest.mark.slow
def test_the_regret_of_episodes_by_pool_is_reproduced(tmp_path):
    done = lased_loadgen("reproduce", "episodes", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("shown      ") == 4


def test_a_claim_that_is_not_shown_is_exit_code_1(tmp_path):
    path = tmp_path / "trial.toml"
    path.write_text(FILE + '[[claims]]\nsays = "SED has regret"\ncheck = "linear"\n'
                    'given = { where = { policy = "sed", rho = "0.3" }, tolerance = 0.1 }\n')  # fmt: skip
    done = lased_loadgen("reproduce", str(path), "--out", str(tmp_path))
    assert done.returncode == 1
    assert "NOT SHOWN  SED has regret" in done.stdout


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("policy", "number"),  # in threads, in processes
    [("lased", signal.SIGINT), ("peak_ewma", signal.SIGTERM), pytest.param("lased", signal.SIGTERM, marks=SLOW),
     pytest.param("peak_ewma", signal.SIGINT, marks=SLOW)],
)  # fmt: skip
def test_a_signal_keeps_what_is_finished(tmp_path, number, policy):
    path = tmp_path / "long.toml"
    text = FILE.replace('options = { ties = "random" }', "").replace('"sed", {', f'"sed", "{policy}", {{')
    for old, new in (
        ("arrivals = 100\n", "arrivals = 300000\n"),
        ("reps = 2", "reps = 40"),
        ("[0.3,", "[0.3, 0.4, 0.5,"),
    ):
        text = text.replace(old, new)
    path.write_text(text)
    arguments = ["reproduce", str(path), "--out", str(tmp_path), "--jobs", "2"]
    cells = tmp_path / "long-quick-sim" / "cells.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        for _ in range(600):
            if cells.is_file() and cells.stat().st_size:
                break
            time.sleep(0.1)
        os.killpg(process.pid, number)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert "the same command goes on from there" in errors
    assert "Traceback" not in errors
    assert out == ""
    assert cells.read_text().endswith("\n")


@pytest.mark.slow
def test_the_same_experiment_on_real_processes(tmp_path):
    path = tmp_path / "trial.toml"
    path.write_text(FILE.replace("live = { arrivals = 50, rate = 20.0 }", "live = { arrivals = 60, rate = 60.0 }"))
    done = lased_loadgen("reproduce", str(path), "--size", "full", "--backend", "live", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "trial-full-live" / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == ["sed", "quick learner"]
    assert rows[0]["regret"] == "0.0", "the oracle has none"
    assert all(0.3 < float(row["mean_response"]) < 3.0 for row in rows), "in the scenario's units, not the machine's"


COMPARE = ["compare", "--policies", "sed,jsq", "--lam", "1.2", "--mu", "1,2", "--json"]


def test_compare_simulated(tmp_path):
    common = [*COMPARE, "--out", str(tmp_path)]
    simulated = json.loads(lased_loadgen(*common, "--arrivals", "3000", "--reps", "5").stdout)
    assert simulated["first"] == "sed"
    found = simulated["differences"]["jsq"]["mean_response"]
    assert found["verdict"] == "worse"
    assert found["low"] > 0


@pytest.mark.slow
def test_compare_live(tmp_path):
    common = [*COMPARE, "--out", str(tmp_path)]
    done = lased_loadgen(*common, "--backend", "live", "--arrivals", "60", "--reps", "1", "--rate", "60")
    assert done.returncode == 0, done.stderr
    live = json.loads(done.stdout)
    (load,) = live["loads"]
    assert load["load"] == pytest.approx(0.4)
    assert load["lam"] == 60
    assert load["systems"]["sed"]["regret"]["mean"] == 0
    assert load["differences"]["jsq"]["regret"]["verdict"] == "one run"
    assert len((tmp_path / "turns.jsonl").read_text().splitlines()) == 2
