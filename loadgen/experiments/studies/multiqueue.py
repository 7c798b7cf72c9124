"""multiqueue: several queues before pools that hold one request, at loads below and above the stability boundary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from loadgen import plot
from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.buffer_study import ANYTIME, BufferStudy, Case, backlogs
from loadgen.experiments.studies.runner import Results, canvas, verdict
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
    """Several queues, each with its own learning policy."""

    symmetric_policies = (ANYTIME, "tsallis_inf", "mix", "recharge")
    policies = (*symmetric_policies, "ucb1")

    def cases(self, slots: int) -> Iterator[Case]:
        for n, m, total in SYMMETRIC:
            for load in (0.95, 1.05):
                lam = load * boundary(n, m, total)
                for policy in self.symmetric_policies:
                    yield _case(n, m, total, load), policy, BufferScenario((total / m,) * m, slots, (lam,) * n)
        for name, (lams, mu) in OTHERS.items():
            for policy in self.policies:
                yield name, policy, BufferScenario(mu, slots, lams)

    def tables(self, results: Results) -> list[Table]:
        notes = {}
        for case in OTHERS:
            load, limit = self._load(case), self._limit(case)
            notes[case] = f"Σλ {load:.3f} {'<' if load < limit else '≥'} {limit:.3f}"
        return [backlogs(self, results, notes)]

    def _load(self, case: str) -> float:
        return sum(OTHERS[case][0])

    def _limit(self, case: str) -> float:
        """Return (1 − max λ) Σ μ, below which learners are stable."""
        return (1 - max(OTHERS[case][0])) * sum(OTHERS[case][1])

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        verdicts = []
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
            recharge = self.mean(results, _case(n, m, total, 1.05), "recharge", "slope")[0]
            slopes = ", ".join(f"{value / expected:.2f}" for value in above)
            verdicts += [
                verdict(
                    f"{n} queues, {m} servers, Σ μ = {total:g}: learners are stable at 0.95 λ*, and grow at"
                    " 1.05 λ*, at least half as fast as n (λ − λ*)",
                    max(below) < 0.1 * expected and min(above) > 0.5 * expected,
                    f"λ* = {star:.6f}; slopes at 1.05 λ*: {slopes} times n (λ − λ*)",
                ),
                verdict(
                    f"{n} queues: recharge is stable at 1.05 λ*", recharge < 0.1 * expected, f"slope {recharge:+.4f}"
                ),
            ]
        inside = [case for case in OTHERS if self._load(case) < self._limit(case)]
        worst = max(
            self.mean(results, case, policy, "slope")[0] for case in inside for policy in (ANYTIME, "tsallis_inf")
        )
        ucb1 = self.mean(results, "λ .7 .1, μ .5 × 6", "ucb1", "slope")[0]
        return [
            *verdicts,
            verdict("where Σ λ < (1 − max λ) Σ μ learners are stable", worst < 0.005, f"slopes to {worst:+.5f}"),
            verdict("UCB1 is not, in one of these", ucb1 > 0.02, f"slope {ucb1:+.3f}"),
        ]

    def draw(self, results: Results, path: Path) -> None:
        figure, *both = canvas(11, 4.2, columns=2)
        for axes, (n, m, total) in zip(both, SYMMETRIC, strict=True):
            for policy, colour in zip(self.symmetric_policies, plot.COLOURS, strict=False):
                for load, line in ((0.95, "-"), (1.05, "--")):
                    curve = self.curve(results, _case(n, m, total, load), policy, "backlog")
                    share = [(k + 1) / len(curve) for k in range(len(curve))]
                    # A logarithmic axis has no 0.
                    axes.plot(share, [1 + value for value in curve], line, color=colour, label=f"{policy}, {load:g} λ*")
            axes.set_yscale("log")
            axes.set_xlabel("share of the run")
            axes.set_title(f"{n} queues, {m} servers: λ* = {boundary(n, m, total):.4f}", fontsize=10)
        both[0].set_ylabel("1 + requests waiting")
        figure.legend(*both[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
        plot.save(figure, path)


MULTIQUEUE = MultiQueue(
    "multiqueue", "Several queues, buffers of one", {"quick": 1, "full": 2}, {"quick": 8_000, "full": 500_000}
)
