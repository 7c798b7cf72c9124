"""Whether a pool serves as fast as it says: a saturated pool of fixed services, served over elapsed."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
from rich.table import Table

from loadgen.experiments.live.backends import started

RATES, SECONDS, CLIENTS = (20, 50, 100, 200, 500), 6.0, 8


async def measured(rate):
    loop = asyncio.get_running_loop()
    with TemporaryDirectory() as folder:
        arguments = ["--listen", "127.0.0.1:0", "--rate", str(rate), "--service", "fixed"]
        async with started("workers", arguments, Path(folder)) as worker, aiohttp.ClientSession() as session:
            url = f"http://{await worker.line('listening on')}/"
            ended = []

            async def client(until):
                while loop.time() < until:
                    async with session.get(url) as answer:
                        await answer.read()
                    ended.append(loop.time())

            until = loop.time() + SECONDS
            await asyncio.gather(*(client(until) for _ in range(CLIENTS)))
    ended.sort()
    return (ended[-1] - ended[0]) / (len(ended) - 1)


def run():
    table = Table(title=f"Workers: mean service of a saturated pool, {SECONDS:g} s each, fixed law")
    for column in ("rate R", "1/R", "measured", "error"):
        table.add_column(column, justify="right")
    for rate in RATES:
        mean = asyncio.run(measured(rate))
        table.add_row(f"{rate}/s", f"{1e3 / rate:.3f} ms", f"{mean * 1e3:.4f} ms", f"{mean * rate - 1:+.3%}")
    return table
