"""The command `compare`: policies, and live also balancers, on the same traffic. Registered by being imported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from dispatcher.errors import ConfigError
from loadgen.attack.arrivals import parse as parse_process
from loadgen.cli.app import (
    BrokenOffError,
    Json,
    Seed,
    app,
    console,
    numbers,
    output,
    prepare,
    print_json,
    whole_numbers,
)
from loadgen.cli.lab import Backend, Dask, HowEngine, Jobs, Law, Process, drawn, progress, run_plan
from loadgen.experiments import sim_comparison as comparison
from loadgen.experiments.live import balancers
from loadgen.experiments.live import comparison as contest
from loadgen.experiments.live import comparison_report as contest_shown
from loadgen.experiments.live.backends import LivePoolSpec
from loadgen.experiments.reproduce import Plan
from loadgen.experiments.results import write_rows
from loadgen.sim.sweep import Engine
from workers.distributions import parse as parse_law

LIVE_RATE = 60.0  # requests a second, unless loads or a rate are given


@app.command(
    epilog="Examples: lased-loadgen compare --policies lased,greedy,nginx_least_conn --lam 7.2 --mu 2,10 --guess 2,2; "
    "lased-loadgen compare --backend live --policies lased,sed --against nginx,haproxy --mu 40,200 --guess 100,100"
    " --load 0.3,0.6 --arrivals 2000 --reps 5"
)
def compare(
    policies: Annotated[
        str, typer.Option(help="Names separated by commas, options behind slashes: lased,greedy,lased/n0=3/c=2.")
    ],
    mu: Annotated[str, typer.Option(help="True rates by pool, services a second and server.")],
    lam: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    load: Annotated[
        str | None, typer.Option(help="Instead of --lam: shares of what the pools can serve, as in 0.3,0.6,0.8.")
    ] = None,
    guess: Annotated[str | None, typer.Option(help="Initial estimates by pool; default the true rates.")] = None,
    servers: Annotated[str | None, typer.Option(help="Servers by pool; default one each.")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Live: nginx, haproxy, envoy, by least connections; others behind slashes: nginx/round_robin."
            " Those that are not installed are left out."
        ),
    ] = None,
    dispatchers: Annotated[
        int,
        typer.Option(min=1, max=16, help="Live: each policy behind one dispatcher, and behind so many that share it."),
    ] = 1,
    arrivals: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Requests in each replication.")] = 10_000,
    warmup: Annotated[int, typer.Option(min=0, help="Requests left out of the means, not of the regret.")] = 0,
    reps: Annotated[int, typer.Option(min=1, max=10_000_000, help="Replications; live: rounds.")] = 20,
    seed: Seed = 1,
    service: Law = "exp",
    process: Process = "poisson",
    backend: Annotated[
        Backend, typer.Option(help="sim: virtual time; live: real processes on this machine.")
    ] = Backend.SIM,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help=f"Live, with --lam: scale all rates to so many requests a second; {LIVE_RATE:g}."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the rows and the picture.")] = Path("out/compare"),
    engine: HowEngine = Engine.AUTO,
    jobs: Jobs = 0,
    dask: Dask = "",
    as_json: Json = False,
) -> None:
    """The same traffic to several policies: paired differences to the first one, with 95 % intervals.

    Live, each dispatcher takes its turn in every round, with the same schedule and the same service draws.
    """
    rates = numbers(mu, "mu")
    count = whole_numbers(servers, "servers") if servers else (1,) * len(rates)
    beliefs = numbers(guess, "guess") if guess else rates
    if not len(rates) == len(count) == len(beliefs):
        raise ConfigError("--mu, --servers and --guess must have as many values as there are pools")
    capacity = sum(r * c for r, c in zip(rates, count, strict=True))
    lams = _lams(lam, load, capacity)
    if warmup >= arrivals:
        raise ConfigError(f"a warm-up of {warmup} leaves nothing of {arrivals} requests")
    if backend is Backend.LIVE:
        scale = (rate or LIVE_RATE) / lams[0] if load is None else 1.0
        pools = tuple(
            LivePoolSpec(str(i + 1), r * scale, b * scale, c)
            for i, (r, b, c) in enumerate(zip(rates, beliefs, count, strict=True))
        )
        least = 1 if against or dispatchers > 1 else 2
        systems = (*contest.policies(policies, least, dispatchers), *installed(against or ""))
        lams = tuple(rate * scale for rate in lams)
        told = "json" if dispatchers > 1 else "none"
        given = contest.Contest(systems, pools, lams, arrivals, warmup, reps, seed, service, process, told)
        _live(given, out, as_json)
        return
    if against or len(lams) > 1 or dispatchers > 1:
        raise ConfigError("--against, --dispatchers and several loads need --backend live")
    scenario = {"lam": lams[0], "mu": rates, "guess": beliefs, "service": service, "process": process,
                "servers": count if servers else ()}  # fmt: skip
    size = {"arrivals": arrivals, "reps": reps, "warmup": warmup}
    plan = Plan(comparison.spec_of(policies, scenario, size), "quick", out, seed, "sim", engine, jobs, dask)
    results = run_plan(plan)
    write_rows(results, out / "rows.csv")
    picture = drawn(lambda path: comparison.draw(results, path), out / "compare.png")
    if as_json:
        print_json(comparison.as_json(results) | {"picture": picture})
    else:
        output().print(comparison.table(results))
        print(f"rows{' and picture' if picture else ''} in {out}")  # noqa: T201


def _lams(lam: float | None, load: str | None, capacity: float) -> tuple[float, ...]:
    if (lam is None) == (load is None):
        raise ConfigError("say how much traffic: --lam or --load")
    if load is not None:
        return tuple(share * capacity for share in numbers(load, "load"))
    assert lam is not None
    if not 0 < lam < float("inf"):
        raise ConfigError(f"--lam must be positive, not {lam:g}")
    return (lam,)


def installed(text: str) -> Sequence[contest.System]:
    """The balancers of --against that can be run here; of the others it is said. Raises ConfigError."""
    systems = []
    for label in filter(None, (part.strip() for part in text.split(","))):
        balancer, _ = balancers.parse(label)
        if balancer.program() is None:
            console.print(f"{balancer.name} is not installed and is left out: {balancer.install}", soft_wrap=True)
        else:
            systems.append(contest.System(label, balancer=label))
    return systems


def _live(given: contest.Contest, out: Path, as_json: bool) -> None:
    try:
        parse_law(given.service, 1.0, Random(0))
        parse_process(given.process, given.lams[0], Random(0))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    prepare(out)
    bar, task = progress(1, "compare", "turns")

    def told(done: int, total: int, which: str) -> None:
        bar.update(task, completed=done, total=total, description=which)

    try:
        with bar:
            standings = contest.run(given, out, told)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise BrokenOffError(f"broken off; finished turns are in {out}: the same command goes on from there") from None
    contest_shown.write_rows(given, standings, out / "rows.csv")
    picture = drawn(lambda path: contest_shown.draw(given, standings, path), out / "compare.png")
    if as_json:
        found: dict[str, Any] = contest_shown.as_json(given, standings)
        print_json(found | {"picture": picture})
        return
    for lam in given.lams:
        output().print(contest_shown.table(given, standings, lam))
    print(f"turns, rows{' and picture' if picture else ''} in {out}")  # noqa: T201
