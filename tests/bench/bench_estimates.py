"""Systematic error of the estimates, against what the pools really drew (served over the sum of the drawn times)."""

import asyncio
import re

import aiohttp
from rich.table import Table

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.records import Records
from loadgen.attack.schedule import schedule
from loadgen.experiments.live.backends import LivePoolSpec, WorkerOptions, live_system

REQUESTS = 5000
LOAD = 0.5


async def error(rate, report, seed, service):
    """Estimate ÷ drawn rate − 1, over all requests of one pool."""
    offsets = schedule(Poisson(LOAD * rate, stream(seed, "arrivals")), 2 * REQUESTS / (LOAD * rate))[:REQUESTS]
    pool = LivePoolSpec("a", rate, rate)
    async with live_system("lased", (pool,), seed=seed, common=WorkerOptions(service, report)) as system:
        await Attack(system.url, Records(offsets)).run()
        async with aiohttp.ClientSession() as session:
            state = await system.state(session)
        await system.workers["a"].stop()
        said = system.workers["a"].log.read_text()
        served, mean = re.search(r"served (\d+), .*mean service ([\d.]+) ms", said).groups()
        assert int(served) == state["pools"][0]["observations"] == REQUESTS
        return state["pools"][0]["estimate"] * float(mean) / 1e3 - 1


async def errors(*what):
    return await asyncio.gather(*(error(rate, *what) for rate in (100.0, 200.0)))


def run():
    table = Table(title=f"Estimates against the drawn service times: {REQUESTS:,} requests a pool at load {LOAD:g}")
    for column in ("law", "seed", "service times", "pool of 100/s", "pool of 200/s"):
        table.add_column(column, justify="right" if "pool" in column else "left")
    cases = [("exp", 1, True), ("exp", 1, False), ("exp", 2, False), ("fixed", 1, False), ("lognormal:cv=2", 1, False)]
    for service, seed, report in cases:
        found = asyncio.run(errors(report, seed, service))
        kind = "reported" if report else "inferred"
        table.add_row(service, str(seed), kind, *(f"{each:+.3%}" for each in found))
    return table
