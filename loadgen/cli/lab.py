"""The commands that simulate and calculate: simulate, theory, reproduce; registered by being imported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dispatcher.errors import ConfigError
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
from loadgen.experiments import claims, pictures, tables
from loadgen.experiments import spec as experiments
from loadgen.experiments.reproduce import Plan, run, write
from loadgen.experiments.results import Results
from loadgen.experiments.studies import runner as studies
from loadgen.plot import PlotError
from loadgen.sim import replicate
from loadgen.sim.compiled import Compiled
from loadgen.sim.model import Result, Scenario
from loadgen.sim.model import simulate as run_once
from loadgen.sim.sweep import Engine, Unit, is_compiled, sweep, units

T = TypeVar("T")
Jobs = Annotated[int, typer.Option(min=0, help="Cores to use; 0 for all.")]
Dask = Annotated[str, typer.Option(metavar="ADDRESS", help="Run on this Dask scheduler, as in tcp://host:8786.")]
HowEngine = Annotated[
    Engine, typer.Option(help="object: the live service's own objects; compiled: equal and faster; auto: if it can.")
]
Law = Annotated[
    str, typer.Option(help="Service law: exp, fixed, lognormal:cv=2, hyperexp:cv=2, pareto:shape=2.5; mean 1/rate.")
]
Process = Annotated[
    str, typer.Option(help="Arrivals: poisson, constant, mmpp:ratio=5,period=100, wave:depth=0.8,period=1000.")
]
Options = Annotated[list[str] | None, typer.Option("--option", help="An option of the policy, k=v; repeat for more.")]


class Backend(StrEnum):
    """Where experiments run."""

    SIM = "sim"
    LIVE = "live"


class SizeName(StrEnum):
    """How much of them."""

    QUICK = "quick"
    FULL = "full"


def option(text: str) -> tuple[str, str]:
    """ "k=v" taken apart. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--option must be k=v, as in n0=7, not {text!r}")
    return key, value


