"""The command `compare`: policies, and live also other load balancers, on the same traffic."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.errors import ConfigError
from loadgen.cli.app import (
    Backend,
    BackendOption,
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
    console,
    numbers,
    output,
    print_json,
    whole_numbers,
)
from loadgen.cli.progress import run_resumable, try_drawing
from loadgen.cli.reproduce import run_plan
from loadgen.experiments import sim_comparison
from loadgen.experiments.live import balancers, comparison, comparison_report
from loadgen.experiments.live.backends import LivePoolSpec
from loadgen.experiments.results import write_rows
from loadgen.experiments.run import Plan
from loadgen.sim.sweep import Engine

DEFAULT_LIVE_RATE = 60.0  # requests a second


@app.command(
    epilog="Examples: lased-loadgen compare --policies lased,greedy,nginx_least_conn --lam 7.2 --mu 2,10 --guess 2,2; "
    "lased-loadgen compare --backend live --policies lased,sed --against nginx,haproxy --mu 40,200 --guess 100,100"
    " --load 0.3,0.6 --arrivals 2000 --reps 5"
)
def compare(
    policies: Annotated[
        str, typer.Option(help="Names separated by commas, options behind slashes: lased,greedy,lased/n0=3/c=2.")
    ],
    mu: TrueRates,
    lam: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    load: Annotated[
        str | None, typer.Option(help="Instead of --lam: shares of what the pools can serve, as in 0.3,0.6,0.8.")
    ] = None,
    guess: Guesses = None,
    servers: Servers = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Live: nginx, haproxy, envoy, by least connections; others behind slashes: nginx/round_robin."
            " Those that are not installed are left out."
        ),
    ] = None,
    dispatchers: Annotated[
        int,
        typer.Option(min=1, max=16, help="Live: each policy with one dispatcher, and with this many that share it."),
    ] = 1,
    arrivals: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Requests in each replication.")] = 10_000,
    warmup: Warmup = 0,
    reps: Annotated[int, typer.Option(min=1, max=10_000_000, help="Replications; live: rounds.")] = 20,
    seed: Seed = 1,
    service: ServiceLaw = "exp",
    process: Process = "poisson",
    backend: BackendOption = Backend.SIM,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help=f"Live, with --lam: requests a second, to which all rates are scaled; {DEFAULT_LIVE_RATE:g}.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the rows and the picture.")] = Path("out/compare"),
    engine: EngineOption = Engine.AUTO,
    jobs: Jobs = 0,
    dask: Dask = "",
    as_json: Json = False,
) -> None:
    """Compare policies on the same traffic: paired differences to the first one, with 95 % intervals.

    Live, the systems run one after the other in every round, with the same schedule and the same service draws.
    """
    pools = _Pools.parse(mu, servers, guess)
    lams = _lams(lam, load, pools.capacity)
    if warmup >= arrivals:
        raise ConfigError(f"a warm-up of {warmup} leaves nothing of {arrivals} requests")
    if backend is Backend.LIVE:
        # A single policy can be compared with another balancer, or with itself behind several dispatchers.
        least = 1 if against or dispatchers > 1 else 2
        systems = (*comparison.policies(policies, least, dispatchers), *installed(against or ""))
        # With --load the rates of the pools are real ones. With --lam they may be in any unit of time.
        scale = (rate or DEFAULT_LIVE_RATE) / lams[0] if load is None else 1.0
        # Dispatchers that share the pools do not see each other's requests, so the pools report their load.
        load_report = "json" if dispatchers > 1 else "none"
        plan = comparison.Comparison(
            systems,
            pools.live(scale),
            tuple(value * scale for value in lams),
            arrivals,
            warmup,
            reps,
            seed,
            service,
            process,
            load_report,
        )
        _compare_live(plan, out, as_json)
        return
    if against or len(lams) > 1 or dispatchers > 1:
        raise ConfigError("--against, --dispatchers and several loads need --backend live")
    scenario = {
        "lam": lams[0],
        "mu": pools.rates,
        "guess": pools.guesses,
        "service": service,
        "process": process,
        "servers": pools.servers if servers else (),
    }
    spec = sim_comparison.spec_of(policies, scenario, {"arrivals": arrivals, "reps": reps, "warmup": warmup})
    _compare_simulated(Plan(spec, "quick", out, seed, "sim", engine, jobs, dask), as_json)


@dataclass(frozen=True, slots=True)
class _Pools:
    """The pools of a comparison. rates, guesses: services a second and server. servers: by pool."""

    rates: tuple[float, ...]
    servers: tuple[int, ...]
    guesses: tuple[float, ...]

    @classmethod
    def parse(cls, mu: str, servers: str | None, guess: str | None) -> _Pools:
        """Parse the options of this name. Raises ConfigError."""
        rates = numbers(mu, "mu")
        counts = whole_numbers(servers, "servers") if servers else (1,) * len(rates)
        guesses = numbers(guess, "guess") if guess else rates
        if not len(rates) == len(counts) == len(guesses):
            raise ConfigError("--mu, --servers and --guess must have as many values as there are pools")
        return cls(rates, counts, guesses)

    @property
    def capacity(self) -> float:
        return sum(rate * servers for rate, servers in zip(self.rates, self.servers, strict=True))

    def live(self, scale: float) -> tuple[LivePoolSpec, ...]:
        """Return the pools with scaled rates, for real processes."""
        columns = zip(self.rates, self.guesses, self.servers, strict=True)
        return tuple(
            LivePoolSpec(str(i), rate * scale, guess * scale, servers)
            for i, (rate, guess, servers) in enumerate(columns, 1)
        )


def _lams(lam: float | None, load: str | None, capacity: float) -> tuple[float, ...]:
    """Return the rates to compare at, requests a second. Raises ConfigError."""
    if (lam is None) == (load is None):
        raise ConfigError("use either --lam or --load")
    if load is not None:
        return tuple(share * capacity for share in numbers(load, "load"))
    assert lam is not None
    if not 0 < lam < float("inf"):
        raise ConfigError(f"--lam must be positive, not {lam:g}")
    return (lam,)


def installed(text: str) -> list[comparison.System]:
    """Return the balancers of --against that are installed; a line on stderr names each of the others.

    Raises ConfigError.
    """
    systems = []
    for label in filter(None, (part.strip() for part in text.split(","))):
        balancer, _ = balancers.parse(label)
        if balancer.program() is None:
            console.print(f"{balancer.name} is not installed and is left out: {balancer.install}", soft_wrap=True)
        else:
            systems.append(comparison.System(label, balancer=label))
    return systems


def _compare_simulated(plan: Plan, as_json: bool) -> None:
    results = run_plan(plan)
    write_rows(results, plan.folder / "rows.csv")
    picture = try_drawing(lambda path: sim_comparison.draw(results, path), plan.folder / "compare.png")
    if as_json:
        print_json(sim_comparison.as_json(results) | {"picture": picture})
    else:
        output().print(sim_comparison.table(results))
        print(f"rows{' and picture' if picture else ''} in {plan.folder}")  # noqa: T201


def _compare_live(plan: comparison.Comparison, out: Path, as_json: bool) -> None:
    results = run_resumable(lambda report: comparison.run(plan, out, report), out, "compare", "turns")
    comparison_report.write_rows(plan, results, out / "rows.csv")
    picture = try_drawing(lambda path: comparison_report.draw(plan, results, path), out / "compare.png")
    if as_json:
        print_json(comparison_report.as_json(plan, results) | {"picture": picture})
        return
    for lam in plan.lams:
        output().print(comparison_report.table(plan, results, lam))
    print(f"turns, rows{' and picture' if picture else ''} in {out}")  # noqa: T201
