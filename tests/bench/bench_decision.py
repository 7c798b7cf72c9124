"""What a decision costs, all told: choose, count, settle, learn, rows and metrics, by the number of pools."""

import statistics
import time
from random import Random

from prometheus_client import CollectorRegistry
from rich.table import Table

from dispatcher import registry
from dispatcher.core.regret import RegretMeter
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Job, Outcome, PoolSpec
from dispatcher.telemetry.decisions import DecisionLog
from dispatcher.telemetry.metrics import PrometheusRecorder

POOLS, POLICIES, BATCHES = (2, 10, 100, 1000), ("curve", "lased", "optimistic", "greedy", "jsq", "round_robin"), 9


def live_router(name, n):
    """A router as the service makes it, before n pools of different speed."""
    policy = registry.create(name, Random(1), {})
    meter = RegretMeter(policy)
    rows = DecisionLog(policy, meter, keep=100)
    router = Router(policy, [meter, rows, PrometheusRecorder(CollectorRegistry(), policy)], infer=True)
    for i in range(n):
        router.apply(Added(PoolSpec(f"p{i}", guess=1.0 + i % 10)), 0.0)
    return router


def seconds_a_decision(router, n):
    """Median over batches; as many requests are in flight as there are pools."""
    now, job, batch = 0.0, Job(1), 2000 if n < 100 else 300
    open_ones = [router.route(job, now) for _ in range(n)]
    batches = []
    for _ in range(BATCHES):
        began = time.process_time()
        for i in range(batch):
            now += 0.001
            router.complete(open_ones[i % n], now, Outcome.OK)
            open_ones[i % n] = router.route(job, now)
        batches.append((time.process_time() - began) / batch)
    return statistics.median(batches)


def run():
    table = Table(title="A decision: route and settle with rows and metrics, µs, median of batches in turn")
    table.add_column("policy")
    for n in POOLS:
        table.add_column(f"{n} pools", justify="right")
    for name in POLICIES:
        table.add_row(name, *(f"{seconds_a_decision(live_router(name, n), n) * 1e6:.1f}" for n in POOLS))
    return table
