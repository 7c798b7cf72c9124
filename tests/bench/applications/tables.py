"""This module makes tables of the turns: means, p99, ratios to the best entrant of a row, and geometric means.

Ratios are paired: in each round an entrant's value is divided by the best entrant's value of the same round. The
interval is Student's 95 % interval of the logarithms over rounds. It is wide for few rounds: with 3 rounds it is 2.5
standard deviations to each side.
"""

import math
from dataclasses import dataclass

import numpy as np

from loadgen.experiments.results import interval
from tests.bench.applications.turns import capacity_mark

METRICS = {"mean": "mean", "p99": "p99"}
CLOSE = 1.03  # a ratio up to which an entrant counts as close to the best
LATE = 0.005  # seconds of the load generator's own p99 lateness above which a turn is doubted
DRAIN = 0.25  # the share of a turn's time after which the last answer is called late
BUSY = 0.9  # of the processors, above which a turn is doubted


@dataclass(frozen=True)
class Ratio:
    """This is an entrant's value over the best entrant's. `low` and `high` end its interval; one round gives NaN."""

    value: float
    low: float
    high: float

    @property
    def half(self):
        """Returns half the width of the interval, as a share of the ratio."""
        return (self.high - self.low) / (2 * self.value)

    @property
    def tied(self):
        """Returns whether the interval reaches 1 or less."""
        return self.low <= 1.0


def ratio(values, best):
    """Returns the paired ratio. values and best have shape (rounds,)."""
    logs = np.log(np.asarray(values) / np.asarray(best))
    if len(logs) == 1:
        return Ratio(math.exp(logs[0]), math.nan, math.nan)
    mean, half = interval(logs)
    return Ratio(*(math.exp(value) for value in (mean, mean - half, mean + half)))


class Findings:
    """This holds the turns of a plan that are in the store. `rows` has only rows whose turns are all there."""

    def __init__(self, plan, store):
        self.plan, self.entrants = plan, plan.entrants
        self._turns = {}
        for j, row, entrants in plan.groups():
            for entrant in entrants:
                if found := store.get(plan.mark(j, row, entrant)):
                    self._turns[row.name, entrant.name, j] = found
        self.rows = [row for row in plan.rows if all(map(self._complete(row), plan.entrants))]
        self._capacities = {row.name: store.get(capacity_mark(row)) for row in plan.rows}

    def _complete(self, row):
        return lambda entrant: all((row.name, entrant.name, j) in self._turns for j in range(self.plan.rounds))

    def values(self, row, entrant, metric):
        """Returns the values of a metric, shape (rounds,)."""
        found = (self._turns[row.name, entrant.name, j][metric] for j in range(self.plan.rounds))
        return np.array(list(found), dtype=float)

    def best(self, row, metric):
        """Returns the entrant with the least mean over rounds."""
        return min(self.entrants, key=lambda entrant: self.values(row, entrant, metric).mean())

    def ratio(self, row, entrant, metric):
        """Returns the ratio to the best entrant of the row."""
        return ratio(self.values(row, entrant, metric), self.values(row, self.best(row, metric), metric))

    def overall(self, entrant, metric):
        """Returns the geometric mean over rows of the ratios to the best entrant."""
        return math.exp(np.mean([math.log(self.ratio(row, entrant, metric).value) for row in self.rows]))

    def against(self, entrant, other, metric):
        """Returns the geometric mean over rows of one entrant's value over another's."""
        pairs = [(self.values(row, entrant, metric), self.values(row, other, metric)) for row in self.rows]
        return math.exp(np.mean([math.log(ratio(*pair).value) for pair in pairs]))

    def close(self, entrant, metric):
        """Returns in how many rows the entrant's ratio is at most CLOSE."""
        return sum(self.ratio(row, entrant, metric).value <= CLOSE for row in self.rows)

    def level(self, entrant, metric):
        """Returns in how many rows the entrant is the best or its interval contains 1."""
        return sum(entrant is self.best(row, metric) or self.ratio(row, entrant, metric).tied for row in self.rows)

    def capacity(self, row):
        """Returns requests a second; infinite where a pool has no limit."""
        entry = self._capacities[row.name]
        return entry["capacity"] if entry else row.capacity

    def doubts(self):
        """Returns a sentence for each row and each way in which its turns did not go as planned."""
        found = []
        for row in self.plan.rows:
            turns = [turn for (name, *_), turn in self._turns.items() if name == row.name]
            for words, value, bound, unit in (
                ("some requests failed and do not count", "failed", 0, "requests"),
                ("the last answer came late after the end of the traffic", "drain", DRAIN * self.plan.seconds, "s"),
                ("the processors had little time left", "busy", BUSY, "of the time busy"),
                ("the load generator itself was late", "lateness_p99", LATE, "s at p99"),
            ):
                worst = max((turn[value] for turn in turns), default=0)
                if worst > bound:
                    times = sum(turn[value] > bound for turn in turns)
                    found.append(f"{row.name}: in {times} of {len(turns)} turns {words} (at most {worst:.3g} {unit}).")
        return found


