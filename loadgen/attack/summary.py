"""What a run comes to, as one object with a schema: what `attack --json` prints, and a run's folder keeps."""

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
    """Seconds; null where there is no observation."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    p9999: float | None
    max: float | None


class IntervalPart(_Part):
    """What was planned in a stretch of the run, from `begin`, and what became of it; response times in seconds."""

    begin: float
    planned: int
    sent: int
    completed: int
    p50: float | None
    p99: float | None


class GapsPart(_Part):
    """Distance of the gaps between sends from the named law, or from the plan's; above `allowed` it is another
    process."""

    distance: float
    allowed: float
    against: Literal["law", "plan"]
    gaps: int


class LittlePart(_Part):
    """Requests in flight on average, warm-up and drain included: as counted, and by the stamps."""

    counted: float
    stamped: float


class FindingPart(_Part):
    level: Literal["warning", "invalid"]
    says: str
    advice: str


class ThresholdPart(_Part):
    """A rule of --fail-if. value: null where nothing was observed, or answers never came; was: the same in words."""

    rule: str
    value: float | None
    was: str
    broken: bool


class Summary(_Part):
    """A run of `lased-loadgen attack`, its warm-up left out. Times in seconds."""

    version: Literal[1] = Field(1, description="Of this form.")
    sent: int
    completed: int = Field(description="Answered with a status from 200 to 399.")
    failed: int = Field(description="Sent and not completed.")
    dropped: int = Field(description="Due and not sent, over --max-in-flight.")
    unfinished: int = Field(description="Of the failed: open when the drain was over.")
    cut: int = Field(description="Planned, and never due: the run was ended early.")
    unsent: int = Field(description="Due, and still not sent when the run was ended early.")
    warmup_requests: int
    duration: float = Field(description="From the end of the warm-up to the last answer.")
    offered_rate: float = Field(description="Requests a second that were planned.")
    achieved_rate: float = Field(description="Requests a second that were sent in time.")
    latency: Times = Field(description="From the planned instant to the answer: the response.")
    service: Times = Field(description="From the sending to the answer.")
    lateness: Times = Field(description="From the planned instant to the sending.")
    lateness_p99: float | None
    unsupported: list[str] = Field(description="Percentiles with fewer than ten responses above them.")
    by_pool: dict[str, int]
    by_url: dict[str, int]
    status: dict[str, int] = Field(description="Answers by HTTP status; `none`: no answer.")
    errors: dict[str, int] = Field(description="What happened to those without an answer.")
    connections: int = Field(description="Opened.")
    resent: int = Field(description="Sent again on a new connection: the server had closed the one taken.")
    received_bytes: int
    cpu: list[float] = Field(description="Share of a core that each sending process took.")
    little: LittlePart
    gaps: GapsPart | None = Field(description="Null for very few gaps.")
    intervals: list[IntervalPart]
    verdict: Verdict
    warnings: list[str] = Field(description="The findings in one line each.")
    findings: list[FindingPart]
    thresholds: list[ThresholdPart]
    plan: dict[str, Any] = Field(description="What was asked for.")

    @property
    def failed_thresholds(self) -> list[ThresholdPart]:
        return [part for part in self.thresholds if part.broken]


def summarize(
    plan: Plan, records: Records, found: Measures, efforts: Sequence[Effort], rules: Sequence[Threshold] = ()
) -> Summary:
    """Everything of a run. efforts: of the sending processes; none where only the rows are left."""
    fit = found.gaps.fit()
    findings: list[Finding] = judge(found, fit, efforts)
    views = {view: Times(**histogram.summary()) for view, histogram in found.views.items()}
    by_url: Counter[str] = Counter()
    for code, n in sorted(found.by_target.items()):
        by_url[plan.request.urls[code]] += n
    elapsed = max((effort.elapsed for effort in efforts), default=found.last_done)
    return Summary(
        version=1,
        sent=found.sent,
        completed=found.completed,
        failed=found.sent - found.completed,
        dropped=found.dropped,
        unfinished=found.unfinished,
        cut=found.cut,
        unsent=found.unsent,
        warmup_requests=found.warmed,
        duration=max(found.seconds, found.last_done - found.begin),
        offered_rate=(found.planned - found.cut) / found.seconds if found.seconds else 0.0,
        achieved_rate=found.achieved,
        latency=views["response"],
        service=views["service"],
        lateness=views["lateness"],
        lateness_p99=views["lateness"].p99,
        unsupported=unsupported(found),
        by_pool={records.names[code]: n for code, n in sorted(found.by_pool.items())},
        by_url=dict(by_url),
        status={str(code) if code else "none": n for code, n in sorted(found.status.items())},
        errors=named_errors(found.errors),
        connections=int(total(efforts, "opened")),
        resent=int(total(efforts, "resent")),
        received_bytes=int(total(efforts, "received")),
        cpu=[effort.cpu / effort.elapsed for effort in efforts if effort.elapsed > 0],
        little=LittlePart(counted=total(efforts, "busy") / (elapsed or 1.0), stamped=found.busy / (elapsed or 1.0)),
        gaps=GapsPart(**asdict(fit)) if fit else None,
        intervals=[IntervalPart(**asdict(interval)) for interval in found.intervals],
        verdict=verdict(findings),
        warnings=[str(finding) for finding in findings],
        findings=[FindingPart(**asdict(finding)) for finding in findings],
        thresholds=[_threshold(rule, found) for rule in rules],
        plan=plan.as_json(),
    )


def _threshold(rule: Threshold, found: Measures) -> ThresholdPart:
    value = rule.value(found)
    return ThresholdPart(
        rule=rule.text, value=value if math.isfinite(value) else None, was=rule.said(found), broken=rule.broken(found)
    )


def exit_code(summary: Summary) -> int:
    """0 good, 3 a threshold is broken, 4 the run is invalid, which also makes its thresholds mean nothing."""
    if summary.verdict == INVALID:
        return 4
    return 3 if summary.failed_thresholds else 0
