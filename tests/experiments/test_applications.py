"""These tests cover the application benchmark without its servers: rows, work, pairing and tables."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dispatcher.errors import ConfigError
from loadgen.attack.records import Records
from loadgen.experiments.checkpoint import Checkpoint
from tests.bench import bench_applications
from tests.bench.applications import entrants, servers, tables, work
from tests.bench.applications.entrants import ENTRANTS, Entrant
from tests.bench.applications.rows import QUICK, ROWS, Pool, Row, select
from tests.bench.applications.turns import Plan, capacity_mark, measured

NODE = shutil.which("node")
A, B = Entrant("ours", ("--policy", "lased")), Entrant("nginx", balancer="nginx/least_conn")
FAST, SLOW = Pool("gthread", 0.040, threads=4), Pool("gthread", 0.080, threads=16)
ROW = Row("one@0.5", (FAST, SLOW), "threads", load=0.5)
ASYNC = Row("two", (Pool("uvicorn", 0.05),), "no limit", rate=100.0)


def test_the_capacity_of_sleeping_servers_is_places_over_mean_work():
    assert ROW.capacity == pytest.approx(4 / 0.040 + 16 / 0.080)
    assert ROW.rate_at(ROW.capacity) == pytest.approx(150.0)
    assert ASYNC.rate_at(math.inf) == 100.0
    connections = Pool("uvicorn", 0.020, handler="connections", connections=2)
    assert Row("c", (connections,), "", load=0.5).capacity == pytest.approx(100.0)
    mixed = Row("m", (FAST,), "", load=0.5, costly=0.1)
    assert mixed.capacity == pytest.approx(100.0 / (0.9 + 0.1 * work.COST))
    assert Row("cpu", (Pool("sync", 0.005, handler="burn"),), "", load=0.3).rate_at(200.0) == pytest.approx(60.0)


def test_a_row_without_a_known_rate_is_refused():
    with pytest.raises(ValueError, match="give either load or rate"):
        Row("x", (FAST,), "")
    with pytest.raises(ValueError, match="a pool without capacity needs a rate"):
        Row("x", (Pool("uvicorn", 0.05),), "", load=0.5)
    with pytest.raises(ValueError, match="the capacity for costly requests cannot be measured"):
        Row("x", (Pool("sync", 0.005, handler="burn"),), "", load=0.5, costly=0.1)


def test_a_pool_has_a_readable_name():
    assert str(FAST) == "gunicorn gthread (4 threads): sleep 40 ms"
    assert str(Pool("gthread", 8_000, threads=2, workers=3, handler="sqlite")) == (
        "gunicorn gthread (3 workers of 2 threads): sqlite 8,000 rows"
    )
    assert str(Pool("uvicorn", 0.02, handler="connections", connections=2)) == (
        "uvicorn (2 connections): connections 20 ms"
    )


def test_rows_have_their_own_names_and_known_servers():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert 12 <= len(ROWS) <= 18
    assert {pool.kind for row in ROWS for pool in row.pools} == set(servers.SERVERS)
    assert {row.load for row in ROWS} == {0.0, 0.3, 0.6, 0.85}
    assert set(QUICK) <= set(names)


def test_rows_and_entrants_are_selected_by_name():
    assert [row.name for row in select("async, gthread")] == ["async", "gthread@0.3", "gthread@0.6", "gthread@0.85"]
    assert [row.name for row in select("gthread@0.6,gthread@0.6")] == ["gthread@0.6"]
    with pytest.raises(ConfigError, match=r"--rows: there is no row 'php'; there are: gthread@0\.3"):
        select("php")
    assert [entrant.name for entrant in entrants.select("haproxy,lased")] == ["HAProxy", "lased"]
    with pytest.raises(ConfigError, match="--entrants: there is no entrant 'squid'"):
        entrants.select("squid")


def test_a_policy_that_is_not_registered_is_lacking():
    assert Entrant("x", ("--policy", "no_such")).lacking() == "no policy 'no_such' is registered"
    assert A.lacking() == Entrant("default").lacking() == ""
    assert {entrant.name for entrant in ENTRANTS} >= {"curve", "lased", "nginx", "HAProxy", "Envoy", "Traefik", "Caddy"}


def test_work_is_exponential_and_a_function_of_seed_and_number():
    draws = np.array([work.draw("1/gthread@0.3", number) for number in range(20_000)])
    assert abs(draws.mean() - 1) < 4 / math.sqrt(len(draws))
    assert abs((draws > 2).mean() - math.exp(-2)) < 4 * math.sqrt(math.exp(-2) / len(draws))
    assert [round(work.draw("1", number), 3) for number in range(3)] == [0.102, 0.157, 1.887]
    assert work.draw("1", 7) == work.draw("1", "7") != work.draw("2", 7)
    assert work.amount(0.01, "1", "7", "/costly") == pytest.approx(work.COST * work.amount(0.01, "1", "7", "/"))
    assert work.amount(0.01, "1", None, "/") == 0.0, "a look at whether the server answers costs nothing"


def test_reading_and_writing_a_database_counts_its_transactions(tmp_path):
    file = tmp_path / "x.sqlite"
    work.create_database(file)
    for rows in (0.2, 100, 5_000):
        work.query(file, rows)
    with work.closing(work.sqlite3.connect(file)) as database:
        assert database.execute("SELECT n FROM counter").fetchone() == (3,)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_node_draws_the_same_work():
    text = (Path(servers.HERE) / "node.mjs").read_text()
    body = text[: text.index("const server")] + "for (const n of [0, 1, 999]) console.log(amount(n, '/costly'));"
    environment = {"APPLICATION": json.dumps({"mean": 0.02, "seed": "1/x"})}
    command = [NODE, "--input-type=module", "--eval", body]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    expected = [work.amount(0.02, "1/x", str(number), "/costly") for number in (0, 1, 999)]
    assert [float(value) for value in said] == pytest.approx(expected, rel=1e-12)


def test_every_round_has_another_order_and_a_mark_for_each_turn():
    plan = Plan((ROW, ASYNC), (A, B), rounds=2)
    orders = [(j, row.name, [entrant.name for entrant in group]) for j, row, group in plan.groups()]
    assert orders == [
        (0, "one@0.5", ["ours", "nginx"]),
        (0, "two", ["ours", "nginx"]),
        (1, "one@0.5", ["nginx", "ours"]),
        (1, "two", ["nginx", "ours"]),
    ]
    marks = [plan.mark(j, row, entrant) for j, row, group in plan.groups() for entrant in group]
    assert len(set(marks)) == 8
    assert plan.mark(0, ROW, A) != Plan((ROW,), (A,), seconds=5.0).mark(0, ROW, A)
    assert plan.mark(0, ROW, A) == Plan((ROW,), (A,), rounds=9).mark(0, ROW, A), "more rounds keep the first ones"


def test_a_turn_is_measured_from_the_planned_instants():
    records = Records(np.array([0.0, 1.0, 2.0, 3.0]))
    records.sent[:] = records.planned + 0.001
    records.done[:] = records.planned + np.array([0.5, 0.1, 0.3, 2.0])
    records.status[:] = [200, 200, 502, 200]
    records.names += ["pool-0", "pool-1"]
    records.pool[:] = [1, 2, 0, 2]
    result = measured(records, 2, seconds=4.0, warmup=0.5)
    assert (result["requests"], result["failed"]) == (4, 1)
    assert result["mean"] == pytest.approx((0.1 + 2.0) / 2)
    assert result["drain"] == pytest.approx(1.0)
    assert result["shares"] == [0.25, 0.5]


def kept(plan, tmp_path, times):
    """A store with a turn for each value of times[row, entrant], seconds by round."""
    store = Checkpoint(tmp_path / "turns.jsonl")
    for j, row, group in plan.groups():
        for entrant in group:
            mean = times[row.name, entrant.name][j]
            turn = {"mean": mean, "p99": 5 * mean, "failed": 0, "requests": 10, "drain": 0.0, "busy": 0.2}
            store.add(plan.mark(j, row, entrant), turn | {"lateness_p99": 0.001})
    return store


@pytest.fixture
def findings(tmp_path):
    """Rounds differ by a third; nginx takes 10 % longer in each round of `one`, and in `two` once more, once less."""
    plan = Plan((ROW, ASYNC), (A, B), rounds=3)
    times = {
        ("one@0.5", "ours"): [0.030, 0.040, 0.035],
        ("one@0.5", "nginx"): [0.033, 0.044, 0.0385],
        ("two", "ours"): [0.050, 0.050, 0.050],
        ("two", "nginx"): [0.045, 0.060, 0.051],
    }
    return tables.Findings(plan, kept(plan, tmp_path, times))


def test_ratios_are_paired_by_round(findings):
    result = findings.ratio(ROW, B, "mean")
    assert result.value == pytest.approx(1.1)
    assert result.half == pytest.approx(0, abs=1e-9), "what rounds have in common falls out"
    assert not result.tied
    assert findings.best(ROW, "mean") is A
    assert findings.ratio(ASYNC, B, "mean").tied
    geometric = (0.9 * 1.2 * 1.02) ** (1 / 3)
    assert findings.overall(B, "mean") == pytest.approx(math.sqrt(1.1 * geometric))
    assert findings.against(A, B, "p99") == pytest.approx(1 / findings.against(B, A, "p99"))
    assert findings.overall(A, "mean") == 1.0
    assert (findings.close(B, "mean"), findings.level(B, "mean"), findings.level(A, "mean")) == (0, 1, 2)


def test_one_round_has_no_interval():
    result = tables.ratio([0.2], [0.1])
    assert result.value == pytest.approx(2.0)
    assert math.isnan(result.half)
    assert not result.tied


def test_the_markdown_has_a_table_for_rows_each_metric_and_all_rows(findings):
    text = tables.markdown(findings)
    assert [line for line in text.splitlines() if line.startswith("###")] == [
        "### Rows",
        "### Mean response",
        "### P99 response",
        "### All rows",
    ]
    assert "| one@0.5 | 150 | **35.0** | 38.5 (1.10 ± 0.00) |" in text
    assert "| two | no limit | uvicorn: sleep 50 ms | no limit | 100 |" in text
    assert "| ours | 1.000 | 1.000 | 2 of 2 | 2 of 2 |" in text
    widths = {line.count("|") for line in text.split("### Mean response")[1].split("###")[0].splitlines() if line}
    assert widths == {5}


def test_a_row_with_a_missing_turn_is_left_out_and_doubtful_turns_are_named(tmp_path):
    plan = Plan((ROW, ASYNC), (A,), rounds=1)
    store = Checkpoint(tmp_path / "turns.jsonl")
    turn = {"mean": 0.1, "p99": 0.5, "failed": 2, "requests": 10, "drain": 3.0, "busy": 0.97, "lateness_p99": 0.02}
    store.add(plan.mark(0, ROW, A), turn)
    result = tables.Findings(plan, store)
    assert result.rows == [ROW]
    assert result.doubts() == [
        "one@0.5: in 1 of 1 turns some requests failed and do not count (at most 2 requests).",
        "one@0.5: in 1 of 1 turns the last answer came late after the end of the traffic (at most 3 s).",
        "one@0.5: in 1 of 1 turns the processors had little time left (at most 0.97 of the time busy).",
        "one@0.5: in 1 of 1 turns the load generator itself was late (at most 0.02 s at p99).",
    ]
    assert result.doubts()[0] in tables.markdown(result)


def test_a_measured_capacity_is_shared_by_rows_of_the_same_pools(tmp_path):
    low, high = (Row(f"cpu@{load}", (Pool("sync", 0.005, handler="burn"),), "", load=load) for load in (0.3, 0.6))
    assert capacity_mark(low) == capacity_mark(high) != capacity_mark(ROW)
    store = Checkpoint(tmp_path / "turns.jsonl")
    store.add(capacity_mark(low), {"capacity": 180.0})
    result = tables.Findings(Plan((low, high), (A,)), store)
    assert result.capacity(high) == 180.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "error: --rounds must be at least 1, not 0"),
        (["--seconds", "0"], "error: --seconds must be positive, not 0"),
        (["--seconds", "3", "--warmup", "3"], "error: --warmup must be from 0 to less than --seconds, not 3"),
        (["--rows", "x"], "error: --rows: there is no row 'x'"),
    ],
)
def test_a_wrong_option_ends_with_one_line(options, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        bench_applications.run([*options, "--out", str(tmp_path)])


def test_missing_packages_are_named_with_how_to_install_them(monkeypatch, tmp_path):
    monkeypatch.setattr(servers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SystemExit, match=r"not installed: uvicorn; add --install, or run: pip install -r .*requirements"
    ):
        bench_applications.run(["--rows", "async", "--out", str(tmp_path)])


def test_options_are_for_a_benchmark_that_takes_them():
    command = [sys.executable, "-m", "tests.bench", "delay", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=servers.ROOT)
    assert done.returncode == 1
    assert done.stderr.strip() == "error: options are for one of applications, path alone, not for delay"
