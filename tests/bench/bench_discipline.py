"""Two pools behind LASED that serve in order of arrival, or the shortest expected first as they learn it: the same
contextual traffic, in turn. Mean response, longest wait, and what LASED then believes, with and without reports."""

import asyncio
import re

import aiohttp
import numpy as np
from rich.table import Table

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.records import Records
from loadgen.attack.schedule import choose_targets, schedule
from loadgen.attack.targets import Request
from loadgen.experiments.live.backends import LivePoolSpec, WorkerOptions, live_system

LAW = "logistic:1=2.1972,/report=-4.3944"  # done in a round with chance 0.9; below /report 0.1
SHARES = (0.8, 0.2)
ROUNDS = sum(share / p for share, p in zip(SHARES, (0.9, 0.1), strict=True))  # of a request, in the mean
RATES = {"a": 40.0, "b": 120.0}
LOAD, SECONDS, SEEDS = 0.8, 90.0, (1, 2)
ORDERS = ("fcfs", "esept:age=0.02")


async def measured(order, seed, report):
    pools = [LivePoolSpec(name, rate, rate / 2, rounds=rate * ROUNDS) for name, rate in RATES.items()]
    records = Records(schedule(Poisson(LOAD * sum(RATES.values()), stream(seed, "arrivals")), SECONDS))
    choose_targets(records, SHARES, stream(seed, "targets"))
    more = ["--discipline", order]
    async with live_system("lased", pools, seed=seed, common=WorkerOptions(LAW, report, arguments=more)) as system:
        request = Request((f"{system.url}/thumb", f"{system.url}/report"))
        await Attack(request, records).run()
        async with aiohttp.ClientSession() as session:
            state = await system.state(session)
        waits = []
        for worker in system.workers.values():
            await worker.stop()
            waits.append(float(re.search(r"longest ([\d.]+) ms", worker.log.read_text()).group(1)))
    assert records.completed.all(), "a request failed: the run does not count"
    response = records.response * 1e3
    return {
        "mean": response.mean(),
        "quick": response[records.target == 0].mean(),
        "slow": response[records.target == 1].mean(),
        "p99": np.percentile(response, 99),
        "longest": max(waits),
        "estimates": [pool["estimate"] / RATES[pool["name"]] - 1 for pool in state["pools"]],
    }


def run():
    table = Table(
        title=f"LASED, pools of {' and '.join(f'{rate:g}' for rate in RATES.values())}/s, load {LOAD:g},"
        f" {SECONDS:g} s a turn: ms, and the estimates' errors"
    )
    for column in ("seed", "service times", "order", "mean", "quick", "slow", "p99", "longest wait", "a", "b"):
        table.add_column(column, justify="left" if column in ("order", "service times") else "right")
    for seed in SEEDS:
        for report in (True, False):
            for order in ORDERS:
                found = asyncio.run(measured(order, seed, report))
                times = (f"{found[key]:.1f}" for key in ("mean", "quick", "slow", "p99", "longest"))
                errors = (f"{error:+.1%}" for error in found["estimates"])
                table.add_row(str(seed), "reported" if report else "inferred", order, *times, *errors)
    return table
