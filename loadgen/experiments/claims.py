"""Checks what a figure must show.

An experiment's file names the checks and their arguments. A check gets the results, and returns whether the claim holds
and the numbers behind that. Differences between policies are paired, because equal seeds give equal traffic.

Arguments that several checks share:
where, less, more, first, second: labels by axis, which select cells.
over: labels by axis, of which the claim must hold at every combination; ["*"] stands for all labels of an axis.
standard_errors: how many standard errors are allowed or required.
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
Outcome = tuple[bool, str]  # whether the claim holds, and the numbers behind that
SHARE_WINDOWS = 300  # windows, in all replications, over which a share is averaged before it is judged
LABEL_ARGUMENTS = {"where", "less", "more", "first", "second", "over", "expected"}  # arguments with labels by axis
ONCE: Over = {}  # no axis varies, so there is one combination


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds. holds: None if the claim was not judged. evidence: the numbers behind the verdict."""

    claim: Claim
    holds: bool | None
    evidence: str

    def as_json(self) -> dict[str, Any]:
        """Return what verdicts.json and `--json` show."""
        return {"claim": self.claim.says, "holds": self.holds, "saw": self.evidence}


def judge(spec: Spec, results: Results, size: str = "full", live: bool = False) -> list[Verdict]:
    """Return a verdict for every claim.

    size: of the experiment. live: whether the results are those of a live run.
    Raises ConfigError if a claim in the file is wrong.
    """
    return [_judge(spec, claim, results, size, live) for claim in spec.claims]


def _judge(spec: Spec, claim: Claim, results: Results, size: str, live: bool) -> Verdict:
    check = CHECKS.get(claim.check)
    if check is None:
        raise ConfigError(f"claim {claim.says!r}: there is no check {claim.check!r}; known: {', '.join(CHECKS)}")
    _check_labels(spec, claim)
    if live and not claim.live:
        return Verdict(claim, None, "not judged on a live run, which is too short")
    if claim.full_only and size != "full":
        return Verdict(claim, None, "judged in full size only, which has enough replications")
    try:
        holds, evidence = check(results, **claim.given)
    except IndexError as error:
        # It is a LookupError, too, but it comes from a wrong argument, such as the number of a pool.
        raise ConfigError(f"claim {claim.says!r}: {error}") from error
    except LookupError as error:
        return Verdict(claim, None, f"not judged: {error.args[0]}")
    except ImportError:
        return Verdict(claim, None, "not judged: it needs scipy, pip install 'lased-dispatcher[theory]'")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"claim {claim.says!r}: {error}") from error
    return Verdict(claim, bool(holds), evidence)


def _check_labels(spec: Spec, claim: Claim) -> None:
    """Raise ConfigError for a label that no axis has: a misspelt label must not look like a cell that was not run."""
    for key in LABEL_ARGUMENTS & claim.given.keys():
        for axis, label in claim.given[key].items():
            axis_labels = [label_of(entry) for entry in spec.axes.get(axis, [])]
            labels = [label] if isinstance(label, str) else label
            if unknown := [label for label in labels if label not in axis_labels and label != "*"]:
                text = ", ".join(axis_labels) or "none"
                raise ConfigError(f"claim {claim.says!r}: {key}: no {axis} is {unknown[0]!r}; there are: {text}")


def _all(results: Results, over: Over, holds: Callable[[Labels], Outcome]) -> Outcome:
    """Return whether `holds` is true at every combination of the labels in `over`."""
    axes = {axis: results.axis(axis) if labels == ["*"] else labels for axis, labels in over.items()}
    points = list(itertools.product(*axes.values()))
    outcomes = [holds(dict(zip(axes, point, strict=True))) for point in points]
    texts = [
        f"{', '.join(point)}: {evidence}" if point else evidence
        for point, (_, evidence) in zip(points, outcomes, strict=True)
    ]
    return all(ok for ok, _ in outcomes), "; ".join(texts)


def _halves(measured: Measured) -> tuple[float, float]:
    """Return the mean regret in the first and in the second half of the arrivals."""
    curve = measured["curve"].mean(axis=0)
    return float(curve[measured.half]), float(curve[-1] - curve[measured.half])