def progress(total: int, what: str, unit: str = "replications") -> tuple[Progress, Any]:
    """A bar with the time left, shown only on a terminal."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    return bar, bar.add_task(what, total=total)


def run_all(work: Sequence[Unit], what: str, jobs: int, dask: str) -> Iterable[tuple[Unit, list[Result]]]:
    """`sweep` behind a progress bar."""
    bar, task = progress(sum(len(unit.seeds) for unit in work), what)
    with bar:
        for unit, results in sweep(work, jobs, dask):
            bar.advance(task, len(results))
            yield unit, results


@app.command(
    epilog="Example: lased-loadgen simulate --policy lased --lam 1 --mu 5,10 --guess 5,0.1 --arrivals 10000 --reps 20"
)
def simulate(
    policy: Annotated[str, typer.Option(help="A registered policy, or module:attr.")],
    lam: Annotated[float, typer.Option(help="Requests a second.")],
    mu: Annotated[str, typer.Option(help="True rates by pool, services a second and server.")],
    arrivals: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="Requests in each replication.")],
    guess: Annotated[str | None, typer.Option(help="Initial estimates by pool; default the true rates.")] = None,
    servers: Annotated[str | None, typer.Option(help="Servers by pool; default one each.")] = None,
    reps: Annotated[int, typer.Option(min=1, max=10_000_000, help="Replications.")] = 1,
    seed: Seed = 1,
    warmup: Annotated[int, typer.Option(min=0, help="Requests left out of the means, not of the regret.")] = 0,
    service: Law = "exp",
    process: Process = "poisson",
    profile: Annotated[
        list[str] | None,
        typer.Option(help="POOL:PROFILE, how a pool's rate changes, as in 2:step:at=500,factor=0.2; repeat for more."),
    ] = None,
    options: Options = None,
    engine: HowEngine = Engine.AUTO,
    jobs: Jobs = 0,
    dask: Dask = "",
    trace: Annotated[Path | None, typer.Option(help="Write the first replication's decisions here, CSV.")] = None,
    as_json: Json = False,
) -> None:
    """Run the same router and policies in virtual time. Replication j uses seed SEED + j."""
    rates = numbers(mu, "mu")
    scenario = Scenario(
        policy=policy,
        lam=lam,
        mu=rates,
        guess=numbers(guess, "guess") if guess else rates,
        arrivals=arrivals,
        servers=whole_numbers(servers, "servers") if servers else (),
        options=dict(option(text) for text in options or []),
        warmup=warmup,
        service=service,
        profiles=profiles(profile or [], len(rates)),
        process=process,
    )
    compiled = is_compiled(scenario, engine)
    if trace is not None:
        first = Compiled(scenario).simulate(seed, True) if compiled else run_once(scenario, seed, True)
        try:
            replicate.write_trace(first.rows, trace)
        except OSError as error:
            raise ConfigError(f"--trace {trace}: {error.strerror}") from error
    done = run_all(units([(scenario, range(seed, seed + reps))], engine), policy, jobs, dask)
    results = sorted((result for _, some in done for result in some), key=lambda result: result.seed)
    summary = replicate.summary(scenario, results, seed) | {"engine": "compiled" if compiled else "object"}
    if as_json:
        print_json(summary)
        return
    for key, value in summary.items():
        shown = " ".join(f"{v:.6g}" for v in value) if isinstance(value, list) else value
        print(f"{key:<18} {shown:.6g}" if isinstance(shown, float) else f"{key:<18} {shown}")  # noqa: T201


def profiles(given: Sequence[str], pools: int) -> tuple[str, ...]:
    """ "POOL:PROFILE" by pool, pools numbered from 1; nothing if none is given. Raises ConfigError."""
    found = [""] * pools
    for text in given:
        number, _, profile = text.partition(":")
        if not number.isdigit() or not 1 <= int(number) <= pools or not profile:
            raise ConfigError(
                f"--profile must be POOL:PROFILE with a pool from 1 to {pools}, as in 2:step:at=500,factor=0.2,"
                f" not {text!r}"
            )
        found[int(number) - 1] = profile
    return tuple(found) if given else ()


@app.command(
    epilog="Examples: lased-loadgen theory --lam 3.6 --mu 1,5; lased-loadgen theory --lam 300"
    " --curve infinite:seconds=0.05 --curve fcfs:servers=4,seconds=0.02"
)
def theory(
    what: Annotated[
        str,
        typer.Argument(
            help="chain: fixed rules; exponent: SED's score with rates to a power; optimum; or all."
            " whittle_finite, whittle_blocking: indices of one server that is seen only when it is picked."
            " hamacher: what is taken by pools that hold one request."
        ),
    ] = "all",
    lam: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    mu: Annotated[str | None, typer.Option(help="Rates by pool, services a second and server.")] = None,
    servers: Annotated[str | None, typer.Option(help="Servers by pool; default one each.")] = None,
    guess: Annotated[str | None, typer.Option(help="Estimates by pool, for SED that believes them (esed).")] = None,
    curve: Annotated[
        list[str] | None,
        typer.Option(
            help="A pool by its throughput curve, in the place of --mu and --servers; repeat for each pool:"
            " fcfs:servers=4,seconds=0.04 (or ps), infinite:seconds=0.05, soft:a=0.1,seconds=0.02,"
            " retrograde:servers=4,peak=8,seconds=0.02, limited:servers=2,limit=64,seconds=0.005, table:10,18,24."
            " `seconds` is the mean time of a request that is alone; all but a table take limit=N."
        ),
    ] = None,
    ties: Annotated[
        str, typer.Option(help="Which pool a rule takes among equal scores: first, last, fastest or slowest.")
    ] = "first",
    side: Annotated[
        int, typer.Option(min=0, help="States of a pool that are calculated with; 0: as many as it takes.")
    ] = 0,
    capacity: Annotated[int, typer.Option(min=1, max=200, help="Whittle: K, jobs that the server holds.")] = 10,
    rate: Annotated[float, typer.Option(help="Whittle: μ, services a slot.")] = 1.0,
    beta: Annotated[float, typer.Option(min=0, max=1, help="Whittle: discount; 1 for the average reward.")] = 1.0,
    ages: Annotated[int, typer.Option(min=1, max=100_000, help="Whittle: slots since it was picked.")] = 20,
    rates: Annotated[
        str,
        typer.Option(help="Hamacher: chance a slot that a full pool is done, by pool; with --lam services a second."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Exact stationary values of two or three pools: exponential services, Poisson arrivals; or index tables."""
    from loadgen.experiments import theory_hamacher as acceptance
    from loadgen.experiments import theory_whittle as indices
    from loadgen.experiments.theory_exact import report, table

    def tell(found: dict[str, Any], shown: Callable[[dict[str, Any]], Table]) -> None:
        if as_json:
            print_json(found)
        else:
            output().print(shown(found))

    if what == "hamacher":
        tell(acceptance.report(numbers(rates, "rates"), lam), acceptance.table)
        return
    if what in indices.WHAT:
        tell(indices.report(what, capacity, rate, beta, ages), indices.table)
        return
    if lam is None or (mu is None) is (curve is None):
        raise ConfigError("--lam is needed, and either --mu or a --curve for each pool")
    if curve and servers:
        raise ConfigError("--servers goes with --mu; a --curve holds its own")
    given = (
        numbers(mu, "mu") if mu else (),
        whole_numbers(servers, "servers") if servers else (),
        numbers(guess, "guess") if guess else (),
    )
    with console.status("solving"):
        found = report(what, lam, *given, side, curve or (), ties)
    tell(found, table)


