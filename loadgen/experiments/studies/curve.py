"""curve: the policy `curve`, without any knowledge of the pools, compared with other rules on pools like real services.

The scenarios are in pools.toml. All rules have the same arrivals and the same work in a scenario with one seed.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
from pydantic import Field
from rich.table import Table

from dispatcher import registry
from dispatcher.core.policy import Policy
from dispatcher.core.types import PoolSpec
from loadgen import plot
from loadgen.experiments.claims import Verdict
from loadgen.experiments.spec import StrictTable
from loadgen.experiments.studies.runner import Piece, Result, Results, canvas, spread, verdict
from loadgen.plot import COLOURS
from loadgen.sim.oracles import TrueCost, TrueDelay
from loadgen.sim.pools import ServiceChange, ServicePool, ServiceScenario, simulate

SIZES = {"quick": (6_000, 1), "full": (40_000, 3)}  # requests, seeds
QUICK = (  # scenarios of the quick size
    "F4x40+F16x80 lam150",
    "F1x25+F1x5 0.6",
    "P4x40+P2x20 lam120",
    "I50+I100 lam100",
    "I50+F4x20 lam300",
    "F4x10+5ms / F4x10+50ms 0.7",
    "F4x40+F16x80 lam150 hyper",
    "4 dispatchers F4x40+F16x80 lam150",
    "slowed 20x and back, 3 pools lam240",
)
WARMUP_SHARE = 1 / 5  # of the requests, left out of the means
WINDOWS = (0, 500, 2000, 8000)  # requests at which the parts of the learning curve begin
INFINITE_SERVERS = 1000  # servers that stand for an infinite server in a weight
INFINITE_LOAD = "a scenario with an infinite server needs a rate, not a load"


class PoolChange(StrictTable):
    """A change of a pool. after: a share of the requests. speed: a factor of the first speed."""

    after: float = Field(gt=0, lt=1)
    pool: int = Field(ge=0)
    speed: float = 1.0
    servers: int | None = None


class CurveScenario(StrictTable):
    """A scenario of pools.toml, which explains the keys."""

    name: str
    pools: list[str] = Field(min_length=2)
    rate: float | None = None
    load: float | None = None
    law: str = "exp"
    process: str = "poisson"
    network: tuple[float, ...] = ()
    dispatchers: int = 1
    changes: tuple[PoolChange, ...] = ()
    group: Literal["steady", "dispatchers", "changing"]
    reference_ms: float | None = None
    size: float = 1.0

    def scene(self, requests: int) -> ServiceScenario:
        """Return what is simulated. requests: their number, on which the instants of changes depend."""
        network = self.network or (0.0,) * len(self.pools)
        pools = tuple(ServicePool(text, wire) for text, wire in zip(self.pools, network, strict=True))
        capacity = sum(pool.curve.capacity for pool in pools)
        rate = self.rate if self.rate is not None else (self.load or math.nan) * capacity
        assert math.isfinite(rate), INFINITE_LOAD
        changes = tuple(
            ServiceChange(int(change.after * requests), change.pool, change.speed, change.servers)
            for change in self.changes
        )
        return ServiceScenario(pools, rate, self.law, self.process, self.dispatchers, changes)


@cache
def scenarios() -> dict[str, CurveScenario]:
    """Return all scenarios by name."""
    text = resources.files("loadgen.experiments.studies").joinpath("pools.toml").read_text(encoding="utf-8")
    return {entry["name"]: CurveScenario(**entry) for entry in tomllib.loads(text)["scenario"]}


# -- the rules


def _registered(name: str) -> Callable[[ServiceScenario, Random], Policy]:
    return lambda scene, rng: registry.create(name, rng)


def _nothing_known(scene: ServiceScenario) -> list[PoolSpec]:
    return [PoolSpec(str(i)) for i in range(len(scene.pools))]


def _servers_known(scene: ServiceScenario) -> list[PoolSpec]:
    return [PoolSpec(str(i), servers=pool.servers) for i, pool in enumerate(scene.pools)]


def _weights_known(scene: ServiceScenario) -> list[PoolSpec]:
    return [
        PoolSpec(str(i), servers=min(pool.servers, INFINITE_SERVERS), guess=1 / pool.seconds)
        for i, pool in enumerate(scene.pools)
    ]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the comparison.

    make: creates the policy. specs: what the policy knows of the pools.
    infer: whether the policy learns from inferred service times.
    """

    make: Callable[[ServiceScenario, Random], Policy]
    specs: Callable[[ServiceScenario], list[PoolSpec]] = _nothing_known
    infer: bool = False


# `told` in a name means full knowledge of the pools. The names are part of the results and of the documents.
RULES = {
    "jsq": Rule(_registered("jsq")),
    "weighted least conn": Rule(_registered("nginx_least_conn"), _weights_known),
    "leasttime": Rule(_registered("traefik_leasttime")),
    "prequal": Rule(_registered("prequal")),
    "lased": Rule(_registered("lased"), infer=True),
    "lased told c": Rule(_registered("lased"), _servers_known, infer=True),
    "SED told": Rule(TrueDelay),
    "score told": Rule(TrueCost),
    "curve": Rule(_registered("curve")),
}
BASES = ("jsq", "SED told")  # ratios are to the lesser of these


