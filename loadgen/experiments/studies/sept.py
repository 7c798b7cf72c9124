"""sept: the order in which a queue serves jobs whose service times depend on their contexts.

The study compares stationary means, shows how soon learned coefficients are as good as known ones, and measures how
long slow jobs wait.

Sources: as in `workers.scheduling.disciplines`. The closed forms are those of Geo/G/1 without and with priorities.
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
from loadgen.experiments.tables import with_error
from loadgen.plot import COLOURS
from loadgen.sim import job_scheduling
from loadgen.sim.job_scheduling import Source

CLASSES = {  # probabilities of completion in a round, shares, probability of an arrival
    "P": ((0.9, 0.1), (0.8, 0.2), 0.25),
    "R": ((0.6, 0.3), (0.5, 0.5), 0.28),
}
ORDERS = ("fcfs", "sept", "reverse")
AGED = ("fcfs", "sept", "esept", "esept/age=0.02", "esept/age=0.05", "esept/age=0.2")
THREE, SIX = (-0.5, 1.5, -1.0), (-0.5, 1.2, -0.8, 0.5, 0.5, -0.5)
LOADS = {0.75: 0.20, 0.9: 0.24}  # of THREE: load and probability of an arrival
TRACKED = {"d = 3, load 0.90": (0.24, THREE), "d = 6, load 0.79": (0.22, SIX)}
SIZES = {  # rounds and seeds of the means; rounds of the waits; runs, blocks and rounds of the tracking
    "quick": ((40_000, 4), 100_000, (10, 4, 2048)),
    "full": ((400_000, 8), 1_000_000, (50, 30, 8192)),
}
QUANTILES = (50.0, 99.0, 99.9, 100.0)


def exact_mean(name: str, order: str) -> float:
    """Return the exact mean number in the system."""
    p, shares, lam = CLASSES[name]
    rates = [lam * share for share in shares]
    if order == "fcfs":
        return job_scheduling.fcfs_mean(p, rates)
    step = 1 if order == "sept" else -1
    return job_scheduling.priority_mean(p[::step], rates[::step])


def stationary(name: str, order: str, rounds: int, seed: int) -> Result:
    """Return the mean number in the system, without the first twentieth of the run."""
    served = job_scheduling.run(order, Source.of(*CLASSES[name]), rounds, seed)
    return {"number": served.mean_number(rounds // 20, rounds)}


def waits(order: str, lam: float, rounds: int, seed: int) -> Result:
    """Return the mean number in the system, and mean and quantiles of the waits in rounds."""
    served = job_scheduling.run(order, Source(lam, THREE), rounds, seed)
    return {
        "number": served.mean_number(0, rounds),
        "mean": float(served.waits.mean()),
        "quantiles": np.percentile(served.waits, QUANTILES).tolist(),
    }


def windows(rounds: int) -> list[tuple[int, int]]:
    """Return the windows [64, 128), [128, 256), … up to so many rounds."""
    bounds = [(64, 128)]
    while bounds[-1][1] < rounds:
        bounds.append((bounds[-1][1], 2 * bounds[-1][1]))
    return bounds


def tracked(lam: float, theta: list[float], rounds: int, runs: int, seed: int) -> Result:
    """Return the number in the system less that of SEPT on the same jobs, by run and window of time."""
    source = Source(lam, tuple(theta))
    # Block `seed` has the runs from seed · runs on, so no two blocks share a run.
    excess: dict[str, list[list[float]]] = {"esept": [], "fcfs": []}
    for j in range(seed * runs, (seed + 1) * runs):
        jobs = job_scheduling.draw(source, rounds, j)
        number = {}
        for order in ("sept", "esept", "fcfs"):
            served = job_scheduling.serve(job_scheduling.make_discipline(order, source, rounds), jobs, rounds)
            number[order] = [served.mean_number(*window) for window in windows(rounds)]
        for order, rows in excess.items():
            rows.append([a - b for a, b in zip(number[order], number["sept"], strict=True)])
    return excess


@dataclass(frozen=True)
class Sept:
    """Compares orders of service by stationary means, waits and the time of learning."""

    name: str = "sept"
    title: str = "Shortest expected service first"

    def pieces(self, size: str, seed: int) -> list[Piece]:
        (rounds, seeds), wait_rounds, (runs, blocks, track_rounds) = SIZES[size]
        pieces = []
        for name in CLASSES:
            for order in ORDERS:
                for j in range(seed, seed + seeds):
                    arguments: dict[str, Any] = {"name": name, "order": order, "rounds": rounds, "seed": j}
                    pieces.append(Piece(f"mean {name} {order} {j}", stationary, arguments))
        for load, lam in LOADS.items():
            for order in AGED:
                arguments = {"order": order, "lam": lam, "rounds": wait_rounds, "seed": seed}
                pieces.append(Piece(f"waits {load} {order}", waits, arguments))
        for case, (lam, theta) in TRACKED.items():
            for j in range(blocks):
                arguments = {"lam": lam, "theta": list(theta), "rounds": track_rounds, "runs": runs, "seed": seed + j}
                pieces.append(Piece(f"track {case} | {j}", tracked, arguments))
        return pieces

    def _mean(self, results: Results, name: str, order: str) -> tuple[float, float]:
        return spread([result["number"] for key, result in results.items() if key.startswith(f"mean {name} {order} ")])

    def _lag(self, results: Results, case: str, order: str) -> list[tuple[float, float]]:
        """Return mean and standard error of the excess over the runs, by window."""
        runs = [row for key, result in results.items() if key.startswith(f"track {case} | ") for row in result[order]]
        return [spread(list(values)) for values in zip(*runs, strict=True)]

    def tables(self, results: Results) -> list[Table]:
        means = Table(title="Mean number in the system, ± standard error, and exact", title_justify="left")
        for column in ("", *ORDERS):
            means.add_column(column, justify="right")
        for name in CLASSES:
            cells = (
                f"{with_error(*self._mean(results, name, order))} ({exact_mean(name, order):.4f})" for order in ORDERS
            )
            means.add_row(name, *cells)
        starved = Table(title="Waits in rounds, contexts of three components", title_justify="left")
        for column in ("load", "order", "in system", "mean wait", "p50", "p99", "p99.9", "longest"):
            starved.add_column(column, justify="left" if column == "order" else "right")
        for load in LOADS:
            for order in AGED:
                result = results[f"waits {load} {order}"]
                quantiles = (f"{value:,.0f}" for value in result["quantiles"])
                starved.add_row(f"{load:g}", order, f"{result['number']:.4f}", f"{result['mean']:.2f}", *quantiles)
        lag = Table(title="Number in the system above that of SEPT, on the same jobs", title_justify="left")
        for column in ("rounds", *(f"{case}: {order}" for case in TRACKED for order in ("esept", "fcfs"))):
            lag.add_column(column, justify="right")
        columns = [self._lag(results, case, order) for case in TRACKED for order in ("esept", "fcfs")]
        # A run of 64 · 2ⁿ rounds has n windows, and each column has a value for each window.
        for i, (first, last) in enumerate(windows(64 * 2 ** len(columns[0]))):
            lag.add_row(f"{first}-{last}", *(with_error(*column[i]) for column in columns))
        return [means, starved, lag]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        rows = []
        for name in CLASSES:
            for order in ORDERS:
                mean, error = self._mean(results, name, order)
                rows.append({"what": f"mean {name}", "order": order, "value": mean, "error": error})
        for load in LOADS:
            for order in AGED:
                result = results[f"waits {load} {order}"]
                values = {"number": result["number"], "mean": result["mean"]}
                values |= zip(("p50", "p99", "p99.9", "longest"), result["quantiles"], strict=True)
                for key, value in values.items():
                    rows.append({"what": f"load {load} {key}", "order": order, "value": value, "error": ""})
        for case in TRACKED:
            for order in ("esept", "fcfs"):
                for i, (mean, error) in enumerate(self._lag(results, case, order)):
                    rows.append({"what": f"{case} from {64 * 2**i}", "order": order, "value": mean, "error": error})
        return rows

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        far = 0.0
        for name in CLASSES:
            for order in ORDERS:
                mean, error = self._mean(results, name, order)
                far = max(far, abs(mean - exact_mean(name, order)) / error)
        close = max(abs(self._at(results, load, "esept") / self._at(results, load, "sept") - 1) for load in LOADS)
        late, small = True, 0.0
        for case in TRACKED:
            first, *_, (lag, error) = self._lag(results, case, "esept")
            behind = self._lag(results, case, "fcfs")[-1][0]
            late = late and lag <= max(2 * error, 0.05 * behind) and lag <= first[0] + 2 * (first[1] + error)
            small = max(small, lag / behind)
        longest = {order: results[f"waits 0.9 {order}"]["quantiles"][-1] for order in AGED}
        price = results["waits 0.9 esept/age=0.02"]["mean"] / results["waits 0.9 sept"]["mean"] - 1
        text = ", ".join(f"{order} {value:,.0f}" for order, value in longest.items() if order != "esept")
        return [
            verdict("simulated means are the closed forms, within 4 standard errors", far <= 4, f"{far:.1f} at most"),
            verdict("eSEPT has as many in the system as SEPT, within 1 %", close < 0.01, f"{close:.2%} off at most"),
            verdict(
                "its lag behind SEPT is in the end within two standard errors of none or below 5 % of that of FCFS",
                late,
                f"{small:.1%} of that of FCFS at most",
            ),
            verdict(
                "SEPT lets some jobs wait many times longer than FCFS; aging by 0.02 halves that, for less than a"
                " fifth more of the mean wait",
                longest["sept"] > 4 * longest["fcfs"]
                and longest["esept/age=0.02"] < longest["sept"] / 2
                and price < 0.2,
                f"longest waits at load 0.9: {text}; {price:+.0%}",
            ),
        ]

    def _at(self, results: Results, load: float, order: str) -> float:
        value: float = results[f"waits {load} {order}"]["number"]
        return value

    def draw(self, results: Results, path: Path) -> None:
        figure, left, middle, right = canvas(13, 4.4, columns=3)
        names = ("mean", "p50", "p99", "p99.9", "longest")
        for axes, load in zip((left, middle), LOADS, strict=True):
            for order, colour in zip(AGED, COLOURS, strict=False):
                result = results[f"waits {load} {order}"]
                values = [result["mean"], *result["quantiles"]]
                axes.plot(names, [max(1, value) for value in values], "o-", color=colour, label=order, linewidth=1.2)
            axes.set_yscale("log")
            axes.set_title(f"waits in rounds, load {load:g}", fontsize=10)
        left.legend(fontsize=8)
        for case, colour in zip(TRACKED, COLOURS, strict=False):
            for order, line in (("esept", "o-"), ("fcfs", "s--")):
                lag = self._lag(results, case, order)
                at = [96 * 2**i for i in range(len(lag))]  # the middle of each window
                errors = [2 * error for _, error in lag]
                label = f"{order}, {case}"
                means = [max(mean, 1e-4) for mean, _ in lag]  # the axis is logarithmic, and a mean may be negative
                right.errorbar(at, means, yerr=errors, fmt=line, color=colour, label=label, capsize=2, markersize=4)
        right.set_xscale("log")
        right.set_yscale("log")
        right.set_ylim(1e-4, 20)
        right.set_xlabel("rounds")
        right.set_title("more in the system than under SEPT", fontsize=10)
        right.legend(fontsize=8)
        plot.save(figure, path)


SEPT = Sept()
