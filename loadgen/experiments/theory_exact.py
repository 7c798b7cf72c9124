"""The table of `loadgen theory`: rules beside each other and beside the optimum, by `sim.theory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.sim import theory
from workers.curves import parse_curve

WHAT = ("all", "chain", "exponent", "optimum")
MOST_LOST = 1e-6  # of the requests, at the edge of the truncation
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
    """What `theory --json` prints. Raises ConfigError for what cannot be solved.

    curves: the pools as `parse_curve` reads them, in the place of mu and servers. ties: one of `theory.TIES`, for all
    rules but the optimum.
    """
    if what not in WHAT:
        raise ConfigError(
            f"WHAT must be one of {', '.join(WHAT)}, hamacher, whittle_finite, whittle_blocking, not {what!r}"
        )
    if ties not in theory.TIES:
        raise ConfigError(f"--ties must be one of {', '.join(theory.TIES)}, not {ties!r}")
    pools = len(curves or mu)
    if guess and len(guess) != pools:
        raise ConfigError(f"--guess has {len(guess)} values for {pools} pools; give one a pool")
    try:
        import scipy  # noqa: F401
    except ImportError:
        raise ConfigError("theory needs scipy: pip install 'lased-dispatcher[theory]'") from None
    try:
        system = theory.System(lam, tuple(mu), tuple(servers), side, tuple(map(parse_curve, curves)))
    except ValueError as error:
        raise ConfigError(f"--curve: {error}") from None
    rules: dict[str, theory.Routing] = {}
    if what in ("all", "chain"):
        rules["sed"] = theory.sed(system, ties=ties)
        if guess:
            rules[f"esed {','.join(f'{rate:g}' for rate in guess)}"] = theory.sed(system, guess, ties=ties)
        rules["jsq"] = theory.jsq(system, ties)
        if curves:
            rules["curve"] = theory.curve(system, ties)
    if what in ("all", "exponent"):
        rules |= {f"sed e={e:g}": theory.sed(system, exponent=e, ties=ties) for e in EXPONENTS}
    solved = {name: _solved(system, name, routing) for name, routing in rules.items()}
    best = theory.optimum(system) if what != "chain" else None
    if best:
        solved["optimum"] = _solved(system, "the optimum", best.routing)
    given = {"curves": list(curves)} if curves else {"mu": list(mu), "servers": list(servers or (1,) * pools)}
    return {
        "lam": lam,
        **given,
        "rho": system.rho,
        "side": system.side,
        "optimum": best and {"mean_in_system": best.mean_in_system, "gap": best.gap, "iterations": best.iterations},
        "rules": [_row(name, steady, best) for name, steady in solved.items()],
    }


def _solved(system: theory.System, name: str, routing: theory.Routing) -> theory.Steady:
    """The stationary law, if the truncation does not show in it. Raises ConfigError."""
    steady = theory.chain(system, routing)
    if not steady.edge <= MOST_LOST:
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


def table(found: dict[str, Any]) -> Table:
    """For people: L mean number in system, W mean response, regret and lost requests per arrival."""
    if "curves" in found:
        pools = " and ".join(found["curves"])
    else:
        mu = ", ".join(f"{rate:g}" for rate in found["mu"])
        pools = f"μ = ({mu}), servers ({', '.join(map(str, found['servers']))})"
    title = f"λ = {found['lam']:g}, {pools}, load {found['rho']:.3g}; {found['side']} states a pool"
    made = Table(title=title, title_justify="left")
    for column in ("rule", "L", "W", "shares, %", "regret", "L above best", "lost"):
        made.add_column(column, justify="left" if column == "rule" else "right")
    for row in found["rules"]:
        above = row["above_optimum"]
        made.add_row(
            row["rule"],
            f"{row['mean_in_system']:.6f}",
            f"{row['mean_response']:.6f}",
            " ".join(f"{100 * share:.2f}" for share in row["shares"]),
            f"{row['regret_per_arrival']:.6f}",
            "" if above is None else f"{above:+.2%}",
            f"{row['lost']:.0e}",
        )
    return made
