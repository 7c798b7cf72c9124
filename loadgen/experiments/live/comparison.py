"""Compares policies and other load balancers on real processes, with the same traffic and the same work.

Round j of every system has the schedule and the service draws of seed SEED + j, so the systems are paired by round.
Within a round they run one after the other. The order changes from round to round, so a machine that becomes slower
affects all of them equally. Each run starts new pools and a new dispatcher that has not learned anything. Finished runs
are kept in `turns.jsonl`, and the same command continues from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher import registry
from dispatcher.core.rng import stream
from dispatcher.errors import ConfigError
from loadgen.attack import arrivals
from loadgen.attack.driver import Limits
from loadgen.attack.histogram import distribution
from loadgen.attack.records import Records
from loadgen.attack.schedule import choose_targets, first_arrivals
from loadgen.attack.targets import Request
from loadgen.attack.worker_process import sending_processes, write_job
from loadgen.experiments.checkpoint import Checkpoint
from loadgen.experiments.live.backends import BackendError, Child, LivePoolSpec, WorkerOptions, live_fleet, live_pools
from loadgen.experiments.live.balancers import balancer_system, parse
from loadgen.experiments.results import Floats, sources
from loadgen.experiments.sim_comparison import axis_of
from workers import distributions

METRICS = ("mean_response", "p50_response", "p99_response", "regret", "lateness_p99")
Progress = Callable[[int, int, str], None]  # called with runs done, runs in all, and the run that follows


@dataclass(frozen=True, slots=True)
class System:
    """A system that is compared: a policy, or another load balancer.

    policy, options: of the dispatchers. balancer: as `balancers.parse` reads it; empty for a policy.
    dispatchers: how many of them share the traffic.
    """

    label: str
    policy: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    balancer: str = ""
    dispatchers: int = 1


def policies(text: str, least: int, dispatchers: int = 1) -> tuple[System, ...]:
    """Parse "lased,lased/n0=3" into systems, and check that every policy can be created with its options.

    least: how many policies there must be.
    dispatchers: if above 1, each policy gives two systems: with one dispatcher and with this many.
    Raises ConfigError.
    """
    systems = []
    for entry in axis_of(text, least):
        label, policy, options = entry["label"], entry["policy"], entry["options"]
        registry.create(policy, Random(0), dict(options))
        if dispatchers == 1:
            systems.append(System(label, policy, options))
            continue
        # Some policies must know how many dispatchers share the pools.
        takes_replicas = "replicas" in registry.options_of(registry.factory(policy))
        for n in (1, dispatchers):
            with_replicas = ({"replicas": n} if takes_replicas else {}) | options
            systems.append(System(f"{label} × {n}", policy, with_replicas, dispatchers=n))
    return tuple(systems)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared, and on which traffic.

    lams: request rates, requests a second. requests: in each run. warmup: of them, left out of the times.
    rounds: how often every system runs at every rate. service: law of service times. process: of the arrivals.
    load_report: the format in which pools report their load.
    Raises ConfigError if the law or the process is wrong.
    """

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

    def __post_init__(self) -> None:
        try:
            distributions.parse(self.service, 1.0, Random(0))
            arrivals.parse(self.process, self.lams[0], Random(0))
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def capacity(self) -> float:
        return sum(pool.rate * pool.servers for pool in self.pools)

    def offsets(self, lam: float, seed: int) -> NDArray[np.float64]:
        """Return the planned instants of the requests, seconds from the start."""
        return first_arrivals(arrivals.parse(self.process, lam, stream(seed, "arrivals")), self.requests)

    def runs(self) -> Iterator[tuple[int, float, System]]:
        """Yield round, rate and system of every run, in the order in which they run."""
        for j in range(self.rounds):
            for lam in self.lams:
                for k in range(len(self.systems)):
                    # Each round begins with the next system.
                    yield j, lam, self.systems[(k + j) % len(self.systems)]

    def mark(self, j: int, lam: float, system: System) -> str:
        """Return a digest of a run, which is equal for equal work by equal code."""
        # Only the run's own system, rate and round count, so finished runs are valid in a larger comparison, too.
        work = asdict(self) | {"systems": asdict(system), "lams": lam, "rounds": j, "code": sources()}
        return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SystemResult:
    """The results of one system at one rate.

    values: METRICS (rounds,) and shares (rounds, pools). The regret of balancers and of several dispatchers is NaN.
    """

    system: System
    lam: float
    values: dict[str, Floats]

    def __getitem__(self, name: str) -> Floats:
        return self.values[name]


