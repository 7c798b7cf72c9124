"""Whether a run may be believed, and what to do where it may not. PURE.

A run is invalid where its numbers are not about the traffic that was named: too little of it was sent, what was sent
waited in the generator, or kept no count. It has warnings where a reader must know something. The method is that of
MLPerf's load generator (its Server scenario and its early-stopping bound); the thresholds are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadgen.attack.arrival_fit import Fit
from loadgen.attack.histogram import PERCENTILES
from loadgen.attack.measure import Measures, total
from loadgen.attack.records import Effort

SHORT, SHORT_AT_LEAST = 0.01, 3  # of the requests due, that may leave after the traffic's end
LATE_SHARE, LATE_INVALID = 0.1, 0.5  # of a response that is the generator's own lateness
LATE_FLOOR, TAIL_FLOOR = 0.0001, 0.001  # seconds of lateness that are not worth a word: on average, and in the tail
MAIN = 99.0  # percentile up to which lateness makes a run invalid; beyond, the percentile is not to be quoted
DROPS = 0.01  # share of drops from which on open load was closed load
FIT_INVALID = 0.15  # distance, beyond what is allowed, from which on the process is another one
LITTLE = 0.02  # of the requests in flight, by which counting and stamps may differ
CPU = 0.8  # of a core
BEYOND = 10  # observations that must lie above a percentile

WARNING, INVALID = "warning", "invalid"
Verdict = Literal["valid", "valid with warnings", "invalid"]


@dataclass(frozen=True, slots=True)
class Finding:
    """level: WARNING or INVALID. says: what is so. advice: what to do."""

    level: str
    says: str
    advice: str

    def __str__(self) -> str:
        return f"{self.says}: {self.advice}"


def verdict(findings: Sequence[Finding]) -> Verdict:
    """In the words of the report."""
    if any(finding.level == INVALID for finding in findings):
        return "invalid"
    return "valid with warnings" if findings else "valid"


def judge(found: Measures, fit: Fit | None, efforts: Sequence[Effort]) -> list[Finding]:
    """All that is to be said of a run, the worst first."""
    checks = (_answers(found), _rate(found), _drops(found), _lateness(found), _fit(fit), _little(found, efforts),
              _cpu(efforts), _samples(found))  # fmt: skip
    said = [finding for group in checks for finding in group]
    return sorted(said, key=lambda finding: finding.level != INVALID)


def _answers(found: Measures) -> list[Finding]:
    if found.sent and not found.completed:
        return [Finding(INVALID, "no request was answered well", "see by status and no answer below")]
    said = []
    if bad := found.sent - found.completed - found.unfinished:
        said.append(Finding(WARNING, f"{bad} of {found.sent} requests failed", "times are of the others only"))
    if found.unfinished:
        text = f"{found.unfinished} of {found.sent} requests were open when the run ended"
        said.append(Finding(WARNING, text, "long times are missing from the percentiles; raise --drain"))
    return said


def _rate(found: Measures) -> list[Finding]:
    if not found.sent:
        advice = "raise --max-in-flight" if found.dropped else "let the run go on for longer than its warm-up"
        return [Finding(INVALID, "nothing was sent", advice)]
    if found.due - found.in_time <= max(SHORT * found.due, SHORT_AT_LEAST):
        return []
    text = f"only {found.achieved:.1f} of {found.due / found.seconds:.1f} requests a second were sent in time"
    return [Finding(INVALID, text, "lower the rate, give --processes more cores, or keep the machine free")]


def _drops(found: Measures) -> list[Finding]:
    if not found.dropped:
        return []
    due = found.sent + found.dropped
    level = INVALID if found.dropped > DROPS * due else WARNING
    return [
        Finding(
            level, f"{found.dropped} of {due} requests were dropped", "the load was not open; raise --max-in-flight"
        )
    ]


_FREE = "keep the machine free, lower the rate, or try --processes or --spin"


def _lateness(found: Measures) -> list[Finding]:
    late, response = found.views["lateness"], found.views["response"]
    p99, mean, whole = late.percentile(99), late.mean, response.mean
    if p99 is None or mean is None:
        return []
    said = []
    if whole and mean > LATE_FLOOR and mean > LATE_SHARE * whole:
        level = INVALID if mean > max(LATE_INVALID * whole, TAIL_FLOOR) else WARNING
        said.append(Finding(level, f"{mean / whole:.0%} of the mean response is the generator's lateness", _FREE))
    said += _tail(found)
    gap = found.seconds / max(1, found.sent)
    if p99 > max(gap, TAIL_FLOOR):
        text = f"1 % of requests left over {p99 * 1e3:.2f} ms late, the mean gap is {gap * 1e3:.2f} ms"
        said.append(Finding(WARNING, text, _FREE))
    return said


def _tail(found: Measures) -> list[Finding]:
    """The percentile of the response that owes the largest part to the generator."""
    few, worst = unsupported(found), (1 / (1 - LATE_SHARE), "", 0.0, 0.0)
    for name, share in PERCENTILES.items():
        ours, theirs = (found.views[view].percentile(share) for view in ("response", "service"))
        if ours and theirs and name not in few and ours - theirs > TAIL_FLOOR:
            worst = max(worst, (ours / theirs, name, ours, ours - theirs))
    times, name, whole, late = worst
    if not name:
        return []
    level = INVALID if times > 1 / (1 - LATE_INVALID) and PERCENTILES[name] <= MAIN else WARNING
    text = f"of {name}, {whole * 1e3:.1f} ms, the generator's lateness makes {late * 1e3:.1f} ms"
    return [Finding(level, text, f"believe the service times; {_FREE}")]


def _fit(fit: Fit | None) -> list[Finding]:
    if fit is None or fit.distance <= fit.allowed:
        return []
    level = INVALID if fit.distance > fit.allowed + FIT_INVALID else WARNING
    named = "the named process" if fit.against == "law" else "the plan"
    text = f"the gaps between sends are not those of {named} (distance {fit.distance:.3f}, {fit.allowed:.3f} allowed)"
    return [Finding(level, text, "lower the rate or keep the machine free")]


def _little(found: Measures, efforts: Sequence[Effort]) -> list[Finding]:
    """L = λW, over the run from empty to empty: requests in flight, counted, against the sum of the times by stamps."""
    counted = total(efforts, "busy")
    if not efforts or abs(counted - found.busy) <= LITTLE * max(counted, found.busy, LATE_FLOOR):
        return []
    text = f"Little's law fails: {counted:.3f} request-seconds by counting, {found.busy:.3f} by the stamps"
    return [Finding(INVALID, text, "rows are missing or wrong; please report this")]


def _cpu(efforts: Sequence[Effort]) -> list[Finding]:
    shares = [effort.cpu / effort.elapsed for effort in efforts if effort.elapsed > 0]
    if not shares or max(shares) <= CPU:
        return []
    text = f"a sending process took {max(shares):.0%} of a core"
    return [Finding(WARNING, text, "answers may have been read late; raise --processes")]


def unsupported(found: Measures) -> list[str]:
    """Percentiles that have too few observations above them."""
    n = found.views["response"].count
    return [name for name, share in PERCENTILES.items() if n * (100 - share) / 100 < BEYOND - 1e-9]


def _samples(found: Measures) -> list[Finding]:
    few = [name for name in unsupported(found) if name in ("p50", "p90", "p95", "p99")]
    if not few or not found.completed:
        return []
    n, share = found.views["response"].count, PERCENTILES[few[0]]
    text = f"{n} answers are too few for {few[0]}" + (" and above" if few[0] != "p99" else "")
    return [Finding(WARNING, text, f"it takes {round(BEYOND * 100 / (100 - share))} for {few[0]}")]
