"""Real processes on loopback: the main job, and what happens to it when a pool is killed under load."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.records import Records
from loadgen.attack.schedule import schedule
from loadgen.experiments.live.backends import BackendError, LivePoolSpec, live_system, started
from tests.commands import run_here

POOLS = (LivePoolSpec("small", 100.0, 100.0), LivePoolSpec("large", 200.0, 2.0))
FAST_EJECTION = "health = { passive_failures = 3, ejection = 0.5 }"

SLOW = pytest.mark.slow


def poisson(lam, seconds, seed=1):
    return schedule(Poisson(lam, stream(seed, "arrivals")), seconds)


@pytest.mark.slow  # the demo shows the same in less time
async def test_lased_learns_over_real_http_and_the_rows_tell():
    offsets = poisson(100.0, 3.0)
    async with live_system("lased", POOLS) as system, aiohttp.ClientSession() as session:
        records = await Attack(system.url, Records(offsets)).run()
        state = await system.state(session)
        await system.dispatcher.stop()
        rows = [json.loads(line) for line in system.rows.read_text().splitlines()]
    assert records.completed.all()
    assert len(rows) == state["decisions"] == len(offsets)
    assert [row["n"] for row in rows] == list(range(1, len(rows) + 1))
    small, large = (pool["observations"] for pool in state["pools"])
    assert small + large == len(offsets)
    ratio = state["pools"][1]["estimate"] / state["pools"][0]["estimate"]
    assert abs(ratio - 2.0) < 4 * 2.0 * (1 / small + 1 / large) ** 0.5
    assert sum(row["cause"] is not None for row in rows[len(rows) // 2 :]) <= 7
    assert rows[-1]["regret"] == state["regret"]["total"]


@pytest.mark.slow
async def test_two_policies_of_one_seed_meet_the_same_work():
    offsets, services = poisson(100.0, 1.0), {}
    for policy in ("jsq", "round_robin"):
        async with live_system(policy, POOLS) as system, aiohttp.ClientSession() as session:
            timings = []
            for _ in offsets[:20]:
                async with session.get(system.url) as answer:
                    timings.append((answer.headers["X-Pool"], answer.headers["Server-Timing"]))
            services[policy] = [timing for pool, timing in timings if pool == "small"]
    n = min(map(len, services.values()))
    assert n >= 10
    assert services["jsq"][:n] == services["round_robin"][:n]


async def state_in_which(holds, system, session, seconds=20.0):
    """Poll the dispatcher's state until `holds(pools)`, and return the pools."""
    async with asyncio.timeout(seconds):
        while not holds(pools := (await system.state(session))["pools"]):
            await asyncio.sleep(0.02)
    return pools


async def test_a_pool_killed_under_load_is_left_alone_and_comes_back_by_itself():
    offsets = poisson(120.0, 60.0)
    pools = (LivePoolSpec("small", 100.0, 100.0), LivePoolSpec("large", 200.0, 200.0))
    async with live_system("lased", pools, extra=FAST_EJECTION) as system, aiohttp.ClientSession() as session:
        attack = Attack(system.url, Records(offsets))
        running = asyncio.ensure_future(attack.run())
        await state_in_which(lambda pools: pools[1]["observations"] > 20, system, session)
        victim = system.workers["large"]
        os.kill(victim.process.pid, signal.SIGKILL)
        await victim.process.wait()
        (_, large) = await state_in_which(lambda pools: not pools[1]["up"], system, session)
        assert large["in_flight"] == 0
        port = system.addresses["large"].rpartition(":")[2]
        again = ["--listen", f"127.0.0.1:{port}", "--rate", "200", "--name", "large"]
        async with started("workers", again, system.rows.parent) as worker:
            await worker.line("listening on")
            await state_in_which(
                lambda pools: pools[1]["up"] and pools[1]["observations"] > large["observations"] + 20, system, session
            )
            attack.stop()
            records = await running
            await state_in_which(
                lambda pools: [(pool["in_flight"], pool["up"]) for pool in pools] == [(0, True)] * 2, system, session
            )
    failed = int((~records.completed & ~np.isnan(records.sent)).sum())
    assert failed <= 30, f"{failed} requests failed: more than were on the pool and the attempts until its ejection"


