"""Defines the summary of a run: the object that `attack --json` prints and that the run's folder contains."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from loadgen.attack.measure import Measures, named_errors, total
from loadgen.attack.plan import Plan
from loadgen.attack.records import Effort, Records
from loadgen.attack.thresholds import Threshold
from loadgen.attack.validity import INVALID, Finding, Verdict, judge, unsupported, verdict


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Times(_Part):
    """Times in seconds; null without observations."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    p9999: float | None
    max: float | None


class IntervalPart(_Part):
    """Counts and response times of the requests that were planned in one interval, which starts at `begin`; seconds."""

    begin: float
    planned: int
    sent: int
    completed: int
    p50: float | None
    p99: float | None


class GapsPart(_Part):
    """Distance of the gaps between sends from the named law, or from the plan; above `allowed` the process differs."""

    distance: float
    allowed: float
    against: Literal["law", "plan"]
    gaps: int


class LittlePart(_Part):
    """Mean requests in flight, warm-up and drain included: as counted, and by the rows."""

    counted: float
    stamped: float


class FindingPart(_Part):
    """One remark on the validity of the run."""

    level: Literal["warning", "invalid"]
    says: str
    advice: str


class ThresholdPart(_Part):
    """A rule of --fail-if. value: null without observations, or if responses are missing; was: the value in words."""

    rule: str
    value: float | None
    was: str
    broken: bool


class Summary(_Part):
    """A run of `lased-loadgen attack` without its warm-up. Times are in seconds."""

    version: Literal[1] = Field(1, description="Version of this schema.")
    sent: int
    completed: int = Field(description="Requests whose response has a status from 200 to 399.")
    failed: int = Field(description="Requests sent and not completed.")
    dropped: int = Field(description="Requests due and not sent, over --max-in-flight.")
    unfinished: int = Field(description="Failed requests that were open at the end of the drain.")
    cut: int = Field(description="Requests that were not due when the run was ended early.")
    unsent: int = Field(description="Requests that were due and not sent when the run was ended early.")
    warmup_requests: int
    duration: float = Field(description="From the end of the warm-up to the last response.")
    offered_rate: float = Field(description="Planned requests a second.")
    achieved_rate: float = Field(description="Requests a second that were sent in time.")
    latency: Times = Field(description="Response times, from the planned instant to the response.")
    service: Times = Field(description="From the sending to the response.")
    lateness: Times = Field(description="From the planned instant to the sending.")
    lateness_p99: float | None
    unsupported: list[str] = Field(description="Percentiles with fewer than ten responses above them.")
    by_pool: dict[str, int]
    by_url: dict[str, int]
    status: dict[str, int] = Field(description="Requests by HTTP status; `none` without a response.")
    errors: dict[str, int] = Field(description="Requests without a response, by error.")
    connections: int = Field(description="Connections opened.")
    resent: int = Field(description="Requests sent again on a new connection, because the server had closed the first.")
    received_bytes: int
    cpu: list[float] = Field(description="Share of a core that each sending process took.")
    little: LittlePart
    gaps: GapsPart | None = Field(description="Null if there are too few gaps.")
    intervals: list[IntervalPart]
    verdict: Verdict
    warnings: list[str] = Field(description="The findings in one line each.")
    findings: list[FindingPart]
    thresholds: list[ThresholdPart]
    plan: dict[str, Any] = Field(description="The plan of the run.")

    @property
    def failed_thresholds(self) -> list[ThresholdPart]:
        """The rules of --fail-if that are true."""
        return [part for part in self.thresholds if part.broken]


def summarize(
    plan: Plan, records: Records, measures: Measures, efforts: Sequence[Effort], rules: Sequence[Threshold] = ()
) -> Summary:
    """Return the summary of a run.

    efforts: of the sending processes; empty if only the rows are known. rules: of --fail-if.
    """
    fit = measures.gaps.fit()
    findings: list[Finding] = judge(measures, fit, efforts)
    views = {view: Times(**histogram.summary()) for view, histogram in measures.views.items()}
    # The processes end at different times, and the mean in flight is over the longest of these times.
    elapsed = max((effort.elapsed for effort in efforts), default=measures.last_done)
    return Summary(
        version=1,
        sent=measures.sent,
        completed=measures.completed,
        failed=measures.sent - measures.completed,
        dropped=measures.dropped,
        unfinished=measures.unfinished,
        cut=measures.cut,
        unsent=measures.unsent,
        warmup_requests=measures.warmup_requests,
        duration=max(measures.seconds, measures.last_done - measures.begin),
        offered_rate=(measures.planned - measures.cut) / measures.seconds if measures.seconds else 0.0,
        achieved_rate=measures.achieved,
        latency=views["response"],
        service=views["service"],
        lateness=views["lateness"],
        lateness_p99=views["lateness"].p99,
        unsupported=unsupported(measures),
        by_pool={records.names[code]: n for code, n in sorted(measures.by_pool.items())},
        by_url=_by_url(plan.request.urls, measures),
        status={str(code) if code else "none": n for code, n in sorted(measures.status.items())},
        errors=named_errors(measures.errors),
        connections=int(total(efforts, "opened")),
        resent=int(total(efforts, "resent")),
        received_bytes=int(total(efforts, "received")),
        cpu=[effort.cpu / effort.elapsed for effort in efforts if effort.elapsed > 0],
        little=LittlePart(counted=total(efforts, "busy") / (elapsed or 1.0), stamped=measures.busy / (elapsed or 1.0)),
        gaps=GapsPart(**asdict(fit)) if fit else None,
        intervals=[IntervalPart(**asdict(interval)) for interval in measures.intervals],
        verdict=verdict(findings),
        warnings=[str(finding) for finding in findings],
        findings=[FindingPart(**asdict(finding)) for finding in findings],
        thresholds=[_threshold(rule, measures) for rule in rules],
        plan=plan.as_json(),
    )


def _by_url(urls: Sequence[str], measures: Measures) -> dict[str, int]:
    by_url: Counter[str] = Counter()
    for code, n in sorted(measures.by_target.items()):
        by_url[urls[code]] += n  # a URL may be given twice, with two weights
    return dict(by_url)


def _threshold(rule: Threshold, measures: Measures) -> ThresholdPart:
    value = rule.value(measures)
    return ThresholdPart(
        rule=rule.text,
        value=value if math.isfinite(value) else None,
        was=rule.value_text(measures),
        broken=rule.broken(measures),
    )


def exit_code(summary: Summary) -> int:
    """Return 0 if all is well, 3 if a rule of --fail-if is true, 4 if the run is invalid.

    The rules have no meaning for an invalid run, so 4 takes precedence.
    """
    if summary.verdict == INVALID:
        return 4
    return 3 if summary.failed_thresholds else 0
