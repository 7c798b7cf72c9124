"""stability: a queue before pools that hold one request, at loads below and above Hamacher's sum.

The policies learn from acceptance and rejection alone. Sources: as in `loadgen.sim.single_buffer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from loadgen import plot
from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.buffer_study import ANYTIME, INSTANCES, NO_REGRET, BufferStudy, Case, backlogs
from loadgen.experiments.studies.runner import Results, canvas, verdict
from loadgen.sim.single_buffer import BufferScenario, hamacher


@dataclass(frozen=True)
class Stability(BufferStudy):
    """One queue with arrivals, at loads below and above Hamacher's sum H."""

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
        below, worst, slopes = -math.inf, 0.0, []
        for name in self.names:
            h = hamacher(INSTANCES[name])
            for policy in NO_REGRET:
                below = max(below, self.mean(results, f"{name} 0.99 H", policy, "slope")[0] / h)
                slope = self.mean(results, f"{name} 1.05 H", policy, "slope")[0] / (0.05 * h)
                worst = max(worst, abs(slope - 1))
                slopes.append(f"{slope:.2f}")
        ucb1 = [self.mean(results, f"{name} 0.95 H", "ucb1", "slope")[0] for name in self.names]
        recharge = [self.mean(results, f"{name} 1.05 H", "recharge", "slope")[0] for name in self.names]
        return [
            verdict("no-regret learners are stable at 0.99 H", below < 0.005, f"slope at most {below:.4f} H a slot"),
            verdict(
                "and unstable at 1.05 H, where the queue grows by λ − H, within a quarter",
                worst < 0.25 if size == "full" else None,
                f"slopes of {', '.join(slopes)} times that",
            ),
            verdict("recharge is stable at 1.05 H", max(recharge) < 0.005, f"slopes to {max(recharge):.4f}"),
            verdict("UCB1 is unstable at 0.95 H already", min(ucb1) > 0.01, f"slopes from {min(ucb1):.3f}"),
        ]

    def draw(self, results: Results, path: Path) -> None:
        figure, *all_axes = canvas(12, 4.2, columns=3)
        for axes, name in zip(all_axes, self.names, strict=True):
            for policy, colour in zip(self.policies, plot.COLOURS, strict=False):
                for load, line in ((0.99, "-"), (1.05, "--")):
                    if policy == "ucb1" and load > 1:
                        continue
                    curve = self.curve(results, f"{name} {load:g} H", policy, "backlog")
                    share = [(k + 1) / len(curve) for k in range(len(curve))]
                    # A logarithmic axis has no 0.
                    axes.plot(share, [1 + value for value in curve], line, color=colour, label=f"{policy}, {load:g} H")
            axes.set_yscale("log")
            axes.set_title(f"{name}: H = {hamacher(INSTANCES[name]):.4f}", fontsize=10)
            axes.set_xlabel("share of the run")
        all_axes[0].set_ylabel("1 + requests waiting")
        figure.legend(*all_axes[-1].get_legend_handles_labels(), loc="outside right center", fontsize=8)
        plot.save(figure, path)


STABILITY = Stability(
    "stability", "One queue, buffers of one", {"quick": 2, "full": 4}, {"quick": 20_000, "full": 500_000}
)
