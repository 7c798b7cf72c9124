"""sept: in which order a queue is served, where jobs of different contexts take differently long. Stationary means, how
soon learned coefficients are as good as known ones, and how long slow jobs wait.

Sources: as `workers.scheduling.disciplines`; closed forms are those of Geo/G/1 without and with priorities.
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
from loadgen.sim import job_scheduling as contextual
from loadgen.sim.job_scheduling import Source

CLASSES = {  # chances of being done in a round, shares, chance of an arrival
    "P": ((0.9, 0.1), (0.8, 0.2), 0.25),
    "R": ((0.6, 0.3), (0.5, 0.5), 0.28),
}
ORDERS = ("fcfs", "sept", "reverse")
AGED = ("fcfs", "sept", "esept", "esept/age=0.02", "esept/age=0.05", "esept/age=0.2")
THREE, SIX = (-0.5, 1.5, -1.0), (-0.5, 1.2, -0.8, 0.5, 0.5, -0.5)
LOADS = {0.75: 0.20, 0.9: 0.24}  # of THREE: chance of an arrival
TRACKED = {"d = 3, load 0.90": (0.24, THREE), "d = 6, load 0.79": (0.22, SIX)}
SIZES = {  # rounds and seeds of the means; rounds of the waits; runs, blocks and rounds of the tracking
    "quick": ((40_000, 4), 100_000, (10, 4, 2048)),
    "full": ((400_000, 8), 1_000_000, (50, 30, 8192)),
}
QUANTILES = (50.0, 99.0, 99.9, 100.0)


def closed(name: str, order: str) -> float:
    """The exact mean number in the system."""
    p, shares, lam = CLASSES[name]
    rates = [lam * share for share in shares]
    if order == "fcfs":
        return contextual.fcfs_mean(p, rates)
    step = 1 if order == "sept" else -1
    return contextual.priority_mean(p[::step], rates[::step])


def stationary(name: str, order: str, rounds: int, seed: int) -> Result:
    """Mean number in the system, the first twentieth left out."""
    served = contextual.run(order, Source.of(*CLASSES[name]), rounds, seed)
    return {"number": served.mean_number(rounds // 20, rounds)}


def waits(order: str, lam: float, rounds: int, seed: int) -> Result:
    """Mean number in the system; mean and quantiles of the waits, in rounds."""
    served = contextual.run(order, Source(lam, THREE), rounds, seed)
    return {
        "number": served.mean_number(0, rounds),
        "mean": float(served.waits.mean()),
        "quantiles": np.percentile(served.waits, QUANTILES).tolist(),
    }


def windows(rounds: int) -> list[tuple[int, int]]:
    """[64, 128), [128, 256), …"""
    found = [(64, 128)]
    while found[-1][1] < rounds:
        found.append((found[-1][1], 2 * found[-1][1]))
    return found


def tracked(lam: float, theta: list[float], rounds: int, runs: int, seed: int) -> Result:
    """By run and window of time, the number in the system less that of SEPT, on the same jobs."""
    source = Source(lam, tuple(theta))
    found: dict[str, list[list[float]]] = {"esept": [], "fcfs": []}
    for j in range(seed * runs, (seed + 1) * runs):
        jobs = contextual.draw(source, rounds, j)
        number = {}
        for order in ("sept", "esept", "fcfs"):
            served = contextual.serve(contextual.make_discipline(order, source, rounds), jobs, rounds)
            number[order] = [served.mean_number(*window) for window in windows(rounds)]
        for order, rows in found.items():
            rows.append([a - b for a, b in zip(number[order], number["sept"], strict=True)])
    return found


@dataclass(frozen=True)
class Sept:
    """The study."""

    name: str = "sept"
    title: str = "Shortest expected service first"

    def pieces(self, size: str, seed: int) -> list[Piece]:
        (rounds, seeds), waited, (runs, blocks, track) = SIZES[size]
        found = []
        for name in CLASSES:
            for order in ORDERS:
                for j in range(seed, seed + seeds):
                    given: dict[str, Any] = {"name": name, "order": order, "rounds": rounds, "seed": j}
                    found.append(Piece(f"mean {name} {order} {j}", stationary, given))
        for load, lam in LOADS.items():
            for order in AGED:
                given = {"order": order, "lam": lam, "rounds": waited, "seed": seed}
                found.append(Piece(f"waits {load} {order}", waits, given))
        for what, (lam, theta) in TRACKED.items():
            for j in range(blocks):
                given = {"lam": lam, "theta": list(theta), "rounds": track, "runs": runs, "seed": seed + j}
                found.append(Piece(f"track {what} | {j}", tracked, given))
        return found

    def _mean(self, results: Results, name: str, order: str) -> tuple[float, float]:
        return spread([each["number"] for key, each in results.items() if key.startswith(f"mean {name} {order} ")])

    def _lag(self, results: Results, what: str, order: str) -> list[tuple[float, float]]:
        """Mean and standard error over runs, by window."""
        runs = [row for key, each in results.items() if key.startswith(f"track {what} | ") for row in each[order]]
        return [spread(list(values)) for values in zip(*runs, strict=True)]

    def tables(self, results: Results) -> list[Table]:
        means = Table(title="Mean number in the system, ± standard error, and exact", title_justify="left")
        for column in ("", *ORDERS):
            means.add_column(column, justify="right")
        for name in CLASSES:
            cells = (f"{with_error(*self._mean(results, name, order))} ({closed(name, order):.4f})" for order in ORDERS)
            means.add_row(name, *cells)
        starved = Table(title="Waits in rounds, contexts of three components", title_justify="left")
        for column in ("load", "order", "in system", "mean wait", "p50", "p99", "p99.9", "longest"):
            starved.add_column(column, justify="left" if column == "order" else "right")
        for load in LOADS:
            for order in AGED:
                each = results[f"waits {load} {order}"]
                quantiles = (f"{value:,.0f}" for value in each["quantiles"])
                starved.add_row(f"{load:g}", order, f"{each['number']:.4f}", f"{each['mean']:.2f}", *quantiles)
        lag = Table(title="Number in the system above that of SEPT, on the same jobs", title_justify="left")
        for column in ("rounds", *(f"{what}: {order}" for what in TRACKED for order in ("esept", "fcfs"))):
            lag.add_column(column, justify="right")
        columns = [self._lag(results, what, order) for what in TRACKED for order in ("esept", "fcfs")]
        for i, (first, last) in enumerate(windows(64 * 2 ** len(columns[0]))):
            lag.add_row(f"{first}-{last}", *(with_error(*column[i]) for column in columns))
        return [means, starved, lag]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        found = []
        for name in CLASSES:
            for order in ORDERS:
                mean, error = self._mean(results, name, order)
                found.append({"what": f"mean {name}", "order": order, "value": mean, "error": error})
        for load in LOADS:
            for order in AGED:
                each = results[f"waits {load} {order}"]
                shown = dict(zip(("p50", "p99", "p99.9", "longest"), each["quantiles"], strict=True))
                for key, value in ({"number": each["number"], "mean": each["mean"]} | shown).items():
                    found.append({"what": f"load {load} {key}", "order": order, "value": value, "error": ""})
        for what in TRACKED:
            for order in ("esept", "fcfs"):
                for i, (mean, error) in enumerate(self._lag(results, what, order)):
                    found.append({"what": f"{what} from {64 * 2**i}", "order": order, "value": mean, "error": error})
        return found

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        far = max(
            abs(mean - closed(name, order)) / error
            for name in CLASSES for order in ORDERS for mean, error in [self._mean(results, name, order)]
        )  # fmt: skip
        close = max(abs(self._at(results, load, "esept") / self._at(results, load, "sept") - 1) for load in LOADS)
        late, small = True, 0.0
        for what in TRACKED:
            first, *_, (lag, error) = self._lag(results, what, "esept")
            behind = self._lag(results, what, "fcfs")[-1][0]
            late = late and lag <= max(2 * error, 0.05 * behind) and lag <= first[0] + 2 * (first[1] + error)
            small = max(small, lag / behind)
        longest = {order: results[f"waits 0.9 {order}"]["quantiles"][-1] for order in AGED}
        price = results["waits 0.9 esept/age=0.02"]["mean"] / results["waits 0.9 sept"]["mean"] - 1
        shown = ", ".join(f"{order} {value:,.0f}" for order, value in longest.items() if order != "esept")
        return [
            verdict("simulated means are the closed forms, within 4 standard errors", far <= 4, f"{far:.1f} at most"),
            verdict("eSEPT has as many in the system as SEPT, within 1 %", close < 0.01, f"{close:.2%} off at most"),
            verdict("its lag behind SEPT is in the end within two standard errors of none or below 5 % of that of FCFS",
                    late, f"{small:.1%} of that of FCFS at most"),
            verdict("SEPT lets some jobs wait many times longer than FCFS; aging by 0.02 halves that, for less than a"
                    " fifth more of the mean wait", longest["sept"] > 4 * longest["fcfs"]
                    and longest["esept/age=0.02"] < longest["sept"] / 2 and price < 0.2,
                    f"longest waits at load 0.9: {shown}; {price:+.0%}"),
        ]  # fmt: skip

    def _at(self, results: Results, load: float, order: str) -> float:
        value: float = results[f"waits {load} {order}"]["number"]
        return value

    def draw(self, results: Results, path: Path) -> None:
        figure, left, middle, right = canvas(13, 4.4, columns=3)
        names = ("mean", "p50", "p99", "p99.9", "longest")
        for axes, load in zip((left, middle), LOADS, strict=True):
            for order, colour in zip(AGED, COLOURS, strict=False):
                each = results[f"waits {load} {order}"]
                values = [each["mean"], *each["quantiles"]]
                axes.plot(names, [max(1, value) for value in values], "o-", color=colour, label=order, linewidth=1.2)
            axes.set_yscale("log")
            axes.set_title(f"waits in rounds, load {load:g}", fontsize=10)
        left.legend(fontsize=8)
        for what, colour in zip(TRACKED, COLOURS, strict=False):
            for order, line in (("esept", "o-"), ("fcfs", "s--")):
                lag = self._lag(results, what, order)
                at = [96 * 2**i for i in range(len(lag))]
                errors = [2 * error for _, error in lag]
                label = f"{order}, {what}"
                means = [max(mean, 1e-4) for mean, _ in lag]
                right.errorbar(at, means, yerr=errors, fmt=line, color=colour, label=label, capsize=2, markersize=4)
        right.set_xscale("log")
        right.set_yscale("log")
        right.set_ylim(1e-4, 20)
        right.set_xlabel("rounds")
        right.set_title("more in the system than under SEPT", fontsize=10)
        right.legend(fontsize=8)
        figure.savefig(path, dpi=130)


SEPT = Sept()
