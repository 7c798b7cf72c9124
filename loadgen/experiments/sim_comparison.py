"""Policies beside each other on the same traffic: paired differences to the first one, with 95 % intervals.

Replication j of every policy sees the same arrivals and the same work (common random numbers), so the noise that they
share falls out of the differences. Intervals are Student's t over the replications' differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.experiments.results import Floats, Measured, Results, interval
from loadgen.experiments.spec import Spec
from loadgen.experiments.tables import with_error
from loadgen.plot import COLOURS, PlotError
from loadgen.sim.replicate import mean_and_se

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = {"mean_response": "mean response, s", "mean_in_system": "mean number in system", "regret": "regret"}
SHOWN = {key: METRICS[key] for key in ("mean_response", "regret")}  # the number in system says the same as the response


def axis_of(policies: str, least: int = 2) -> list[dict[str, Any]]:
    """ "a,b/k=v/k=v,module:attr" as entries of an axis. Raises ConfigError."""
    entries = []
    for text in filter(None, (part.strip() for part in policies.split(","))):
        name, *options = text.split("/")
        if not all("=" in option for option in options):
            raise ConfigError(f"--policies: options are k=v behind slashes, as in lased/n0=3/c=2, not {text!r}")
        given = dict(option.split("=", 1) for option in options)
        entries.append({"label": text, "policy": name, "options": given})
    labels = [entry["label"] for entry in entries]
    if len(entries) < least or len(set(labels)) < len(labels):
        raise ConfigError(f"--policies must name at least two different ones, as in lased,greedy, not {policies!r}")
    return entries


def spec_of(policies: str, scenario: dict[str, Any], size: dict[str, Any]) -> Spec:
    """The comparison as an experiment."""
    return Spec(
        title="Policies on the same traffic",
        source="compare",
        picture="dots",
        scenario=scenario,
        axes={"policy": axis_of(policies)},
        sizes={"quick": size},  # type: ignore[dict-item]  # pydantic makes it one
        name="compare",
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """A policy less the first, in one metric: mean, 95 % half width (None for one replication), part of the first's."""

    mean: float
    half: float | None
    part: float
    values: Floats

    @property
    def verdict(self) -> str:
        """In words; less is better in every metric."""
        if self.half is None:
            return "one run"
        if abs(self.mean) <= self.half:
            return "undecided"
        return "better" if self.mean < 0 else "worse"


class Valued(Protocol):
    """Something with values by replication, shape (r,), for each metric."""

    def __getitem__(self, metric: str, /) -> Floats: ...


def difference(one: Valued, first: Valued, metric: str) -> Difference:
    """Paired by replication."""
    values = one[metric] - first[metric]
    mean, half = (float(value) for value in interval(values))
    level = float(first[metric].mean())
    return Difference(mean, half if len(values) > 1 else None, mean / level if level else 0.0, values)


def table(results: Results) -> Table:
    """A row a policy."""
    first = results.cells[0]
    name = first.cell.labels["policy"]
    scenario = first.cell.scenario
    mu = ", ".join(f"{rate:g}" for rate in scenario.mu)
    n = len(first.seeds)
    made = Table(
        title=f"λ = {scenario.lam:g}, μ = ({mu}), {scenario.arrivals:,} requests, {n} replication{'s' * (n > 1)}; "
        f"95 % intervals",
        title_justify="left",
    )
    made.add_column("policy", no_wrap=True)
    for label in SHOWN.values():
        made.add_column(label, justify="right")
        made.add_column(f"less that of {name}", justify="right")
    for one in results.cells:
        cells = []
        for metric in SHOWN:
            cells.append(with_error(*map(float, interval(one[metric]))))
            cells.append(_said(difference(one, first, metric)) if one is not first else "")
        made.add_row(one.cell.labels["policy"], *cells)
    return made


def _said(found: Difference) -> str:
    shown = with_error(found.mean, found.half or 0.0)
    return f"{'+' * (found.mean > 0)}{shown} ({found.part:+.1%}) {found.verdict}"


def as_json(results: Results) -> dict[str, Any]:
    """What `compare --json` prints."""
    first = results.cells[0]
    policies, differences = {}, {}
    for one in results.cells:
        label = one.cell.labels["policy"]
        policies[label] = {
            metric: dict(zip(("mean", "se"), map(float, mean_and_se(one[metric])), strict=True)) for metric in METRICS
        } | {"shares": one["shares"].mean(axis=0).tolist()}
        if one is not first:
            differences[label] = {metric: difference_json(difference(one, first, metric)) for metric in METRICS}
    return {
        "first": first.cell.labels["policy"],
        "replications": len(first.seeds),
        "policies": policies,
        "differences": differences,
    }


def difference_json(found: Difference) -> dict[str, Any]:
    """With its interval, None for one replication."""
    low, high = (None, None) if found.half is None else (found.mean - found.half, found.mean + found.half)
    return {"mean": found.mean, "low": low, "high": high, "part": found.part, "verdict": found.verdict}


def draw(results: Results, path: Path) -> None:
    """The differences with their intervals, and every replication's, a panel a metric. Raises PlotError."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotError("pictures need matplotlib: pip install 'lased-dispatcher[plot]'") from error
    first, *others = results.cells
    figure = Figure(figsize=(12, 1.6 + 0.45 * len(others)), layout="constrained")
    _panels(figure, first, others)
    figure.suptitle(f"less that of {first.cell.labels['policy']}, same traffic; dots: replications", fontsize=11)
    figure.savefig(path, dpi=150)


def _panels(figure: Figure, first: Measured, others: Sequence[Measured]) -> None:
    grid = figure.subplots(1, len(SHOWN), squeeze=False, sharey=True)
    for (metric, label), axes in zip(SHOWN.items(), grid[0], strict=True):
        for y, one in enumerate(others):
            found = difference(one, first, metric)
            axes.plot(found.values, [y + 0.18] * len(found.values), ".", color="grey", alpha=0.35, markersize=4)
            axes.errorbar(found.mean, y, xerr=found.half or 0.0, fmt="o", color=COLOURS[0], capsize=3)
        axes.axvline(0.0, color="black", linewidth=0.9)
        axes.set_yticks(range(len(others)), [one.cell.labels["policy"] for one in others])
        axes.set_ylim(len(others) - 0.5, -0.5)
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
