"""Computes the report of `loadgen theory all | chain | exponent | optimum`: exact values of routing rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.sim import theory
from workers.curves import parse_curve

MODES = {
    "all": "Fixed rules, SED with rates to a power, and the optimum.",
    "chain": "Fixed rules: SED, SED with guesses, JSQ; and `curve` for throughput curves.",
    "exponent": "SED's score with rates to a power, and the optimum.",
    "optimum": "The optimum alone.",
}
MAX_LOST_SHARE = 1e-6  # of the requests; more shows that too few states are calculated
EXPONENTS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def report(
    what: str,
    lam: float,
    mu: Sequence[float],
    servers: Sequence[int],
    guess: Sequence[float],
    side: int,
    curves: Sequence[str] = (),
    ties: str = "first",
) -> dict[str, Any]:
    """Return what `theory --json` prints.

    what: one of MODES.
    lam: requests a second. mu: services a second and server, by pool. servers: by pool; empty for one each.
    guess: estimates by pool, for SED that uses them; empty to leave that rule out.
    side: states of a pool that are calculated; 0 for as many as needed.
    curves: the pools as `parse_curve` reads them, instead of mu and servers.
    ties: one of `theory.TIES`, for all rules but the optimum.
    Raises ConfigError for a system that cannot be solved.
    """
    pools = len(curves or mu)
    _check(ties, guess, pools)
    try:
        system = theory.System(lam, tuple(mu), tuple(servers), side, tuple(map(parse_curve, curves)))
    except ValueError as error:
        raise ConfigError(f"--curve: {error}") from None
    rules = _rules(system, what, guess, bool(curves), ties)
    solved = {name: _solved(system, name, routing) for name, routing in rules.items()}
    best = theory.optimum(system) if what != "chain" else None
    if best:
        solved["optimum"] = _solved(system, "the optimum", best.routing)
    described = {"curves": list(curves)} if curves else {"mu": list(mu), "servers": list(servers or (1,) * pools)}
    return {
        "lam": lam,
        **described,
        "rho": system.rho,
        "side": system.side,
        "optimum": best and {"mean_in_system": best.mean_in_system, "gap": best.gap, "iterations": best.iterations},
        "rules": [_row(name, steady, best) for name, steady in solved.items()],
    }


def _check(ties: str, guess: Sequence[float], pools: int) -> None:
    if ties not in theory.TIES:
        raise ConfigError(f"--ties must be one of {', '.join(theory.TIES)}, not {ties!r}")
    if guess and len(guess) != pools:
        raise ConfigError(f"--guess has {len(guess)} values for {pools} pools; give one a pool")
    try:
        # `theory` imports scipy only where it is needed, which would be in the middle of the work.
        import scipy  # noqa: F401
    except ImportError:
        raise ConfigError("theory needs scipy: pip install 'lased-dispatcher[theory]'") from None


def _rules(
    system: theory.System, what: str, guess: Sequence[float], has_curves: bool, ties: str
) -> dict[str, theory.Routing]:
    """Return the rules of a mode under their names.

    has_curves: whether the pools are described by curves. The other arguments are those of `report`.
    """
    rules: dict[str, theory.Routing] = {}
    if what in ("all", "chain"):
        rules["sed"] = theory.sed(system, ties=ties)
        if guess:
            rules[f"esed {','.join(f'{rate:g}' for rate in guess)}"] = theory.sed(system, guess, ties=ties)
        rules["jsq"] = theory.jsq(system, ties)
        if has_curves:
            rules["curve"] = theory.curve(system, ties)
    if what in ("all", "exponent"):
        rules |= {f"sed e={e:g}": theory.sed(system, exponent=e, ties=ties) for e in EXPONENTS}
    return rules


def _solved(system: theory.System, name: str, routing: theory.Routing) -> theory.Steady:
    """Return the stationary law. Raises ConfigError if the truncation of the states affects it."""
    steady = theory.chain(system, routing)
    if not steady.edge <= MAX_LOST_SHARE:
        raise ConfigError(
            f"the load is too high for exact values: with {system.side} states a pool {name} would lose "
            f"{steady.edge:.0e} of the requests; raise --side (at most {theory.MAX_STATES[len(system.mu)]}) or simulate"
        )
    return steady


def _row(name: str, steady: theory.Steady, best: theory.Optimum | None) -> dict[str, Any]:
    return {
        "rule": name,
        "mean_in_system": steady.mean_in_system,
        "mean_response": steady.mean_response,
        "shares": list(steady.shares),
        "regret_per_arrival": steady.regret,
        "lost": steady.edge,
        "above_optimum": steady.mean_in_system / best.mean_in_system - 1 if best else None,
    }


def table(report: dict[str, Any]) -> Table:
    """Return the report as a table with a row for each rule.

    L is the mean number in system, W the mean response. Regret and lost requests are per arrival.
    """
    if "curves" in report:
        pools = " and ".join(report["curves"])
    else:
        mu = ", ".join(f"{rate:g}" for rate in report["mu"])
        pools = f"μ = ({mu}), servers ({', '.join(map(str, report['servers']))})"
    title = f"λ = {report['lam']:g}, {pools}, load {report['rho']:.3g}; {report['side']} states a pool"
    table = Table(title=title, title_justify="left")
    for column in ("rule", "L", "W", "shares, %", "regret", "L above best", "lost"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for row in report["rules"]:
        above = row["above_optimum"]
        table.add_row(
            row["rule"],
            f"{row['mean_in_system']:.6f}",
            f"{row['mean_response']:.6f}",
            " ".join(f"{100 * share:.2f}" for share in row["shares"]),
            f"{row['regret_per_arrival']:.6f}",
            "" if above is None else f"{above:+.2%}",
            f"{row['lost']:.0e}",
        )
    return table