def run(comparison: Comparison, folder: Path, progress: Progress) -> list[SystemResult]:
    """Run every system whose result is not in the folder yet, and return all results.

    progress: called before each run and at the end.
    Raises BackendError and SendingProcessError. KeyboardInterrupt is not caught; finished runs are kept.
    """
    checkpoint = Checkpoint(folder / "turns.jsonl")
    runs = list(comparison.runs())
    missing = [run for run in runs if comparison.mark(*run) not in checkpoint]
    for done, (j, lam, system) in enumerate(missing, len(runs) - len(missing)):
        progress(done, len(runs), f"{system.label}, round {j + 1}")
        result = asyncio.run(_run_system(comparison, j, lam, system))
        checkpoint.add(comparison.mark(j, lam, system), result)
    progress(len(runs), len(runs), "")
    return [_collect(comparison, checkpoint, lam, system) for lam in comparison.lams for system in comparison.systems]


def _collect(comparison: Comparison, checkpoint: Checkpoint, lam: float, system: System) -> SystemResult:
    entries = [checkpoint[comparison.mark(j, lam, system)] for j in range(comparison.rounds)]
    values = {name: np.array([entry[name] for entry in entries], dtype=float) for name in (*METRICS, "shares")}
    return SystemResult(system, lam, values)


async def _run_system(comparison: Comparison, j: int, lam: float, system: System) -> dict[str, Any]:
    """Start the system and its pools, send the traffic of round j, and return the measurements."""
    seed = comparison.seed + j
    with TemporaryDirectory(prefix="lased-") as name:
        folder = Path(name)
        start = _balancer if system.balancer else _dispatchers
        async with start(comparison, system, folder, seed) as running:
            records = await _send(running.urls, comparison.offsets(lam, seed), folder, seed)
            if running.dispatcher is not None:
                await running.dispatcher.stop()  # the dispatcher writes its last rows when it stops
            wrong = _wrong_decisions(running.rows)
    if not records.completed.all():
        failed = int((~records.completed).sum())
        raise BackendError(f"{system.label}: {failed} of {len(records)} requests failed; the run does not count")
    return {"system": system.label, "lam": lam, "seed": seed} | _measured(comparison, records, wrong)


@dataclass(frozen=True, slots=True)
class _Running:
    """A system that runs. dispatcher, rows: of a single dispatcher, which counts its own regret; else None."""

    urls: tuple[str, ...]
    dispatcher: Child | None = None
    rows: Path | None = None


@contextlib.asynccontextmanager
async def _balancer(comparison: Comparison, system: System, folder: Path, seed: int) -> AsyncIterator[_Running]:
    balancer, rule = parse(system.balancer)
    async with (
        live_pools(comparison.pools, folder, seed, WorkerOptions(comparison.service)) as (_, addresses),
        balancer_system(balancer, rule, list(addresses.values()), folder) as url,
    ):
        yield _Running((url,))


@contextlib.asynccontextmanager
async def _dispatchers(comparison: Comparison, system: System, folder: Path, seed: int) -> AsyncIterator[_Running]:
    common = WorkerOptions(comparison.service, load_report=comparison.load_report)
    async with live_fleet(system.policy, comparison.pools, system.dispatchers, seed, common, system.options) as fleet:
        if len(fleet) == 1:
            yield _Running((fleet[0].url,), fleet[0].dispatcher, fleet[0].rows)
        else:
            # A dispatcher does not see the requests of the others, so its own count of wrong decisions is not regret.
            yield _Running(tuple(live.url for live in fleet))


def _wrong_decisions(rows: Path | None) -> int | None:
    if rows is None:
        return None
    return sum(json.loads(line)["cause"] is not None for line in rows.read_text(encoding="utf-8").splitlines())


async def _send(urls: tuple[str, ...], offsets: NDArray[np.float64], folder: Path, seed: int) -> Records:
    """Send the traffic from a process of its own, so that nothing else delays a request."""
    attack = folder / "attack"
    attack.mkdir()
    records = Records.create(attack, [offsets])
    choose_targets(records, (1.0,) * len(urls), stream(seed, "dispatchers"))
    write_job(attack, Request(urls), Limits(timeout=120.0))
    async with sending_processes(attack, 1) as running:
        await running.begin()
        await running.wait(records)
    return records


def _measured(comparison: Comparison, records: Records, wrong: int | None) -> dict[str, Any]:
    response = distribution(records.response[comparison.warmup :])
    pools = records.pools
    return {
        "mean_response": response["mean"],
        "p50_response": response["p50"],
        "p99_response": response["p99"],
        "regret": wrong,
        "lateness_p99": distribution(records.lateness)["p99"],
        "shares": [pools.count(pool.name) / len(pools) for pool in comparison.pools],
    }


def at_rate(results: Sequence[SystemResult], lam: float) -> list[SystemResult]:
    """Return the results at one request rate."""
    return [result for result in results if result.lam == lam]
