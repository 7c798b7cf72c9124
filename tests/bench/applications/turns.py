"""This module runs turns. In a turn one entrant stands in front of one row's servers for some seconds.

The servers of a row are started once a round, and the entrants take turns in front of them, in another order each
round. All turns of a row and round have the same arrivals and the same work. Each entrant is a new process without
state. Finished turns and measured capacities are lines of `turns.jsonl`. An interrupted run goes on after them.
"""

import contextlib
import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack, Limits
from loadgen.attack.histogram import distribution
from loadgen.attack.records import Records
from loadgen.attack.schedule import choose_targets, schedule
from loadgen.attack.targets import Request
from loadgen.experiments.results import sources
from tests.bench.applications import capacity
from tests.bench.applications.servers import HERE, servers
from tests.bench.applications.work import COSTLY, NUMBER

APPLICATIONS = ("work.py", "wsgi.py", "asgi.py", "node.mjs", "servers.py")
TIMEOUT = 60.0  # seconds after which a request has failed


@dataclass(frozen=True)
class Plan:
    """This says what is run. A turn lasts `seconds`; requests of its first `warmup` seconds are not counted."""

    rows: tuple
    entrants: tuple
    rounds: int = 3
    seconds: float = 7.0
    warmup: float = 0.0
    seed: int = 1

    def groups(self):
        """Yields (round, row, entrants) in the order of the run. The entrants share the row's servers."""
        for j in range(self.rounds):
            for row in self.rows:
                shift = j % len(self.entrants)
                yield j, row, self.entrants[shift:] + self.entrants[:shift]

    def mark(self, j, row, entrant):
        """Returns the key of a turn. It depends on all that determines the turn, and for our policies on our code."""
        code = [_applications(), sources() if entrant.ours else ""]
        settings = [self.seconds, self.warmup, self.seed, j]
        return _digest(["turn", asdict(row), asdict(entrant), settings, code])


@functools.cache
def _applications():
    """Returns a digest of the applications and of how their servers are started."""
    return _digest([(HERE / name).read_text() for name in APPLICATIONS])


def _digest(what):
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def capacity_mark(row):
    """Returns the key of a measured capacity. Rows with the same pools have the same key."""
    return _digest(["capacity", _applications(), [asdict(pool) for pool in row.pools], row.costly])


async def run(plan, store, told):
    """Runs every turn that the store lacks. It calls `told` with the turns done, their total and the next one's name.

    Raises BackendError if a process does not start.
    """
    total = plan.rounds * len(plan.rows) * len(plan.entrants)
    missing = [
        (j, row, [entrant for entrant in entrants if store.get(plan.mark(j, row, entrant)) is None])
        for j, row, entrants in plan.groups()
    ]
    done = total - sum(len(entrants) for _, _, entrants in missing)
    for j, row, entrants in missing:
        if not entrants:
            continue
        async with contextlib.AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="lased-")))
            seed = f"{plan.seed + j}/{row.name}"
            addresses = await stack.enter_async_context(servers(row, seed, folder))
            await capacity.warm(row, addresses)
            rate = row.rate_at(await _capacity(row, addresses, store))
            for entrant in entrants:
                told(done, total, f"round {j + 1}, {row.name}, {entrant.name}")
                store.add(plan.mark(j, row, entrant), await _turn(plan, j, row, rate, entrant, addresses, folder))
                done += 1
    told(done, total, "")


async def _capacity(row, addresses, store):
    if not row.measured:
        return row.capacity
    mark = capacity_mark(row)
    if store.get(mark) is None:
        store.add(mark, {"capacity": await capacity.measure(row, addresses)})
    return store.get(mark)["capacity"]


async def _turn(plan, j, row, rate, entrant, addresses, folder):
    seed = plan.seed + j
    records = Records(schedule(Poisson(rate, stream(seed, f"arrivals/{row.name}")), plan.seconds))
    paths = ["/", COSTLY] if row.costly else ["/"]
    choose_targets(records, [1 - row.costly, row.costly][: len(paths)], stream(seed, f"targets/{row.name}"))
    async with entrant.system(addresses, folder) as url:
        request = Request(tuple(url + path for path in paths), number=NUMBER)
        psutil.cpu_percent()
        await Attack(request, records, Limits(timeout=TIMEOUT)).run()
        busy = psutil.cpu_percent() / 100
    labels = {"row": row.name, "entrant": entrant.name, "round": j, "rate": rate, "busy": busy}
    return labels | measured(records, len(row.pools), plan.seconds, plan.warmup)


def measured(records, pools, seconds, warmup):
    """Returns the times of the requests planned after the warm-up, in seconds, and signs of a disturbed turn.

    failed: requests without an answer below 400. drain: seconds from the end of the traffic to the last answer.
    shares: of the answers, by pool.
    """
    counted = records.completed & (records.planned >= warmup)
    times = distribution((records.done - records.planned)[counted])
    answered = int(records.completed.sum())
    last = max([seconds, *records.done[records.completed].tolist()])
    names = records.pools
    return {
        "requests": len(records),
        "failed": len(records) - answered,
        "drain": last - seconds,
        "mean": times["mean"],
        "p50": times["p50"],
        "p99": times["p99"],
        "lateness_p99": distribution(records.lateness)["p99"],
        "shares": [names.count(f"pool-{i}") / len(records) for i in range(pools)],
    }
