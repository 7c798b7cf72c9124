"""What a figure must show, as checks on its results. A check gets the results and its arguments from the experiment's
file, and answers whether it holds and what it saw. Differences between policies are paired: equal seeds see equal
traffic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatcher.errors import ConfigError
from loadgen.experiments.results import Floats, Measured, Results
from loadgen.experiments.spec import Claim, Spec, label_of
from loadgen.sim.replicate import mean_and_se

Labels = Mapping[str, str]
Over = Mapping[str, Sequence[str]]
Answer = tuple[bool, str]
SAMPLES = 300  # windows, of all replications, that a share is averaged over before it is judged
LABELLED = {"where", "less", "more", "first", "second", "over", "expected"}  # arguments that hold labels by axis
ONCE: Over = {}  # nothing to vary: one combination


@dataclass(frozen=True, slots=True)
class Verdict:
    """holds: None where it was not judged."""

    claim: Claim
    holds: bool | None
    saw: str


def judge(spec: Spec, results: Results, size: str = "full", live: bool = False) -> list[Verdict]:
    """A verdict for every claim. Raises ConfigError where a claim is not stated rightly."""
    return [_judge(spec, claim, results, size, live) for claim in spec.claims]


def _judge(spec: Spec, claim: Claim, results: Results, size: str, live: bool) -> Verdict:
    check = CHECKS.get(claim.check)
    if check is None:
        raise ConfigError(f"claim {claim.says!r}: there is no check {claim.check!r}; known: {', '.join(CHECKS)}")
    _check_labels(spec, claim)
    if live and not claim.live:
        return Verdict(claim, None, "not judged on a live run, which is too short")
    if claim.full_only and size != "full":
        return Verdict(claim, None, "judged in full size only, where there are replications enough")
    try:
        holds, saw = check(results, **claim.given)
    except IndexError as error:
        raise ConfigError(f"claim {claim.says!r}: {error}") from error
    except LookupError as error:
        return Verdict(claim, None, f"not judged: {error.args[0]}")
    except ImportError:
        return Verdict(claim, None, "not judged: it needs scipy, pip install 'lased-dispatcher[theory]'")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"claim {claim.says!r}: {error}") from error
    return Verdict(claim, bool(holds), saw)


def _check_labels(spec: Spec, claim: Claim) -> None:
    """A misspelt label must not look like a cell that was not run. Raises ConfigError."""
    for key in LABELLED & claim.given.keys():
        for axis, label in claim.given[key].items():
            known = [label_of(entry) for entry in spec.axes.get(axis, [])]
            wanted = [label] if isinstance(label, str) else label
            if unknown := [one for one in wanted if one not in known and one != "*"]:
                there = ", ".join(known) or "none"
                raise ConfigError(f"claim {claim.says!r}: {key}: no {axis} is {unknown[0]!r}; there are: {there}")


def _all(results: Results, over: Over, holds: Callable[[Labels], Answer]) -> Answer:
    """Whether it holds at every combination of the labels in `over`; ["*"] stands for all of an axis."""
    axes = {axis: results.axis(axis) if labels == ["*"] else labels for axis, labels in over.items()}
    answers = [
        (holds(dict(zip(axes, point, strict=True))), ", ".join(point)) for point in itertools.product(*axes.values())
    ]
    said = [f"{at}: {saw}" if at else saw for (_, saw), at in answers]
    return all(ok for (ok, _), _ in answers), "; ".join(said)


def _halves(one: Measured) -> tuple[float, float]:
    """Mean regret of the first and of the second half of the arrivals."""
    curve = one["curve"].mean(axis=0)
    return float(curve[one.half]), float(curve[-1] - curve[one.half])


def flattens(results: Results, where: Labels, most: float, over: Over = ONCE) -> Answer:
    """The second half brings at most this part of the regret."""

    def holds(at: Labels) -> Answer:
        first, second = _halves(results.get(**where, **at))
        return second <= most * (first + second), f"{second:.4g} of {first + second:.4g}"

    return _all(results, over, holds)


def linear(results: Results, where: Labels, tolerance: float, over: Over = ONCE) -> Answer:
    """Both halves bring the same regret, within this part of it, and it is not nothing."""

    def holds(at: Labels) -> Answer:
        first, second = _halves(results.get(**where, **at))
        return first > 0 and abs(second - first) <= tolerance * first, f"{first:.5g}, then {second:.5g}"

    return _all(results, over, holds)


def slope_is_exact(results: Results, where: Labels, standard_errors: float, over: Over = ONCE) -> Answer:
    """Regret per arrival in the second half, against the stationary law of SED with the guesses."""
    from loadgen.sim import theory

    def holds(at: Labels) -> Answer:
        one = results.get(**where, **at)
        scenario, curve = one.cell.scenario, one["curve"]
        system = theory.System(scenario.lam, scenario.mu, scenario.servers)
        exact = theory.chain(system, theory.sed(system, scenario.guess)).regret
        slopes = (curve[:, -1] - curve[:, one.half]) / (one.arrivals[-1] - one.arrivals[one.half])
        mean, error = mean_and_se(slopes)
        return bool(abs(mean - exact) <= standard_errors * error), f"{mean:.6f} ± {error:.6f}, exactly {exact:.6f}"

    return _all(results, over, holds)


def agrees(
    results: Results,
    where: Labels,
    expected: Mapping[str, Mapping[str, Sequence[float]]],
    arrivals: int,
    standard_errors: float,
) -> Answer:
    """The mean regret after so many arrivals is the expected one, within so many standard errors of the difference.

    expected: one axis, and for labels on it [mean, standard error] from an independent source.
    """
    ((axis, values),) = expected.items()

    def holds(at: Labels) -> Answer:
        one = results.get(**where, **at)
        if arrivals not in one.arrivals:
            raise LookupError(f"no point of the curve is at {arrivals:,} arrivals")
        mean, error = mean_and_se(one["curve"][:, np.searchsorted(one.arrivals, arrivals)])
        wanted, off_by = values[at[axis]]
        agree = abs(mean - wanted) <= standard_errors * math.hypot(error, off_by)
        return bool(agree), f"{mean:,.1f} ± {error:.2g}, expected {wanted:,g} ± {off_by:g}"

    return _all(results, {axis: list(values)}, holds)


def flat_later(results: Results, where: Labels, along: str, part: float = 0.9) -> Answer:
    """The arrivals by which this part of the regret has come grow along an axis."""
    at = []
    for one in results.where(**where):
        curve = one["curve"].mean(axis=0)
        at.append(int(one.arrivals[int(np.argmax(curve >= part * curve[-1]))]))
    if len(at) < 2:
        raise LookupError(f"there is only one cell along {along}")
    said = ", ".join(f"{along} {label}: {n:,}" for label, n in zip(results.axis(along), at, strict=True))
    return at == sorted(at) and at[0] < at[-1], f"{part:.0%} of the regret by arrival {said}"


def difference(results: Results, metric: str, first: Labels, second: Labels) -> tuple[Floats, float, float]:
    """Paired differences of a metric, their mean and standard error."""
    a, b = results.get(**first), results.get(**second)
    if a.seeds != b.seeds:
        raise LookupError("the replications of the two are not the same")
    values = a[metric] - b[metric]
    mean, error = mean_and_se(values)
    return values, float(mean), float(error)


def lower(
    results: Results, metric: str, less: Labels, more: Labels, standard_errors: float, over: Over = ONCE
) -> Answer:  # fmt: skip
    """less − more is below 0 by so many standard errors; with one replication, below 0."""

    def holds(at: Labels) -> Answer:
        _, mean, error = difference(results, metric, {**less, **at}, {**more, **at})
        return mean < 0 and mean + standard_errors * error <= 0, f"{mean:+.4g} ± {error:.2g}"

    return _all(results, over, holds)


def level_or_lower(
    results: Results,
    metric: str,
    less: Labels,
    more: Labels,
    standard_errors: float,
    tolerance: float,
    over: Over = ONCE,
) -> Answer:
    """less − more is at most so many standard errors and this part of `more` above 0."""

    def holds(at: Labels) -> Answer:
        _, mean, error = difference(results, metric, {**less, **at}, {**more, **at})
        level = float(results.get(**more, **at)[metric].mean())
        return mean <= standard_errors * error + tolerance * level, f"{mean:+.4g} ± {error:.2g} of {level:.4g}"

    return _all(results, over, holds)


def not_monotone(
    results: Results,
    metric: str,
    first: Labels,
    second: Labels,
    along: str,
    turn: Sequence[str],
    standard_errors: float,
) -> Answer:
    """Between the three labels `turn` along an axis the difference first − second falls and then rises, or the reverse,
    each time by so many standard errors; paired by replication."""
    at = [difference(results, metric, {**first, along: label}, {**second, along: label})[0] for label in turn]
    (there, error), (back, other) = (mean_and_se(b - a) for a, b in itertools.pairwise(at))
    turns = there * back < 0 and abs(there) >= standard_errors * error and abs(back) >= standard_errors * other
    said = ", ".join(f"{label}: {values.mean():.4g}" for label, values in zip(turn, at, strict=True))
    return bool(turns), f"{said}; steps {there:+.4g} ± {error:.2g}, {back:+.4g} ± {other:.2g}"


def starves(results: Results, where: Labels, pool: int, most: float, over: Over = ONCE) -> Answer:
    """A pool, numbered from 1, gets at most this part of the requests."""
    if pool < 1:
        raise ValueError(f"pools are numbered from 1, not {pool}")

    def holds(at: Labels) -> Answer:
        share = float(results.get(**where, **at)["shares"][:, pool - 1].mean())
        return share <= most, f"{share:.3%} of the requests"

    return _all(results, over, holds)


def windowed_share(one: Measured, pool: int) -> Floats:
    """Share of a pool, numbered from 1, among the arrivals between two marks; shape (replications, points)."""
    joined = np.diff(one["joined"], axis=1, prepend=0.0)
    return np.asarray(joined[:, :, pool - 1] / joined.sum(axis=2))


def recovery(one: Measured, pool: int, rates: Sequence[float], at: float, tolerance: float) -> float:
    """Arrivals after the change from which on every mean share, over SAMPLES windows of all replications, is within the
    tolerance of what SED would give the pool; infinite if there are none."""
    from loadgen.sim import theory

    system = theory.System(one.cell.scenario.lam, tuple(rates))
    target = theory.chain(system, theory.sed(system)).shares[pool - 1]
    since = int(at * one["joined"].shape[1])
    share = windowed_share(one, pool).mean(axis=0)[since:]
    wide = max(1, min(SAMPLES // len(one.seeds), share.size))
    off = np.abs(np.convolve(share, np.full(wide, 1 / wide), "valid") - target) > tolerance
    right = int(np.flatnonzero(off)[-1]) + 1 if off.any() else 0
    return right * float(one.arrivals[0]) if right < off.size else math.inf


def recovers(
    results: Results, where: Labels, pool: int, rates: Sequence[float], at: float, tolerance: float, most: float,
    over: Over = ONCE,
) -> Answer:  # fmt: skip
    """After the rates have changed to `rates` at this part of the arrivals, the pool's share comes back to what SED
    would give it, within the tolerance, and stays there, in at most so many arrivals."""

    def holds(labels: Labels) -> Answer:
        took = recovery(results.get(**where, **labels), pool, rates, at, tolerance)
        return took <= most, "never" if took == math.inf else f"after {took:,.0f} arrivals"

    return _all(results, over, holds)


def near_optimum(results: Results, where: Labels, most: float, over: Over = ONCE) -> Answer:
    """The mean number in system is at most this part above the least possible.

    SED with the same exponent, on the same traffic, is a control variate: its simulated mean is known exactly.
    """

    def holds(at: Labels) -> Answer:
        above, error = above_optimum(results.get(**where, **at), results)
        return above <= most, f"{above:+.2%} ± {error:.2%}"

    return _all(results, over, holds)


def above_optimum(one: Measured, results: Results) -> tuple[float, float]:
    """How far the mean number in system is above the optimum, relatively, and its standard error. With a cell of SED of
    the same exponent among the results, through the paired difference to it, which has less noise."""
    from loadgen.sim import theory

    scenario = one.cell.scenario
    if (scenario.service, scenario.process, any(scenario.profiles)) != ("exp", "poisson", False):
        raise LookupError("the optimum is known for exponential services, Poisson arrivals and rates that stay")
    system = theory.System(scenario.lam, scenario.mu, scenario.servers)
    best = theory.optimum(system).mean_in_system
    exponent = float(scenario.options.get("exponent", 1.0))
    controls = [
        other
        for other in results.cells
        if other.cell.scenario.policy == "sed"
        and float(other.cell.scenario.options.get("exponent", 1.0)) == exponent
        and _place(other) == _place(one)
        and other.seeds == one.seeds
    ]
    values, base = one["mean_in_system"], 0.0
    if controls:
        values = values - controls[0]["mean_in_system"]
        base = theory.chain(system, theory.sed(system, exponent=exponent)).mean_in_system
    mean, error = mean_and_se(values)
    return float((base + mean) / best - 1), float(error / best)


def _place(one: Measured) -> tuple[object, ...]:
    scenario = one.cell.scenario
    return scenario.lam, scenario.mu, scenario.servers, scenario.options.get("ties", "first")


def sum_of_better(results: Results, of: str, best: str, others: Sequence[str], most: float, worst: float) -> Answer:
    """Over all cells, the summed mean regret of `best` is at most this part of that of the better of the others, chosen
    cell by cell, and nowhere more than `worst` above it."""
    gaps, mine, theirs = better_by(results, of, best, others)
    total, reference = float(mine.sum()), float(theirs.sum())
    sums = ", ".join(
        f"{name} {sum(float(one['regret'].mean()) for one in results.where(**{of: name})):,.0f}" for name in others
    )
    said = (
        f"{total:,.0f} against {reference:,.0f} ({total / reference:.3f}; {sums}); worst cell {float(gaps.max()):+.1f}"
    )
    return total <= most * reference and float(gaps.max()) <= worst, said


def better_by(results: Results, of: str, best: str, others: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """Mean regret of `best` less that of the better of the others, and both, by cell in order."""
    mine, theirs = [], []
    for one in results.where(**{of: best}):
        rest = {axis: label for axis, label in one.cell.labels.items() if axis != of}
        mine.append(float(one["regret"].mean()))
        theirs.append(min(float(results.get(**rest, **{of: other})["regret"].mean()) for other in others))
    return np.array(mine) - np.array(theirs), np.array(mine), np.array(theirs)


def difference_map(results: Results, drawing: Mapping[str, Any], name: str, part: Mapping[str, Any]) -> Floats:
    """Mean differences in regret over the map of this name; shape (labels of `down`, labels of `across`).

    drawing: the axes `maps`, `down`, `across`, `of`. part: the policies, first − second, or first − the better of
    `better_of`.
    """
    down, across, of = drawing["down"], drawing["across"], drawing["of"]

    def at(row: str, column: str) -> float:
        here = {drawing["maps"]: name, down: row, across: column}
        others = part.get("better_of", [part["second"]])
        gaps, _, _ = better_by(Results(results.where(**here)), of, part["first"], others)
        return float(gaps[0])

    return np.array([[at(row, column) for column in results.axis(across)] for row in results.axis(down)])


CHECKS: dict[str, Callable[..., Answer]] = {
    check.__name__: check
    for check in (flattens, linear, slope_is_exact, agrees, flat_later, lower, level_or_lower, not_monotone, starves,
                  recovers, near_optimum, sum_of_better)
}  # fmt: skip