def flattens(results: Results, where: Labels, most: float, over: Over = ONCE) -> Outcome:
    """Check that at most the share `most` of the regret comes in the second half."""

    def holds(at: Labels) -> Outcome:
        first, second = _halves(results.get(**where, **at))
        return second <= most * (first + second), f"{second:.4g} of {first + second:.4g}"

    return _all(results, over, holds)


def linear(results: Results, where: Labels, tolerance: float, over: Over = ONCE) -> Outcome:
    """Check that there is regret, and that it is equal in both halves up to the share `tolerance`."""

    def holds(at: Labels) -> Outcome:
        first, second = _halves(results.get(**where, **at))
        return first > 0 and abs(second - first) <= tolerance * first, f"{first:.5g}, then {second:.5g}"

    return _all(results, over, holds)


def slope_is_exact(results: Results, where: Labels, standard_errors: float, over: Over = ONCE) -> Outcome:
    """Check that the regret per arrival in the second half is that of SED with the guesses in the steady state."""
    from loadgen.sim import theory

    def holds(at: Labels) -> Outcome:
        measured = results.get(**where, **at)
        scenario, curve, arrivals, half = measured.cell.scenario, measured["curve"], measured.arrivals, measured.half
        system = theory.System(scenario.lam, scenario.mu, scenario.servers)
        exact = theory.chain(system, theory.sed(system, scenario.guess)).regret
        slopes = (curve[:, -1] - curve[:, half]) / (arrivals[-1] - arrivals[half])
        mean, error = mean_and_se(slopes)
        return bool(abs(mean - exact) <= standard_errors * error), f"{mean:.6f} ± {error:.6f}, exactly {exact:.6f}"

    return _all(results, over, holds)


def agrees(
    results: Results,
    where: Labels,
    expected: Mapping[str, Mapping[str, Sequence[float]]],
    arrivals: int,
    standard_errors: float,
) -> Outcome:
    """Check the mean regret after `arrivals` arrivals against an independent source.

    expected: one axis with, for each label, the source's [mean, standard error].
    standard_errors: of the difference, how many are allowed.
    """
    ((axis, values),) = expected.items()

    def holds(at: Labels) -> Outcome:
        measured = results.get(**where, **at)
        if arrivals not in measured.arrivals:
            raise LookupError(f"no point of the curve is at {arrivals:,} arrivals")
        mean, error = mean_and_se(measured["curve"][:, np.searchsorted(measured.arrivals, arrivals)])
        source_mean, source_error = values[at[axis]]
        agree = abs(mean - source_mean) <= standard_errors * math.hypot(error, source_error)
        return bool(agree), f"{mean:,.1f} ± {error:.2g}, expected {source_mean:,g} ± {source_error:g}"

    return _all(results, {axis: list(values)}, holds)


def flat_later(results: Results, where: Labels, along: str, part: float = 0.9) -> Outcome:
    """Check that the share `part` of the regret is complete later and later along the axis `along`."""
    complete_at = []
    for measured in results.where(**where):
        curve = measured["curve"].mean(axis=0)
        complete_at.append(int(measured.arrivals[int(np.argmax(curve >= part * curve[-1]))]))
    if len(complete_at) < 2:
        raise LookupError(f"there is only one cell along {along}")
    text = ", ".join(f"{along} {label}: {n:,}" for label, n in zip(results.axis(along), complete_at, strict=True))
    grows = complete_at == sorted(complete_at) and complete_at[0] < complete_at[-1]
    return grows, f"{part:.0%} of the regret by arrival {text}"


def difference(results: Results, metric: str, first: Labels, second: Labels) -> tuple[Floats, float, float]:
    """Return the paired differences first − second of a metric, their mean and their standard error."""
    a, b = results.get(**first), results.get(**second)
    if a.seeds != b.seeds:
        raise LookupError("the replications of the two are not the same")
    values = a[metric] - b[metric]
    mean, error = mean_and_se(values)
    return values, float(mean), float(error)


