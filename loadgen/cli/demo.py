"""The demonstration: two real pools, the dispatcher, Poisson traffic; LASED first, then Greedy on the same traffic.

The dispatcher is told that the faster pool is useless (guesses 50 and 1 for true rates 50 and 100). LASED tries both,
finds out and is right from then on; Greedy never sends the faster pool anything and so never finds out. The schedule
and the service times are drawn from one seed, so both policies meet the same arrivals and the same work.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.histogram import distribution
from loadgen.attack.records import Records
from loadgen.attack.schedule import schedule
from loadgen.experiments.live.backends import BackendError, LivePoolSpec, live_system

PAPER = {"memory": -1}  # options of the policies: no forgetting, as in the paper
SAMPLE_EVERY = 0.25  # seconds between two looks at the dispatcher's state
Z95 = 1.96


@dataclass(frozen=True, slots=True)
class Scene:
    """What is shown. lam: requests a second. duration: seconds of traffic for each policy."""

    pools: tuple[LivePoolSpec, ...] = (LivePoolSpec("small", 50.0, 50.0), LivePoolSpec("large", 100.0, 1.0))
    lam: float = 30.0
    duration: float = 30.0
    seed: int = 1
    policies: tuple[str, ...] = ("lased", "greedy")

    @property
    def true_ratio(self) -> float:
        return self.pools[1].rate / self.pools[0].rate

    def offsets(self) -> NDArray[np.float64]:
        return schedule(Poisson(self.lam, stream(self.seed, "arrivals")), self.duration)


@dataclass(frozen=True, slots=True)
class Sample:
    """The dispatcher's state at a moment of the run. at: seconds from its start."""

    at: float
    state: Mapping[str, Any]


@dataclass(slots=True)
class Run:
    """One policy's turn. rows: its decisions, as the dispatcher recorded them."""

    policy: str
    records: Records
    rows: list[dict[str, Any]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def ended_early(self) -> bool:
        return len(self.rows) < len(self.records)

    @property
    def final(self) -> Mapping[str, Any]:
        return self.samples[-1].state

    @property
    def wrong(self) -> NDArray[np.bool_]:
        return np.array([row["cause"] is not None for row in self.rows], dtype=bool)

    @property
    def regret_second_half(self) -> int:
        return int(self.wrong[len(self.rows) // 2 :].sum())

    def summary(self) -> dict[str, Any]:
        """What `demo --json` tells of this policy; times in seconds."""
        latency = distribution(self.records.response)
        ratio, error = rate_ratio(self.final)
        return {
            "requests": int(self.records.completed.sum()),
            "failed": int((~self.records.completed & ~np.isnan(self.records.sent)).sum()),
            "regret": int(self.wrong.sum()),
            "regret_second_half": self.regret_second_half,
            "explorations": sum(row["phase"] == "explore" for row in self.rows),
            "episodes": self.final["episode"]["number"],
            "rate_ratio_estimate": ratio,
            "rate_ratio_standard_error": error,
            "estimates": {pool["name"]: pool["estimate"] for pool in self.final["pools"]},
            "observations": {pool["name"]: pool["observations"] for pool in self.final["pools"]},
            "shares": shares(self.rows, [pool["name"] for pool in self.final["pools"]]),
            "mean_response": latency["mean"],
            "p99_response": latency["p99"],
        }


def rate_ratio(state: Mapping[str, Any]) -> tuple[float, float | None]:
    """r̂, the second pool's estimate over the first's, and its standard error r̂ √(1/N₁ + 1/N₂), None if it has none."""
    first, second = state["pools"][:2]
    ratio = second["estimate"] / first["estimate"]
    counts = [pool["observations"] for pool in (first, second)]
    return ratio, ratio * math.sqrt(sum(1 / n for n in counts)) if all(counts) else None


def shares(rows: Sequence[Mapping[str, Any]], pools: Sequence[str]) -> dict[str, float]:
    """The part of the requests that each pool got."""
    return {pool: sum(row["pool"] == pool for row in rows) / max(1, len(rows)) for pool in pools}


Watch = Callable[[str, Sample, Attack], None]


async def run_policy(scene: Scene, policy: str, watch: Watch, stop: asyncio.Event) -> Run:
    """Start pools and dispatcher, send the traffic, look at the state meanwhile. stop: ends the traffic early."""
    async with (
        live_system(policy, scene.pools, seed=scene.seed, options=PAPER) as system,
        aiohttp.ClientSession() as session,
    ):
        attack = Attack(system.url, Records(scene.offsets()))
        run = Run(policy, attack.records)
        loop = asyncio.get_running_loop()
        start = loop.time()

        async def look() -> None:
            sample = Sample(loop.time() - start, await system.state(session))
            run.samples.append(sample)
            watch(policy, sample, attack)

        async def keep_looking() -> None:
            while True:
                await look()
                await asyncio.sleep(SAMPLE_EVERY)

        async def stop_when_told() -> None:
            await stop.wait()
            attack.stop()

        jobs = [asyncio.create_task(keep_looking()), asyncio.create_task(stop_when_told())]
        try:
            await attack.run()
        finally:
            for job in jobs:
                job.cancel()
            ended = await asyncio.gather(*jobs, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise BackendError(f"the dispatcher does not tell its state any more: {error}") from error
        await look()
        await system.dispatcher.stop()  # so that it writes its last rows
        run.rows = [json.loads(line) for line in system.rows.read_text().splitlines()]
    return run


async def run_demo(scene: Scene, watch: Watch, stop: asyncio.Event) -> list[Run]:
    """All policies in turn, on the same traffic; those that were begun when `stop` came."""
    runs = []
    for policy in scene.policies:
        if not stop.is_set():
            runs.append(await run_policy(scene, policy, watch, stop))
    return runs


def as_json(scene: Scene, runs: Sequence[Run], picture: str | None) -> dict[str, Any]:
    """What `demo --json` prints."""
    return {
        "lam": scene.lam,
        "mu": [pool.rate for pool in scene.pools],
        "guess": [pool.guess for pool in scene.pools],
        "duration": scene.duration,
        "seed": scene.seed,
        "true_ratio": scene.true_ratio,
        "picture": picture,
        "policies": {run.policy: run.summary() for run in runs},
    }
