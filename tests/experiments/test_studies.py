"""Studies: pieces that are kept, run on any core, and come to tables, rows, verdicts and a picture."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import pytest
from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.experiments import theory_hamacher
from loadgen.experiments.studies import partial, runner
from loadgen.experiments.studies.runner import Piece, verdict
from tests.commands import run_here


def square(n):
    return {"square": n * n}


@dataclass(frozen=True)
class Squares:
    name: str = "squares"
    title: str = "Squares"
    names: tuple = ("1", "2", "3")

    def pieces(self, size, seed):
        return [Piece(name, square, {"n": int(name)}) for name in self.names]

    def tables(self, results):
        return [Table()]

    def rows(self, results):
        return [{"n": name, **result} for name, result in results.items()]

    def verdicts(self, results, size):
        return [verdict("squares grow", results["3"]["square"] > results["2"]["square"], "they do")]

    def draw(self, results, path):
        path.write_text("")


def test_pieces_are_kept_in_their_order_and_not_run_again(tmp_path):
    progress = []
    found = runner.run(Squares(), "quick", 1, tmp_path, 2, lambda *words: progress.append(words))
    assert found == {"1": {"square": 1}, "2": {"square": 4}, "3": {"square": 9}}
    assert progress[0] == (0, 3, "")
    assert progress[-1][:2] == (3, 3)
    progress.clear()
    more = Squares(names=("1", "2", "3", "4"))
    assert runner.run(more, "quick", 1, tmp_path, 1, lambda *words: progress.append(words)) == found | {
        "4": {"square": 16}
    }
    assert progress == [(3, 4, ""), (4, 4, "4")]
    runner.write(Squares(), found, Squares().verdicts(found, "quick"), tmp_path)
    assert (tmp_path / "rows.csv").read_text() == "n,square\n1,1\n2,4\n3,9\n"
    assert json.loads((tmp_path / "verdicts.json").read_text()) == [
        {"claim": "squares grow", "holds": True, "saw": "they do"}
    ]
    with pytest.raises(ConfigError, match="same name"):
        runner.run(Squares(names=("1", "1")), "quick", 1, tmp_path, 1, lambda *words: None)


@pytest.mark.slow
def test_whittle_on_the_command_line(tmp_path, capsys):
    command = ["reproduce", "whittle_blocking", "--out", tmp_path, "--json", "--jobs", "2"]
    done = run_here(capsys, "loadgen", *command)
    assert done.returncode == 0, done.stderr
    assert all(verdict["holds"] for verdict in json.loads(done.stdout)["verdicts"])
    folder = tmp_path / "whittle_blocking-quick"
    files = {"pieces.jsonl", "rows.csv", "verdicts.json", "whittle_blocking.png"}
    assert {path.name for path in folder.iterdir()} == files


def test_a_study_has_no_live_form(capsys):
    done = run_here(capsys, "loadgen", "reproduce", "whittle_blocking", "--backend", "live")
    assert done.returncode == 2
    assert done.stderr == "error: whittle_blocking is simulated only\n"


@pytest.mark.parametrize(
    ("number", "size"),
    [
        (signal.SIGINT, "quick"),
        pytest.param(signal.SIGINT, "full", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "full", marks=pytest.mark.slow),
    ],
)
def test_a_signal_keeps_the_pieces_that_are_finished_and_waits_for_no_other(number, size, tmp_path):
    arguments = ["reproduce", "stability", "--size", size, "--out", str(tmp_path), "--jobs", "2"]
    pieces = tmp_path / f"stability-{size}" / "pieces.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for _ in range(600):
            if pieces.is_file() and pieces.stat().st_size:
                break
            time.sleep(0.1)
        os.killpg(process.pid, number)
        out, errors = process.communicate(timeout=30)
    assert process.returncode == 1, errors
    assert errors.startswith("error: interrupted; finished pieces are in ")
    assert len(errors.splitlines()) <= 2
    assert out == ""
    assert pieces.read_text().endswith("\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hamacher", "stability", "multiqueue", "drift"])
def test_buffers_on_the_command_line(name, tmp_path, capsys):
    done = run_here(capsys, "loadgen", "reproduce", name, "--out", tmp_path, "--json", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any(verdict["holds"] is False for verdict in json.loads(done.stdout)["verdicts"])
    assert (tmp_path / f"{name}-quick" / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["hamacher", "stability", "multiqueue", "drift"])
def test_a_study_of_buffers_comes_to_tables_rows_verdicts_and_a_picture(name, tmp_path):
    small = replace(runner.find(name), seeds={"quick": 1}, slots={"quick": 120})
    results = runner.run(small, "quick", 1, tmp_path, 1, lambda *words: None)
    assert small.tables(results)[0].row_count > 2
    assert len(small.rows(results)) == len(results)
    assert len(small.verdicts(results, "quick")) >= 4
    small.draw(results, tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_sum_of_hamacher_on_the_command_line(capsys):
    done = run_here(capsys, "loadgen", "theory", "hamacher", "--rates", ".5,.5", "--json")
    found = json.loads(done.stdout)
    assert found["hamacher"] == pytest.approx(2 / 3)
    assert (found["bound"], found["ratio"]) == pytest.approx((0.75, 8 / 9))


def test_the_sum_of_hamacher_by_the_clock_and_of_sure_pools():
    clock = theory_hamacher.report((1.0, 2.0, 0.5), 2.0)
    assert clock["hamacher"] == pytest.approx(3.5 / 5.5)
    assert clock["mix"] == pytest.approx([1 / 3.5, 2 / 3.5, 0.5 / 3.5])
    sure = theory_hamacher.report((1.0, 0.5, 1.0), None)
    assert (sure["hamacher"], sure["mix"]) == (1.0, [0.5, 0.0, 0.5])
    assert theory_hamacher.table(clock).row_count < theory_hamacher.table(sure).row_count


@pytest.mark.parametrize(("rates", "lam"), [((1.5, 0.2), None), ((0.0, 0.2), None), ((), None), ((1.0,), 0.0)])
def test_rates_that_are_none_are_refused(rates, lam):
    with pytest.raises(ConfigError, match=r"^--"):
        theory_hamacher.report(rates, lam)


@pytest.mark.parametrize("what", ["whittle_finite", "whittle_blocking"])
def test_index_tables_on_the_command_line(what, capsys):
    options = ["--capacity", "5", "--rate", "1", "--beta", "0.9", "--ages", "3", "--json"]
    done = run_here(capsys, "loadgen", "theory", what, *options)
    found = json.loads(done.stdout)
    if what == "whittle_finite":
        assert found["index"] == pytest.approx([0.118930240, 0.459258692, 1.098771837], abs=1e-8)
    else:
        assert found["indexable"]
        assert found["index"]["1"][:2] == pytest.approx([1.20961506, 2.81001514], abs=1e-7)
    assert "K = 5, μ = 1 a slot" in run_here(capsys, "loadgen", "theory", what, "--capacity", "5").stdout
    assert "--rate must be positive" in run_here(capsys, "loadgen", "theory", what, "--rate", "0").stderr


def test_the_mode_of_theory_may_stand_behind_the_options_or_be_missing(capsys):
    system = ["--lam", "3.6", "--mu", "1,5", "--json"]
    reports = {
        mode: json.loads(run_here(capsys, "loadgen", "theory", *system, mode).stdout) for mode in ("chain", "optimum")
    }
    assert [row["rule"] for row in reports["chain"]["rules"]] == ["sed", "jsq"]
    assert [row["rule"] for row in reports["optimum"]["rules"]] == ["optimum"]
    assert (
        run_here(capsys, "loadgen", "theory", *system).stdout
        == run_here(capsys, "loadgen", "theory", "all", *system).stdout
    )
    unknown = run_here(capsys, "loadgen", "theory", "maximum", *system)
    assert (unknown.returncode, unknown.stderr[:50]) == (2, "error: WHAT must be one of all, chain, exponent, o")


def test_the_study_of_several_dispatchers_is_whole(tmp_path):
    """On made-up results: every claim is judged, every case has its cell."""
    study = partial.PARTIAL
    results = {}
    for k, piece in enumerate(study.pieces("quick", 1)):
        slow = 3.0 if piece.arguments["rule"] in ("poisson", "stale", "own sed") else 1.0
        mean = slow * (1.1 if piece.arguments["rule"] == "poisson" else 1.0)
        results[piece.name] = {"mean": mean, "p99": 5.0 + k % 2}
    assert len(results) == len(study.pieces("quick", 1))
    (main, robust) = study.tables(results)
    assert (main.row_count, robust.row_count) == (len(partial.RULES), len(partial.ROBUST))
    assert len(study.rows(results)) == len(results)
    assert [verdict.holds for verdict in study.verdicts(results, "quick")][:4] == [True, False, True, True]
    study.draw(results, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