def measure(scenario: str, rule: str, requests: int, seed: int) -> Result:
    """Return mean and 99th percentile of the response times after the warm-up, and the means by part of the run.

    requests: before the scenario's factor `size`. All times are in seconds.
    """
    chosen, setting = RULES[rule], scenarios()[scenario]
    requests = int(requests * setting.size)
    scene = setting.scene(requests)
    # Only the oracles know of changes; the other rules must notice them.
    on_change = _inform_oracle if chosen.make in (TrueDelay, TrueCost) else None
    times = simulate(scene, chosen.make, chosen.specs(scene), requests, seed, chosen.infer, on_change)
    measured = times[int(WARMUP_SHARE * requests) :]
    ends = [*(end for end in WINDOWS[1:] if end < requests), requests]
    parts = [float(times[start:end].mean()) for start, end in zip(WINDOWS, ends, strict=False)]
    return {"mean": float(measured.mean()), "p99": float(np.percentile(measured, 99)), "parts": parts}


def _inform_oracle(policy: Policy, change: ServiceChange) -> None:
    """Inform an oracle of a change at once."""
    assert isinstance(policy, TrueDelay | TrueCost)
    policy.pool_changed(change)


# -- the results


def geometric_mean(values: Iterable[float]) -> float:
    """Return exp of the mean logarithm."""
    return math.exp(float(np.mean([math.log(value) for value in values])))


class Summary:
    """Means over the seeds, and their ratios to the lesser of jsq and SED told, which knows the pools."""

    def __init__(self, results: Results) -> None:
        self.seeds: dict[tuple[str, str], list[Result]] = {}
        for name, result in results.items():
            scenario, rule, _ = name.split(" | ")
            self.seeds.setdefault((scenario, rule), []).append(result)
        self.scenarios = [name for name in scenarios() if (name, "curve") in self.seeds]

    def values(self, scenario: str, rule: str, metric: str = "mean") -> list[float]:
        """Return a metric by seed, seconds."""
        return [result[metric] for result in self.seeds[scenario, rule]]

    def mean(self, scenario: str, rule: str, metric: str = "mean") -> float:
        """Return the mean of a metric over the seeds, seconds."""
        return float(np.mean(self.values(scenario, rule, metric)))

    def ratio(self, scenario: str, rule: str, metric: str = "mean") -> float:
        """Return the mean of a rule, divided by that of the better of BASES."""
        return self.mean(scenario, rule, metric) / min(self.mean(scenario, base, metric) for base in BASES)

    def group(self, group: str) -> list[str]:
        """Return the scenarios of a group."""
        return [name for name in self.scenarios if scenarios()[name].group == group]

    def against(self, group: str, rule: str, other: str) -> float:
        """Return the geometric mean over a group of the mean of `rule` divided by the mean of `other`."""
        return geometric_mean(self.mean(name, rule) / self.mean(name, other) for name in self.group(group))

    def overall(self, group: str, rule: str) -> tuple[float, float]:
        """Return the geometric mean and the largest of the ratios in a group."""
        ratios = [self.ratio(name, rule) for name in self.group(group)]
        return geometric_mean(ratios), max(ratios)


