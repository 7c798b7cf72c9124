"""Puts a summary into words, for terminals and HTML pages."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.attack.summary import Summary

TIME_COLUMNS = {  # keys of `Times`, and how people read them
    "mean": "mean",
    "p50": "p50",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p999": "p99.9",
    "p9999": "p99.99",
    "max": "max",
}


def milliseconds(seconds: float | None) -> str:
    """Return a time as text in milliseconds, with about three digits."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2 if value >= 1 else 3}f} ms"


def counts(by_name: Mapping[str, int]) -> str:
    """Return counts by name as text, such as "200 × 5, 503 × 1"."""
    return ", ".join(f"{name} × {n}" for name, n in by_name.items())


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Return everything besides the times as pairs of a name and a text. Counts of zero are left out."""
    traffic = summary.plan["traffic"]
    rate = traffic["stages"] or f"{summary.offered_rate:g} a second"
    pairs = [
        ("traffic", f"{traffic['arrivals']}, {rate}, seed {traffic['seed']}"),
        ("sent", f"{summary.sent}, {summary.achieved_rate:.1f} a second"),
        ("completed", f"{summary.completed}, failed {summary.failed}"),
        ("dropped", str(summary.dropped or "")),
        ("open at the end", str(summary.unfinished or "")),
        ("not due", str(summary.cut or "")),
        ("due and not sent", str(summary.unsent or "")),
        ("warm-up", f"{summary.warmup_requests} requests" if summary.warmup_requests else ""),
        ("by status", counts(summary.status)),
        ("no response", counts(summary.errors)),
        ("by pool", counts(summary.by_pool)),
        ("by URL", counts(summary.by_url) if len(summary.by_url) > 1 else ""),
        ("connections", f"{summary.connections} opened"),
        ("sent again", f"{summary.resent}, on a new connection" if summary.resent else ""),
        ("in flight", f"{summary.little.counted:.3g} on average"),
        ("gaps", _gaps(summary)),
        ("generator", ", ".join(f"{share:.0%}" for share in summary.cpu) + " of a core"),
    ]
    return [(key, value) for key, value in pairs if value]


def _gaps(summary: Summary) -> str:
    if (fit := summary.gaps) is None:
        return ""
    demanded = "the named process" if fit.against == "law" else "the plan"
    return f"{fit.distance:.4f} from {demanded} ({fit.gaps} gaps, {fit.allowed:.3f} allowed)"


def rules(summary: Summary) -> list[str]:
    """Return a line for each rule of --fail-if."""
    return [
        f"fail if {part.rule}: {'FAILED' if part.broken else 'passed'}, it was {part.was}"
        for part in summary.thresholds
    ]
