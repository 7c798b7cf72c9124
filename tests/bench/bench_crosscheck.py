"""The load generator against others and against theory: a saturated server of known speed, and the exact means of an
M/M/1 queue and of two pools behind SED, live.

Over a minute the mean itself varies by some per cent; what this very traffic would have taken, with the service draws
of the pools, is calculated beside it. What is left is the wire: HTTP into and out of a pool in Python, about 0.8
ms."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from rich.console import Group
from rich.table import Table

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.schedule import schedule
from loadgen.experiments.live.backends import LivePoolSpec, live_system, started
from loadgen.experiments.theory_exact import report
from loadgen.sim.model import Scenario, simulate
from tests.bench.peers import missing

ROUNDS, SECONDS, CLIENTS = 3, 6, 16
RATE, SERVERS = 200, 4
LONG, LOAD = 60.0, 0.6


async def command(*words):
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out, _ = await process.communicate()
    return out.decode()


async def attack(url, *more):
    return json.loads(await command(sys.executable, "-m", "loadgen", "attack", url, "--json", *map(str, more)))


async def ours(url):
    found = await attack(url, "--rate", 4 * RATE * SERVERS, "--duration", SECONDS, "--max-in-flight", CLIENTS)
    return found["completed"] / found["duration"]


async def wrk(url):
    return float(
        re.search(r"Requests/sec:\s+([\d.]+)", await command("wrk", "-t1", f"-c{CLIENTS}", f"-d{SECONDS}", url))[1]
    )


async def h2load(url):
    out = await command("h2load", "--h1", "-t1", f"-c{CLIENTS}", f"-D{SECONDS}", url)
    return float(re.search(r"([\d.]+) req/s", out)[1])


async def saturated():
    tools = {"lased-loadgen, 16 in flight": ours, "wrk -c16": wrk, "h2load --h1 -c16": h2load}
    seen = {name: [] for name in tools}
    with TemporaryDirectory() as folder:
        arguments = ["--listen", "127.0.0.1:0", "--rate", str(RATE), "--servers", str(SERVERS), "--service", "fixed"]
        async with started("workers", arguments, Path(folder)) as pool:
            url = f"http://{await pool.line('listening on')}/"
            for _ in range(ROUNDS):
                for name, tool in tools.items():
                    seen[name].append(await tool(url))
    table = Table(
        title=f"A pool of {RATE * SERVERS} services a second, saturated; {ROUNDS} rounds of {SECONDS} s in turn"
    )
    for column in ("", "requests a second", "to wrk"):
        table.add_column(column, justify="right" if column else "left")
    mean = {name: sum(rates) / len(rates) for name, rates in seen.items()}
    for name in tools:
        table.add_row(name, f"{mean[name]:.1f}", f"{mean[name] / mean['wrk -c16'] - 1:+.2%}")
    return table


def lindley(offsets, rate, seed):
    """The exact mean response of these arrivals with the service draws of pool 0."""
    draws, free, total = Random(f"{seed}/work/0"), 0.0, 0.0
    for at in offsets:
        free = max(free, at) + draws.expovariate(rate)
        total += free - at
    return total / len(offsets)


async def theory():
    table = Table(title=f"Mean response at load {LOAD:g} over {LONG:g} s, live")
    for column in ("", "live, ms", "exact, ms", "live to exact", "this traffic, ms", "live to that"):
        table.add_column(column, justify="right" if column else "left")
    for rate in (50.0, 100.0):
        for seed in (1, 2):
            lam = LOAD * rate
            with TemporaryDirectory() as folder:
                arguments = ["--listen", "127.0.0.1:0", "--rate", str(rate), "--seed", str(seed), "--stream", "work/0"]
                async with started("workers", arguments, Path(folder)) as pool:
                    url = f"http://{await pool.line('listening on')}/"
                    found = await attack(url, "--rate", lam, "--duration", LONG, "--seed", seed)
            offsets = schedule(Poisson(lam, stream(seed, "arrivals")), LONG)
            row(table, f"M/M/1 of {rate:g}, seed {seed}", found, 1 / (rate - lam), lindley(offsets, rate, seed))
    mu = (20.0, 100.0)
    lam = LOAD * sum(mu)
    exact = report("chain", lam, mu, (), (), 0)["rules"][0]["mean_response"]
    for seed in (1, 2):
        pools = [LivePoolSpec(str(i + 1), rate, rate) for i, rate in enumerate(mu)]
        async with live_system("sed", pools, seed) as system:
            found = await attack(system.url, "--rate", lam, "--duration", LONG, "--seed", seed)
        n = len(schedule(Poisson(lam, stream(seed, "arrivals")), LONG))
        same = simulate(Scenario("sed", lam, mu, mu, n), seed).mean_response
        row(table, f"SED, pools of 20 and 100, seed {seed}", found, exact, same)
    return table


def row(table, name, found, exact, same):
    live = found["latency"]["mean"]
    table.add_row(
        name,
        f"{live * 1e3:.3f}",
        f"{exact * 1e3:.3f}",
        f"{live / exact - 1:+.1%}",
        f"{same * 1e3:.3f}",
        f"{live / same - 1:+.2%}",
    )


def run():
    lacking = missing("wrk", "h2load")
    first = f"against others: not measured, {lacking} not installed" if lacking else asyncio.run(saturated())
    return Group(first, asyncio.run(theory()))