@dataclass(frozen=True)
class CurveStudy:
    """Compares rules by scenario."""

    name: str = "curve"
    title: str = "Pools as services are: mean response time ÷ the lesser of jsq's and SED's with full knowledge"

    def pieces(self, size: str, seed: int) -> list[Piece]:
        requests, seeds = SIZES[size]
        return [
            Piece(
                f"{name} | {rule} | {j}",
                measure,
                {"scenario": name, "rule": rule, "requests": requests, "seed": j},
            )
            for name in (QUICK if size == "quick" else scenarios())
            for j in range(seed, seed + seeds)
            for rule in RULES
        ]

    def tables(self, results: Results) -> list[Table]:
        summary = Summary(results)
        table = Table(title=self.title, title_justify="left")
        table.add_column("scenario")
        for rule in RULES:
            table.add_column(rule, justify="right")
        for title in ("curve, ms", "p99 ms: jsq", "SED told", "curve"):
            table.add_column(title, justify="right")
        for name in summary.scenarios:
            mean, error = spread(summary.values(name, "curve"))
            tails = [f"{summary.mean(name, rule, 'p99') * 1e3:.0f}" for rule in ("jsq", "SED told", "curve")]
            table.add_row(
                name,
                *(f"{summary.ratio(name, rule):.3f}" for rule in RULES),
                f"{mean * 1e3:.1f} ± {error * 1e3:.1f}",
                *tails,
            )
        overall = Table(title="Geometric mean of the ratios / the largest one", title_justify="left")
        overall.add_column("group")
        for rule in RULES:
            overall.add_column(rule, justify="right")
        for group in ("steady", "dispatchers", "changing"):
            if summary.group(group):
                cells = ("{:.3f} / {:.3f}".format(*summary.overall(group, rule)) for rule in RULES)
                overall.add_row(f"{group} ({len(summary.group(group))})", *cells)
        return [table, overall]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        rows = []
        for name, result in results.items():
            scenario, rule, seed = name.split(" | ")
            row = {"scenario": scenario, "rule": rule, "seed": seed, "mean": result["mean"], "p99": result["p99"]}
            rows.append(row)
        return rows

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        summary = Summary(results)
        steady, full = summary.group("steady"), size == "full"
        rules = ("jsq", "lased", "SED told", "leasttime", "prequal")
        jsq, lased, sed, leasttime, prequal = (summary.against("steady", "curve", rule) for rule in rules)
        one_class = [name for name in steady if not scenarios()[name].law.startswith("classes")]
        worst = max(one_class, key=lambda name: summary.ratio(name, "curve"))
        # The quick size has no scenario with classes.
        mixed = max((summary.ratio(name, "curve") for name in steady if name not in one_class), default=math.nan)
        tail = geometric_mean(summary.ratio(name, "curve", "p99") for name in steady)
        shared, most_shared = summary.overall("dispatchers", "curve")
        changing = summary.overall("changing", "curve")[0]
        # The first part is before the warm-up ends: it shows how the rule starts without any knowledge.
        parts = geometric_mean(
            summary.seeds[name, "curve"][0]["parts"][0] / summary.seeds[name, "jsq"][0]["parts"][0] for name in steady
        )
        return [
            verdict("steady: the mean is at least 15 % below jsq's", jsq <= 0.85, f"{jsq - 1:+.1%}"),
            verdict("steady: it is at least 10 % below lased's", lased <= 0.90, f"{lased - 1:+.1%}"),
            verdict("steady: it is below SED's with full knowledge", sed < 1, f"{sed - 1:+.1%}"),
            verdict(
                "steady: it is below those of Traefik's leasttime and of Prequal",
                max(leasttime, prequal) < 1,
                f"{leasttime - 1:+.1%} and {prequal - 1:+.1%}",
            ),
            verdict(
                "steady, requests of one class: it is nowhere more than 5 % above the lesser of jsq's and SED's with"
                " full knowledge",
                summary.ratio(worst, "curve") <= 1.05 if full else None,
                f"{summary.ratio(worst, 'curve') - 1:+.1%} at worst, {worst}; with a class of 100 times the work"
                f" {mixed - 1:+.1%}",
            ),
            verdict("steady: p99 is at most 10 % above the lesser of theirs", tail <= 1.10, f"{tail - 1:+.1%}"),
            verdict("steady: the first 500 requests take less than with jsq", parts < 1, f"{parts - 1:+.1%}"),
            verdict(
                "several dispatchers: it is below the lesser of theirs, and nowhere more than 10 % above it",
                shared < 1 and most_shared <= 1.10,
                f"{shared - 1:+.1%}, {most_shared - 1:+.1%} at worst",
            ),
            verdict(
                "changing pools: it is at most 20 % above SED that knows of the changes at once",
                changing <= 1.20 if full else None,
                f"{changing - 1:+.1%}",
            ),
            self._agreement(summary, full),
        ]

    def _agreement(self, summary: Summary, full: bool) -> Verdict:
        """Compare with an independent program, in the scenarios for which pools.toml has its measurements."""
        off = {}
        for name in summary.scenarios:
            reference = scenarios()[name].reference_ms
            if reference is not None:
                mean, error = spread(summary.values(name, "curve"))
                off[name] = (mean * 1e3 - reference) / math.hypot(4 * error * 1e3, 0.02 * reference)
        far = [name for name, deviation in off.items() if abs(deviation) > 1]
        return verdict(
            "an independent program measured the same means: four of five are within 4 standard errors and 2 %",
            len(far) <= len(off) / 5 if full else None,
            f"{len(off) - len(far)} of {len(off)} are" + (f"; not so {', '.join(far)}" if far else ""),
        )

    def draw(self, results: Results, path: Path) -> None:
        summary = Summary(results)
        names = summary.scenarios
        figure, axes = canvas(9, 1.5 + 0.17 * len(names))
        drawn_rules: Sequence[str] = ("jsq", "leasttime", "lased", "SED told", "curve")
        for rule, colour in zip(drawn_rules, COLOURS, strict=False):
            ratios = [summary.ratio(name, rule) for name in names]
            axes.plot(ratios, range(len(names)), "o", color=colour, label=rule, markersize=6 if rule == "curve" else 4)
        axes.axvline(1, color="grey", linewidth=1)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xticks((0.8, 1, 1.5, 2, 3, 5), ("0.8", "1", "1.5", "2", "3", "5"))
        axes.set_xlabel("mean response time ÷ the lesser of jsq's and SED's with full knowledge")
        axes.legend(fontsize=8)
        plot.save(figure, path)


CURVE = CurveStudy()