async def test_a_worker_killed_in_the_middle_of_a_body_breaks_that_answer_only(tmp_path):
    half = tmp_path / "half.py"
    half.write_text(
        "import socket, time\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "print('listening on 127.0.0.1:%d' % server.getsockname()[1], flush=True)\n"
        "peer, _ = server.accept()\n"
        "peer.recv(65536)\n"
        "peer.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 1000\\r\\n\\r\\nhalf')\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(half)], stdout=subprocess.PIPE, text=True) as worker:
        url = "http://" + worker.stdout.readline().removeprefix("listening on ").strip()
        arguments = ["serve", "--pool", f"a={url}", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        async with started("dispatcher", arguments, tmp_path) as dispatcher, aiohttp.ClientSession() as session:
            front = await dispatcher.line("listening on")
            admin = await dispatcher.line("admin on")
            async with session.get(f"http://{front}/") as answer:
                assert await answer.content.read(4) == b"half"
                worker.kill()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()
            async with session.get(f"http://{admin}/state") as answer:
                assert (await answer.json())["pools"][0]["in_flight"] == 0
            async with session.get(f"http://{front}/") as answer:
                assert answer.status == 502


async def test_the_admin_port_shows_health_reasons_and_metrics():
    async with live_system("lased", POOLS) as system, aiohttp.ClientSession() as session:
        for _ in range(20):
            async with session.get(system.url) as answer:
                assert answer.status == 200
        for path, text in (("/healthz", "ok\n"), ("/readyz", "ready\n")):
            async with session.get(system.admin + path) as answer:
                assert (answer.status, await answer.text()) == (200, text)
        async with session.get(system.admin + "/explain") as answer:
            decisions = (await answer.json())["decisions"]
        assert [decision["n"] for decision in decisions] == list(range(20, 0, -1))
        assert decisions[-1]["phase"] == "explore"
        assert decisions[-1]["pools"][1] == {"name": "large", "in_flight": 0, "rate": 2.0}
        async with session.get(system.admin + "/metrics") as answer:
            text = await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain")
        for line in (
            'lased_requests_total{code="2xx",pool="large"}',
            'lased_policy_info{policy="lased",ties="first"} 1.0',
            'lased_in_flight{pool="small"} 0.0',
            "lased_episode_open_seconds",
        ):
            assert line in text
        assert "_created" not in text
        if promtool := shutil.which("promtool"):  # Prometheus's own linter (Debian: prometheus)
            lint = subprocess.run(
                [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
            )
            assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")


async def test_a_process_that_does_not_start_says_why(tmp_path):
    async with started("workers", ["--listen", "127.0.0.1:0", "--rate", "-1"], tmp_path) as child:
        with pytest.raises(BackendError, match="the rate must be positive"):
            await child.line("listening on")


def demo(tmp_path, *arguments):
    return [sys.executable, "-m", "loadgen", "demo", "--out", str(tmp_path), *arguments]


@pytest.mark.parametrize("seconds", [1, pytest.param(7, marks=SLOW)])
def test_the_demo_shows_lased_escape_and_greedy_not(tmp_path, capsys, seconds):
    done = run_here(capsys, "loadgen", "demo", "--out", tmp_path, "--json", "--duration", seconds)
    assert done.returncode == 0, done.stderr
    policies = json.loads(done.stdout)["policies"]
    promised = {"requests", "regret", "regret_second_half", "rate_ratio_estimate", "observations", "mean_response"}
    for name in ("lased", "greedy"):
        assert promised | {"p99_response"} <= set(policies[name])
        assert set(policies[name]["observations"]) == {"small", "large"}
    lased, greedy = policies["lased"], policies["greedy"]
    assert lased["observations"]["large"] > 0
    assert greedy["regret"] > 0.9 * greedy["requests"] > 0
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    if seconds == 7:  # long enough for good estimates
        assert lased["regret_second_half"] <= 3
        assert abs(lased["rate_ratio_estimate"] - 2) <= 3 * lased["rate_ratio_standard_error"]


def children_of(pid):
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.read_text().rpartition(")")[2].split()[1] == str(pid)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [*(pytest.param(n, marks=SLOW) for n in (2, 15)), 9])  # SIGINT, SIGTERM; SIGKILL
@pytest.mark.slow
def test_however_the_demo_ends_all_its_processes_end(tmp_path, number):
    with subprocess.Popen(demo(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("lased"):
                break
        children = children_of(process.pid)
        assert len(children) == 3
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    for child in children:
        for _ in range(200):
            if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2]:
                break
            os.sched_yield()
            subprocess.run(["sleep", "0.02"], check=True)
        else:
            pytest.fail(f"process {child} is still there")
    if number != signal.SIGKILL:
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        assert "requests completed" in output, "the runs so far are reported"


def memory_of(pid):
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_200_mb_through_a_slow_reader_hold_memory_flat(tmp_path):
    total = 200 << 20

    async def pour(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        for _ in range(total >> 16):
            writer.write(b"x" * 65536)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    pool = f"a=http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    arguments = ["serve", "--pool", pool, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    async with started("dispatcher", arguments, tmp_path) as dispatcher:
        host, port = (await dispatcher.line("listening on")).split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=65536)
        before = memory_of(dispatcher.process.pid)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        got, grown = 0, []
        while got < total:
            got += len(await reader.readexactly(min(1 << 20, total - got)))
            await asyncio.sleep(0.002)
            grown.append(memory_of(dispatcher.process.pid) - before)
        writer.close()
    server.close()
    assert got == total
    assert np.max(grown) < 8 << 20, f"grew by {np.max(grown) >> 20} MiB"
