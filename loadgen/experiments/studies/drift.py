"""drift: pools that hold one request, whose rates change in the middle of the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from loadgen import plot
from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.buffer_study import ANYTIME, SMOOTH, BufferStudy, Case
from loadgen.experiments.studies.runner import Results, canvas, verdict
from loadgen.sim.single_buffer import BufferScenario, hamacher

RATES = (0.6, 0.4, 0.05, 0.05, 0.02)  # by pool, in the first half


@dataclass(frozen=True)
class Drift(BufferStudy):
    """One queue that is never empty; the rates are in reverse order from the middle on."""

    policies = (
        ANYTIME,
        "exp3_ix/window=100000",
        "exp3_ix",
        "exp3_ix/window=5000",
        "tsallis_inf",
        "tsallis_inf/window=20000",
        SMOOTH,
        "recharge/cap=1e12",
        "recharge",
    )
    windows = 40

    def cases(self, slots: int) -> Iterator[Case]:
        for policy in self.policies:
            yield "reversed", policy, BufferScenario(RATES, slots, (), RATES[::-1], self.windows)

    def _shares(self, results: Results, policy: str, slots: float) -> list[float]:
        return [value / slots for value in self.curve(results, "reversed", policy, "accepted")]

    def _length(self, results: Results) -> int:
        """Return the attempts in a window."""
        length: int = self.by_seed(results, "reversed", "recharge", "window")[0]
        return length

    def tables(self, results: Results) -> list[Table]:
        length = self._length(results)
        table = Table(title=f"{self.title}: accepted in windows of {length:,.0f} sends", title_justify="left")
        for column in ("", "before", "first after", "second", "third", "last five"):
            table.add_column(column, justify="left" if not column else "right")
        half = self.windows // 2
        for policy in self.policies:
            shares = self._shares(results, policy, length)
            cells = (sum(shares[half - 5 : half]) / 5, *shares[half : half + 3], sum(shares[-5:]) / 5)
            table.add_row(policy, *(f"{cell:.4f}" for cell in cells))
        return [table]

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        length, half, h = self._length(results), self.windows // 2, hamacher(RATES)
        shares = {policy: self._shares(results, policy, length) for policy in self.policies}
        full = size == "full"
        within = shares["exp3_ix"][half + 1]
        uncapped, capped = shares["recharge/cap=1e12"], shares["recharge"]
        dips = {policy: h - shares[policy][half] for policy in (ANYTIME, "exp3_ix")}
        return [
            verdict(
                "exp3_ix with its window of 20,000 is back at H − 0.01 in the second window of 10,000 sends",
                within > h - 0.01 if full else None,
                f"{within:.4f}, H = {h:.6f}",
            ),
            verdict(
                "it dips less than without a window",
                dips["exp3_ix"] < dips[ANYTIME] if full else None,
                f"by {dips['exp3_ix']:.3f} and {dips[ANYTIME]:.3f}",
            ),
            verdict(
                "without a window it comes back, too",
                min(shares[ANYTIME][-5:]) > h - 0.01 if full else None,
                f"{min(shares[ANYTIME][-5:]):.4f} at least in the last five",
            ),
            verdict(
                "recharge is back at 97 % in the third window; without its cap it is then below half of it",
                capped[half + 2] > 0.97 * capped[half - 1] and uncapped[half + 2] < uncapped[half - 1] / 2
                if full
                else None,
                f"{uncapped[half + 2]:.3f} against {capped[half + 2]:.3f} in the third window",
            ),
        ]

    def draw(self, results: Results, path: Path) -> None:
        figure, axes = canvas(9, 4.6)
        length = self._length(results)
        for policy, colour in zip(self.policies, plot.COLOURS, strict=True):
            at = [(k + 0.5) * length for k in range(self.windows)]
            axes.plot(at, self._shares(results, policy, length), color=colour, label=policy, linewidth=1.3)
        axes.axhline(hamacher(RATES), color="black", linestyle=":", label="H")
        axes.set_xlim(0.4 * self.windows * length, self.windows * length)
        axes.set_xlabel("sends")
        axes.set_ylabel("share accepted")
        axes.set_title(self.title, fontsize=11)
        axes.legend(fontsize=7, loc="center")
        plot.save(figure, path)


DRIFT = Drift("drift", "Rates reversed in the middle", {"quick": 2, "full": 4}, {"quick": 40_000, "full": 400_000})
