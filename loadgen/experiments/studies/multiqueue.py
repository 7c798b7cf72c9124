"""multiqueue: several dispatchers before pools of one place, below and above the boundary of stability."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.no_regret import ANYTIME, BufferStudy, Case, backlogs
from loadgen.experiments.studies.runner import Results, canvas, verdict
from loadgen.plot import COLOURS
from loadgen.sim.single_buffer import BufferScenario, boundary

SYMMETRIC = ((4, 100, 4.0), (2, 60, 2.0))  # queues, servers, Σ μ
OTHERS = {  # λ of each queue, μ of each server
    "λ .5 .3 .1, μ .9 .6 .3 .2": ((0.5, 0.3, 0.1), (0.9, 0.6, 0.3, 0.2)),
    "λ .5 .3 .1, μ .6 .4 .3 .2": ((0.5, 0.3, 0.1), (0.6, 0.4, 0.3, 0.2)),
    "λ .3 × 3, μ .45 × 3": ((0.3,) * 3, (0.45,) * 3),
    "λ .7 .1, μ .5 × 6": ((0.7, 0.1), (0.5,) * 6),
    "λ .2 × 6, μ .3 × 6": ((0.2,) * 6, (0.3,) * 6),
}


def _case(n: int, m: int, total: float, load: float) -> str:
    return f"n={n} m={m} M={total:g}, {load:g} λ*"


@dataclass(frozen=True)
class MultiQueue(BufferStudy):
    """Several queues, each with a learner of its own."""

    policies = (ANYTIME, "tsallis_inf", "mix", "recharge", "ucb1")

    def cases(self, slots: int) -> Iterator[Case]:
        for n, m, total in SYMMETRIC:
            for load in (0.95, 1.05):
                lam = load * boundary(n, m, total)
                for policy in self.policies[:-1]:
                    yield _case(n, m, total, load), policy, BufferScenario((total / m,) * m, slots, (lam,) * n)
        for name, (lams, mu) in OTHERS.items():
            for policy in self.policies:
                yield name, policy, BufferScenario(mu, slots, lams)

    def tables(self, results: Results) -> list[Table]:
        notes = {}
        for case in OTHERS:
            needed, given = self._needed(case), self._given(case)
            notes[case] = f"Σλ {needed:.3f} {'<' if needed < given else '≥'} {given:.3f}"
        return [backlogs(self, results, notes)]

    def _needed(self, case: str) -> float:
        return sum(OTHERS[case][0])

    def _given(self, case: str) -> float:
        return (1 - max(OTHERS[case][0])) * sum(OTHERS[case][1])

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        found = []
        for n, m, total in SYMMETRIC:
            star = boundary(n, m, total)
            expected = n * 0.05 * star
            below, above = (
                [
                    self.mean(results, _case(n, m, total, load), policy, "slope")[0]
                    for policy in (ANYTIME, "tsallis_inf")
                ]
                for load in (0.95, 1.05)
            )
            spaced = self.mean(results, _case(n, m, total, 1.05), "recharge", "slope")[0]
            shown = ", ".join(f"{value / expected:.2f}" for value in above)
            found += [
                verdict(f"{n} queues, {m} servers, Σ μ = {total:g}: learners are stable at 0.95 λ*, and grow at"
                        " 1.05 λ*, at least half as fast as n (λ − λ*)",
                        max(below) < 0.1 * expected and min(above) > 0.5 * expected,
                        f"λ* = {star:.6f}; slopes at 1.05 λ*: {shown} times n (λ − λ*)"),
                verdict(f"{n} queues: recharge is stable at 1.05 λ*", spaced < 0.1 * expected, f"slope {spaced:+.4f}"),
            ]  # fmt: skip
        inside = [case for case in OTHERS if self._needed(case) < self._given(case)]
        worst = max(
            self.mean(results, case, policy, "slope")[0] for case in inside for policy in (ANYTIME, "tsallis_inf")
        )
        hammered = self.mean(results, "λ .7 .1, μ .5 × 6", "ucb1", "slope")[0]
        return [
            *found,
            verdict("where Σ λ < (1 − max λ) Σ μ learners are stable", worst < 0.005, f"slopes to {worst:+.5f}"),
            verdict("UCB1 is not, in one of these", hammered > 0.02, f"slope {hammered:+.3f}"),
        ]

    def draw(self, results: Results, path: Path) -> None:
        figure, *both = canvas(11, 4.2, columns=2)
        for axes, (n, m, total) in zip(both, SYMMETRIC, strict=True):
            for policy, colour in zip(self.policies[:-1], COLOURS, strict=False):
                for load, line in ((0.95, "-"), (1.05, "--")):
                    curve = self.curve(results, _case(n, m, total, load), policy, "backlog")
                    share = [(k + 1) / len(curve) for k in range(len(curve))]
                    axes.plot(share, [1 + value for value in curve], line, color=colour, label=f"{policy}, {load:g} λ*")
            axes.set_yscale("log")
            axes.set_xlabel("share of the run")
            axes.set_title(f"{n} queues, {m} servers: λ* = {boundary(n, m, total):.4f}", fontsize=10)
        both[0].set_ylabel("1 + requests waiting")
        figure.legend(*both[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
        figure.savefig(path, dpi=130)


MULTIQUEUE = MultiQueue("multiqueue", "Several queues, buffers of one", {"quick": 1, "full": 2},
                        {"quick": 8_000, "full": 500_000})  # fmt: skip
