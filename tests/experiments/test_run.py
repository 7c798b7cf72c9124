"""Whole experiments: files and verdicts, interruption and resumption, and the same on real processes."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from loadgen.experiments import claims, pictures, results
from loadgen.experiments.run import Plan, run, write
from loadgen.experiments.spec import Cell, load
from loadgen.sim.model import Scenario
from loadgen.sim.sweep import Engine
from tests.commands import run_here
from tests.experiments.test_spec import FILE


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "trial.toml"
    path.write_text(FILE)
    return Plan(load(str(path)), "quick", tmp_path / "out", jobs=1)


def silent(done, total, cell):
    pass


def test_files_table_and_picture(plan):
    result = run(plan, silent)
    write(plan, result, claims.judge(plan.spec, result))
    pictures.draw(plan.spec, result, plan.folder / "trial.png")
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
    result = [run(dataclasses.replace(plan, engine=engine, folder=tmp_path / engine), silent) for engine in engines]
    for first, second in zip(result[0].cells, result[1].cells, strict=True):
        assert all((first[name] == second[name]).all() for name in first.values)


def test_an_interrupted_run_goes_on_where_it_was(plan, monkeypatch):
    class PulledError(Exception):
        pass

    def pull_after_two(done, total, cell):
        if done == 4:
            raise PulledError

    with pytest.raises(PulledError):
        run(plan, pull_after_two)
    kept = (plan.folder / "cells.jsonl").read_text().splitlines()
    assert len(kept) == 2
    progress = []
    result = run(plan, lambda done, total, cell: progress.append(done))
    assert progress == [4, 6, 8], "two cells of two replications were there already"
    assert len(result.cells) == 4


def test_another_seed_is_another_run(plan):
    import dataclasses

    run(plan, silent)
    progress = []
    run(dataclasses.replace(plan, seed=5), lambda done, total, cell: progress.append(done))
    assert progress[0] == 0


def test_changed_code_is_another_run(tmp_path, monkeypatch):
    """A policy of one's own, edited between two runs into the same folder."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_own.py").write_text(
        "from dispatcher.policies.jsq import Jsq\n\n\nclass Mine(Jsq):\n    'Mine.'\n"
    )
    cell = Cell({}, Scenario("mine_own:Mine", 1.0, (1.0, 2.0), (1.0, 2.0), 50))
    before = results.mark_of(cell, range(3), "sim")
    with (tmp_path / "mine_own.py").open("a") as file:
        file.write("    depth = 3\n")
    results._source_of.cache_clear()
    assert results.mark_of(cell, range(3), "sim") != before
    assert results.mark_of(cell, range(3), "live", 20.0) != results.mark_of(cell, range(3), "live", 60.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["starvation", "episodes"])
def test_a_figure_is_reproduced(name, tmp_path, capsys):
    done = run_here(capsys, "loadgen", "reproduce", name, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("shown      ") == 4
    assert "NOT SHOWN" not in done.stdout


CLAIM = """
[[claims]]
says = "SED has regret"
check = "{check}"
given = {{ where = {{ policy = "sed", rho = "0.3" }}, {limit} = 1.0 }}
"""


@pytest.mark.parametrize(
    ("check", "limit", "code", "text"),
    [("linear", "tolerance", 1, "NOT SHOWN  SED has regret"), ("flattens", "most", 0, "shown      SED has regret")],
)
def test_the_command_shows_a_verdict_and_writes_its_files(check, limit, code, text, tmp_path, capsys):
    path = tmp_path / "trial.toml"
    path.write_text(FILE + CLAIM.format(check=check, limit=limit))
    done = run_here(capsys, "loadgen", "reproduce", path, "--out", tmp_path, "--jobs", "1")
    assert done.returncode == code, done.stderr
    assert text in done.stdout
    files = {"cells.jsonl", "manifest.json", "rows.csv", "trial.png", "verdicts.json"}
    assert {path.name for path in (tmp_path / "trial-quick-sim").iterdir()} == files
    again = run_here(capsys, "loadgen", "reproduce", path, "--out", tmp_path, "--jobs", "1", "--json")
    assert [verdict["holds"] for verdict in json.loads(again.stdout)["verdicts"]] == [code == 0]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("policy", "number"),  # in threads, in processes
    [
        ("lased", signal.SIGINT),
        pytest.param("peak_ewma", signal.SIGTERM, marks=SLOW),
        pytest.param("lased", signal.SIGTERM, marks=SLOW),
        pytest.param("peak_ewma", signal.SIGINT, marks=SLOW),
    ],
)
def test_a_signal_keeps_what_is_finished(tmp_path, number, policy):
    path = tmp_path / "long.toml"
    text = FILE.replace('options = { ties = "random" }', "").replace('"sed", {', f'"sed", "{policy}", {{')
    loads = ", ".join(f"{0.1 + i / 1000}" for i in range(500))
    for old, new in (("arrivals = 100\n", "arrivals = 20000\n"), ("[0.3,", f"[{loads},")):
        text = text.replace(old, new)
    path.write_text(text)
    arguments = ["reproduce", str(path), "--out", str(tmp_path), "--jobs", "2"]
    cells = tmp_path / "long-quick-sim" / "cells.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for _ in range(600):
            if cells.is_file() and cells.stat().st_size:
                break
            time.sleep(0.1)
        os.killpg(process.pid, number)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert "run the same command again to continue" in errors
    assert "Traceback" not in errors
    assert out == ""
    assert cells.read_text().endswith("\n")


@pytest.mark.slow
def test_the_same_experiment_on_real_processes(tmp_path, capsys):
    path = tmp_path / "trial.toml"
    path.write_text(FILE.replace("live = { arrivals = 50, rate = 20.0 }", "live = { arrivals = 60, rate = 60.0 }"))
    done = run_here(
        capsys, "loadgen", "reproduce", str(path), "--size", "full", "--backend", "live", "--out", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "trial-full-live" / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["policy"] for row in rows] == ["sed", "quick learner"]
    assert rows[0]["regret"] == "0.0", "the oracle has none"
    assert all(0.3 < float(row["mean_response"]) < 3.0 for row in rows), "in the scenario's units, not the machine's"


COMPARE = ["compare", "--policies", "sed,jsq", "--lam", "1.2", "--mu", "1,2", "--json"]


def test_compare_simulated(tmp_path, capsys):
    common = [*COMPARE, "--out", str(tmp_path)]
    simulated = json.loads(run_here(capsys, "loadgen", *common, "--arrivals", "3000", "--reps", "5").stdout)
    assert simulated["first"] == "sed"
    result = simulated["differences"]["jsq"]["mean_response"]
    assert result["verdict"] == "worse"
    assert result["low"] > 0


@pytest.mark.slow
def test_compare_live(tmp_path, capsys):
    common = [*COMPARE, "--out", str(tmp_path)]
    done = run_here(capsys, "loadgen", *common, "--backend", "live", "--arrivals", "60", "--reps", "1", "--rate", "60")
    assert done.returncode == 0, done.stderr
    live = json.loads(done.stdout)
    (load,) = live["loads"]
    assert load["load"] == pytest.approx(0.4)
    assert load["lam"] == 60
    assert load["systems"]["sed"]["regret"]["mean"] == 0
    assert load["differences"]["jsq"]["regret"]["verdict"] == "one run"
    assert len((tmp_path / "turns.jsonl").read_text().splitlines()) == 2
