"""lcp: a queue whose end is known in advance.

The study shows what the optimum gains over shortest expected service first (SEPT), and how many of the last rounds must
be planned. It also shows the regret of a plan whose probabilities were learned.

Sources: as in `workers.scheduling.lcp`. P, Q and R have two classes; the second is 9, 18 and 2 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.table import Table

from loadgen import plot
from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.runner import Piece, Result, Results, canvas, spread, verdict
from loadgen.experiments.tables import with_error
from loadgen.plot import COLOURS
from loadgen.sim import job_scheduling
from loadgen.sim.job_scheduling import Source
from workers.scheduling.planner import Queue

QUEUES = {  # probabilities of completion in a round, shares, probability of an arrival, largest queues
    "P": ((0.9, 0.1), (0.8, 0.2), 0.25, (20, 60)),
    "Q": ((0.9, 0.05), (0.9, 0.1), 0.25, (24, 60)),
    "R": ((0.6, 0.3), (0.5, 0.5), 0.28, (24, 50)),
}
HORIZONS = (50, 100, 200, 400)
WINDOWS = (1, 2, 5, 10, 20, 40, 80)
LEARNED = ("P", "R")
EVALUATION_ROUNDS = 150  # from an empty queue
ORDERS = ("fcfs", "sept", "esept", "lcp/window=80", "lcp/window=80/learn=0.5")
RUN_ROUNDS = 600  # of a run to the end
SIZES = {  # learning times in rounds, draws of each, runs to the end
    "quick": ((100, 400, 1600), 16, 40),
    "full": ((100, 200, 400, 800, 1600, 3200, 6400), 80, 240),
}


def queue(name: str) -> Queue:
    p, shares, lam, caps = QUEUES[name]
    return Queue(p, tuple(lam * share for share in shares), caps)


def source(name: str) -> Source:
    return Source.of(*QUEUES[name][:3])


def exact_values(name: str) -> Result:
    """Return the exact number of jobs left, by rule and horizon.

    regrets: by window, the cost of planning only the last rounds of the longest horizon.
    """
    left = job_scheduling.horizons(queue(name), HORIZONS[-1])
    best = left["optimum"][-1]
    regrets = [job_scheduling.number_left_by_window(queue(name), HORIZONS[-1], window) - best for window in WINDOWS]
    return {rule: [values[h] for h in HORIZONS] for rule, values in left.items()} | {"regrets": regrets}


def learned_plans(name: str, rounds: int, draws: int, seed: int) -> Result:
    """Return the exact regret of plans that were learned from half of so many rounds, by draw of the observations."""
    truth = queue(name)
    exact = job_scheduling.horizons(truth, EVALUATION_ROUNDS)
    best = exact["optimum"][-1]
    costs = [
        job_scheduling.number_left_by_plan(
            truth, job_scheduling.estimated_queue(source(name), truth, rounds, j), EVALUATION_ROUNDS
        )
        for j in range(seed * draws, (seed + 1) * draws)
    ]
    return {"regrets": [round(cost - best, 9) for cost in costs], "sept": exact["sept"][-1] - best}


def to_the_end(runs: int, seed: int) -> Result:
    """Return the jobs left after the last round, by order and run."""
    left_by_order: dict[str, list[int]] = {order: [] for order in ORDERS}
    for j in range(seed * runs, (seed + 1) * runs):
        jobs = job_scheduling.draw(source("Q"), RUN_ROUNDS, j)
        for order, left in left_by_order.items():
            discipline = job_scheduling.make_discipline(order, source("Q"), RUN_ROUNDS)
            left.append(job_scheduling.serve(discipline, jobs, RUN_ROUNDS).left)
    return left_by_order


@dataclass(frozen=True)
class Lcp:
    """Compares the optimal plan, SEPT and learned plans."""

    name: str = "lcp"
    title: str = "A queue whose end is known"

    def pieces(self, size: str, seed: int) -> list[Piece]:
        times, draws, runs = SIZES[size]
        pieces = [Piece(f"exact {name}", exact_values, {"name": name}) for name in QUEUES]
        for name in LEARNED:
            for rounds in times:
                arguments = {"name": name, "rounds": rounds, "draws": draws, "seed": seed}
                pieces.append(Piece(f"learned {name} {rounds}", learned_plans, arguments))
        return [*pieces, Piece("end", to_the_end, {"runs": runs, "seed": seed})]

    def _learned(self, results: Results, name: str) -> dict[int, tuple[float, float]]:
        """Return mean and standard error of the regret of learned plans, by rounds of learning."""
        prefix = f"learned {name} "
        keys = [key for key in results if key.startswith(prefix)]
        return {int(key.removeprefix(prefix)): spread(results[key]["regrets"]) for key in keys}

    def _to_sept(self, results: Results, order: str) -> tuple[float, float]:
        """Return mean and standard error of the jobs left less those under SEPT, paired by run."""
        left = results["end"]
        return spread([a - b for a, b in zip(left[order], left["sept"], strict=True)])

    def tables(self, results: Results) -> list[Table]:
        exact = Table(title="Exact: jobs left at the end, optimum / SEPT, by rounds from empty", title_justify="left")
        for column in ("", *map(str, HORIZONS)):
            exact.add_column(column, justify="right")
        title = f"Exact: regret of SEPT with the last rounds planned, {HORIZONS[-1]} rounds"
        window = Table(title=title, title_justify="left")
        for column in ("", *(f"last {w}" for w in WINDOWS)):
            window.add_column(column, justify="right")
        for name in QUEUES:
            result = results[f"exact {name}"]
            pairs = zip(result["optimum"], result["sept"], strict=True)
            exact.add_row(name, *(f"{a:.6f} / {b:.6f}" for a, b in pairs))
            # A rounding error would print as -0.000000.
            window.add_row(name, *(f"{max(0.0, value):.6f}" for value in result["regrets"]))
        plans = Table(
            title=f"Regret of learned plans over {EVALUATION_ROUNDS} rounds, ± standard error", title_justify="left"
        )
        times = list(self._learned(results, LEARNED[0]))
        for column in ("learned in", *LEARNED):
            plans.add_column(column, justify="right")
        for rounds in times:
            cells = (with_error(*self._learned(results, name)[rounds]) for name in LEARNED)
            plans.add_row(f"{rounds:,} rounds", *cells)
        plans.add_row("SEPT", *(f"{results[f'learned {name} {times[0]}']['sept']:.6f}" for name in LEARNED))
        end = Table(title=f"Q run to its end, {RUN_ROUNDS} rounds: jobs left", title_justify="left")
        for column in ("order", "left", "less SEPT"):
            end.add_column(column, justify="left" if column == "order" else "right")
        for order in ORDERS:
            end.add_row(order, with_error(*spread(results["end"][order])), with_error(*self._to_sept(results, order)))
        return [exact, window, plans, end]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        rows = []
        for name in QUEUES:
            result = results[f"exact {name}"]
            for kind in ("optimum", "sept"):
                for h, value in zip(HORIZONS, result[kind], strict=True):
                    rows.append({"what": f"{name} {kind}", "rounds": h, "value": value, "error": ""})
            for w, value in zip(WINDOWS, result["regrets"], strict=True):
                rows.append({"what": f"{name} planned at the end", "rounds": w, "value": value, "error": ""})
        for name in LEARNED:
            for rounds, (mean, error) in self._learned(results, name).items():
                rows.append({"what": f"{name} learned plan", "rounds": rounds, "value": mean, "error": error})
        for order in ORDERS:
            mean, error = spread(results["end"][order])
            rows.append({"what": f"Q left, {order}", "rounds": RUN_ROUNDS, "value": mean, "error": error})
        return rows

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        regrets = self._learned(results, "P")
        times = list(regrets)
        first, last = regrets[times[0]], regrets[times[-1]]
        falls = all(regrets[b][0] < regrets[a][0] + 2 * (regrets[a][1] + regrets[b][1]) for a, b in pairwise(times))
        gap = results[f"learned P {times[0]}"]["sept"]
        exact = results["exact Q"]
        gaps = [sept - best for best, sept in zip(exact["optimum"], exact["sept"], strict=True)]
        enough = {name: self._sufficient_window(results, name) for name in ("P", "Q")}
        end, error = self._to_sept(results, "lcp/window=80")
        return [
            verdict(
                "SEPT's regret does not vanish as the horizon grows",
                gaps[-1] > 0.9,
                f"Q: {', '.join(f'{value:.3f}' for value in gaps)}",
            ),
            verdict(
                "the last rounds are all that must be planned",
                enough["P"] <= 20 and enough["Q"] <= 80,
                f"no regret from {enough['P']} on in P, {enough['Q']} in Q",
            ),
            verdict(
                "a learned plan's regret falls with the time of learning, and below SEPT's",
                falls and last[0] < first[0] / 3 and last[0] < gap,
                f"P: {first[0]:.3f} to {last[0]:.4f}; SEPT {gap:.3f}",
            ),
            verdict("run to the end, lcp leaves fewer than SEPT", end < -2 * error, f"{end:+.2f} ± {error:.2f}"),
        ]

    def _sufficient_window(self, results: Results, name: str) -> int:
        """Return the least number of planned rounds that has no regret."""
        regrets = zip(WINDOWS, results[f"exact {name}"]["regrets"], strict=True)
        # Less than 1e-6 counts as a rounding error of the two exact values.
        return min((window for window, regret in regrets if regret < 1e-6), default=RUN_ROUNDS)

    def draw(self, results: Results, path: Path) -> None:
        figure, left, middle, right = canvas(13, 4.2, columns=3)
        for name, colour in zip(QUEUES, COLOURS, strict=False):
            regrets = [max(value, 1e-7) for value in results[f"exact {name}"]["regrets"]]
            left.plot(WINDOWS, regrets, "o-", color=colour, label=name)
        left.set_xscale("log")
        left.set_yscale("symlog", linthresh=1e-3)
        left.set_ylim(-1e-4, 2)
        left.set_xlabel("last rounds that are planned")
        left.set_title("regret of SEPT before them, exact", fontsize=10)
        left.legend(fontsize=8)
        for name, colour in zip(LEARNED, COLOURS, strict=False):
            regrets_of = self._learned(results, name)
            # The axis is logarithmic, and the optimal plan has no regret.
            positive = {rounds: regret for rounds, regret in regrets_of.items() if regret[0] > 1e-6}
            means, errors = [mean for mean, _ in positive.values()], [2 * error for _, error in positive.values()]
            label = f"lcp, {name}"
            middle.errorbar(list(positive), means, yerr=errors, fmt="o-", color=colour, capsize=3, label=label)
        gap = next(result["sept"] for key, result in results.items() if key.startswith("learned P "))
        middle.axhline(gap, color="black", linestyle=":", label="SEPT, P")
        middle.set_xscale("log")
        middle.set_yscale("log")
        middle.set_xlabel("rounds of learning")
        middle.set_title(f"regret of learned plans over {EVALUATION_ROUNDS} rounds", fontsize=10)
        middle.legend(fontsize=8)
        for x, order in enumerate(ORDERS):
            mean, error = spread(results["end"][order])
            right.bar(x, mean, 0.6, yerr=2 * error, color=COLOURS[x], capsize=3)
        right.set_xticks(range(len(ORDERS)), [order.replace("/", "\n") for order in ORDERS], fontsize=8)
        right.set_title(f"Q after {RUN_ROUNDS} rounds: jobs left", fontsize=10)
        plot.save(figure, path)


LCP = Lcp()