def row_table(findings, metric):
    """Returns a header and lines. A line is a row; a cell has an entrant's value in ms and its ratio to the best."""
    header = ["row", "requests/s", *(entrant.name for entrant in findings.entrants)]
    lines = [
        [row.name, f"{row.rate_at(findings.capacity(row)):.0f}"]
        + [_cell(findings, row, entrant, metric) for entrant in findings.entrants]
        for row in findings.rows
    ]
    overall = [f"{findings.overall(entrant, metric):.3f}" for entrant in findings.entrants]
    return header, [*lines, ["geometric mean of the ratios", "", *overall]]


def _cell(findings, row, entrant, metric):
    value = f"{findings.values(row, entrant, metric).mean() * 1e3:.1f}"
    if entrant is findings.best(row, metric):
        return f"**{value}**"
    found = findings.ratio(row, entrant, metric)
    half = "" if math.isnan(found.half) else f" ± {found.half * found.value:.2f}"
    return f"{value} ({found.value:.2f}{half})"


def summary_table(findings):
    """Returns a header and lines. A line is an entrant."""
    first, n = findings.entrants[0], len(findings.rows)
    header = ["entrant"]
    for label in METRICS.values():
        header += [f"{label} ÷ best", f"{label} ÷ {first.name}", f"{label} within 3 %", f"{label} best or tied"]
    lines = []
    for entrant in findings.entrants:
        cells = [entrant.name]
        for metric in METRICS:
            cells.append(f"{findings.overall(entrant, metric):.3f}")
            cells.append(f"{findings.against(entrant, first, metric):.3f}")
            cells.append(f"{findings.close(entrant, metric)} of {n}")
            cells.append(f"{findings.level(entrant, metric)} of {n}")
        lines.append(cells)
    return header, lines


def setup_table(findings):
    """Returns a header and lines. A line describes a row and how its capacity is known."""
    lines = []
    for row in findings.rows:
        capacity = findings.capacity(row)
        known = "measured" if row.measured else "places ÷ mean work"
        limit = "no limit" if math.isinf(capacity) else f"{capacity:.0f}/s, {known}"
        pools = "; ".join(map(str, row.pools))
        lines.append([row.name, row.what, pools, limit, f"{row.rate_at(capacity):.0f}"])
    return ["row", "what it shows", "pools", "capacity", "requests/s"], lines


def markdown(findings):
    """Returns all tables as Markdown, with a paragraph on how to read them."""
    plan = findings.plan
    parts = [
        f"{plan.rounds} rounds of {plan.seconds:g} s a turn, seed {plan.seed}. Times are in ms and count from the "
        "planned instant of each request; the mean over rounds is shown. In brackets is the ratio to the best entrant "
        "of the row, which is in bold, with its 95 % interval over rounds, paired by round.",
    ]
    for title, (header, lines) in (
        ("Rows", setup_table(findings)),
        *((f"{label.capitalize()} response", row_table(findings, metric)) for metric, label in METRICS.items()),
        ("All rows", summary_table(findings)),
    ):
        parts.append(f"### {title}\n\n{_lines([header, ['---'] * len(header), *lines])}")
    if doubts := findings.doubts():
        parts.append("### Turns that did not go as planned\n\n" + "\n".join(f"* {doubt}" for doubt in doubts))
    return "\n\n".join(parts) + "\n"


def _lines(rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
