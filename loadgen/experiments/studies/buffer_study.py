"""What the studies hamacher, stability, multiqueue and drift share: pools that hold one request.

The policies learn from acceptance and rejection alone. Sources: as in `loadgen.sim.single_buffer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from loadgen.experiments.studies.runner import Piece, Result, Results, spread
from loadgen.sim.single_buffer import BufferScenario, simulate

INSTANCES = {  # by pool, the probability that a full buffer empties in a slot
    "A": (0.5, 0.5),
    "B": (0.9, 0.1),
    "C": (0.3, 0.2),
    "E": (0.2,) * 4,
    "G": (0.18,) * 10,
    "I": (0.8, 0.7) + (0.05,) * 4,
    "J": (0.05, 0.03),
}
ANYTIME = "exp3_ix/window=0/floor=0"  # its learning rate falls for ever, so its regret per attempt tends to 0
SMOOTH = "exp3_ix/smooth=true"  # takes turns in the same proportions instead of drawing
NO_REGRET = (ANYTIME, "tsallis_inf")
GROWTH_THRESHOLD = 0.003  # requests a slot; a backlog with a larger slope counts as growing
Case = tuple[str, str, BufferScenario]  # name of the case, policy, what is simulated


def measure(
    policy: str, mu: list[float], slots: int, lam: list[float], later: list[float], windows: int, seed: int
) -> Result:
    """Simulate one run, and return its measurements.

    The arguments are those of `BufferScenario`. Acceptance and regret per attempt are of the second half of the run.
    window: slots in a window. accepted, backlog: by window.
    """
    run = simulate(policy, BufferScenario(tuple(mu), slots, tuple(lam), tuple(later), windows), seed)
    sends = sum(run.sent[windows // 2 :])
    return {
        "acceptance": sum(run.accepted[windows // 2 :]) / sends,
        "regret": None if lam else run.regret / sends,  # defined for a queue that always has a request
        "window": slots // windows,
        "accepted": list(run.accepted),
        "backlog": list(run.backlog),
        "slope": run.slope,
        "mean_backlog": run.mean_backlog,
    }


@dataclass(frozen=True)
class BufferStudy:
    """A study of pools that hold one request. seeds, slots: how many, by size."""

    name: str
    title: str
    seeds: dict[str, int]
    slots: dict[str, int]

    def cases(self, slots: int) -> Iterator[Case]:
        """Yield what the study simulates. slots: of each run."""
        raise NotImplementedError(f"{type(self).__name__} must define its cases")

    def pieces(self, size: str, seed: int) -> list[Piece]:
        pieces = []
        for case, policy, scene in self.cases(self.slots[size]):
            arguments = {
                "policy": policy,
                "mu": list(scene.mu),
                "slots": scene.slots,
                "lam": list(scene.lam),
                "later": list(scene.later),
                "windows": scene.windows,
            }
            for j in range(seed, seed + self.seeds[size]):
                pieces.append(Piece(f"{case} | {policy} | {j}", measure, arguments | {"seed": j}))
        return pieces

    def by_seed(self, results: Results, case: str, policy: str, key: str) -> list[Any]:
        """Return a measurement of each run of a case and policy."""
        return [result[key] for name, result in results.items() if name.startswith(f"{case} | {policy} | ")]

    def mean(self, results: Results, case: str, policy: str, key: str) -> tuple[float, float]:
        """Return the mean of a measurement over the seeds, and its standard error."""
        return spread(self.by_seed(results, case, policy, key))

    def curve(self, results: Results, case: str, policy: str, key: str) -> list[float]:
        """Return a measurement by window, averaged over the seeds."""
        runs = self.by_seed(results, case, policy, key)
        return [math.fsum(values) / len(runs) for values in zip(*runs, strict=True)]

    def labels(self, results: Results) -> tuple[list[str], list[str]]:
        """Return the cases and the policies, in order."""
        parts = [name.split(" | ") for name in results]
        return list(dict.fromkeys(part[0] for part in parts)), list(dict.fromkeys(part[1] for part in parts))

    def rows(self, results: Results) -> list[dict[str, Any]]:
        rows = []
        for name, result in results.items():
            case, policy, seed = name.split(" | ")
            keys = ("acceptance", "regret", "slope", "mean_backlog")
            rows.append({"case": case, "policy": policy, "seed": seed} | {key: result[key] for key in keys})
        return rows


def heading(policy: str) -> str:
    """Return the heading of a policy's column, with its options below the name."""
    return policy.replace("/", "\n")


def backlogs(study: BufferStudy, results: Results, notes: Mapping[str, str] | None = None) -> Table:
    """Return a table of the mean backlog by case and policy, or of its slope if the backlog grows.

    notes: texts by case, for a column of their own.
    """
    cases, policies = study.labels(results)
    title = f"{study.title}: mean backlog of the second half, or slope a slot where it grows"
    table = Table(title=title, title_justify="left")
    for column in ("", *(("",) if notes else ()), *map(heading, policies)):
        table.add_column(column, justify="right" if column else "left")
    for case in cases:
        cells = [notes.get(case, "")] if notes else []
        for policy in policies:
            if not study.by_seed(results, case, policy, "slope"):
                cells.append("")  # not every case has every policy
                continue
            slope, backlog = (study.mean(results, case, policy, key)[0] for key in ("slope", "mean_backlog"))
            cells.append(f"slope {slope:+.4f}" if slope > GROWTH_THRESHOLD else f"{backlog:.2f}")
        table.add_row(case, *cells)
    return table
