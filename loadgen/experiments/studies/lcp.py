"""lcp: a queue with an end that is known. What the optimum gains over shortest expected service first, how much of the
end must be planned, and what a plan is worth that had to be learned.

Sources: as `workers.scheduling.lcp`. P, Q, R: two classes, of which the second is 9, 18 and 2 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.table import Table

from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.runner import Piece, Result, Results, canvas, spread, verdict
from loadgen.experiments.tables import with_error
from loadgen.plot import COLOURS
from loadgen.sim import job_scheduling as contextual
from loadgen.sim.job_scheduling import Source
from workers.scheduling.planner import Queue

QUEUES = {  # chances of being done in a round, shares, chance of an arrival, caps
    "P": ((0.9, 0.1), (0.8, 0.2), 0.25, (20, 60)),
    "Q": ((0.9, 0.05), (0.9, 0.1), 0.25, (24, 60)),
    "R": ((0.6, 0.3), (0.5, 0.5), 0.28, (24, 50)),
}
HORIZONS = (50, 100, 200, 400)
WINDOWS = (1, 2, 5, 10, 20, 40, 80)
LEARNED = ("P", "R")
EVALUATED = 150  # rounds, from empty
ORDERS = ("fcfs", "sept", "esept", "lcp/window=80", "lcp/window=80/learn=0.5")
END = 600  # rounds of the run to the end
SIZES = {"quick": ((100, 400, 1600), 16, 40), "full": ((100, 200, 400, 800, 1600, 3200, 6400), 80, 240)}
# learning times, draws of each; runs to the end


def queue(name: str) -> Queue:
    p, shares, lam, caps = QUEUES[name]
    return Queue(p, tuple(lam * share for share in shares), caps)


def source(name: str) -> Source:
    return Source.of(*QUEUES[name][:3])


def values(name: str) -> Result:
    """Exact: the number left by horizon, and what planning the last rounds only costs at the longest."""
    found = contextual.horizons(queue(name), HORIZONS[-1])
    best = found["optimum"][-1]
    regrets = [contextual.number_left_by_window(queue(name), HORIZONS[-1], window) - best for window in WINDOWS]
    return {kind: [each[h] for h in HORIZONS] for kind, each in found.items()} | {"regrets": regrets}


def learned(name: str, rounds: int, draws: int, seed: int) -> Result:
    """Regret of plans that were learned from half of so many rounds; exact for each draw of what was seen."""
    truth = queue(name)
    exact = contextual.horizons(truth, EVALUATED)
    best = exact["optimum"][-1]
    costs = [
        contextual.number_left_by_plan(truth, contextual.learned(source(name), truth, rounds, j), EVALUATED)
        for j in range(seed * draws, (seed + 1) * draws)
    ]
    return {"regrets": [round(cost - best, 9) for cost in costs], "sept": exact["sept"][-1] - best}


def to_the_end(runs: int, seed: int) -> Result:
    """Jobs left after the last round, by order and run."""
    found: dict[str, list[int]] = {order: [] for order in ORDERS}
    for j in range(seed * runs, (seed + 1) * runs):
        jobs = contextual.draw(source("Q"), END, j)
        for order, left in found.items():
            left.append(contextual.serve(contextual.make_discipline(order, source("Q"), END), jobs, END).left)
    return found


@dataclass(frozen=True)
class Ends:
    """The study."""

    name: str = "lcp"
    title: str = "A queue whose end is known"

    def pieces(self, size: str, seed: int) -> list[Piece]:
        times, draws, runs = SIZES[size]
        found = [Piece(f"exact {name}", values, {"name": name}) for name in QUEUES]
        found += [
            Piece(f"learned {name} {rounds}", learned, {"name": name, "rounds": rounds, "draws": draws, "seed": seed})
            for name in LEARNED for rounds in times
        ]  # fmt: skip
        return [*found, Piece("end", to_the_end, {"runs": runs, "seed": seed})]

    def _learned(self, results: Results, name: str) -> dict[int, tuple[float, float]]:
        return {
            int(key.split(" ")[2]): spread(each["regrets"])
            for key, each in results.items() if key.startswith(f"learned {name} ")
        }  # fmt: skip

    def _to_sept(self, results: Results, order: str) -> tuple[float, float]:
        left = results["end"]
        return spread([a - b for a, b in zip(left[order], left["sept"], strict=True)])

    def tables(self, results: Results) -> list[Table]:
        exact = Table(title="Exact: jobs left at the end, optimum / SEPT, by rounds from empty", title_justify="left")
        for column in ("", *map(str, HORIZONS)):
            exact.add_column(column, justify="right")
        window = Table(title=f"Exact: regret of SEPT with the last rounds planned, {HORIZONS[-1]} rounds",
                       title_justify="left")  # fmt: skip
        for column in ("", *(f"last {w}" for w in WINDOWS)):
            window.add_column(column, justify="right")
        for name in QUEUES:
            each = results[f"exact {name}"]
            pairs = zip(each["optimum"], each["sept"], strict=True)
            exact.add_row(name, *(f"{a:.6f} / {b:.6f}" for a, b in pairs))
            window.add_row(name, *(f"{max(0.0, value):.6f}" for value in each["regrets"]))
        plans = Table(title=f"Regret of learned plans over {EVALUATED} rounds, ± standard error", title_justify="left")
        times = list(self._learned(results, LEARNED[0]))
        for column in ("learned in", *LEARNED):
            plans.add_column(column, justify="right")
        for rounds in times:
            cells = (with_error(*self._learned(results, name)[rounds]) for name in LEARNED)
            plans.add_row(f"{rounds:,} rounds", *cells)
        plans.add_row("SEPT", *(f"{results[f'learned {name} {times[0]}']['sept']:.6f}" for name in LEARNED))
        end = Table(title=f"Q run to its end, {END} rounds: jobs left", title_justify="left")
        for column in ("order", "left", "less SEPT"):
            end.add_column(column, justify="left" if column == "order" else "right")
        for order in ORDERS:
            end.add_row(order, with_error(*spread(results["end"][order])), with_error(*self._to_sept(results, order)))
        return [exact, window, plans, end]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        found = []
        for name in QUEUES:
            each = results[f"exact {name}"]
            for kind in ("optimum", "sept"):
                for h, value in zip(HORIZONS, each[kind], strict=True):
                    found.append({"what": f"{name} {kind}", "rounds": h, "value": value, "error": ""})
            for w, value in zip(WINDOWS, each["regrets"], strict=True):
                found.append({"what": f"{name} planned at the end", "rounds": w, "value": value, "error": ""})
        for name in LEARNED:
            for rounds, (mean, error) in self._learned(results, name).items():
                found.append({"what": f"{name} learned plan", "rounds": rounds, "value": mean, "error": error})
        for order in ORDERS:
            mean, error = spread(results["end"][order])
            found.append({"what": f"Q left, {order}", "rounds": END, "value": mean, "error": error})
        return found

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        regrets = self._learned(results, "P")
        times = list(regrets)
        first, last = regrets[times[0]], regrets[times[-1]]
        falls = all(regrets[b][0] < regrets[a][0] + 2 * (regrets[a][1] + regrets[b][1])
                    for a, b in pairwise(times))  # fmt: skip
        gap = results[f"learned P {times[0]}"]["sept"]
        gaps = [b - a for a, b in zip(*(results["exact Q"][kind] for kind in ("optimum", "sept")), strict=True)]
        enough = {name: min((w for w, regret in zip(WINDOWS, results[f"exact {name}"]["regrets"], strict=True)
                             if regret < 1e-6), default=END) for name in ("P", "Q")}  # fmt: skip
        end, error = self._to_sept(results, "lcp/window=80")
        return [
            verdict("SEPT's regret does not vanish as the horizon grows", gaps[-1] > 0.9,
                    f"Q: {', '.join(f'{each:.3f}' for each in gaps)}"),
            verdict("the last rounds are all that must be planned", enough["P"] <= 20 and enough["Q"] <= 80,
                    f"no regret from {enough['P']} on in P, {enough['Q']} in Q"),
            verdict("a learned plan's regret falls with the time of learning, and below SEPT's",
                    falls and last[0] < first[0] / 3 and last[0] < gap,
                    f"P: {first[0]:.3f} to {last[0]:.4f}; SEPT {gap:.3f}"),
            verdict("run to the end, lcp leaves fewer than SEPT", end < -2 * error, f"{end:+.2f} ± {error:.2f}"),
        ]  # fmt: skip

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
            shown = {rounds: each for rounds, each in regrets_of.items() if each[0] > 1e-6}
            errors = [2 * error for _, error in shown.values()]
            middle.errorbar(list(shown), [mean for mean, _ in shown.values()], yerr=errors, fmt="o-", color=colour,
                            capsize=3, label=f"lcp, {name}")  # fmt: skip
        gap = next(each["sept"] for key, each in results.items() if key.startswith("learned P "))
        middle.axhline(gap, color="black", linestyle=":", label="SEPT, P")
        middle.set_xscale("log")
        middle.set_yscale("log")
        middle.set_xlabel("rounds of learning")
        middle.set_title(f"regret of learned plans over {EVALUATED} rounds", fontsize=10)
        middle.legend(fontsize=8)
        for x, order in enumerate(ORDERS):
            mean, error = spread(results["end"][order])
            right.bar(x, mean, 0.6, yerr=2 * error, color=COLOURS[x], capsize=3)
        right.set_xticks(range(len(ORDERS)), [order.replace("/", "\n") for order in ORDERS], fontsize=8)
        right.set_title(f"Q after {END} rounds: jobs left", fontsize=10)
        figure.savefig(path, dpi=130)


LCP = Ends()
