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
from loadgen.experiments import theory_hamacher as acceptance
from loadgen.experiments.studies import drift, multiqueue, partial
from loadgen.experiments.studies import no_regret as noregret
from loadgen.experiments.studies import runner as studies
from loadgen.experiments.studies.runner import Piece, verdict


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
    told = []
    found = studies.run(Squares(), "quick", 1, tmp_path, 2, lambda *words: told.append(words))
    assert found == {"1": {"square": 1}, "2": {"square": 4}, "3": {"square": 9}}
    assert told[0] == (0, 3, "")
    assert told[-1][:2] == (3, 3)
    with (tmp_path / "pieces.jsonl").open("a") as file:
        file.write('{"mark": "cut o')
    told.clear()
    more = Squares(names=("1", "2", "3", "4"))
    assert studies.run(more, "quick", 1, tmp_path, 1, lambda *words: None) == found | {"4": {"square": 16}}
    assert studies.run(more, "quick", 1, tmp_path, 1, lambda *words: told.append(words))["4"] == {"square": 16}
    assert told == [(4, 4, "")]
    studies.write(Squares(), found, Squares().verdicts(found, "quick"), tmp_path)
    assert (tmp_path / "rows.csv").read_text() == "n,square\n1,1\n2,4\n3,9\n"
    assert json.loads((tmp_path / "verdicts.json").read_text()) == [
        {"claim": "squares grow", "holds": True, "saw": "they do"}
    ]
    with pytest.raises(ConfigError, match="same name"):
        studies.run(Squares(names=("1", "1")), "quick", 1, tmp_path, 1, lambda *words: None)


def lased_loadgen(*words):
    return subprocess.run([sys.executable, "-m", "loadgen", *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_whittle_on_the_command_line(tmp_path):
    done = lased_loadgen("reproduce", "whittle_blocking", "--out", str(tmp_path), "--json", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(each["holds"] for each in found["verdicts"])
    folder = tmp_path / "whittle_blocking-quick"
    assert {path.name for path in folder.iterdir()} == {
        "pieces.jsonl", "rows.csv", "verdicts.json", "whittle_blocking.png"}  # fmt: skip
    assert lased_loadgen("reproduce", "whittle_blocking", "--backend", "live").returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_keeps_the_pieces_that_are_finished_and_waits_for_no_other(number, tmp_path):
    arguments = ["reproduce", "stability", "--size", "full", "--out", str(tmp_path), "--jobs", "2"]
    pieces = tmp_path / "stability-full" / "pieces.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "loadgen", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        for _ in range(600):
            if pieces.is_file() and pieces.stat().st_size:
                break
            time.sleep(0.1)
        os.killpg(process.pid, number)
        out, errors = process.communicate(timeout=30)
    assert process.returncode == 1, errors
    assert errors.startswith("error: broken off; finished pieces are in ")
    assert len(errors.splitlines()) <= 2
    assert out == ""
    assert pieces.read_text().endswith("\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hamacher", "stability", "multiqueue", "drift"])
def test_buffers_on_the_command_line(name, tmp_path):
    done = lased_loadgen("reproduce", name, "--out", str(tmp_path), "--json", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not any(each["holds"] is False for each in json.loads(done.stdout)["verdicts"])
    assert (tmp_path / f"{name}-quick" / f"{name}.png").stat().st_size > 10_000


def test_a_study_of_buffers_in_small(tmp_path):
    """Tables, rows, verdicts and picture of each, from runs of a few slots."""
    for study in (noregret.HAMACHER, noregret.STABILITY, multiqueue.MULTIQUEUE, drift.DRIFTING):
        small = replace(study, seeds={"quick": 2}, slots={"quick": 240, "full": 240})
        results = studies.run(small, "quick", 1, tmp_path, 1, lambda *words: None)
        assert small.tables(results)[0].row_count > 2
        assert len(small.rows(results)) == len(results)
        assert len(small.verdicts(results, "quick")) >= 4
        small.draw(results, tmp_path / f"{study.name}.png")
        (tmp_path / "pieces.jsonl").unlink()


def test_the_sum_of_hamacher_on_the_command_line():
    done = lased_loadgen("theory", "hamacher", "--rates", ".5,.5", "--json")
    found = json.loads(done.stdout)
    assert found["hamacher"] == pytest.approx(2 / 3)
    assert (found["bound"], found["ratio"]) == pytest.approx((0.75, 8 / 9))


def test_the_sum_of_hamacher_by_the_clock_and_of_sure_pools():
    clock = acceptance.report((1.0, 2.0, 0.5), 2.0)
    assert clock["hamacher"] == pytest.approx(3.5 / 5.5)
    assert clock["mix"] == pytest.approx([1 / 3.5, 2 / 3.5, 0.5 / 3.5])
    sure = acceptance.report((1.0, 0.5, 1.0), None)
    assert (sure["hamacher"], sure["mix"]) == (1.0, [0.5, 0.0, 0.5])
    assert acceptance.table(clock).row_count < acceptance.table(sure).row_count


@pytest.mark.parametrize(("rates", "lam"), [((1.5, 0.2), None), ((0.0, 0.2), None), ((), None), ((1.0,), 0.0)])
def test_rates_that_are_none_are_refused(rates, lam):
    with pytest.raises(ConfigError, match=r"^--"):
        acceptance.report(rates, lam)


@pytest.mark.parametrize("what", ["whittle_finite", "whittle_blocking"])
def test_index_tables_on_the_command_line(what):
    done = lased_loadgen("theory", what, "--capacity", "5", "--rate", "1", "--beta", "0.9", "--ages", "3", "--json")
    found = json.loads(done.stdout)
    if what == "whittle_finite":
        assert found["index"] == pytest.approx([0.118930240, 0.459258692, 1.098771837], abs=1e-8)
    else:
        assert found["indexable"]
        assert found["index"]["1"][:2] == pytest.approx([1.20961506, 2.81001514], abs=1e-7)
    assert "K = 5, μ = 1 a slot" in lased_loadgen("theory", what, "--capacity", "5").stdout
    assert "--rate must be positive" in lased_loadgen("theory", what, "--rate", "0").stderr


def test_the_study_of_several_dispatchers_is_whole(tmp_path):
    """On made-up results: every claim is judged, every case has its cell."""
    study = partial.PARTIAL
    results = {}
    for k, piece in enumerate(study.pieces("quick", 1)):
        slow = 3.0 if piece.given["rule"] in ("poisson", "stale", "own sed") else 1.0
        results[piece.name] = {"mean": slow * (1.1 if piece.given["rule"] == "poisson" else 1.0), "p99": 5.0 + k % 2}
    assert len(results) == len(study.pieces("quick", 1))
    (main, robust) = study.tables(results)
    assert (main.row_count, robust.row_count) == (len(partial.RULES), len(partial.ROBUST))
    assert len(study.rows(results)) == len(results)
    assert [each.holds for each in study.verdicts(results, "quick")][:4] == [True, False, True, True]
    study.draw(results, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
