"""hamacher and stability: policies that learn from accept and reject alone, before pools that hold one request.
Acceptance against Hamacher's sum, loads against the boundary; and what these have in common with `multiqueue`, `drift`.

Sources: as `loadgen.sim.single_buffer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.runner import Piece, Result, Results, canvas, spread, verdict
from loadgen.experiments.tables import with_error
from loadgen.plot import COLOURS
from loadgen.sim import single_buffer as buffers
from loadgen.sim.single_buffer import BufferScenario, bound, hamacher

INSTANCES = {
    "A": (0.5, 0.5),
    "B": (0.9, 0.1),
    "C": (0.3, 0.2),
    "E": (0.2,) * 4,
    "G": (0.18,) * 10,
    "I": (0.8, 0.7) + (0.05,) * 4,
    "J": (0.05, 0.03),
}
ANYTIME = "exp3_ix/window=0/floor=0"
SMOOTH = "exp3_ix/smooth=true"
NO_REGRET = (ANYTIME, "tsallis_inf")
GROWS = 0.003  # requests a slot, from which on a backlog is said to grow
Case = tuple[str, str, BufferScenario]  # what, policy, scene


def measured(policy: str, mu: list[float], slots: int, lam: list[float], later: list[float], windows: int, seed: int
             ) -> Result:  # fmt: skip
    """One run, as `buffers.BufferResult`; acceptance and regret a send are of the second half. window: slots of one."""
    run = buffers.simulate(policy, BufferScenario(tuple(mu), slots, tuple(lam), tuple(later), windows), seed)
    sends = sum(run.sent[windows // 2 :])
    return {
        "acceptance": sum(run.accepted[windows // 2 :]) / sends,
        "regret": None if lam else run.regret / sends,
        "window": slots // windows,
        "accepted": list(run.accepted),
        "backlog": list(run.backlog),
        "slope": run.slope,
        "mean_backlog": run.mean_backlog,
    }


@dataclass(frozen=True)
class BufferStudy:
    """What the four have in common. seeds, slots: by size."""

    name: str
    title: str
    seeds: dict[str, int]
    slots: dict[str, int]

    def cases(self, slots: int) -> Iterator[Case]:
        raise NotImplementedError(f"{type(self).__name__} must say what is run")

    def pieces(self, size: str, seed: int) -> list[Piece]:
        found = []
        for what, policy, scene in self.cases(self.slots[size]):
            given = {"policy": policy, "mu": list(scene.mu), "slots": scene.slots, "lam": list(scene.lam),
                     "later": list(scene.later), "windows": scene.windows}  # fmt: skip
            for j in range(seed, seed + self.seeds[size]):
                found.append(Piece(f"{what} | {policy} | {j}", measured, given | {"seed": j}))
        return found

    def each(self, results: Results, what: str, policy: str, key: str) -> list[Any]:
        """Of each seed."""
        return [result[key] for name, result in results.items() if name.startswith(f"{what} | {policy} | ")]

    def mean(self, results: Results, what: str, policy: str, key: str) -> tuple[float, float]:
        """And standard error."""
        return spread(self.each(results, what, policy, key))

    def curve(self, results: Results, what: str, policy: str, key: str) -> list[float]:
        """By window, the mean over seeds."""
        runs = self.each(results, what, policy, key)
        return [math.fsum(values) / len(runs) for values in zip(*runs, strict=True)]

    def labels(self, results: Results) -> tuple[list[str], list[str]]:
        """What was run, and the policies, in order."""
        parts = [name.split(" | ") for name in results]
        return list(dict.fromkeys(part[0] for part in parts)), list(dict.fromkeys(part[1] for part in parts))

    def rows(self, results: Results) -> list[dict[str, Any]]:
        found = []
        for name, result in results.items():
            what, policy, seed = name.split(" | ")
            keys = ("acceptance", "regret", "slope", "mean_backlog")
            found.append({"case": what, "policy": policy, "seed": seed} | {key: result[key] for key in keys})
        return found


@dataclass(frozen=True)
class Hamacher(BufferStudy):
    """One queue that is never empty."""

    policies = (ANYTIME, "exp3_ix", "tsallis_inf", "mix", SMOOTH, "recharge", "ucb1")

    def cases(self, slots: int) -> Iterator[Case]:
        for name, mu in INSTANCES.items():
            for policy in self.policies:
                yield name, policy, BufferScenario(mu, slots)

    def share(self, results: Results, name: str, policy: str) -> tuple[float, float]:
        """Accepted in the second half, and its standard error: by the runs, which are few, or by the windows of all of
        them, which may hang together; the larger of the two."""
        runs = self.each(results, name, policy, "accepted")
        length = self.each(results, name, policy, "window")[0]
        by_window = spread([count / length for run in runs for count in run[len(run) // 2 :]])[1]
        mean, by_run = self.mean(results, name, policy, "acceptance")
        return mean, max(by_window, by_run, 1e-6)

    def tables(self, results: Results) -> list[Table]:
        made = Table(title=self.title + ": share accepted in the second half, ± standard error", title_justify="left")
        for column in ("", *INSTANCES):
            made.add_column(column, justify="right" if column else "left")
        sums = [(hamacher(mu), bound(mu)) for mu in INSTANCES.values()]
        made.add_row("H", *(f"{h:.6f}" for h, _ in sums))
        made.add_row("P", *(f"{p:.6f}" for _, p in sums))
        made.add_row("H/P", *(f"{h / p:.6f}" for h, p in sums))
        for policy in self.policies:
            made.add_row(heading(policy), *(with_error(*self.share(results, name, policy)) for name in INSTANCES))
        return [made]

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        near, far, short, outside, regret = 0, 0.0, -math.inf, 0.0, 0.0
        for name, mu in INSTANCES.items():
            h = hamacher(mu)
            for policy in NO_REGRET:
                mean, error = self.share(results, name, policy)
                owed = h * max(0.0, self.mean(results, name, policy, "regret")[0])
                near += abs(mean - h) <= 4 * error
                far = max(far, abs(mean - h) / error)
                outside = max(outside, (mean - h) / error, (h - owed - mean) / error)
                short = max(short, *(h - value for value in self.each(results, name, policy, "acceptance")))
                regret = max(regret, self.mean(results, name, policy, "regret")[0])
        ratio = min(hamacher(mu) / bound(mu) for mu in INSTANCES.values())
        tiny = hamacher((0.02,) * 90) / bound((0.02,) * 90)
        gains = [self.mean(results, name, "recharge", "acceptance")[0] / hamacher(mu) - 1
                 for name, mu in INSTANCES.items()]  # fmt: skip
        smooth = [self.mean(results, name, SMOOTH, "acceptance")[0] / hamacher(mu) - 1
                  for name, mu in INSTANCES.items()]  # fmt: skip
        spaced, full, cells = min(*gains, *smooth), size == "full", len(INSTANCES) * len(NO_REGRET)
        hammered = {name: self.mean(results, name, "ucb1", "regret")[0] for name in ("A", "C", "E", "G")}
        shown = ", ".join(f"{name} {value:.2f}" for name, value in hammered.items())
        return [
            verdict("no-regret learners get H, less H times their regret a send: within 4 standard errors",
                    outside <= 4, f"{outside:.1f} outside at most; of H {near} of {cells} are within 4, the farthest"
                    f" {far:.1f}; regret to {regret:.4f}"),
            verdict("no run of theirs stays below H − 0.01", short <= 0.01 if full else None,
                    f"the lowest is H − {short:.4f}"),
            verdict("exact: H/P is at least 0.770163, and many tiny servers come near that",
                    ratio >= buffers.WORST_RATIO and 0.7701 < tiny < 0.7730, f"{ratio:.4f}; 90 of 0.02: {tiny:.6f}"),
            verdict("even spacing gets more than H everywhere: smooth turns, and recharge",
                    spaced > 0 if full else None,
                    f"up to {max(smooth):+.1%} and {max(gains):+.1%}"),
            verdict("UCB1 hammers one full server in A, C, E and G: regret of over 0.1 a send",
                    min(hammered.values()) > 0.1, shown),
        ]  # fmt: skip

    def draw(self, results: Results, path: Path) -> None:
        figure, axes = canvas(10, 4.6)
        for j, (policy, colour) in enumerate(zip(self.policies, COLOURS, strict=True)):
            for x, (name, mu) in enumerate(INSTANCES.items()):
                mean, error = self.share(results, name, policy)
                axes.errorbar(x + (j - 3) * 0.09, mean / bound(mu), yerr=2 * error / bound(mu), fmt="o", color=colour,
                              label=None if x else policy, markersize=5)  # fmt: skip
        for x, mu in enumerate(INSTANCES.values()):
            h = hamacher(mu) / bound(mu)
            axes.plot((x - 0.38, x + 0.38), (h, h), color="black", linewidth=1, label=None if x else "H")
        axes.axhline(buffers.WORST_RATIO, color="grey", linestyle=":", label="least H/P of all: 0.7702")
        axes.set_xticks(range(len(INSTANCES)), list(INSTANCES))
        axes.set_ylabel("accepted, over the bound P")
        axes.set_title(self.title, fontsize=11)
        axes.legend(fontsize=8, ncols=2)
        figure.savefig(path, dpi=130)


@dataclass(frozen=True)
class Stability(BufferStudy):
    """One queue with arrivals, below and above H."""

    policies = ("mix", ANYTIME, "tsallis_inf", "ucb1", "recharge")
    loads = (0.95, 0.99, 1.01, 1.05)
    names = ("A", "C", "G")

    def cases(self, slots: int) -> Iterator[Case]:
        for name in self.names:
            mu = INSTANCES[name]
            for load in self.loads:
                for policy in self.policies:
                    yield f"{name} {load:g} H", policy, BufferScenario(mu, slots, (load * hamacher(mu),))

    def tables(self, results: Results) -> list[Table]:
        return [backlogs(self, results)]

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        learners = NO_REGRET
        below, worst, said = -math.inf, 0.0, []
        for name in self.names:
            h = hamacher(INSTANCES[name])
            for policy in learners:
                below = max(below, self.mean(results, f"{name} 0.99 H", policy, "slope")[0] / h)
                grown = self.mean(results, f"{name} 1.05 H", policy, "slope")[0] / (0.05 * h)
                worst = max(worst, abs(grown - 1))
                said.append(f"{grown:.2f}")
        hammered = [self.mean(results, f"{name} 0.95 H", "ucb1", "slope")[0] for name in self.names]
        spaced = [self.mean(results, f"{name} 1.05 H", "recharge", "slope")[0] for name in self.names]
        return [
            verdict("no-regret learners are stable at 0.99 H", below < 0.005, f"slope at most {below:.4f} H a slot"),
            verdict("and unstable at 1.05 H, where the queue grows by λ − H, within a quarter",
                    worst < 0.25 if size == "full" else None,
                    f"slopes of {', '.join(said)} times that"),
            verdict("recharge is stable at 1.05 H", max(spaced) < 0.005, f"slopes to {max(spaced):.4f}"),
            verdict("UCB1 is unstable at 0.95 H already", min(hammered) > 0.01, f"slopes from {min(hammered):.3f}"),
        ]  # fmt: skip

    def draw(self, results: Results, path: Path) -> None:
        figure, *all_axes = canvas(12, 4.2, columns=3)
        for axes, name in zip(all_axes, self.names, strict=True):
            for policy, colour in zip(self.policies, COLOURS, strict=False):
                for load, line in ((0.99, "-"), (1.05, "--")):
                    if policy == "ucb1" and load > 1:
                        continue
                    curve = self.curve(results, f"{name} {load:g} H", policy, "backlog")
                    share = [(k + 1) / len(curve) for k in range(len(curve))]
                    axes.plot(share, [1 + value for value in curve], line, color=colour, label=f"{policy}, {load:g} H")
            axes.set_yscale("log")
            axes.set_title(f"{name}: H = {hamacher(INSTANCES[name]):.4f}", fontsize=10)
            axes.set_xlabel("share of the run")
        all_axes[0].set_ylabel("1 + requests waiting")
        figure.legend(*all_axes[-1].get_legend_handles_labels(), loc="outside right center", fontsize=8)
        figure.savefig(path, dpi=130)


def heading(policy: str) -> str:
    """Of a column: the options below the name."""
    return policy.replace("/", "\n")


def backlogs(study: BufferStudy, results: Results, notes: Mapping[str, str] | None = None) -> Table:
    """By case and policy, the mean backlog, or the slope where it grows. notes: of cases, a column of their own."""
    cases, policies = study.labels(results)
    title = f"{study.title}: mean backlog of the second half, or slope a slot where it grows"
    made = Table(title=title, title_justify="left")
    for column in ("", *(("",) if notes else ()), *map(heading, policies)):
        made.add_column(column, justify="right" if column else "left")
    for case in cases:
        cells = [notes.get(case, "")] if notes else []
        for policy in policies:
            if not study.each(results, case, policy, "slope"):
                cells.append("")
                continue
            slope, held = (study.mean(results, case, policy, key)[0] for key in ("slope", "mean_backlog"))
            cells.append(f"slope {slope:+.4f}" if slope > GROWS else f"{held:.2f}")
        made.add_row(case, *cells)
    return made


HAMACHER = Hamacher("hamacher", "One never empty queue, buffers of one", {"quick": 3, "full": 6},
                    {"quick": 20_000, "full": 400_000})  # fmt: skip
STABILITY = Stability("stability", "One queue, buffers of one", {"quick": 2, "full": 4},
                      {"quick": 20_000, "full": 500_000})  # fmt: skip
