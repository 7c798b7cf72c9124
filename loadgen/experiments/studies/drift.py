"""drift: rates that change, before pools of one place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.no_regret import ANYTIME, SMOOTH, BufferStudy, Case
from loadgen.experiments.studies.runner import Results, canvas, verdict
from loadgen.plot import COLOURS
from loadgen.sim.single_buffer import BufferScenario, hamacher

DRIFT = (0.6, 0.4, 0.05, 0.05, 0.02)


@dataclass(frozen=True)
class Drift(BufferStudy):
    """Rates in reverse order from the middle on."""

    policies = (
        ANYTIME, "exp3_ix/window=100000", "exp3_ix", "exp3_ix/window=5000", "tsallis_inf", "tsallis_inf/window=20000",
        SMOOTH, "recharge/cap=1e12", "recharge",
    )  # fmt: skip
    windows = 40

    def cases(self, slots: int) -> Iterator[Case]:
        for policy in self.policies:
            yield "reversed", policy, BufferScenario(DRIFT, slots, (), DRIFT[::-1], self.windows)

    def _shares(self, results: Results, policy: str, slots: float) -> list[float]:
        return [value / slots for value in self.curve(results, "reversed", policy, "accepted")]

    def _length(self, results: Results) -> int:
        """Sends in a window."""
        length: int = self.each(results, "reversed", "recharge", "window")[0]
        return length

    def tables(self, results: Results) -> list[Table]:
        length = self._length(results)
        made = Table(title=f"{self.title}: accepted in windows of {length:,.0f} sends", title_justify="left")
        for column in ("", "before", "first after", "second", "third", "last five"):
            made.add_column(column, justify="left" if not column else "right")
        half = self.windows // 2
        for policy in self.policies:
            shares = self._shares(results, policy, length)
            cells = (sum(shares[half - 5 : half]) / 5, *shares[half : half + 3], sum(shares[-5:]) / 5)
            made.add_row(policy, *(f"{cell:.4f}" for cell in cells))
        return [made]

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        length, half, h = self._length(results), self.windows // 2, hamacher(DRIFT)
        shares = {policy: self._shares(results, policy, length) for policy in self.policies}
        full = size == "full"
        within = shares["exp3_ix"][half + 1]
        stuck, capped = shares["recharge/cap=1e12"], shares["recharge"]
        dips = {policy: h - shares[policy][half] for policy in (ANYTIME, "exp3_ix")}
        return [
            verdict("exp3_ix with its window of 20,000 is back at H − 0.01 in the second window of 10,000 sends",
                    within > h - 0.01 if full else None, f"{within:.4f}, H = {h:.6f}"),
            verdict("it dips less than without a window", dips["exp3_ix"] < dips[ANYTIME] if full else None,
                    f"by {dips['exp3_ix']:.3f} and {dips[ANYTIME]:.3f}"),
            verdict("without a window it comes back, too", min(shares[ANYTIME][-5:]) > h - 0.01 if full else None,
                    f"{min(shares[ANYTIME][-5:]):.4f} at least in the last five"),
            verdict("recharge is back at 97 % in the third window; without its cap it is then below half of it",
                    capped[half + 2] > 0.97 * capped[half - 1] and stuck[half + 2] < stuck[half - 1] / 2
                    if full else None,
                    f"{stuck[half + 2]:.3f} against {capped[half + 2]:.3f} in the third window"),
        ]  # fmt: skip

    def draw(self, results: Results, path: Path) -> None:
        figure, axes = canvas(9, 4.6)
        length = self._length(results)
        for policy, colour in zip(self.policies, (*COLOURS, "#999999", "#666600"), strict=True):
            at = [(k + 0.5) * length for k in range(self.windows)]
            axes.plot(at, self._shares(results, policy, length), color=colour, label=policy, linewidth=1.3)
        axes.axhline(hamacher(DRIFT), color="black", linestyle=":", label="H")
        axes.set_xlim(0.4 * self.windows * length, self.windows * length)
        axes.set_xlabel("sends")
        axes.set_ylabel("share accepted")
        axes.set_title(self.title, fontsize=11)
        axes.legend(fontsize=7, loc="center")
        figure.savefig(path, dpi=130)


DRIFTING = Drift("drift", "Rates reversed in the middle", {"quick": 2, "full": 4}, {"quick": 40_000, "full": 400_000})
