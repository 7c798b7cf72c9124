"""partial: several dispatchers share pools, and each knows a pool's backlog only from the last response.

Rules are compared with each other and with oracles that see every backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from loadgen import plot
from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.runner import Piece, Result, Results, canvas, spread, verdict
from loadgen.sim import several_dispatchers

POOLS = {"unequal": (4.0, 3.0, 2.0, 1.0, 1.0, 0.5), "equal": (1.0,) * 6}
CASES = tuple(("unequal", load, dispatchers) for load in (0.7, 0.9) for dispatchers in (1, 4, 16)) + tuple(
    ("equal", load, dispatchers) for load in (0.7, 0.9) for dispatchers in (4, 16)
)
RULES = (
    "relax+fk",
    "relax+f",
    "psi+f",
    "psi",
    "stale",
    "poisson",
    "poisson+f",
    "poisson+fk",
    "reflect+fk",
    "least2",
    "wrr",
    "own sed",
    "jiq oracle",
    "sed oracle",
    "improved oracle",
)
ROBUST = ("relax+fk", "psi+f", "stale", "poisson")  # the rules that also get wrong rates and late reports
SIZES = {"quick": (4_000, 3), "full": (20_000, 5)}  # requests, seeds


def measure(
    rule: str, pools: str, load: float, dispatchers: int, requests: int, seed: int, wrong: bool, late: float
) -> Result:
    """Return mean and 99th percentile of the time in system.

    wrong: whether the rates that the dispatchers use are off by 30 %. late: delay of the reports.
    """
    mu = POOLS[pools]
    factors = tuple(1.3 if i % 2 == 0 else 0.7 for i in range(len(mu))) if wrong else ()
    scene = several_dispatchers.DispatcherScenario(mu, load, dispatchers, requests, factors, late)
    times = several_dispatchers.simulate(rule, scene, seed)
    return {"mean": float(times.mean()), "p99": float(np.percentile(times, 99))}


def _case(pools: str, load: float, dispatchers: int) -> str:
    return f"{pools} {load:g} × {dispatchers}"


@dataclass(frozen=True)
class PartialStudy:
    """Compares rules by case, and shows the effect of wrong rates and late reports."""

    name: str = "partial"
    title: str = "Several dispatchers, backlogs as last reported: time in system"

    def pieces(self, size: str, seed: int) -> list[Piece]:
        requests, seeds = SIZES[size]
        defaults = {"requests": requests, "wrong": False, "late": 0.0}
        pieces = []
        for j in range(seed, seed + seeds):
            for pools, load, dispatchers in CASES:
                for rule in RULES:
                    case = {"rule": rule, "pools": pools, "load": load, "dispatchers": dispatchers, "seed": j}
                    pieces.append(Piece(f"{_case(pools, load, dispatchers)} {rule} {j}", measure, defaults | case))
            for rule in ROBUST:
                case = {"rule": rule, "pools": "unequal", "load": 0.85, "dispatchers": 8, "seed": j}
                for how, change in (("as is", {}), ("wrong", {"wrong": True}), ("late", {"late": 0.5})):
                    pieces.append(Piece(f"{how} {rule} {j}", measure, defaults | case | change))
        return pieces

    def _values(self, results: Results, prefix: str, metric: str = "mean") -> list[float]:
        return [result[metric] for name, result in results.items() if name.rpartition(" ")[0] == prefix]

    def tables(self, results: Results) -> list[Table]:
        table = Table(title=self.title + ", mean ± standard error / p99", title_justify="left")
        table.add_column("rule")
        for case in CASES:
            table.add_column(_case(*case), justify="right")
        for rule in RULES:
            cells = []
            for case in CASES:
                mean, error = spread(self._values(results, f"{_case(*case)} {rule}"))
                p99 = spread(self._values(results, f"{_case(*case)} {rule}", "p99"))[0]
                cells.append(f"{mean:.2f} ± {error:.2f} / {p99:.1f}")
            table.add_row(rule, *cells)
        robust = Table(title="unequal, load 0.85, 8 dispatchers: mean", title_justify="left")
        for column in ("rule", "as is", "rates off by 30 %", "reports 0.5 late"):
            robust.add_column(column, justify="left" if column == "rule" else "right")
        for rule in ROBUST:
            means = (spread(self._values(results, f"{how} {rule}")) for how in ("as is", "wrong", "late"))
            robust.add_row(rule, *(f"{mean:.3f} ± {error:.3f}" for mean, error in means))
        return [table, robust]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        rows = []
        for name, result in results.items():
            case, _, seed = name.rpartition(" ")
            rows.append({"case": case, "seed": seed, "mean": result["mean"], "p99": result["p99"]})
        return rows

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        def mean(case: tuple[str, float, int], rule: str) -> float:
            return spread(self._values(results, f"{_case(*case)} {rule}"))[0]

        busy = ("unequal", 0.9, 16)
        ratio = {rule: mean(busy, rule) / mean(busy, "stale") for rule in ("relax+fk", "psi+f", "poisson")}
        alone = mean(("unequal", 0.7, 1), "relax+fk") / mean(("unequal", 0.7, 1), "improved oracle")
        many = mean(("unequal", 0.7, 16), "relax+fk") / mean(("unequal", 0.7, 16), "own sed")
        tails = [
            spread(self._values(results, f"{_case(*busy)} {rule}", "p99"))[0]
            for rule in ("relax+f", "relax+fk", "psi+f")
        ]
        better = max(ratio["relax+fk"], ratio["psi+f"])
        return [
            verdict(
                "16 dispatchers, load 0.9: relax+fk and psi+f need 20 % less than stale",
                better <= 0.8,
                f"{ratio['relax+fk']:.2f} and {ratio['psi+f']:.2f} of it",
            ),
            verdict(
                "poisson, departures alone, is then far worse than stale",
                ratio["poisson"] > 1.5,
                f"{ratio['poisson']:.1f} times its mean",
            ),
            verdict(
                "one dispatcher: relax+fk is within 5 % of the oracle of its kind", alone <= 1.05, f"{alone - 1:+.1%}"
            ),
            verdict(
                "16 dispatchers, load 0.7: it needs less time than SED on own counts", many < 1, f"{many:.2f} of it"
            ),
            verdict(
                "relax+f has the shortest tail of relax+f, relax+fk, psi+f",
                tails[0] == min(tails),
                ", ".join(f"{value:.1f}" for value in tails),
            ),
        ]

    def draw(self, results: Results, path: Path) -> None:
        figure, *panels = canvas(11, 4.4, columns=2)
        drawn_rules = ("own sed", "stale", "poisson", "relax+f", "relax+fk", "psi+f", "sed oracle")
        for axes, load in zip(panels, (0.7, 0.9), strict=True):
            for rule, colour in zip(drawn_rules, plot.COLOURS, strict=False):
                points = [spread(self._values(results, f"{_case('unequal', load, m)} {rule}")) for m in (1, 4, 16)]
                means, errors = zip(*points, strict=True)
                axes.errorbar(
                    (1, 4, 16), means, yerr=[2 * e for e in errors], fmt="o-", color=colour, label=rule, capsize=3
                )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks((1, 4, 16), ("1", "4", "16"))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
            axes.set_xlabel("dispatchers")
            axes.set_ylabel("mean time in system")
            axes.set_title(f"unequal pools, load {load:g}", fontsize=10)
        axes.legend(fontsize=8)
        plot.save(figure, path)


PARTIAL = PartialStudy()