def lower(
    results: Results, metric: str, less: Labels, more: Labels, standard_errors: float, over: Over = ONCE
) -> Outcome:
    """Check that less − more is below 0 by `standard_errors` standard errors; with one replication, below 0."""

    def holds(at: Labels) -> Outcome:
        _, mean, error = difference(results, metric, {**less, **at}, {**more, **at})
        # The error of a single replication is 0, so a difference of 0 would pass the second condition.
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
) -> Outcome:
    """Check that less − more is above 0 by at most `standard_errors` standard errors plus `tolerance` times more."""

    def holds(at: Labels) -> Outcome:
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
) -> Outcome:
    """Check that the difference first − second falls and then rises along an axis, or rises and then falls.

    turn: three labels on the axis `along`. Each step must be at least `standard_errors` standard errors.
    """
    values = [difference(results, metric, {**first, along: label}, {**second, along: label})[0] for label in turn]
    (step1, error1), (step2, error2) = (mean_and_se(b - a) for a, b in itertools.pairwise(values))
    clear = abs(step1) >= standard_errors * error1 and abs(step2) >= standard_errors * error2
    text = ", ".join(f"{label}: {value.mean():.4g}" for label, value in zip(turn, values, strict=True))
    steps = f"steps {step1:+.4g} ± {error1:.2g}, {step2:+.4g} ± {error2:.2g}"
    return bool(step1 * step2 < 0 and clear), f"{text}; {steps}"


def starves(results: Results, where: Labels, pool: int, most: float, over: Over = ONCE) -> Outcome:
    """Check that a pool, numbered from 1, gets at most the share `most` of the requests."""
    if pool < 1:
        raise ValueError(f"pools are numbered from 1, not {pool}")

    def holds(at: Labels) -> Outcome:
        share = float(results.get(**where, **at)["shares"][:, pool - 1].mean())
        return share <= most, f"{share:.3%} of the requests"

    return _all(results, over, holds)


def windowed_share(measured: Measured, pool: int) -> Floats:
    """Return the pool's share of the arrivals between two points of the curve, shape (replications, points).

    pool: numbered from 1.
    """
    # `joined` counts from the start, so the first window has no predecessor.
    joined = np.diff(measured["joined"], axis=1, prepend=0.0)
    return np.asarray(joined[:, :, pool - 1] / joined.sum(axis=2))


