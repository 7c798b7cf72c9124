"""Compares policies on the same simulated traffic: paired differences to the first policy, with 95 % intervals.

Replication j of every policy has the same arrivals and the same work (common random numbers), so their shared noise
cancels in the differences. The intervals are those of Student's t over the differences of the replications.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen import plot
from loadgen.experiments.results import Floats, Results, interval
from loadgen.experiments.spec import Size, Spec
from loadgen.experiments.tables import with_error
from loadgen.sim.replicate import mean_and_se

METRICS = {"mean_response": "mean response, s", "mean_in_system": "mean number in system", "regret": "regret"}
# The number in system is proportional to the response, so tables and pictures show only one of them.
TABLE_METRICS = {key: METRICS[key] for key in ("mean_response", "regret")}


def axis_of(policies: str, least: int = 2) -> list[dict[str, Any]]:
    """Parse "a,b/k=v/k=v,module:attr" into the entries of an axis.

    least: how many different policies there must be. Raises ConfigError.
    """
    entries = []
    for text in filter(None, (part.strip() for part in policies.split(","))):
        name, *options = text.split("/")
        if not all("=" in option for option in options):
            raise ConfigError(f"--policies: options are k=v behind slashes, as in lased/n0=3/c=2, not {text!r}")
        entries.append({"label": text, "policy": name, "options": dict(option.split("=", 1) for option in options)})
    labels = [entry["label"] for entry in entries]
    if len(entries) < least or len(set(labels)) < len(labels):
        raise ConfigError(f"--policies must name at least two different ones, as in lased,greedy, not {policies!r}")
    return entries


def spec_of(policies: str, scenario: dict[str, Any], size: dict[str, Any]) -> Spec:
    """Return the comparison as an experiment.

    policies: as `axis_of` parses them. scenario: fields that all policies share. size: fields of `Size`.
    """
    return Spec(
        title="Policies on the same traffic",
        source="compare",
        picture="dots",
        scenario=scenario,
        axes={"policy": axis_of(policies)},
        sizes={"quick": Size(**size)},
        name="compare",
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a policy and the first policy in one metric.

    mean: of the difference. half: its 95 % half width, None for one replication.
    part: the mean as a share of the first policy's value. values: by replication.
    """

    mean: float
    half: float | None
    part: float
    values: Floats

    @property
    def verdict(self) -> str:
        """The difference in words. Less is better in every metric."""
        if self.half is None:
            return "one run"
        if abs(self.mean) <= self.half:
            return "undecided"
        return "better" if self.mean < 0 else "worse"

    def as_json(self) -> dict[str, Any]:
        """Return the difference with its interval; the bounds are None for one replication."""
        low, high = (None, None) if self.half is None else (self.mean - self.half, self.mean + self.half)
        return {"mean": self.mean, "low": low, "high": high, "part": self.part, "verdict": self.verdict}


class Valued(Protocol):
    """A result with values by replication, shape (r,), for each metric."""

    def __getitem__(self, metric: str, /) -> Floats: ...


def difference(other: Valued, first: Valued, metric: str) -> Difference:
    """Return the difference other − first, paired by replication."""
    values = other[metric] - first[metric]
    mean, half = (float(value) for value in interval(values))
    level = float(first[metric].mean())
    return Difference(mean, half if len(values) > 1 else None, mean / level if level else 0.0, values)


def table(results: Results) -> Table:
    """Return a table with a row for each policy."""
    first = results.cells[0]
    name = first.cell.labels["policy"]
    scenario = first.cell.scenario
    mu = ", ".join(f"{rate:g}" for rate in scenario.mu)
    n = len(first.seeds)
    table = Table(
        title=f"λ = {scenario.lam:g}, μ = ({mu}), {scenario.arrivals:,} requests, {n} replication{'s' * (n > 1)}; "
        f"95 % intervals",
        title_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    for label in TABLE_METRICS.values():
        table.add_column(label, justify="right")
        table.add_column(f"less that of {name}", justify="right")
    for cell in results.cells:
        texts = []
        for metric in TABLE_METRICS:
            texts.append(with_error(*map(float, interval(cell[metric]))))
            texts.append(_text(difference(cell, first, metric)) if cell is not first else "")
        table.add_row(cell.cell.labels["policy"], *texts)
    return table


def _text(difference: Difference) -> str:
    mean = with_error(difference.mean, difference.half or 0.0)
    # `with_error` writes a minus, but no plus.
    return f"{'+' * (difference.mean > 0)}{mean} ({difference.part:+.1%}) {difference.verdict}"


def as_json(results: Results) -> dict[str, Any]:
    """Return what `compare --json` prints."""
    first = results.cells[0]
    policies, differences = {}, {}
    for cell in results.cells:
        label = cell.cell.labels["policy"]
        policies[label] = {
            metric: dict(zip(("mean", "se"), map(float, mean_and_se(cell[metric])), strict=True)) for metric in METRICS
        } | {"shares": cell["shares"].mean(axis=0).tolist()}
        if cell is not first:
            differences[label] = {metric: difference(cell, first, metric).as_json() for metric in METRICS}
    return {
        "first": first.cell.labels["policy"],
        "replications": len(first.seeds),
        "policies": policies,
        "differences": differences,
    }


def draw(results: Results, path: Path) -> None:
    """Write a picture of the differences with their intervals, with a panel for each metric.

    Small dots are replications. Raises PlotError without matplotlib.
    """
    first, *others = results.cells
    figure = plot.figure((12, 1.6 + 0.45 * len(others)))
    grid = figure.subplots(1, len(TABLE_METRICS), squeeze=False, sharey=True)
    for (metric, label), axes in zip(TABLE_METRICS.items(), grid[0], strict=True):
        for y, other in enumerate(others):
            gap = difference(other, first, metric)
            axes.plot(gap.values, [y + 0.18] * len(gap.values), ".", color="grey", alpha=0.35, markersize=4)
            axes.errorbar(gap.mean, y, xerr=gap.half or 0.0, fmt="o", color=plot.COLOURS[0], capsize=3)
        axes.axvline(0.0, color="black", linewidth=0.9)
        axes.set_yticks(range(len(others)), [other.cell.labels["policy"] for other in others])
        axes.set_ylim(len(others) - 0.5, -0.5)
        axes.set_xlabel(label)
        plot.plain(axes)
    figure.suptitle(f"less that of {first.cell.labels['policy']}, same traffic; dots: replications", fontsize=11)
    plot.save(figure, path)
