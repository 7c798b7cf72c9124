"""reorder: two pools that serve the shortest expected job first, behind rules that believe them to be first come, first
served. What reordering gains, and what the belief costs.

Oracles: `work` knows the contexts of all that waits, `aware` the order as well (`loadgen.sim.reordering`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.runner import Piece, Result, Results, canvas, spread, verdict
from loadgen.experiments.tables import with_error
from loadgen.plot import COLOURS
from loadgen.sim.job_scheduling import Source
from loadgen.sim.reordering import ReorderingScenario, simulate

CHANCES, SHARES = (0.9, 0.1), (0.8, 0.2)
RATES = (40.0, 120.0)  # services a second
LOADS = (0.6, 0.8, 0.9)
ORDERS = ("fcfs", "sept", "esept/age=0.02")
RULES = ("sed", "lased", "jsq", "work", "aware")
SIZES = {"quick": (5_000, 3), "full": (50_000, 10)}  # requests, seeds
WARMUP = 5  # a fifth is left out of the means


def scene(load: float, order: str) -> ReorderingScenario:
    plain = Source.of(CHANCES, SHARES, load * sum(RATES))
    mean = sum(share / p for share, p in zip(SHARES, CHANCES, strict=True))
    return ReorderingScenario(plain, tuple(rate * mean for rate in RATES), order)


def measured(rule: str, load: float, order: str, requests: int, seed: int) -> Result:
    """Milliseconds: mean response, of both kinds of jobs, 99th percentile, longest wait; and rates that are inferred
    without reports, over the truth."""
    ended = simulate(rule, scene(load, order), requests, seed)
    later = slice(requests // WARMUP, None)
    response, kind = ended.response[later] * 1e3, ended.kind[later]
    found: Result = {
        "mean": float(response.mean()),
        "quick": float(response[kind == 0].mean()),
        "slow": float(response[kind == 1].mean()),
        "p99": float(np.percentile(response, 99)),
        "longest": float(ended.waits.max() * 1e3),
    }
    if rule == "lased":
        rates = simulate(rule, scene(load, order), requests, seed, infer=True).rates
        found["inferred"] = [rate / true for rate, true in zip(rates, RATES, strict=True)]
    return found


@dataclass(frozen=True)
class Reordered:
    """The study."""

    name: str = "reorder"
    title: str = "Two pools that reorder, 40 and 120 services a second"

    def pieces(self, size: str, seed: int) -> list[Piece]:
        requests, seeds = SIZES[size]
        return [
            Piece(f"{load} {order} {rule} {j}", measured,
                  {"rule": rule, "load": load, "order": order, "requests": requests, "seed": j})
            for load in LOADS for order in ORDERS for rule in RULES for j in range(seed, seed + seeds)
        ]  # fmt: skip

    def _each(self, results: Results, load: float, order: str, rule: str, key: str = "mean") -> list[Any]:
        start = f"{load} {order} {rule} "
        return [result[key] for name, result in results.items() if name.startswith(start)]

    def _mean(self, results: Results, load: float, order: str, rule: str, key: str = "mean") -> float:
        return spread(self._each(results, load, order, rule, key))[0]

    def _over(self, results: Results, load: float, order: str, rule: str, other: str) -> tuple[float, float]:
        """By which part one rule's mean lies above another's, paired."""
        pairs = zip(*(self._each(results, load, order, each) for each in (rule, other)), strict=True)
        return spread([a / b - 1 for a, b in pairs])

    def tables(self, results: Results) -> list[Table]:
        made = Table(title=self.title + ": ms, ± standard error", title_justify="left")
        for column in ("load", "order", "rule", "mean", "quick jobs", "slow jobs", "p99", "longest wait"):
            made.add_column(column, justify="left" if column in ("order", "rule") else "right")
        for load in LOADS:
            for order in ORDERS:
                for rule in RULES:
                    cells = [with_error(*spread(self._each(results, load, order, rule, key)))
                             for key in ("mean", "quick", "slow", "p99", "longest")]  # fmt: skip
                    made.add_row(f"{load:g}", order, rule, *cells)
        rates = Table(title="LASED, rates inferred without reports, over the truth", title_justify="left")
        for column in ("load", *ORDERS):
            rates.add_column(column, justify="right")
        for load in LOADS:
            rates.add_row(f"{load:g}", *(" ".join(with_error(*each) for each in self._inferred(results, load, order))
                                         for order in ORDERS))  # fmt: skip
        return [made, rates]

    def _inferred(self, results: Results, load: float, order: str) -> list[tuple[float, float]]:
        return [spread(list(each)) for each in zip(*self._each(results, load, order, "lased", "inferred"), strict=True)]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        keys = ("mean", "quick", "slow", "p99", "longest")
        found = []
        for name, result in results.items():
            load, order, rule, seed = name.split(" ")
            case = {"load": load, "order": order, "rule": rule, "seed": seed}
            found.append(case | {key: result[key] for key in keys})
        return found

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        gains = [1 - self._mean(results, load, ORDERS[2], "lased") / self._mean(results, load, "fcfs", "lased")
                 for load in LOADS]  # fmt: skip
        costs = {load: self._over(results, load, "sept", "sed", "aware") for load in LOADS}
        order = {load: self._over(results, load, "sept", "work", "aware") for load in LOADS}
        near = [self._over(results, load, ORDERS[2], "lased", "sed")[0] for load in LOADS]
        inferred = [each for load in LOADS for each in self._inferred(results, load, ORDERS[2])]
        off, sure = max(abs(mean - 1) for mean, _ in inferred), max(error for _, error in inferred) < 0.02
        shown = ", ".join(f"{load:g}: {mean:+.1%} ± {error:.1%}" for load, (mean, error) in costs.items())
        return [
            verdict("behind LASED, pools that learn their order answer sooner than first come, first served",
                    min(gains) > 0, f"by {', '.join(f'{gain:.0%}' for gain in gains)}"),
            verdict("to count as if they were first come, first served costs under 25 % of the mean response of a rule"
                    " that sees contexts and order", max(mean for mean, _ in costs.values()) < 0.25, shown),
            verdict("most of that is for want of contexts at low load, of the order at high load",
                    order[0.6][0] < costs[0.6][0] / 2 and order[0.9][0] > costs[0.9][0] / 2,
                    f"contexts without the order are {order[0.6][0]:+.1%} and {order[0.9][0]:+.1%} above"),
            verdict("LASED learns through it: within 5 % of SED with the true rates", max(near) < 0.05,
                    ", ".join(f"{each:+.1%}" for each in near)),
            verdict("and its inferred rates stay within 5 % of the truth", off < 0.05 if sure else None,
                    f"{off:.1%} off at most"),
        ]  # fmt: skip

    def draw(self, results: Results, path: Path) -> None:
        figure, *all_axes = canvas(12, 4.2, columns=3)
        for axes, load in zip(all_axes, LOADS, strict=True):
            for k, rule in enumerate(RULES):
                for x, order in enumerate(ORDERS):
                    mean, error = spread(self._each(results, load, order, rule))
                    axes.bar(x + (k - 2) * 0.16, mean, 0.15, yerr=2 * error, color=COLOURS[k], capsize=2,
                             label=None if x else rule)  # fmt: skip
            axes.set_xticks(range(len(ORDERS)), [order.replace("/", "\n") for order in ORDERS])
            axes.set_title(f"load {load:g}", fontsize=10)
        all_axes[0].set_ylabel("mean response, ms")
        figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
        figure.savefig(path, dpi=130)


REORDER = Reordered()
