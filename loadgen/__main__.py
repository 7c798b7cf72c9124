"""The command `lased-loadgen`: traffic, simulation, demonstration. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import asyncio
import json
import math
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import track

from dispatcher.core.streams import stream
from dispatcher.errors import ConfigError, DispatcherError
from loadgen import arrivals as processes
from loadgen import demo as show
from loadgen import report
from loadgen.attack import Attack
from loadgen.experiments.backends import BackendError
from loadgen.metrics import Summary, summarize
from loadgen.sim import replicate
from loadgen.sim.model import Scenario
from loadgen.sim.model import simulate as run_once

T = TypeVar("T")
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Send traffic, simulate, and show the dispatcher learn.",
)
console = Console(stderr=True)
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.")]


class Engine(StrEnum):
    """How `simulate` runs."""

    AUTO = "auto"
    OBJECT = "object"
    COMPILED = "compiled"


def until_signal(main: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that is told, by an event, of the first SIGINT or SIGTERM; a second one breaks it off."""

    async def run() -> T:
        stop = asyncio.Event()
        task = asyncio.ensure_future(main(stop))

        def signalled() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signalled)
        return await task

    return asyncio.run(run())


def numbers(text: str, name: str) -> tuple[float, ...]:
    """ "5,10" as numbers. Raises ConfigError."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--{name} must be numbers separated by commas, as in 5,10, not {text!r}") from None
    if not all(0 < value < math.inf for value in values):
        raise ConfigError(f"--{name}: every value must be positive, not {text}")
    return values


def whole_numbers(text: str, name: str) -> tuple[int, ...]:
    """ "1,4" as whole numbers. Raises ConfigError."""
    values = numbers(text, name)
    if any(value != int(value) for value in values):
        raise ConfigError(f"--{name} must be whole numbers, not {text}")
    return tuple(int(value) for value in values)


def prepare(folder: Path) -> None:
    """Make the folder, and see that it can be written into before any work is done for it. Raises BackendError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BackendError(f"cannot write into {folder}: {error.strerror}") from error


