"""What a decision of the policies that learn from rejections costs, feedback included, by the number of pools."""

import statistics
import time
from random import Random

from rich.table import Table

from dispatcher import registry
from dispatcher.core.fleet import Fleet
from dispatcher.core.types import Added, Completion, Job, Outcome, PoolSpec, Ticket

POOLS, ROUNDS = (10, 100, 1000), 7
POLICIES = (("exp3_ix", {}), ("exp3_ix", {"smooth": True}), ("tsallis_inf", {}), ("recharge", {}), ("jsq", {}))


def begin(name, options, n):
    policy, fleet = registry.create(name, Random(1), options), Fleet()
    for i in range(n):
        spec = PoolSpec(f"p{i}")
        fleet.add(spec)
        policy.adapt(Added(spec), fleet)
    return policy, fleet


def batch(policy, fleet, size, now):
    """Seconds a `choose` and seconds a `learn`; every third try is rejected."""
    job, choosing, learning, clock = Job(1), 0.0, 0.0, time.perf_counter
    began = clock()
    decisions = [policy.choose(job, fleet, now + i) for i in range(size)]
    choosing = clock() - began
    ends = [
        Completion(Ticket(job, decision, now, fleet[decision.pool], policy), now + i, None, Outcome.OK, None, i % 3 > 0)
        for i, decision in enumerate(decisions)
    ]
    began = clock()
    for done in ends:
        policy.learn(done, fleet)
    learning = clock() - began
    return choosing / size, learning / size


def run():
    table = Table(title="choose + learn, µs, median of rounds in turn; a third of the tries is rejected")
    table.add_column("policy")
    for n in POOLS:
        table.add_column(f"{n} pools", justify="right")
    cases = {(i, n): begin(*POLICIES[i], n) for i in range(len(POLICIES)) for n in POOLS}
    found = {case: [] for case in cases}
    for r in range(ROUNDS):
        for case, (policy, fleet) in cases.items():
            size = 3000 if case[1] < 1000 else 1000
            found[case].append(batch(policy, fleet, size, float(r * size)))
    for i, (name, options) in enumerate(POLICIES):
        cells = []
        for n in POOLS:
            choose, learn = (statistics.median(times) * 1e6 for times in zip(*found[i, n], strict=True))
            cells.append(f"{choose:.1f} + {learn:.1f}")
        table.add_row(name + "".join(f"/{key}" for key in options), *cells)
    return table
