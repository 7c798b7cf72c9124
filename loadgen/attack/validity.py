"""Judges whether the results of a run are valid, and gives advice if they are not. PURE.

A run is invalid if its numbers do not describe the requested traffic: too few requests were sent, requests waited in
the generator, or the counts disagree. Warnings are for facts that a reader of the numbers must know. The method is that
of MLPerf's load generator (its Server scenario and its early-stopping bound); the thresholds are our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadgen.attack.arrival_fit import Fit
from loadgen.attack.histogram import PERCENTILES
from loadgen.attack.measure import Measures, total
from loadgen.attack.records import Effort

ALLOWED_LATE_SHARE, ALLOWED_LATE_REQUESTS = 0.01, 3  # of the due requests, sent after the end of the traffic
WARNING_LATENESS_SHARE, INVALID_LATENESS_SHARE = 0.1, 0.5  # of a response time, caused by the generator's lateness
MIN_MEAN_LATENESS_SECONDS, MIN_TAIL_LATENESS_SECONDS = 0.0001, 0.001  # less lateness is not reported
MAX_INVALIDATING_PERCENTILE = 99.0  # lateness that only higher percentiles show spoils them, not the run
MAX_DROPPED_SHARE = 0.01  # with more dropped requests the load was not open
INVALID_EXCESS_DISTANCE = 0.15  # beyond the allowed distance of the gaps
MAX_LITTLE_ERROR = 0.02  # relative difference of the two counts of requests in flight
MIN_LITTLE_REQUEST_SECONDS = 0.0001  # the relative difference is of at least this much
MAX_CPU_SHARE = 0.8  # of a core
MIN_OBSERVATIONS_ABOVE = 10  # that a percentile needs

WARNING, INVALID = "warning", "invalid"
_AGAINST_LATENESS = "keep the machine free, lower the rate, or try --processes or --spin"
Verdict = Literal["valid", "valid with warnings", "invalid"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark on a run. level: WARNING or INVALID. says: the fact. advice: what to do about it."""

    level: str
    says: str
    advice: str

    def __str__(self) -> str:
        return f"{self.says}: {self.advice}"


def verdict(findings: Sequence[Finding]) -> Verdict:
    """Return the verdict that follows from the findings."""
    if any(finding.level == INVALID for finding in findings):
        return "invalid"
    return "valid with warnings" if findings else "valid"


def judge(measures: Measures, fit: Fit | None, efforts: Sequence[Effort]) -> list[Finding]:
    """Return all findings on a run, the worst first.

    fit: of the gaps; None if there were too few. efforts: of the sending processes; empty if they are not known.
    """
    findings = [
        *_outcomes(measures),
        *_rate(measures),
        *_drops(measures),
        *_lateness(measures),
        *_fit(fit),
        *_little(measures, efforts),
        *_cpu(efforts),
        *_samples(measures),
    ]
    return sorted(findings, key=lambda finding: finding.level != INVALID)


def _outcomes(measures: Measures) -> list[Finding]:
    if measures.sent and not measures.completed:
        return [Finding(INVALID, "no request was completed", "see the counts by status and error below")]
    findings = []
    if failed := measures.sent - measures.completed - measures.unfinished:
        text = f"{failed} of {measures.sent} requests failed"
        findings.append(Finding(WARNING, text, "the times are those of the others only"))
    if measures.unfinished:
        text = f"{measures.unfinished} of {measures.sent} requests were open when the run ended"
        findings.append(Finding(WARNING, text, "long times are missing from the percentiles; raise --drain"))
    return findings


def _rate(measures: Measures) -> list[Finding]:
    if not measures.sent:
        advice = "raise --max-in-flight" if measures.dropped else "let the run last longer than its warm-up"
        return [Finding(INVALID, "nothing was sent", advice)]
    if measures.due - measures.in_time <= max(ALLOWED_LATE_SHARE * measures.due, ALLOWED_LATE_REQUESTS):
        return []
    planned = measures.due / measures.seconds
    text = f"only {measures.achieved:.1f} of {planned:.1f} requests a second were sent in time"
    return [Finding(INVALID, text, "lower the rate, give --processes more cores, or keep the machine free")]


def _drops(measures: Measures) -> list[Finding]:
    if not measures.dropped:
        return []
    due = measures.sent + measures.dropped
    level = INVALID if measures.dropped > MAX_DROPPED_SHARE * due else WARNING
    text = f"{measures.dropped} of {due} requests were dropped"
    return [Finding(level, text, "the load was not open; raise --max-in-flight")]


