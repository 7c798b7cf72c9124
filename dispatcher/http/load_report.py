"""What pools report of their load: the header `endpoint-load-metrics` of Open Request Cost Aggregation (ORCA). PURE.

Forms: `JSON {...}` and `TEXT name=value, ...`; the binary one is not read. Read are `rps_fractional`,
`application_utilization` (or `cpu_utilization`), and the named metrics `queue_depth`, `completed` and `busy_seconds`;
the rest is for others. What is malformed counts as nothing said.
"""

from __future__ import annotations

import json
from typing import Any

from dispatcher.core.types import Report

FIELD = b"endpoint-load-metrics"
LONGEST = 4096  # bytes that are looked at
MOST = 1e15  # of any value


def parse(value: bytes, at: float) -> Report | None:
    """at: when it was received. None where it says nothing that is read.

    >>> parse(b'TEXT named_metrics.queue_depth=3, rps_fractional=12.5', 1.0)
    Report(at=1.0, queue_depth=3.0, served=None, busy=None, utilization=None, rps=12.5)
    """
    form, _, rest = value[:LONGEST].partition(b" ")
    text = rest.decode("utf-8", "replace")
    if form == b"JSON":
        found = _json(text)
    elif form == b"TEXT":
        found = _text(text)
    else:
        return None
    report = Report(
        at,
        queue_depth=_number(found.get("named_metrics.queue_depth")),
        served=_number(found.get("named_metrics.completed")),
        busy=_number(found.get("named_metrics.busy_seconds")),
        utilization=_number(found.get("application_utilization", found.get("cpu_utilization"))),
        rps=_number(found.get("rps_fractional")),
    )
    return report if report != Report(at) else None


def _json(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    named = data.get("named_metrics")
    inner = {f"named_metrics.{key}": value for key, value in named.items()} if isinstance(named, dict) else {}
    return data | inner


def _text(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        try:
            found[key.strip()] = float(value)
        except ValueError:
            continue  # metrics of others need not be numbers
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST else None  # which NaN is not
