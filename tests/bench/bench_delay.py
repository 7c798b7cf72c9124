"""Mean response of LASED against JSQ on the same schedule and the same service draws, in turn: A B A B."""

import asyncio

from rich.table import Table

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.histogram import distribution
from loadgen.attack.records import Records
from loadgen.attack.schedule import schedule
from loadgen.experiments.live.backends import LivePoolSpec, live_system

POOLS = (LivePoolSpec("a", 40.0, 40.0), LivePoolSpec("b", 200.0, 40.0))
LAM, SECONDS, SEEDS = 144.0, 60.0, (1, 2)
THEORY = {"lased": "SED 13.6 ms", "jsq": "21.8 ms"}


async def response(policy, seed):
    offsets = schedule(Poisson(LAM, stream(seed, "arrivals")), SECONDS)
    async with live_system(policy, POOLS, seed=seed) as system:
        return distribution((await Attack(system.url, Records(offsets)).run()).response)


def run():
    table = Table(title=f"Pools of 40 and 200/s, {LAM:g} requests a second (load 0.6), {SECONDS:g} s a run")
    for column in ("seed", "policy", "mean", "p99", "theory", "lased ÷ jsq"):
        table.add_column(column, justify="right")
    for seed in SEEDS:
        means = {}
        for policy in ("lased", "jsq"):
            found = asyncio.run(response(policy, seed))
            means[policy] = found["mean"]
            ratio = f"{means['lased'] / found['mean']:.2f}" if policy == "jsq" else ""
            times = (f"{found[key] * 1e3:.1f} ms" for key in ("mean", "p99"))
            table.add_row(str(seed), policy, *times, THEORY[policy], ratio)
    return table