def recovery(measured: Measured, pool: int, rates: Sequence[float], at: float, tolerance: float) -> float:
    """Return how many arrivals after a change of the rates a pool's share is right again, and stays right.

    The share is a mean over SHARE_WINDOWS windows of all replications. It is right if it is within `tolerance` of the
    share that SED with the true rates gives. The result is infinite if the share does not become right.

    pool: numbered from 1. rates: after the change. at: the change, as a share of the arrivals.
    """
    from loadgen.sim import theory

    system = theory.System(measured.cell.scenario.lam, tuple(rates))
    target = theory.chain(system, theory.sed(system)).shares[pool - 1]
    change = int(at * measured["joined"].shape[1])
    share = windowed_share(measured, pool).mean(axis=0)[change:]
    # The share is a mean over the replications already, so fewer windows of each are needed.
    width = max(1, min(SHARE_WINDOWS // len(measured.seeds), share.size))
    wrong = np.abs(np.convolve(share, np.full(width, 1 / width), "valid") - target) > tolerance
    right_from = int(np.flatnonzero(wrong)[-1]) + 1 if wrong.any() else 0
    # The windows are equally long, and the first point of the curve is the end of the first window.
    return right_from * float(measured.arrivals[0]) if right_from < wrong.size else math.inf


def recovers(
    results: Results,
    where: Labels,
    pool: int,
    rates: Sequence[float],
    at: float,
    tolerance: float,
    most: float,
    over: Over = ONCE,
) -> Outcome:
    """Check that a pool's share is right again at most `most` arrivals after a change; the rest is as in `recovery`."""

    def holds(labels: Labels) -> Outcome:
        took = recovery(results.get(**where, **labels), pool, rates, at, tolerance)
        return took <= most, "never" if took == math.inf else f"after {took:,.0f} arrivals"

    return _all(results, over, holds)


def near_optimum(results: Results, where: Labels, most: float, over: Over = ONCE) -> Outcome:
    """Check that the mean number in system is at most the share `most` above the least possible number."""

    def holds(at: Labels) -> Outcome:
        above, error = above_optimum(results.get(**where, **at), results)
        return above <= most, f"{above:+.2%} ± {error:.2%}"

    return _all(results, over, holds)


def above_optimum(measured: Measured, results: Results) -> tuple[float, float]:
    """Return how far the mean number in system is above the optimum, as a share of it, and its standard error.

    If the results have a cell of SED with the same exponent, that cell is a control variate: its exact mean is known,
    and the paired difference to it has less noise.
    Raises LookupError if the optimum is not known.
    """
    from loadgen.sim import theory

    scenario = measured.cell.scenario
    if (scenario.service, scenario.process, any(scenario.profiles)) != ("exp", "poisson", False):
        raise LookupError("the optimum is known for exponential services, Poisson arrivals and constant rates")
    system = theory.System(scenario.lam, scenario.mu, scenario.servers)
    best = theory.optimum(system).mean_in_system
    exponent = float(scenario.options.get("exponent", 1.0))
    controls = [
        other
        for other in results.cells
        if other.cell.scenario.policy == "sed"
        and float(other.cell.scenario.options.get("exponent", 1.0)) == exponent
        and _system_of(other) == _system_of(measured)
        and other.seeds == measured.seeds
    ]
    # Without a control the mean itself is compared.
    values, base = measured["mean_in_system"], 0.0
    if controls:
        values = values - controls[0]["mean_in_system"]
        base = theory.chain(system, theory.sed(system, exponent=exponent)).mean_in_system
    mean, error = mean_and_se(values)
    return float((base + mean) / best - 1), float(error / best)


def _system_of(measured: Measured) -> tuple[object, ...]:
    scenario = measured.cell.scenario
    return scenario.lam, scenario.mu, scenario.servers, scenario.options.get("ties", "first")


def sum_of_better(results: Results, of: str, best: str, others: Sequence[str], most: float, worst: float) -> Outcome:
    """Compare the mean regret of `best`, summed over all cells, with that of the better of the others in each cell.

    of: the axis of the policies. most: the largest allowed ratio of the sums. worst: the largest allowed excess in a
    single cell.
    """
    gaps, mine, theirs = better_by(results, of, best, others)
    total, reference = float(mine.sum()), float(theirs.sum())
    sums = ", ".join(
        f"{name} {sum(float(cell['regret'].mean()) for cell in results.where(**{of: name})):,.0f}" for name in others
    )
    text = (
        f"{total:,.0f} against {reference:,.0f} ({total / reference:.3f}; {sums}); worst cell {float(gaps.max()):+.1f}"
    )
    return total <= most * reference and float(gaps.max()) <= worst, text


def better_by(results: Results, of: str, best: str, others: Sequence[str]) -> tuple[Floats, Floats, Floats]:
    """Return three arrays by cell: the regret of `best` less that of the better of the others, and both regrets."""
    mine, theirs = [], []
    for measured in results.where(**{of: best}):
        rest = {axis: label for axis, label in measured.cell.labels.items() if axis != of}
        mine.append(float(measured["regret"].mean()))
        theirs.append(min(float(results.get(**rest, **{of: other})["regret"].mean()) for other in others))
    return np.array(mine) - np.array(theirs), np.array(mine), np.array(theirs)


def difference_map(results: Results, drawing: Mapping[str, Any], name: str, part: Mapping[str, Any]) -> Floats:
    """Return the mean differences in regret over one map, shape (labels of `down`, labels of `across`).

    drawing: names the axes `maps`, `down`, `across` and `of`. name: of the map.
    part: the policies; the difference is first − second, or first − the better of `better_of`.
    """
    down, across, of = drawing["down"], drawing["across"], drawing["of"]

    def at(row: str, column: str) -> float:
        here = {drawing["maps"]: name, down: row, across: column}
        others = part.get("better_of", [part["second"]])
        gaps, _, _ = better_by(Results(results.where(**here)), of, part["first"], others)
        return float(gaps[0])

    return np.array([[at(row, column) for column in results.axis(across)] for row in results.axis(down)])


CHECKS: dict[str, Callable[..., Outcome]] = {
    check.__name__: check
    for check in (
        flattens,
        linear,
        slope_is_exact,
        agrees,
        flat_later,
        lower,
        level_or_lower,
        not_monotone,
        starves,
        recovers,
        near_optimum,
        sum_of_better,
    )
}
