"""The command `simulate`: one policy in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.errors import ConfigError
from loadgen.cli.app import (
    Dask,
    EngineOption,
    Guesses,
    Jobs,
    Json,
    Process,
    Seed,
    Servers,
    ServiceLaw,
    TrueRates,
    Warmup,
    app,
    numbers,
    print_json,
    whole_numbers,
)
from loadgen.cli.progress import progress_bar
from loadgen.sim import model, replicate
from loadgen.sim.compiled import Compiled
from loadgen.sim.sweep import Engine, Unit, is_compiled, sweep, units


@app.command(
    epilog="Example: lased-loadgen simulate --policy lased --lam 1 --mu 5,10 --guess 5,0.1 --arrivals 10000 --reps 20"
)
def simulate(
    policy: Annotated[str, typer.Option(help="A registered policy, or module:attr.")],
    lam: Annotated[float, typer.Option(help="Requests a second.")],
    mu: TrueRates,
    arrivals: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Requests in each replication.")],
    guess: Guesses = None,
    servers: Servers = None,
    reps: Annotated[int, typer.Option(min=1, max=10_000_000, help="Replications.")] = 1,
    seed: Seed = 1,
    warmup: Warmup = 0,
    service: ServiceLaw = "exp",
    process: Process = "poisson",
    profile: Annotated[
        list[str] | None,
        typer.Option(help="POOL:PROFILE, how a pool's rate changes, as in 2:step:at=500,factor=0.2; repeat for more."),
    ] = None,
    options: Annotated[
        list[str] | None, typer.Option("--option", help="An option of the policy, k=v; repeat for more.")
    ] = None,
    engine: EngineOption = Engine.AUTO,
    jobs: Jobs = 0,
    dask: Dask = "",
    trace: Annotated[Path | None, typer.Option(help="Write the first replication's decisions here, CSV.")] = None,
    as_json: Json = False,
) -> None:
    """Run the same router and policies in virtual time. Replication j uses seed SEED + j."""
    rates = numbers(mu, "mu")
    scenario = model.Scenario(
        policy=policy,
        lam=lam,
        mu=rates,
        guess=numbers(guess, "guess") if guess else rates,
        arrivals=arrivals,
        servers=whole_numbers(servers, "servers") if servers else (),
        options=dict(_option(text) for text in options or []),
        warmup=warmup,
        service=service,
        profiles=_profiles(profile or [], len(rates)),
        process=process,
    )
    compiled = is_compiled(scenario, engine)
    if trace is not None:
        _write_trace(scenario, seed, compiled, trace)
    work = units([(scenario, range(seed, seed + reps))], engine)
    # Cores finish in any order, and equal commands must print equal sums.
    results = sorted(_run(work, policy, jobs, dask), key=lambda result: result.seed)
    summary = replicate.summary(scenario, results, seed) | {"engine": "compiled" if compiled else "object"}
    if as_json:
        print_json(summary)
        return
    for key, value in summary.items():
        text = " ".join(f"{number:.6g}" for number in value) if isinstance(value, list) else value
        print(f"{key:<18} {text:.6g}" if isinstance(text, float) else f"{key:<18} {text}")  # noqa: T201


def _run(work: Sequence[Unit], policy: str, jobs: int, dask: str) -> Iterator[model.Result]:
    bar = progress_bar("replications")
    task = bar.add_task(policy, total=sum(len(unit.seeds) for unit in work))
    with bar:
        for _, results in sweep(work, jobs, dask):
            bar.advance(task, len(results))
            yield from results


def _write_trace(scenario: model.Scenario, seed: int, compiled: bool, path: Path) -> None:
    simulate_once = Compiled(scenario).simulate if compiled else lambda *run: model.simulate(scenario, *run)
    result = simulate_once(seed, True)
    try:
        replicate.write_trace(result.rows, path)
    except OSError as error:
        raise ConfigError(f"--trace {path}: {error.strerror}") from error


def _option(text: str) -> tuple[str, str]:
    """Parse "k=v" into key and value. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--option must be k=v, as in n0=7, not {text!r}")
    return key, value


def _profiles(texts: Sequence[str], pools: int) -> tuple[str, ...]:
    """Parse texts of the form POOL:PROFILE into a profile for each pool; empty without texts. Raises ConfigError."""
    profiles = [""] * pools
    for text in texts:
        number, _, profile = text.partition(":")
        if not number.isdigit() or not 1 <= int(number) <= pools or not profile:
            raise ConfigError(
                f"--profile must be POOL:PROFILE with a pool from 1 to {pools}, as in 2:step:at=500,factor=0.2,"
                f" not {text!r}"
            )
        profiles[int(number) - 1] = profile
    return tuple(profiles) if texts else ()
