"""Runs the demonstration: two real pools, the dispatcher, and Poisson traffic, first with LASED and then with Greedy.

The guess for the faster pool is far too low (guesses 50 and 1 for true rates 50 and 100). LASED tries both pools,
learns their rates and then decides correctly. Greedy sends the faster pool nothing, so it never learns its rate.
Arrivals and service times are drawn from one seed, so they are equal for both policies.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.histogram import distribution
from loadgen.attack.records import Records
from loadgen.attack.schedule import schedule
from loadgen.experiments.live.backends import BackendError, LivePoolSpec, live_system

PAPER_OPTIONS = {"memory": -1}  # estimates use all observations, as in the paper
SAMPLE_INTERVAL_SECONDS = 0.25
Z95 = 1.96  # half width of a 95 % interval, in standard errors


@dataclass(frozen=True, slots=True)
class Scene:
    """The setting of the demonstration. lam: requests a second. duration: seconds of traffic for each policy."""

    pools: tuple[LivePoolSpec, ...] = (LivePoolSpec("small", 50.0, 50.0), LivePoolSpec("large", 100.0, 1.0))
    lam: float = 30.0
    duration: float = 30.0
    seed: int = 1
    policies: tuple[str, ...] = ("lased", "greedy")

    @property
    def true_ratio(self) -> float:
        """The true rate of the second pool divided by that of the first."""
        return self.pools[1].rate / self.pools[0].rate

    def offsets(self) -> NDArray[np.float64]:
        """Return the planned instants of the requests, seconds from the start."""
        return schedule(Poisson(self.lam, stream(self.seed, "arrivals")), self.duration)


@dataclass(frozen=True, slots=True)
class Sample:
    """The dispatcher's state at one instant. at: seconds from the start of the run."""

    at: float
    state: Mapping[str, Any]


@dataclass(slots=True)
class PolicyRun:
    """The run of one policy. records: of the traffic. rows: the dispatcher's decisions. samples: of its state."""

    policy: str
    records: Records
    rows: list[dict[str, Any]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @property
    def ended_early(self) -> bool:
        """Whether some requests of the plan were not sent."""
        return len(self.rows) < len(self.records)

    @property
    def final(self) -> Mapping[str, Any]:
        """The last state of the dispatcher."""
        return self.samples[-1].state

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Whether a decision was wrong, by row."""
        return np.array([row["cause"] is not None for row in self.rows], dtype=bool)

    @property
    def regret_second_half(self) -> int:
        return int(self.wrong[len(self.rows) // 2 :].sum())

    def summary(self) -> dict[str, Any]:
        """Return what `demo --json` shows of this policy. Times are in seconds."""
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
    """Return r̂, the estimate of the second pool divided by that of the first, and its standard error.

    The error is r̂ √(1/N₁ + 1/N₂) for N₁ and N₂ observations, and None if a pool has no observation.
    """
    first, second = state["pools"][:2]
    ratio = second["estimate"] / first["estimate"]
    counts = [pool["observations"] for pool in (first, second)]
    return ratio, ratio * math.sqrt(sum(1 / n for n in counts)) if all(counts) else None


def shares(rows: Sequence[Mapping[str, Any]], pools: Sequence[str]) -> dict[str, float]:
    """Return the share of the requests that each pool got."""
    return {pool: sum(row["pool"] == pool for row in rows) / max(1, len(rows)) for pool in pools}


OnSample = Callable[[str, Sample, Attack], None]  # called with the policy, the sample and the traffic


async def run_policy(scene: Scene, policy: str, on_sample: OnSample, stop: asyncio.Event) -> PolicyRun:
    """Start the pools and the dispatcher, send the traffic, and sample the dispatcher's state meanwhile.

    stop: ends the traffic early. Raises BackendError.
    """
    import aiohttp  # only here, because the import would delay every command by a third of a second

    async with (
        live_system(policy, scene.pools, seed=scene.seed, options=PAPER_OPTIONS) as system,
        aiohttp.ClientSession() as session,
    ):
        attack = Attack(system.url, Records(scene.offsets()))
        run = PolicyRun(policy, attack.records)
        loop = asyncio.get_running_loop()
        start = loop.time()

        async def take_sample() -> None:
            sample = Sample(loop.time() - start, await system.state(session))
            run.samples.append(sample)
            on_sample(policy, sample, attack)

        async def take_samples() -> None:
            while True:
                await take_sample()
                await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)

        async def end_early() -> None:
            await stop.wait()
            attack.stop()

        jobs = [asyncio.create_task(take_samples()), asyncio.create_task(end_early())]
        try:
            await attack.run()
        finally:
            for job in jobs:
                job.cancel()
            results = await asyncio.gather(*jobs, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception):
                raise BackendError(f"the dispatcher's state is not available any more: {error}") from error
        await take_sample()  # the final state, after the last response
        await system.dispatcher.stop()  # the dispatcher writes its last rows when it stops
        run.rows = [json.loads(line) for line in system.rows.read_text().splitlines()]
    return run


async def run_demo(scene: Scene, on_sample: OnSample, stop: asyncio.Event) -> list[PolicyRun]:
    """Run all policies one after the other on the same traffic, and return the runs that had begun before `stop`."""
    runs = []
    for policy in scene.policies:
        if not stop.is_set():
            runs.append(await run_policy(scene, policy, on_sample, stop))
    return runs


def report(scene: Scene, runs: Sequence[PolicyRun], picture: str | None) -> dict[str, Any]:
    """Return what `demo --json` prints. picture: the path of the picture, if there is one."""
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
