"""whittle_finite and whittle_blocking: servers that a pick fills up, and whose backlog is seen only at a pick.

Whittle's index is compared with the myopic index, with oracles that see the backlogs, and with round robin. Results are
exact where that is possible, and otherwise simulated in slots.

Source: Chadaga and Modiano, *Load Balancing with Partial Queue Information: Threshold Optimality and Indexability*.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dispatcher.policies.partial_information import whittle_index
from loadgen import plot
from loadgen.experiments.claims import Verdict
from loadgen.experiments.studies.runner import Piece, Result, Results, spread, verdict
from loadgen.experiments.tables import with_error
from loadgen.plot import COLOURS
from loadgen.sim import whittle_slots

SYSTEMS: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {  # capacities, rates a slot
    "A": ((10,) * 4, (0.53, 1.07, 2.03, 4.11)),
    "B": ((4, 6, 8, 10, 12, 16), (0.31, 0.62, 0.93, 1.48, 2.03, 3.01)),
    "C": ((10,) * 10, (0.21, 0.29, 0.43, 0.52, 0.61, 0.83, 1.02, 1.51, 2.03, 2.97)),
    "E": ((5,) * 8, (0.6,) * 8),
    "F": ((20,) * 5, (0.53, 1.02, 4.07, 7.9, 12.1)),
    "H": ((4, 6, 8), (0.4, 1.0, 2.0)),
}
POLICIES = ("whittle", "whittle/0.95", "myopic", "round_robin", "random", "jsq", "jsq-f", "jsq-2", "jiq")
SIZES = {"quick": (1_000, 300, 40), "full": (10_000, 500, 100)}  # slots, warm-up, replications
MAX_SHORTFALL = 0.16  # of Whittle's index, as a share of the reward of oracle JSQ
INSTANCES = {"quick": 30, "full": 150}  # random systems, by size


def simulate(system: str, blocking: bool, policy: str, slots: int, warmup: int, reps: int, seed: int) -> Result:
    """Return the mean reward a slot, by replication."""
    servers = whittle_slots.BatchServers(*SYSTEMS[system], blocking)
    return {"rewards": whittle_slots.simulate(servers, policy, slots, warmup, reps, seed).tolist()}


def compute_exactly(system: str) -> Result:
    """Return the exact long-run mean rewards of Model 1."""
    servers = whittle_slots.BatchServers(*SYSTEMS[system])
    return {
        "whittle": whittle_slots.exact_index_policy(servers, whittle_slots.whittle_tables(servers, 1.0))[0],
        "whittle/0.95": whittle_slots.exact_index_policy(servers, whittle_slots.whittle_tables(servers, 0.95))[0],
        "myopic": whittle_slots.exact_index_policy(servers, whittle_slots.myopic_tables(servers))[0],
        "round_robin": whittle_slots.exact_round_robin(servers),
        "random": whittle_slots.exact_random(servers),
        "bound": whittle_slots.bound(servers),
    }


def compute_gains(equal: bool, instances: int, seed: int) -> Result:
    """Return how much more Whittle's index earns than the myopic one in random systems of Model 1, as a share.

    equal: whether the servers of a system have equal capacities.
    """
    rng, gains = np.random.default_rng([seed, int(equal)]), []
    for _ in range(instances):
        n = int(rng.integers(2, 7))
        capacity = [int(rng.integers(2, 21))] * n if equal else rng.integers(2, 21, n).tolist()
        rate = np.exp(rng.uniform(np.log(0.2), np.log(4.0), n)).round(3).tolist()
        servers = whittle_slots.BatchServers(tuple(capacity), tuple(rate))
        index, _ = whittle_slots.exact_index_policy(servers, whittle_slots.whittle_tables(servers, 1.0, 300))
        myopic, _ = whittle_slots.exact_index_policy(servers, whittle_slots.myopic_tables(servers, 300))
        gains.append(index / myopic - 1)
    return {"gains": gains}


@dataclass(frozen=True)
class WhittleStudy:
    """The study of one of the two models. blocking: whether a pick fills only empty queues (Model 2)."""

    name: str
    title: str
    blocking: bool

    def pieces(self, size: str, seed: int) -> list[Piece]:
        slots, warmup, reps = SIZES[size]
        shared = {"blocking": self.blocking, "slots": slots, "warmup": warmup, "reps": reps, "seed": seed}
        pieces = [
            Piece(f"{system} {policy}", simulate, {"system": system, "policy": policy} | shared)
            for system in SYSTEMS
            for policy in POLICIES
        ]
        if not self.blocking:
            pieces += [Piece(f"{system} exact", compute_exactly, {"system": system}) for system in SYSTEMS]
            for equal, name in ((False, "unequal"), (True, "equal")):
                arguments = {"equal": equal, "instances": INSTANCES[size], "seed": seed}
                pieces.append(Piece(f"gains {name}", compute_gains, arguments))
        return pieces

    def tables(self, results: Results) -> list[Table]:
        table = Table(title=self.title + ": mean reward a slot, ± one standard error", title_justify="left")
        for column in ("system", *POLICIES, *(() if self.blocking else ("exact: whittle", "bound"))):
            table.add_column(column, justify="left" if column == "system" else "right")
        for system in SYSTEMS:
            cells = [with_error(*spread(results[f"{system} {policy}"]["rewards"])) for policy in POLICIES]
            if not self.blocking:
                exact = results[f"{system} exact"]
                cells += [f"{exact['whittle']:.6f}", f"{exact['bound']:.6f}"]
            table.add_row(system, *cells)
        return [table]

    def rows(self, results: Results) -> list[dict[str, Any]]:
        rows = []
        for system in SYSTEMS:
            for policy in POLICIES:
                mean, error = spread(results[f"{system} {policy}"]["rewards"])
                exact = results.get(f"{system} exact", {}).get(policy, "")
                rows.append({"system": system, "policy": policy, "reward": mean, "error": error, "exact": exact})
        return rows

    def verdicts(self, results: Results, size: str) -> list[Verdict]:
        verdicts = [self._above_myopic(results), self._near_jsq(results)]
        if not self.blocking:
            verdicts = [self._agrees_with_exact(results), *verdicts, *self._in_random_systems(results)]
        return [*verdicts, self._indexable()]

    def _agrees_with_exact(self, results: Results) -> Verdict:
        worst = 0.0
        for system in SYSTEMS:
            for policy in ("whittle", "whittle/0.95", "round_robin", "random"):
                mean, error = spread(results[f"{system} {policy}"]["rewards"])
                worst = max(worst, abs(mean - results[f"{system} exact"][policy]) / error)
        says = "simulated rewards are the exact ones, within 4 standard errors"
        return verdict(says, worst <= 4, f"the farthest of {4 * len(SYSTEMS)} is {worst:.1f} away")

    def _above_myopic(self, results: Results) -> Verdict:
        """Compare both indices, paired: replications of equal number have equal random numbers."""
        # E is left out: its servers are equal.
        texts, holds = [], True
        for system in ("A", "B", "C", "F", "H"):
            pair = (results[f"{system} {policy}"]["rewards"] for policy in ("whittle", "myopic"))
            mean, error = spread([a - b for a, b in zip(*pair, strict=True)])
            holds = holds and mean > -2 * error
            texts.append(f"{system} {mean:+.4f} ± {error:.4f}")
        return verdict(
            "with unequal servers Whittle's index earns at least what the myopic one does", holds, "; ".join(texts)
        )

    def _near_jsq(self, results: Results) -> Verdict:
        gap = {}
        for system in SYSTEMS:
            index, jsq = (spread(results[f"{system} {policy}"]["rewards"])[0] for policy in ("whittle", "jsq"))
            gap[system] = 1 - index / jsq
        says = (
            f"it earns at most {MAX_SHORTFALL:.0%} less than JSQ that sees every backlog; least with equal servers (E)"
        )
        evidence = ", ".join(f"{system} {share:.1%}" for system, share in gap.items())
        return verdict(
            says, max(gap.values()) <= MAX_SHORTFALL and max(gap, key=lambda system: gap[system]) == "E", evidence
        )

    def _in_random_systems(self, results: Results) -> list[Verdict]:
        unequal, equal = (np.array(results[f"gains {kind}"]["gains"]) for kind in ("unequal", "equal"))
        often = float((unequal > -1e-9).mean())  # the exact gains of equal policies differ by rounding errors
        with_unequal = verdict(
            "in random systems of unequal capacities Whittle's index beats the myopic one nearly always",
            often >= 0.95 and unequal.mean() > 0.02,
            f"{often:.1%} of {len(unequal)}, mean gain {unequal.mean():.1%}, from {unequal.min():.2%}"
            f" to {unequal.max():.1%}",
        )
        often = float((equal > -1e-9).mean())
        with_equal = verdict(
            "with equal capacities there is hardly a difference: no gain may be promised",
            abs(equal.mean()) < 0.01,
            f"at least as good in {often:.1%} of {len(equal)}, mean gain {equal.mean():.2%}, from {equal.min():.2%}",
        )
        return [with_unequal, with_equal]

    def _indexable(self) -> Verdict:
        says = "thresholds rise with the subsidy: every state is idled from some subsidy on (indexability)"
        if not self.blocking:
            steps = [whittle_index.finite(t + 1, 10, 2.03) - whittle_index.finite(t, 10, 2.03) for t in range(1, 60)]
            return verdict(
                says, min(steps) >= -1e-12, f"least step of W along the ages {min(steps):.1e}, K = 10, μ = 2.03"
            )
        tables = [whittle_index.blocking(k, mu) for k, mu in ((3, 0.8), (5, 1.0), (10, 2.03))]
        least = min(table.least_work for table in tables)
        holds = all(table.is_indexable for table in tables)
        return verdict(
            says, holds, f"least marginal work {least:.3g} in {sum(len(t.breakpoints) for t in tables)} steps"
        )

    def draw(self, results: Results, path: Path) -> None:
        figure = plot.figure((12, 4.6))
        bars, lines = figure.subplots(1, 2, width_ratios=(3, 2))
        drawn_policies = [policy for policy in POLICIES if policy not in ("whittle/0.95", "jsq-f")]
        for i, policy in enumerate(drawn_policies):
            for x, system in enumerate(SYSTEMS):
                mean, error = spread(results[f"{system} {policy}"]["rewards"])
                best = spread(results[f"{system} jsq"]["rewards"])[0]
                label = policy if not x else None
                at = x + (i - len(drawn_policies) / 2) * 0.11
                bars.bar(at, mean / best, 0.1, yerr=2 * error / best, color=COLOURS[i % len(COLOURS)], label=label)
        bars.set_xticks(range(len(SYSTEMS)), list(SYSTEMS))
        bars.set_ylim(0.5, 1.08)
        bars.set_ylabel("reward, to JSQ that sees all")
        bars.legend(fontsize=8, ncols=4, loc="upper center")
        self._thresholds(lines)
        for axes in (bars, lines):
            plot.plain(axes)
        figure.suptitle(self.title, fontsize=11)
        plot.save(figure, path)

    def _thresholds(self, axes: Any) -> None:
        """Draw the idle slots between two picks by the subsidy for idling."""
        if self.blocking:
            table = whittle_index.blocking(5, 1.0)
            for q, colour in zip((1, 2, 3, 5), COLOURS, strict=False):
                row = table.indices[q - 1]
                axes.step([0, *row[:22]], range(23), where="post", color=colour, label=f"K = 5, μ = 1, last seen {q}")
        else:
            for (k, mu), colour in zip(((5, 1.0), (10, 2.0), (10, 0.5)), COLOURS, strict=False):
                row = [whittle_index.finite(tau, k, mu) / k for tau in range(1, 45)]
                axes.step([0, *row], range(45), where="post", color=colour, label=f"K = {k}, μ = {mu:g}")
        axes.set_xlabel("subsidy for idling" + ("" if self.blocking else ", over K"))
        axes.set_ylabel("slots idled between picks")
        axes.legend(fontsize=8)


FINITE = WhittleStudy("whittle_finite", "Finite queues, a pick fills one up", False)
BLOCKING = WhittleStudy("whittle_blocking", "Blocking queues, filled only when empty", True)
