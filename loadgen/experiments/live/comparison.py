"""Live comparison: policies of ours, and balancers that people run, on the same traffic and the same work, in turn.

Round j of every system has the schedule and the pools' service draws of seed SEED + j, and systems take turns within a
round, each round in another order, so that a machine that gets slower hurts all alike and what is compared is paired.
Every turn starts anew, pools and all, and knows nothing. Finished turns are kept in `turns.jsonl`; the same command
goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher import registry
from dispatcher.core.rng import stream
from loadgen.attack import arrivals as processes
from loadgen.attack.driver import Limits
from loadgen.attack.histogram import distribution
from loadgen.attack.records import Records
from loadgen.attack.schedule import choose_targets
from loadgen.attack.targets import Request
from loadgen.attack.worker_process import senders, write_job
from loadgen.experiments.live.backends import BackendError, LivePoolSpec, live_fleet, live_pools
from loadgen.experiments.live.balancers import balancer_system, parse
from loadgen.experiments.results import Floats, sources
from loadgen.experiments.sim_comparison import axis_of

METRICS = ("mean_response", "p50_response", "p99_response", "regret", "lateness_p99")
Told = Callable[[int, int, str], None]  # turns done, of how many, which is next


@dataclass(frozen=True, slots=True)
class System:
    """policy with its options, behind so many dispatchers; or the text of a balancer."""

    label: str
    policy: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    balancer: str = ""
    dispatchers: int = 1


def policies(text: str, least: int, dispatchers: int = 1) -> tuple[System, ...]:
    """ "lased,lased/n0=3": tried before anything runs; at least so many. dispatchers: each behind one and behind so
    many. Raises ConfigError."""
    systems = []
    for entry in axis_of(text, least):
        label, policy, options = entry["label"], entry["policy"], entry["options"]
        registry.create(policy, Random(0), dict(options))
        knows_replicas = "replicas" in registry.options_of(registry.factory(policy))
        if dispatchers == 1:
            systems.append(System(label, policy, options))
            continue
        for n in (1, dispatchers):
            each = ({"replicas": n} if knows_replicas else {}) | options
            systems.append(System(f"{label} × {n}", policy, each, dispatchers=n))
    return tuple(systems)


@dataclass(frozen=True, slots=True)
class Contest:
    """What is compared. lams: requests a second. requests: of a turn; warmup: of them, left out of the times.
    load_report: what pools tell of their load."""

    systems: tuple[System, ...]
    pools: tuple[LivePoolSpec, ...]
    lams: tuple[float, ...]
    requests: int
    warmup: int = 0
    rounds: int = 5
    seed: int = 1
    service: str = "exp"
    process: str = "poisson"
    load_report: str = "none"

    @property
    def capacity(self) -> float:
        return sum(pool.rate * pool.servers for pool in self.pools)

    def offsets(self, lam: float, seed: int) -> NDArray[np.float64]:
        process = processes.parse(self.process, lam, stream(seed, "arrivals"))
        found, now = [], 0.0
        for _ in range(self.requests):
            arrival = process.next_arrival(now)
            assert arrival is not None, "the processes of loadgen.attack.arrivals do not end"
            found.append(now := arrival)
        return np.array(found)

    def turns(self) -> Iterator[tuple[int, float, System]]:
        """Round, rate, system; in the order in which they are run."""
        for j in range(self.rounds):
            for lam in self.lams:
                for k in range(len(self.systems)):
                    yield j, lam, self.systems[(k + j) % len(self.systems)]

    def mark(self, j: int, lam: float, system: System) -> str:
        """Equal for equal work by equal code: a turn of before a change is not taken for one of after it."""
        work = asdict(self) | {"systems": asdict(system), "lams": lam, "rounds": j, "code": sources()}
        return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Standing:
    """A system at one rate; each value has the rounds as its first dimension. regret is NaN for balancers."""

    system: System
    lam: float
    values: dict[str, Floats]

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]


def run(contest: Contest, folder: Path, told: Told) -> list[Standing]:
    """Every turn that is not kept already. Raises KeyboardInterrupt as it comes, BackendError, SenderError."""
    path = folder / "turns.jsonl"
    kept = _kept(path)
    turns = list(contest.turns())
    missing = [turn for turn in turns if contest.mark(*turn) not in kept]
    for turn in missing:
        j, _, system = turn
        told(len(turns) - len(missing) + missing.index(turn), len(turns), f"{system.label}, round {j + 1}")
        found = asyncio.run(_turn(contest, *turn))
        kept[contest.mark(*turn)] = found
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"mark": contest.mark(*turn)} | found) + "\n")
    told(len(turns), len(turns), "")
    return [_standing(contest, kept, lam, system) for lam in contest.lams for system in contest.systems]


def _kept(path: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # cut off as it was written; it is run again
            entry = json.loads(line)
            found[entry["mark"]] = entry
    return found


def _standing(contest: Contest, kept: dict[str, dict[str, Any]], lam: float, system: System) -> Standing:
    entries = [kept[contest.mark(j, lam, system)] for j in range(contest.rounds)]
    values = {name: np.array([entry[name] for entry in entries], dtype=float) for name in (*METRICS, "shares")}
    return Standing(system, lam, values)


async def _turn(contest: Contest, j: int, lam: float, system: System) -> dict[str, Any]:
    seed = contest.seed + j
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="lased-")))
        rows: Path | None = None
        urls: tuple[str, ...]
        if system.balancer:
            _, addresses = await stack.enter_async_context(
                live_pools(contest.pools, folder, seed, True, contest.service)
            )
            urls = (
                await stack.enter_async_context(
                    balancer_system(*parse(system.balancer), list(addresses.values()), folder)
                ),
            )
        else:
            fleet = await stack.enter_async_context(
                live_fleet(system.policy, contest.pools, system.dispatchers, seed, service=contest.service,
                           options=system.options, load_report=contest.load_report)
            )  # fmt: skip
            urls = tuple(one.url for one in fleet)
            rows = fleet[0].rows if len(fleet) == 1 else None  # what others sent makes their counts no regret
        records = await _sent(urls, contest.offsets(lam, seed), folder, seed)
        if rows is not None:
            await fleet[0].dispatcher.stop()  # so that it writes its last rows
        lines = rows.read_text(encoding="utf-8").splitlines() if rows else None
        wrong = None if lines is None else sum(json.loads(line)["cause"] is not None for line in lines)
    if not records.completed.all():
        bad = int((~records.completed).sum())
        raise BackendError(f"{system.label}: {bad} of {len(records)} requests failed; the turn does not count")
    return {"system": system.label, "lam": lam, "seed": seed} | _measured(contest, records, wrong)


async def _sent(urls: tuple[str, ...], offsets: NDArray[np.float64], folder: Path, seed: int) -> Records:
    at = folder / "attack"
    at.mkdir()
    records = Records.create(at, [offsets])
    choose_targets(records, (1.0,) * len(urls), stream(seed, "dispatchers"))
    write_job(at, Request(urls), Limits(timeout=120.0))
    async with senders(at, 1) as running:
        await running.begin()
        await running.ended(records)
    return records


def _measured(contest: Contest, records: Records, wrong: int | None) -> dict[str, Any]:
    response = distribution(records.response[contest.warmup :])
    pools = records.pools
    return {
        "mean_response": response["mean"],
        "p50_response": response["p50"],
        "p99_response": response["p99"],
        "regret": wrong,
        "lateness_p99": distribution(records.lateness)["p99"],
        "shares": [pools.count(pool.name) / len(pools) for pool in contest.pools],
    }


def at_rate(standings: Sequence[Standing], lam: float) -> list[Standing]:
    return [standing for standing in standings if standing.lam == lam]
