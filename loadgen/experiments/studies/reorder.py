"""reorder: two pools that serve the shortest expected job first, behind rules that assume arrival order.

The study shows what the reordering gains, and what the wrong assumption costs. There are two oracles: `work` knows the
contexts of all waiting jobs, and `aware` knows the order of service as well (`loadgen.sim.reordering`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from loadgen import plot
from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.runner import Piece, Result, Results, canvas, spread, verdict
from loadgen.experiments.tables import with_error
from loadgen.sim.job_scheduling import Source
from loadgen.sim.reordering import ReorderingScenario, simulate

CHANCES, SHARES = (0.9, 0.1), (0.8, 0.2)
RATES = (40.0, 120.0)  # services a second
LOADS = (0.6, 0.8, 0.9)
ORDERS = ("fcfs", "sept", "esept/age=0.02")
TIMES = ("mean", "quick", "slow", "p99", "longest")
RULES = ("sed", "lased", "jsq", "work", "aware")
SIZES = {"quick": (5_000, 3), "full": (50_000, 10)}  # requests, seeds
WARMUP_PART = 5  # one part of this many is left out of the means


def scene(load: float, order: str) -> ReorderingScenario:
    """Return what is simulated. load: of both pools together. order: of service in the pools."""
    plain = Source.of(CHANCES, SHARES, load * sum(RATES))
    mean = sum(share / p for share, p in zip(SHARES, CHANCES, strict=True))
    return ReorderingScenario(plain, tuple(rate * mean for rate in RATES), order)


def measure(rule: str, load: float, order: str, requests: int, seed: int) -> Result:
    """Return response times in milliseconds: mean, means of quick and slow jobs, 99th percentile; and the longest wait.

    inferred: for lased, the rates that it infers without reports, divided by the true rates.
    """
    ended = simulate(rule, scene(load, order), requests, seed)
    later = slice(requests // WARMUP_PART, None)
    response, kind = ended.response[later] * 1e3, ended.kind[later]
    result: Result = {
        "mean": float(response.mean()),
        "quick": float(response[kind == 0].mean()),
        "slow": float(response[kind == 1].mean()),
        "p99": float(np.percentile(response, 99)),
        "longest": float(ended.waits.max() * 1e3),
    }
    if rule == "lased":
        rates = simulate(rule, scene(load, order), requests, seed, infer=True).rates
        result["inferred"] = [rate / true for rate, true in zip(rates, RATES, strict=True)]
    return result


@dataclass(frozen=True)
class Reorder:
    """Compares rules by load and order of service."""

    name: str = "reorder"
    title: str = "Two pools that reorder, 40 and 120 services a second"

    def pieces(self, size: str, seed: int) -> list[Piece]:
        requests, seeds = SIZES[size]
        pieces = []
        for load, order, rule in itertools.product(LOADS, ORDERS, RULES):
            for j in range(seed, seed + seeds):
                arguments = {"rule": rule, "load": load, "order": order, "requests": requests, "seed": j}
                pieces.append(Piece(f"{load} {order} {rule} {j}", measure, arguments))
        return pieces

    def _by_seed(self, results: Results, load: float, order: str, rule: str, key: str = "mean") -> list[Any]:
        start = f"{load} {order} {rule} "
        return [result[key] for name, result in results.items() if name.startswith(start)]

    def _mean(self, results: Results, load: float, order: str, rule: str, key: str = "mean") -> float:
        return spread(self._by_seed(results, load, order, rule, key))[0]

    def _excess(self, results: Results, load: float, order: str, rule: str, other: str) -> tuple[float, float]:
        """Return how far a rule's mean is above another's, as a share of it, and the standard error; paired by seed."""
        pairs = zip(*(self._by_seed(results, load, order, name) for name in (rule, other)), strict=True)
        return spread([a / b - 1 for a, b in pairs])

    def tables(self, results: Results) -> list[Table]:
        times = Table(title=self.title + ": ms, ± standard error", title_justify="left")
        for column in ("load", "order", "rule", "mean", "quick jobs", "slow jobs", "p99", "longest wait"):
            times.add_column(column, justify="left" if column in ("order", "rule") else "right")
        for load, order, rule in itertools.product(LOADS, ORDERS, RULES):
            cells = (with_error(*spread(self._by_seed(results, load, order, rule, key))) for key in TIMES)
            times.add_row(f"{load:g}", order, rule, *cells)
        rates = Table(title="LASED, rates inferred without reports, over the truth", title_justify="left")
        for column in ("load", *ORDERS):
            rates.add_column(column, justify="right")
        for load in LOADS:
            cells = (" ".join(with_error(*rate) for rate in self._inferred(results, load, order)) for order in ORDERS)
            rates.add_row(f"{load:g}", *cells)
        return [times, rates]

    def _inferred(self, results: Results, load: float, order: str) -> list[tuple[float, float]]:
        """Return mean and standard error of the inferred rates over the true ones, by pool."""
        runs = self._by_seed(results, load, order, "lased", "inferred")
        return [spread(list(ratios)) for ratios in zip(*runs, strict=True)]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        rows = []
        for name, result in results.items():
            load, order, rule, seed = name.split(" ")
            case = {"load": load, "order": order, "rule": rule, "seed": seed}
            rows.append(case | {key: result[key] for key in TIMES})
        return rows

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        learned = ORDERS[2]
        gains = [
            1 - self._mean(results, load, learned, "lased") / self._mean(results, load, "fcfs", "lased")
            for load in LOADS
        ]
        costs = {load: self._excess(results, load, "sept", "sed", "aware") for load in LOADS}
        order = {load: self._excess(results, load, "sept", "work", "aware") for load in LOADS}
        near = [self._excess(results, load, learned, "lased", "sed")[0] for load in LOADS]
        inferred = [ratio for load in LOADS for ratio in self._inferred(results, load, learned)]
        # Errors of 2 % and more, as in a short run, could hide or feign a deviation of 5 %.
        off, precise = max(abs(mean - 1) for mean, _ in inferred), max(error for _, error in inferred) < 0.02
        return [
            verdict(
                "behind LASED, pools that learn their order answer sooner than first come, first served",
                min(gains) > 0,
                f"by {', '.join(f'{gain:.0%}' for gain in gains)}",
            ),
            verdict(
                "to count as if they were first come, first served costs under 25 % of the mean response of a rule"
                " that sees contexts and order",
                max(mean for mean, _ in costs.values()) < 0.25,
                ", ".join(f"{load:g}: {mean:+.1%} ± {error:.1%}" for load, (mean, error) in costs.items()),
            ),
            verdict(
                "most of that is for want of contexts at low load, of the order at high load",
                order[0.6][0] < costs[0.6][0] / 2 and order[0.9][0] > costs[0.9][0] / 2,
                f"contexts without the order are {order[0.6][0]:+.1%} and {order[0.9][0]:+.1%} above",
            ),
            verdict(
                "LASED learns through it: within 5 % of SED with the true rates",
                max(near) < 0.05,
                ", ".join(f"{excess:+.1%}" for excess in near),
            ),
            verdict(
                "and its inferred rates stay within 5 % of the truth",
                off < 0.05 if precise else None,
                f"{off:.1%} off at most",
            ),
        ]

    def draw(self, results: Results, path: Path) -> None:
        figure, *all_axes = canvas(12, 4.2, columns=3)
        for axes, load in zip(all_axes, LOADS, strict=True):
            for k, rule in enumerate(RULES):
                for x, order in enumerate(ORDERS):
                    mean, error = spread(self._by_seed(results, load, order, rule))
                    at, label = x + (k - len(RULES) // 2) * 0.16, None if x else rule
                    axes.bar(at, mean, 0.15, yerr=2 * error, color=plot.COLOURS[k], capsize=2, label=label)
            axes.set_xticks(range(len(ORDERS)), [order.replace("/", "\n") for order in ORDERS])
            axes.set_title(f"load {load:g}", fontsize=10)
        all_axes[0].set_ylabel("mean response, ms")
        figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
        plot.save(figure, path)


REORDER = Reorder()
