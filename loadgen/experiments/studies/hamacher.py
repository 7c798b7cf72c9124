"""hamacher: the share of requests that policies get accepted by pools that hold one request, against Hamacher's sum.

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
from loadgen.experiments.studies.buffer_study import (
    ANYTIME,
    INSTANCES,
    NO_REGRET,
    SMOOTH,
    BufferStudy,
    Case,
    heading,
)
from loadgen.experiments.studies.runner import Results, canvas, spread, verdict
from loadgen.experiments.tables import with_error
from loadgen.sim.single_buffer import WORST_RATIO, BufferScenario, bound, hamacher


@dataclass(frozen=True)
class Hamacher(BufferStudy):
    """One queue that is never empty, so every slot has an attempt."""

    policies = (ANYTIME, "exp3_ix", "tsallis_inf", "mix", SMOOTH, "recharge", "ucb1")

    def cases(self, slots: int) -> Iterator[Case]:
        for name, mu in INSTANCES.items():
            for policy in self.policies:
                yield name, policy, BufferScenario(mu, slots)

    def share(self, results: Results, name: str, policy: str) -> tuple[float, float]:
        """Return the share accepted in the second half, and its standard error.

        There are few runs, and the windows of one run may be correlated. The larger of both estimates is returned.
        """
        runs = self.by_seed(results, name, policy, "accepted")
        length = self.by_seed(results, name, policy, "window")[0]
        by_window = spread([count / length for run in runs for count in run[len(run) // 2 :]])[1]
        mean, by_run = self.mean(results, name, policy, "acceptance")
        return mean, max(by_window, by_run, 1e-6)

    def tables(self, results: Results) -> list[Table]:
        table = Table(title=self.title + ": share accepted in the second half, ± standard error", title_justify="left")
        for column in ("", *INSTANCES):
            table.add_column(column, justify="right" if column else "left")
        sums = [(hamacher(mu), bound(mu)) for mu in INSTANCES.values()]
        table.add_row("H", *(f"{h:.6f}" for h, _ in sums))
        table.add_row("P", *(f"{p:.6f}" for _, p in sums))
        table.add_row("H/P", *(f"{h / p:.6f}" for h, p in sums))
        for policy in self.policies:
            table.add_row(heading(policy), *(with_error(*self.share(results, name, policy)) for name in INSTANCES))
        return [table]

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        full = size == "full"
        repeated = {name: self.mean(results, name, "ucb1", "regret")[0] for name in ("A", "C", "E", "G")}
        return [
            *self._no_regret(results, full),
            self._exact_ratio(),
            self._even_spacing(results, full),
            verdict(
                "UCB1 hammers one full server in A, C, E and G: regret of over 0.1 a send",
                min(repeated.values()) > 0.1,
                ", ".join(f"{name} {value:.2f}" for name, value in repeated.items()),
            ),
        ]

    def _no_regret(self, results: Results, full: bool) -> list[Verdict]:
        """Compare the policies that have no regret in the long run with H."""
        near, far, short, outside, regret = 0, 0.0, -math.inf, 0.0, 0.0
        for name, mu in INSTANCES.items():
            h = hamacher(mu)
            for policy in NO_REGRET:
                mean, error = self.share(results, name, policy)
                loss = h * max(0.0, self.mean(results, name, policy, "regret")[0])
                # H assumes no regret. A run of finite length still has some, so it may be that much below H.
                near += abs(mean - h) <= 4 * error
                far = max(far, abs(mean - h) / error)
                outside = max(outside, (mean - h) / error, (h - loss - mean) / error)
                short = max(short, *(h - value for value in self.by_seed(results, name, policy, "acceptance")))
                regret = max(regret, self.mean(results, name, policy, "regret")[0])
        cells = len(INSTANCES) * len(NO_REGRET)
        return [
            verdict(
                "no-regret learners get H, less H times their regret a send: within 4 standard errors",
                outside <= 4,
                f"{outside:.1f} outside at most; of H {near} of {cells} are within 4, the farthest"
                f" {far:.1f}; regret to {regret:.4f}",
            ),
            verdict(
                "no run of theirs stays below H − 0.01",
                short <= 0.01 if full else None,
                f"the lowest is H − {short:.4f}",
            ),
        ]

    def _exact_ratio(self) -> Verdict:
        ratio = min(hamacher(mu) / bound(mu) for mu in INSTANCES.values())
        tiny = hamacher((0.02,) * 90) / bound((0.02,) * 90)
        return verdict(
            "exact: H/P is at least 0.770163, and many tiny servers come near that",
            ratio >= WORST_RATIO and 0.7701 < tiny < 0.7730,
            f"{ratio:.4f}; 90 of 0.02: {tiny:.6f}",
        )

    def _even_spacing(self, results: Results, full: bool) -> Verdict:
        """Compare the policies that ask a server at even distances with H."""
        recharge, smooth = (
            [self.mean(results, name, policy, "acceptance")[0] / hamacher(mu) - 1 for name, mu in INSTANCES.items()]
            for policy in ("recharge", SMOOTH)
        )
        return verdict(
            "even spacing gets more than H everywhere: smooth turns, and recharge",
            min(*recharge, *smooth) > 0 if full else None,
            f"up to {max(smooth):+.1%} and {max(recharge):+.1%}",
        )

    def draw(self, results: Results, path: Path) -> None:
        figure, axes = canvas(10, 4.6)
        for j, (policy, colour) in enumerate(zip(self.policies, plot.COLOURS, strict=False)):
            for x, (name, mu) in enumerate(INSTANCES.items()):
                mean, error = self.share(results, name, policy)
                axes.errorbar(
                    x + (j - len(self.policies) // 2) * 0.09,
                    mean / bound(mu),
                    yerr=2 * error / bound(mu),
                    fmt="o",
                    color=colour,
                    label=None if x else policy,
                    markersize=5,
                )
        for x, mu in enumerate(INSTANCES.values()):
            h = hamacher(mu) / bound(mu)
            axes.plot((x - 0.38, x + 0.38), (h, h), color="black", linewidth=1, label=None if x else "H")
        axes.axhline(WORST_RATIO, color="grey", linestyle=":", label="least H/P of all: 0.7702")
        axes.set_xticks(range(len(INSTANCES)), list(INSTANCES))
        axes.set_ylabel("accepted, over the bound P")
        axes.set_title(self.title, fontsize=11)
        axes.legend(fontsize=8, ncols=2)
        plot.save(figure, path)


HAMACHER = Hamacher(
    "hamacher", "One never empty queue, buffers of one", {"quick": 3, "full": 6}, {"quick": 20_000, "full": 400_000}
)