@app.command(epilog="Example: lased-loadgen attack http://127.0.0.1:8080/ --rate 30 --duration 20 --seed 1 --json")
def attack(
    url: Annotated[str, typer.Argument(help="Where to send GET requests.")],
    rate: Annotated[float, typer.Option(help="Requests a second, on average.")],
    duration: Annotated[float, typer.Option(help="Seconds of traffic.")],
    arrivals: Annotated[str, typer.Option(help="Arrival process: poisson or constant.")] = "poisson",
    seed: Seed = 1,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds after which a request counts as unanswered.")
    ] = 30.0,
    out: Annotated[Path | None, typer.Option(help="Write the raw stamps and the summary into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Send open-loop traffic: requests leave at their planned times, whatever the answers do. Ctrl-C ends it early."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the URL must begin with http:// or https:// and name a host, not {url!r}")
    try:
        offsets = processes.schedule(processes.parse(arrivals, rate, stream(seed, "arrivals")), duration)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not len(offsets):
        raise ConfigError("the schedule holds no request: raise --rate or --duration")
    if out is not None:
        prepare(out)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # nothing else may cap the requests in flight
    summary = until_signal(lambda stop: _attack(Attack(url, offsets, timeout), rate, duration, stop, out))
    if as_json:
        print(json.dumps(summary.as_json()))  # noqa: T201
    else:
        Console().print(report.summary_table(summary))
        for line in (*summary.warnings, *report.summary_counts(summary)):
            print(line)  # noqa: T201
    if not summary.completed:
        raise typer.Exit(1)


async def _attack(run: Attack, rate: float, duration: float, stop: asyncio.Event, out: Path | None) -> Summary:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with report.attack_progress(console) if console.is_terminal else nullcontext() as progress:
        bar = progress.add_task("sending", total=len(run.records), open=0) if progress else None

        async def watch() -> None:
            while not stop.is_set():
                if progress and bar is not None:
                    progress.update(bar, completed=run.sent, open=run.in_flight)
                await asyncio.sleep(0.2)
            run.stop()

        watching = asyncio.create_task(watch())
        await run.run()
        watching.cancel()
    cut_short = min(duration, loop.time() - began_at) if stop.is_set() else duration
    summary = summarize(run.records, rate, cut_short)
    if out is not None:
        run.records.write_csv(out / "requests.csv")
        (out / "summary.json").write_text(json.dumps(summary.as_json(), indent=1) + "\n")
    return summary


@app.command(
    epilog="Example: lased-loadgen simulate --policy lased --lam 1 --mu 5,10 --guess 5,0.1 --arrivals 10000 --reps 20"
)
def simulate(
    policy: Annotated[str, typer.Option(help="A registered policy, or module:attr.")],
    lam: Annotated[float, typer.Option(help="Requests a second.")],
    mu: Annotated[str, typer.Option(help="True rates by pool, services a second and server.")],
    arrivals: Annotated[int, typer.Option(min=1, help="Requests in each replication.")],
    guess: Annotated[str | None, typer.Option(help="Initial estimates by pool; default the true rates.")] = None,
    servers: Annotated[str | None, typer.Option(help="Servers by pool; default one each.")] = None,
    reps: Annotated[int, typer.Option(min=1, help="Replications.")] = 1,
    seed: Seed = 1,
    service: Annotated[
        str, typer.Option(help="Law of service times: exp, fixed, lognormal:cv=2, hyperexp:cv=2.")
    ] = "exp",
    option: Annotated[list[str] | None, typer.Option(help="An option of the policy, k=v; repeat for more.")] = None,
    engine: Annotated[
        Engine, typer.Option(help="object: the live service's own objects; compiled comes later.")
    ] = Engine.AUTO,
    trace: Annotated[Path | None, typer.Option(help="Write the first replication's decisions here, CSV.")] = None,
    as_json: Json = False,
) -> None:
    """Run the same router and policies in virtual time. Replication j uses seed SEED + j."""
    if engine is Engine.COMPILED:
        raise ConfigError("--engine compiled is not in this version; take auto or object")
    rates = numbers(mu, "mu")
    scenario = Scenario(
        policy=policy,
        lam=lam,
        mu=rates,
        guess=numbers(guess, "guess") if guess else rates,
        arrivals=arrivals,
        servers=whole_numbers(servers, "servers") if servers else (),
        options=dict(_option(text) for text in option or []),
        service=service,
    )
    seeds = track(range(reps), description=policy, console=console, transient=True, disable=not console.is_terminal)
    results = [run_once(scenario, seed + j, keep_rows=trace is not None and j == 0) for j in seeds]
    if trace is not None:
        try:
            replicate.write_trace(results[0].rows, trace)
        except OSError as error:
            raise ConfigError(f"--trace {trace}: {error.strerror}") from error
    summary = replicate.summary(scenario, results, seed)
    if as_json:
        print(json.dumps(summary))  # noqa: T201
        return
    for key, value in summary.items():
        shown = " ".join(f"{v:.6g}" for v in value) if isinstance(value, list) else value
        print(f"{key:<18} {shown:.6g}" if isinstance(shown, float) else f"{key:<18} {shown}")  # noqa: T201


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--option must be k=v, as in n0=7, not {text!r}")
    return key, value


@app.command(epilog="Example: lased-loadgen demo --json --duration 30")
def demo(
    duration: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Seconds of traffic for each policy.")] = 30.0,
    seed: Seed = 1,
    out: Annotated[Path, typer.Option(help="Folder of the picture.")] = Path("out"),
    as_json: Json = False,
) -> None:
    """Two real pools, the dispatcher, Poisson traffic: LASED learns, then Greedy on the same traffic does not."""
    prepare(out)
    scene = show.Scene(duration=duration, seed=seed)
    make_screen = report.LiveScreen if console.is_terminal and not as_json else report.PlainScreen
    console.print(
        "Pools of 50 and 100 services a second; the dispatcher believes 50 and 1.\n"
        f"30 requests a second for {duration:g} s, first by lased, then the same by greedy. Ctrl-C ends it early.\n"
    )
    with make_screen(scene, console) as screen:
        runs = until_signal(lambda stop: show.run_demo(scene, screen.watch, stop))
    runs = [run for run in runs if run.rows]
    picture = _picture(scene, runs, out / "demo.png")
    if as_json:
        print(json.dumps(show.as_json(scene, runs, picture)))  # noqa: T201
    elif runs:
        Console().print(report.demo_table(scene, runs))
        print(report.demo_verdict(scene, runs))  # noqa: T201
        if picture:
            print(f"picture: {picture}")  # noqa: T201
    if not any(run.records.completed.any() for run in runs):
        raise typer.Exit(1)


def _picture(scene: show.Scene, runs: list[show.Run], path: Path) -> str | None:
    from loadgen.plot import PlotError, demo_picture

    if not runs:
        return None
    try:
        demo_picture(scene, runs, path)
    except (PlotError, OSError) as error:
        console.print(f"no picture: {error}")
        return None
    return str(path)


def main() -> NoReturn:
    """Run a command; errors in one line, exit 2 for usage and configuration, 1 for the rest."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="lased-loadgen") or 0)
    except (ConfigError, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        if message:  # there is none where the help was printed instead
            print(f"error: {message}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except (DispatcherError, BackendError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except asyncio.CancelledError:
        print("error: broken off", file=sys.stderr)  # noqa: T201
        sys.exit(130)


if __name__ == "__main__":
    main()