def run_plan(plan: Plan) -> Results:
    """Run an experiment behind a progress bar; broken off, say what is kept."""
    prepare(plan.folder)
    name = plan.spec.name
    bar, task = progress(1, name)

    def told(done: int, total: int, cell: str) -> None:
        bar.update(task, completed=done, total=total, description=f"{name} {cell}")

    try:
        with bar:
            return run(plan, told)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise BrokenOffError(
            f"broken off; finished cells are in {plan.folder}: the same command goes on from there"
        ) from None


@app.command(epilog="Example: lased-loadgen reproduce fig4 --size quick")
def reproduce(
    figure: Annotated[
        str, typer.Argument(help="fig4, fig5, starvation, fig8, one of our own, or a file ending in .toml.")
    ],
    backend: Annotated[
        Backend, typer.Option(help="sim: virtual time; live: real processes on this machine.")
    ] = Backend.SIM,
    size: Annotated[SizeName, typer.Option(help="quick: seconds; full: as in print.")] = SizeName.QUICK,
    out: Annotated[
        Path, typer.Option(help="Folder of the results; finished cells in it are kept and not run again.")
    ] = Path("out"),
    seed: Seed = 1,
    engine: HowEngine = Engine.AUTO,
    jobs: Jobs = 0,
    dask: Dask = "",
    as_json: Json = False,
) -> None:
    """Show a figure of the paper again: rows, table, picture, and a verdict on each claim. Exits 1 if one fails."""
    if (study := studies.find(figure)) is not None:
        if backend is Backend.LIVE:
            raise ConfigError(f"{figure} is simulated only")
        _study(study, size.value, out / f"{figure}-{size.value}", seed, jobs, as_json)
        return
    spec = experiments.load(figure)
    if size.value not in spec.sizes:
        raise ConfigError(f"{spec.name} has no size {size.value!r}; it has: {', '.join(spec.sizes)}")
    plan = Plan(
        spec, size.value, out / f"{spec.name}-{size.value}-{backend.value}", seed, backend.value, engine, jobs, dask
    )
    results = run_plan(plan)
    verdicts = claims.judge(spec, results, size.value, live=backend is Backend.LIVE)
    write(plan, results, verdicts)
    picture = drawn(lambda path: pictures.draw(spec, results, path), plan.folder / f"{spec.name}.png")
    if as_json:
        shown = [{"claim": v.claim.says, "holds": v.holds, "saw": v.saw} for v in verdicts]
        print_json({"experiment": spec.name, "folder": str(plan.folder), "picture": picture, "verdicts": shown})
    else:
        output().print(tables.table(spec, results))
        output().print(tables.verdict_lines(verdicts), soft_wrap=True)
        print(f"rows, manifest, verdicts{' and picture' if picture else ''} in {plan.folder}")  # noqa: T201
    if any(verdict.holds is False for verdict in verdicts):
        raise typer.Exit(1)


def _study(study: studies.Study, size: str, folder: Path, seed: int, jobs: int, as_json: bool) -> None:
    prepare(folder)
    bar, task = progress(1, study.name, "pieces")

    def told(done: int, total: int, piece: str) -> None:
        bar.update(task, completed=done, total=total, description=f"{study.name} {piece}")

    try:
        with bar:
            results = studies.run(study, size, seed, folder, jobs, told)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise BrokenOffError(
            f"broken off; finished pieces are in {folder}: the same command goes on from there"
        ) from None
    verdicts = study.verdicts(results, size)
    studies.write(study, results, verdicts, folder)
    picture = drawn(lambda path: study.draw(results, path), folder / f"{study.name}.png")
    if as_json:
        shown = [{"claim": v.claim.says, "holds": v.holds, "saw": v.saw} for v in verdicts]
        print_json({"experiment": study.name, "folder": str(folder), "picture": picture, "verdicts": shown})
    else:
        for table in study.tables(results):
            output().print(table)
        output().print(tables.verdict_lines(verdicts), soft_wrap=True)
        print(f"rows, verdicts{' and picture' if picture else ''} in {folder}")  # noqa: T201
    if any(verdict.holds is False for verdict in verdicts):
        raise typer.Exit(1)


def drawn(draw: Callable[[Path], None], path: Path) -> str | None:
    """The path, if the picture could be made."""
    try:
        draw(path)
    except (PlotError, OSError) as error:
        console.print(f"no picture: {error}")
        return None
    return str(path)
