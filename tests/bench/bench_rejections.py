"""Pools that hold one request, behind several dispatchers that know nothing of each other: the share of requests that
is taken at the first try, by policy, in turn, against Hamacher's sum."""

import asyncio
import contextlib

import numpy as np
from rich.table import Table

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.records import Records
from loadgen.attack.schedule import choose_targets, schedule
from loadgen.attack.targets import Request
from loadgen.experiments.live.backends import LivePoolSpec, WorkerOptions, live_fleet

RATES = {"a": 100.0, "b": 50.0, "c": 25.0}
LAM, SECONDS, DISPATCHERS = 100.0, 60.0, (1, 4)
POLICIES = (
    ("exp3_ix", {}),
    ("exp3_ix", {"smooth": True}),
    ("tsallis_inf", {}),
    ("recharge", {}),
    ("weighted_random", {}),
    ("lased", {}),
    ("jsq", {}),
)
QUIET = "health = { passive_failures = 0, error_ratio = 0.0 }\nretry = { on = [] }"
H = sum(RATES.values()) / (sum(RATES.values()) + LAM)


async def taken(policy, options, dispatchers, seed):
    """Share of the second half, and its standard error by tenths of it."""
    pools = [LivePoolSpec(name, rate, rate) for name, rate in RATES.items()]
    records = Records(schedule(Poisson(LAM, stream(seed, "arrivals")), SECONDS))
    choose_targets(records, (1.0,) * dispatchers, stream(seed, "targets"))
    common = WorkerOptions(arguments=["--capacity", "1"])
    async with contextlib.AsyncExitStack() as stack:
        systems = await stack.enter_async_context(live_fleet(policy, pools, dispatchers, seed, common, options, QUIET))
        await Attack(Request(tuple(system.url for system in systems)), records).run()
    statuses = records.status[len(records) // 2 :]
    assert set(statuses.tolist()) <= {200, 503}, "a request failed otherwise: the run does not count"
    parts = [float((part == 200).mean()) for part in np.array_split(statuses, 10)]
    return float(np.mean(parts)), float(np.std(parts, ddof=1) / len(parts) ** 0.5)


def run():
    rates = ", ".join(f"{rate:g}" for rate in RATES.values())
    table = Table(
        title=f"Pools of {rates}/s that hold one request, {LAM:g} a second, {SECONDS:g} s a turn: taken; H = {H:.4f}"
    )
    table.add_column("policy")
    for dispatchers in DISPATCHERS:
        table.add_column(f"{dispatchers} dispatchers" if dispatchers > 1 else "1 dispatcher", justify="right")
    for policy, options in POLICIES:
        cells = []
        for dispatchers in DISPATCHERS:
            mean, error = asyncio.run(taken(policy, options, dispatchers, 1))
            cells.append(f"{mean:.4f} ± {error:.4f}")
        table.add_row(policy + "".join(f"/{key}" for key in options), *cells)
    return table
