"""`--fail-if 'p99>200ms'`: what a run must not be, for pipelines. PURE."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass

from loadgen.attack.measure import VIEWS, Measures
from loadgen.attack.validity import BEYOND

_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_RULE = re.compile(
    r"\s*(?P<what>[a-z0-9.]+)\s*(?P<op>>=|<=|>|<)\s*(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>us|µs|ms|s|m|%)?\s*",
    re.ASCII | re.I,
)
_COUNTS = ("errors", "dropped", "unfinished")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)", re.ASCII)
HINT = "as in p99>200ms, service.p99.9>1s, mean>50ms, errors>1%, dropped>0 or rate<950"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A rule; the run fails if it is true. A time that does not exist, for want of
    answers, is over every bound: those that timed out or were open at the end count as longer than all others."""

    text: str
    what: str
    op: str
    bound: float
    share: bool

    def value(self, found: Measures) -> float:
        """Seconds, requests a second, requests, or a share of those sent (of those due, for what was dropped)."""
        if self.what == "rate":
            return found.achieved
        if self.what in _COUNTS:
            count = {"errors": found.sent - found.completed, "dropped": found.dropped, "unfinished": found.unfinished}
            n = count[self.what]
            return n / max(1, found.sent + found.dropped * (self.what == "dropped")) if self.share else float(n)
        view, name = _split(self.what)
        histogram, lost = found.views[view], 0 if view == "lateness" else found.lost
        if name == "mean":
            value = histogram.mean
        else:
            share = 100.0 if name == "max" else float(name[1:])
            rank = math.ceil(share * (histogram.count + lost) / 100 - 1e-9)
            value = histogram.percentile(100 * rank / histogram.count) if 0 < rank <= histogram.count else None
        return math.inf if value is None else value

    def supported(self, found: Measures) -> bool:
        """Whether there are enough observations for the percentile it names."""
        view, name = _split(self.what)
        return (
            self.what in (*_COUNTS, "rate")
            or not name.startswith("p")
            or (found.views[view].count * (100 - float(name[1:])) / 100 >= BEYOND - 1e-9)
        )

    def broken(self, found: Measures) -> bool:
        value = self.value(found)
        same = math.isclose(value, self.bound, rel_tol=1e-9)  # seconds are sums of rounded stamps
        return "=" in self.op if same else bool(_OPERATORS[self.op](value, self.bound))

    def said(self, found: Measures) -> str:
        """What it was, in the rule's own unit."""
        value = self.value(found)
        if value == math.inf:
            return "never"
        if self.share:
            return f"{value:.2%}"
        if self.what in (*_COUNTS, "rate"):
            return f"{value:g}"
        return f"{value * 1e3:.3f} ms{'' if self.supported(found) else ', of too few answers'}"


def _split(what: str) -> tuple[str, str]:
    """View and statistic: `service.p99`; `p99` is of the response."""
    view, dot, name = what.partition(".")
    view = "response" if view == "latency" else view  # as the summary calls it
    return (view, name) if dot and view in VIEWS else ("response", what)


def parse(text: str) -> Threshold:
    """Raises ValueError with one clear line.

    >>> parse("service.p99.9 > 200ms")
    Threshold(text='service.p99.9 > 200ms', what='service.p99.9', op='>', bound=0.2, share=False)
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(f"--fail-if {text!r} is no rule; {HINT}")
    what, unit, value = match["what"].lower(), match["unit"], float(match["value"])
    if what in (*_COUNTS, "rate"):
        if unit not in (None, "%") or (unit == "%" and what == "rate"):
            raise ValueError(
                f"--fail-if {text!r}: {what} is compared with a number" + ("" if what == "rate" else " or a share")
            )
        return Threshold(text, what, match["op"], value / 100 if unit else value, bool(unit))
    _, name = _split(what)
    percentile = _PERCENTILE.fullmatch(name)
    if not (percentile and float(percentile[1]) > 0) and name not in ("mean", "max"):
        raise ValueError(f"--fail-if {text!r}: there is no {what}; {HINT}")
    if unit is None or unit == "%":
        raise ValueError(f"--fail-if {text!r}: a time needs its unit: us, ms, s or m")
    return Threshold(text, what, match["op"], value * _UNITS[unit.lower()], False)
