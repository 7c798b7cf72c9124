"""Systematic error of the estimates, against what the pools really drew (served over the sum of the drawn times)."""

import asyncio
import re

import aiohttp
from rich.table import Table

from dispatcher.core.streams import stream
from loadgen.arrivals import Poisson, schedule
from loadgen.attack import Attack
from loadgen.experiments.backends import LivePoolSpec, live_system

POOLS = (LivePoolSpec("a", 100.0, 100.0), LivePoolSpec("b", 200.0, 200.0))
LAM, REQUESTS = 150.0, 5000


async def errors(report, seed, service):
    """{pool: (requests served, estimate over drawn rate − 1)}."""
    offsets = schedule(Poisson(LAM, stream(seed, "arrivals")), 2 * REQUESTS / LAM)[:REQUESTS]
    async with live_system("lased", POOLS, seed=seed, report=report, service=service) as system:
        await Attack(system.url, offsets).run()
        async with aiohttp.ClientSession() as session:
            state = await system.state(session)
        for worker in system.workers.values():
            await worker.stop()
        found = {}
        for pool in state["pools"]:
            said = system.workers[pool["name"]].log.read_text()
            served, mean = re.search(r"served (\d+), .*mean service ([\d.]+) ms", said).groups()
            found[pool["name"]] = int(served), pool["estimate"] * float(mean) / 1e3 - 1
    return found


def run():
    title = f"Estimates against the drawn service times: {REQUESTS:,} requests at {LAM:g}/s, policy lased"
    table = Table(title=title)
    for column in ("service times", "law", "seed", "pool of 100/s", "pool of 200/s"):
        table.add_column(column, justify="right" if "pool" in column else "left")
    for seed, service in ((1, "exp"), (2, "exp"), (1, "fixed")):
        for report in (True, False):
            found = asyncio.run(errors(report, seed, service))
            cells = (f"{error:+.3%} of {served}" for served, error in found.values())
            table.add_row("reported" if report else "inferred", service, str(seed), *cells)
    return table
