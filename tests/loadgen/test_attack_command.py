"""The command `lased-loadgen attack` with real sending processes: exit codes, signals, and the files of a run."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jsonschema
import psutil
import pytest
from aiohttp import web

from loadgen.attack.summary import Summary
from tests.commands import run_here


@pytest.fixture(scope="module")
def server():
    """Responds to /ok at once, to /slow after half a second, to /no with 503, to /never not at all; sends X-Pool."""

    async def handle(request):
        await request.read()
        if request.path == "/never":
            await asyncio.sleep(60)
        if request.path == "/slow":
            await asyncio.sleep(0.5)
        return web.Response(status=503 if request.path == "/no" else 200, headers={"X-Pool": request.path[1:]})

    loop, ready, port = asyncio.new_event_loop(), threading.Event(), []

    async def serve():
        runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.append(runner.addresses[0][1])
        ready.set()
        return runner

    def main():
        runner = loop.run_until_complete(serve())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=main)
    thread.start()
    ready.wait(10)
    yield f"http://127.0.0.1:{port[0]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def command(*arguments):
    return [sys.executable, "-m", "loadgen", "attack", *map(str, arguments)]


@pytest.fixture
def attack(capsys):
    return lambda *arguments: run_here(capsys, "loadgen", "attack", *arguments)


@pytest.mark.slow
def test_a_run_by_three_processes_leaves_everything_and_its_plan_can_be_sent_again(server, attack, tmp_path):
    done = attack(
        server + "/ok",
        server + "/no",
        "--weights",
        "3,1",
        "--stages",
        "0.7s@200,0.7s@200..300",
        "--warmup",
        0.2,
        "--processes",
        3,
        "-X",
        "POST",
        "--body-bytes",
        100,
        "--body-law",
        "exp",
        "-H",
        "X-Secret: s3cret",
        "--out",
        tmp_path / "run",
        "--json",
        "--fail-if",
        "errors>50%",
    )
    assert done.returncode in (0, 4), done.stderr  # 4 where this machine has no time to send
    summary = Summary.model_validate_json(done.stdout)
    jsonschema.validate(json.loads(done.stdout), Summary.model_json_schema(mode="serialization"))
    assert summary.sent > 200
    assert (summary.dropped, summary.cut, summary.unfinished, summary.errors) == (0, 0, 0, {})
    assert set(summary.by_pool) == {"ok", "no"}
    assert summary.by_pool["ok"] == summary.completed == summary.by_url[server + "/ok"] == summary.status["200"]
    assert summary.little.counted == pytest.approx(summary.little.stamped, rel=1e-3)
    assert len(summary.cpu) == 3
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "summary.json",
        "schedule.csv.gz",
        "requests.jsonl.gz",
        "report.html",
        "response.hgrm",
        "service.hgrm",
        "lateness.hgrm",
    }
    assert Summary.model_validate_json((tmp_path / "run" / "summary.json").read_text()) == summary
    rows = [
        json.loads(line) for line in gzip.decompress((tmp_path / "run" / "requests.jsonl.gz").read_bytes()).splitlines()
    ]
    assert len(rows) == summary.sent + summary.warmup_requests
    assert all(row["planned"] <= row["sent"] <= row["done"] for row in rows)
    assert {row["process"] for row in rows} == {0, 1, 2}
    assert {(row["url"], row["status"], row["pool"]) for row in rows} == {
        (server + "/ok", 200, "ok"),
        (server + "/no", 503, "no"),
    }
    text = "".join(path.read_text() for path in (tmp_path / "run").iterdir() if path.suffix != ".gz")
    assert "s3cret" not in text
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "src=" not in page
    assert "<script" not in page

    again = attack(
        server + "/ok",
        "--arrivals",
        f"trace:{tmp_path / 'run' / 'schedule.csv.gz'}",
        "--rows",
        "parquet",
        "--out",
        tmp_path / "again",
        "--json",
    )
    assert json.loads(again.stdout)["sent"] == len(rows)
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "again" / "requests.parquet")
    assert table.column("planned").to_pylist() == pytest.approx([row["planned"] for row in rows])


@pytest.mark.parametrize(
    ("path", "more", "code", "says"),
    [
        ("/ok", ["--fail-if", "p50<0.001us"], 0, "fail if p50<0.001us: passed, it was"),
        ("/ok", ["--fail-if", "p50>1us"], 3, "fail if p50>1us: FAILED, it was"),
        ("/no", [], 4, "invalid: no request was completed"),
        ("/never", ["--drain", "0.1"], 4, "open at the end"),
        pytest.param("/never", ["--timeout", "0.1"], 4, "no response: timed out × ", marks=pytest.mark.slow),
        pytest.param("/slow", ["--max-in-flight", "1"], 4, "were dropped", marks=pytest.mark.slow),
    ],
)
def test_exit_codes_and_words(server, attack, path, more, code, says):
    done = attack(server + path, "--rate", "150", "--duration", "0.4", *more)
    assert says in done.stdout, done.stdout
    if code in (0, 3) and done.returncode == 4:
        pytest.skip("this machine had no time to send")
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_the_sending_and_what_is_open_is_waited_for(server, number):
    before = set(Path(tempfile.gettempdir()).glob("lased-attack-*"))
    with subprocess.Popen(
        command(server + "/slow", "--rate", "40", "--duration", "60", "--json"),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        senders = children(process)
        time.sleep(0.5)
        process.send_signal(number)
        out, errors = process.communicate(timeout=20)
    summary = json.loads(out)
    assert process.returncode in (0, 4), errors
    assert 0 < summary["sent"] < 200
    assert summary["completed"] == summary["sent"]
    assert summary["cut"] > 2000
    assert not any(sender.is_running() for sender in senders)
    assert set(Path(tempfile.gettempdir()).glob("lased-attack-*")) <= before


def test_a_second_signal_ends_the_run_without_a_result(server):
    with subprocess.Popen(
        command(server + "/never", "--rate", "40", "--duration", "60"),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        senders = children(process)
        time.sleep(0.3)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "error: interrupted"
    assert not any(sender.is_running() for sender in senders)


def test_any_sending_process_that_dies_is_reported_at_once(server):
    words = command(server + "/ok", "--rate", "40", "--duration", "60", "--processes", "3")
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        senders = children(process)
        next(sender for sender in senders if sender.cmdline()[-1] == "2").kill()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors == "error: sending process 2 was killed by signal 9\n"
    assert not any(sender.is_running() for sender in senders)


@pytest.mark.slow
def test_a_cap_and_a_drain_are_those_of_the_run_however_many_send(server, attack):
    words = ["--rate", "40", "--duration", "1", "--processes", "3", "--json"]
    capped = json.loads(attack(server + "/never", *words, "--max-in-flight", "5", "--drain", "0.1").stdout)
    assert (capped["sent"], capped["unfinished"]) == (5, 5)
    open_at_the_end = json.loads(attack(server + "/slow", *words[2:], "--rate", "4", "--drain", "0.6").stdout)
    assert open_at_the_end["unfinished"] == 0
    assert not any("Little" in text for text in open_at_the_end["warnings"])


@pytest.mark.slow
def test_a_result_is_reported_whatever_happens_to_its_folder_or_its_terminal(server, tmp_path):
    words = command(server + "/ok", "--rate", "50", "--duration", "1.5", "--json", "--out", tmp_path / "run")
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        children(process)
        (tmp_path / "run").rename(tmp_path / "gone")
        out, errors = process.communicate(timeout=20)
    assert json.loads(out)["sent"] > 50
    assert process.returncode == 1
    assert errors.startswith("error: cannot write into ")
    with subprocess.Popen(
        command(server + "/ok", "--rate", "50", "--duration", "6", "--json"),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stderr.close()
        assert json.loads(process.stdout.read())["sent"] > 200


def test_sending_processes_do_not_outlive_the_one_that_started_them(server):
    with subprocess.Popen(
        command(server + "/ok", "--rate", "40", "--duration", "60"),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        senders = children(process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
    _, alive = psutil.wait_procs(senders, timeout=10)
    assert not alive


def children(process):
    """The sending processes, once they run."""
    for _ in range(200):
        result = [
            child
            for child in psutil.Process(process.pid).children()
            if "loadgen.attack.worker_process" in child.cmdline()
        ]
        wanted = int(process.args[process.args.index("--processes") + 1]) if "--processes" in process.args else 1
        if len(result) == wanted and all(len(child.net_connections()) > 0 for child in result):
            return result
        time.sleep(0.05)
    raise AssertionError("no sending process is connected")