def _lateness(measures: Measures) -> list[Finding]:
    late, response = measures.views["lateness"], measures.views["response"]
    p99, mean, whole = late.percentile(99), late.mean, response.mean
    if p99 is None or mean is None:
        return []
    findings = []
    if whole and mean > MIN_MEAN_LATENESS_SECONDS and mean > WARNING_LATENESS_SHARE * whole:
        invalid = mean > max(INVALID_LATENESS_SHARE * whole, MIN_TAIL_LATENESS_SECONDS)
        text = f"{mean / whole:.0%} of the mean response is the generator's lateness"
        findings.append(Finding(INVALID if invalid else WARNING, text, _AGAINST_LATENESS))
    findings += _tail(measures)
    gap = measures.seconds / max(1, measures.sent)
    # A request that is later than the mean gap leaves together with the next one, so the traffic is not as planned.
    if p99 > max(gap, MIN_TAIL_LATENESS_SECONDS):
        text = f"1 % of the requests were sent over {p99 * 1e3:.2f} ms late; the mean gap is {gap * 1e3:.2f} ms"
        findings.append(Finding(WARNING, text, _AGAINST_LATENESS))
    return findings


def _tail(measures: Measures) -> list[Finding]:
    """Judge the percentile of the response with the largest share of lateness."""
    # The ratio response ÷ service is 1 / (1 − share of the lateness), so both have the same order.
    few, worst = unsupported(measures), (1 / (1 - WARNING_LATENESS_SHARE), "", 0.0, 0.0)
    for name, share in PERCENTILES.items():
        response, service = (measures.views[view].percentile(share) for view in ("response", "service"))
        if response and service and name not in few and response - service > MIN_TAIL_LATENESS_SECONDS:
            worst = max(worst, (response / service, name, response, response - service))
    ratio, name, whole, late = worst
    if not name:
        return []
    invalid = ratio > 1 / (1 - INVALID_LATENESS_SHARE) and PERCENTILES[name] <= MAX_INVALIDATING_PERCENTILE
    text = f"of {name}, {whole * 1e3:.1f} ms, the generator's lateness makes {late * 1e3:.1f} ms"
    return [Finding(INVALID if invalid else WARNING, text, f"use the service times instead; {_AGAINST_LATENESS}")]


def _fit(fit: Fit | None) -> list[Finding]:
    if fit is None or fit.distance <= fit.allowed:
        return []
    level = INVALID if fit.distance > fit.allowed + INVALID_EXCESS_DISTANCE else WARNING
    demanded = "the named process" if fit.against == "law" else "the plan"
    distance = f"distance {fit.distance:.3f}, {fit.allowed:.3f} allowed"
    text = f"the gaps between sends are not those of {demanded} ({distance})"
    return [Finding(level, text, "lower the rate or keep the machine free")]


def _little(measures: Measures, efforts: Sequence[Effort]) -> list[Finding]:
    """Compare the integral of the requests in flight, as counted, with the sum of the times of the rows (L = λW)."""
    counted = total(efforts, "busy")
    allowed = MAX_LITTLE_ERROR * max(counted, measures.busy, MIN_LITTLE_REQUEST_SECONDS)
    if not efforts or abs(counted - measures.busy) <= allowed:
        return []
    text = f"Little's law fails: {counted:.3f} request-seconds by counting, {measures.busy:.3f} by the rows"
    return [Finding(INVALID, text, "rows are missing or wrong; please report this")]


def _cpu(efforts: Sequence[Effort]) -> list[Finding]:
    shares = [effort.cpu / effort.elapsed for effort in efforts if effort.elapsed > 0]
    if not shares or max(shares) <= MAX_CPU_SHARE:
        return []
    text = f"a sending process took {max(shares):.0%} of a core"
    return [Finding(WARNING, text, "responses may have been read late; raise --processes")]


def is_supported(percentile: float, count: int) -> bool:
    """Return whether so many observations are enough for a percentile."""
    # With a rounding error, 10,000 · (100 − 99.9) / 100 is less than 10.
    return count * (100 - percentile) / 100 >= MIN_OBSERVATIONS_ABOVE - 1e-9


def unsupported(measures: Measures) -> list[str]:
    """Return the percentiles that have too few observations above them."""
    n = measures.views["response"].count
    return [name for name, percentile in PERCENTILES.items() if not is_supported(percentile, n)]


def _samples(measures: Measures) -> list[Finding]:
    few = [name for name in unsupported(measures) if name in ("p50", "p90", "p95", "p99")]
    if not few or not measures.completed:
        return []
    n, share = measures.views["response"].count, PERCENTILES[few[0]]
    text = f"{n} responses are too few for {few[0]}" + (" and above" if few[0] != "p99" else "")
    needed = round(MIN_OBSERVATIONS_ABOVE * 100 / (100 - share))
    return [Finding(WARNING, text, f"{few[0]} needs {needed} responses")]
