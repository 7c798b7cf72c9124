"""Arrivals a second in both simulators, beside a loop with nothing but the arithmetic of SED in it."""

import heapq
import statistics
import time
from random import Random

from rich.table import Table

from loadgen.sim.compiled import Compiled
from loadgen.sim.model import Scenario, simulate

ARRIVALS, ROUNDS = 60_000, 5
MORE = 50  # times as many arrivals in the compiled one, so that its time is long enough to be measured
SCENE = {"lam": 1.8, "mu": (1.0, 2.0), "guess": (1.0, 2.0), "arrivals": ARRIVALS}


def bare(lam, mu, guess, arrivals):
    """The peer: two queues, SED inline, no objects, no learning, no regret."""
    gap, work = Random("1/arrivals"), [Random("1/work/0"), Random("1/work/1")]
    q, free, heap, now = [0, 0], [0.0, 0.0], [], 0.0
    for _ in range(arrivals):
        now += gap.expovariate(lam)
        while heap and heap[0][0] <= now:
            q[heapq.heappop(heap)[1]] -= 1
        i = 0 if (q[0] + 1) / mu[0] <= (q[1] + 1) / mu[1] else 1
        q[i] += 1
        free[i] = max(free[i], now) + work[i].expovariate(mu[i])
        heapq.heappush(heap, (free[i], i))


def timed(job, arrivals=ARRIVALS):
    began = time.perf_counter()
    job()
    return arrivals / (time.perf_counter() - began)


def run():
    policies = ("lased", "greedy", "sed", "jsq")
    compiled = {
        policy: Compiled(Scenario(policy, **SCENE | {"arrivals": MORE * ARRIVALS}))
        for policy in (*policies, "optimistic")
    }
    for run_once in compiled.values():
        run_once.simulate(1)  # compiles, or loads what was compiled
    rates = {name: [] for name in ("bare loop", *policies, *(f"{policy}, compiled" for policy in compiled))}
    for _ in range(ROUNDS):
        rates["bare loop"].append(timed(lambda: bare(**SCENE)))
        for policy in policies:
            rates[policy].append(timed(lambda policy=policy: simulate(Scenario(policy, **SCENE), 1)))
        for policy, run_once in compiled.items():
            rates[f"{policy}, compiled"].append(timed(lambda run_once=run_once: run_once.simulate(1), MORE * ARRIVALS))
    title = f"Two pools, one core: {ROUNDS} rounds in turn of {ARRIVALS:,} arrivals, compiled {MORE} times as many"
    table = Table(title=title)
    for column in ("", "arrivals a second, median", "least", "of the bare loop"):
        table.add_column(column, justify="right" if column else "left")
    peer = statistics.median(rates["bare loop"])
    for name, values in rates.items():
        median = statistics.median(values)
        table.add_row(name, f"{median:,.0f}", f"{min(values):,.0f}", f"{median / peer:.2f}")
    return table
