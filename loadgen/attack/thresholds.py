"""Parses and evaluates the rules of `--fail-if`, such as 'p99>200ms'. PURE."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass

from loadgen.attack.measure import VIEWS, Measures
from loadgen.attack.validity import is_supported

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
    """A rule. The run fails if it is true.

    Requests that timed out or were open at the end count as longer than all others. A time that does not exist is
    therefore above every bound.

    text: as given. what: the statistic. op: the comparison. bound: seconds, requests a second, requests, or a share.
    share: whether the bound is a share of the requests.
    """

    text: str
    what: str
    op: str
    bound: float
    share: bool

    def value(self, measures: Measures) -> float:
        """Return the statistic in the unit of the bound.

        Shares are of the sent requests; the share of dropped requests is of the due ones.
        """
        if self.what == "rate":
            return measures.achieved
        if self.what in _COUNTS:
            errors = measures.sent - measures.completed
            n = {"errors": errors, "dropped": measures.dropped, "unfinished": measures.unfinished}[self.what]
            return n / max(1, measures.sent + measures.dropped * (self.what == "dropped")) if self.share else float(n)
        view, name = _split(self.what)
        histogram, lost = measures.views[view], 0 if view == "lateness" else measures.lost
        if name == "mean":
            value = histogram.mean
        else:
            percent = 100.0 if name == "max" else float(name[1:])
            # The lost requests have the highest ranks. 1e-9 undoes rounding errors above a whole number.
            rank = math.ceil(percent * (histogram.count + lost) / 100 - 1e-9)
            value = histogram.percentile(100 * rank / histogram.count) if 0 < rank <= histogram.count else None
        return math.inf if value is None else value

    def supported(self, measures: Measures) -> bool:
        """Return whether there are enough observations for the percentile in the rule."""
        view, name = _split(self.what)
        if self.what in (*_COUNTS, "rate") or not name.startswith("p"):
            return True
        return is_supported(float(name[1:]), measures.views[view].count)

    def broken(self, measures: Measures) -> bool:
        """Return whether the rule is true, so that the run fails."""
        value = self.value(measures)
        same = math.isclose(value, self.bound, rel_tol=1e-9)  # times are sums of rounded numbers
        return "=" in self.op if same else bool(_OPERATORS[self.op](value, self.bound))

    def value_text(self, measures: Measures) -> str:
        """Return the statistic as text."""
        value = self.value(measures)
        if value == math.inf:
            return "never"
        if self.share:
            return f"{value:.2%}"
        if self.what in (*_COUNTS, "rate"):
            return f"{value:g}"
        return f"{value * 1e3:.3f} ms{'' if self.supported(measures) else ', of too few responses'}"


def _split(what: str) -> tuple[str, str]:
    """Split `service.p99` into view and statistic. A statistic without a view is of the response."""
    view, dot, name = what.partition(".")
    view = "response" if view == "latency" else view  # `latency` is the key of the summary
    return (view, name) if dot and view in VIEWS else ("response", what)


def parse(text: str) -> Threshold:
    """Parse a rule. Raises ValueError with one clear line.

    >>> parse("service.p99.9 > 200ms")
    Threshold(text='service.p99.9 > 200ms', what='service.p99.9', op='>', bound=0.2, share=False)
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(f"--fail-if {text!r} is not a rule; {HINT}")
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
