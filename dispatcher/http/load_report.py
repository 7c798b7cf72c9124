"""Reads load reports of pools: the header `endpoint-load-metrics` of Open Request Cost Aggregation (ORCA). PURE.

The forms `JSON {...}` and `TEXT name=value, ...` are read; the binary form is not. The metrics that are read are
`rps_fractional`, `application_utilization` (or `cpu_utilization`), and the named metrics `queue_depth`, `completed` and
`busy_seconds`. Malformed parts are ignored.
"""

from __future__ import annotations

import json
from typing import Any

from dispatcher.core.types import Report

FIELD = b"endpoint-load-metrics"
MAX_REPORT_BYTES = 4096  # the rest of a longer report is ignored
MAX_VALUE = 1e15


def parse(value: bytes, at: float) -> Report | None:
    """Parse a report, or return None if it has no metric that is read. at: when it arrived, in seconds.

    >>> parse(b'TEXT named_metrics.queue_depth=3, rps_fractional=12.5', 1.0)
    Report(at=1.0, queue_depth=3.0, served=None, busy=None, utilization=None, rps=12.5)
    """
    form, _, rest = value[:MAX_REPORT_BYTES].partition(b" ")
    text = rest.decode("utf-8", "replace")
    if form == b"JSON":
        metrics = _json(text)
    elif form == b"TEXT":
        metrics = _text(text)
    else:
        return None
    report = Report(
        at,
        queue_depth=_number(metrics.get("named_metrics.queue_depth")),
        served=_number(metrics.get("named_metrics.completed")),
        busy=_number(metrics.get("named_metrics.busy_seconds")),
        utilization=_number(metrics.get("application_utilization", metrics.get("cpu_utilization"))),
        rps=_number(metrics.get("rps_fractional")),
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
    metrics: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        try:
            metrics[key.strip()] = float(value)
        except ValueError:
            continue  # other metrics need not be numbers
    return metrics


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_VALUE else None  # NaN is not in this range
