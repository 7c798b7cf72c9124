"""Whether a scrape delays requests: how late the event loop is while /metrics is asked for, against while it is not."""

import asyncio
import statistics
import sys

import aiohttp
import uvloop
from prometheus_client import disable_created_metrics
from rich.table import Table

from dispatcher.cli import THREAD_SWITCH_SECONDS
from dispatcher.config import Config
from dispatcher.service import Service

POOLS, ROUNDS, SECONDS, EVERY = 10, 4, 3.0, 0.05


async def lateness(seconds):
    """How late each of many short sleeps ended, seconds."""
    loop, found = asyncio.get_running_loop(), []
    end = loop.time() + seconds
    while (now := loop.time()) < end:
        await asyncio.sleep(0.001)
        found.append(max(0.0, loop.time() - now - 0.001))
    return found


async def scrape(url, lines):
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/metrics") as answer:
                lines.append((await answer.text()).count("\n"))
            await asyncio.sleep(EVERY)


async def measure():
    pools = [{"name": f"p{i}", "url": f"http://127.0.0.1:{9 + i}"} for i in range(POOLS)]
    config = {"pools": pools, "listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    quiet, scraped, lines = [], [], []
    async with Service(Config.model_validate(config)).running() as (_, admin):
        for _ in range(ROUNDS):
            quiet += await lateness(SECONDS)
            asking = asyncio.create_task(scrape(f"http://{admin}", lines))
            scraped += await lateness(SECONDS)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    return quiet, scraped, lines


def run():
    disable_created_metrics()
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)  # as `serve` does
    quiet, scraped, lines = uvloop.run(measure())
    table = Table(title=f"Lateness of the loop, ms: {POOLS} pools, {lines[-1]} lines, {1 / EVERY:.0f} scrapes a second")
    for column in ("", "p50", "p99", "p99.9", "largest"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in (("not scraped", quiet), (f"{len(lines)} scrapes", scraped)):
        cuts = statistics.quantiles(values, n=1000)
        table.add_row(name, *(f"{x * 1e3:.2f}" for x in (cuts[499], cuts[989], cuts[998], max(values))))
    return table
