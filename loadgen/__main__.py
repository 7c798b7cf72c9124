"""The command `lased-loadgen`: traffic and demonstration here, what simulates in `lab`. Only results go to stdout."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import typer

from dispatcher.core.streams import stream
from dispatcher.errors import ConfigError, DispatcherError
from loadgen import arrivals as processes
from loadgen import demo as show
from loadgen import (
    lab,  # noqa: F401 - registers its commands
    report,
)
from loadgen.attack import Attack
from loadgen.command import BrokenOffError, Json, Seed, app, console, output, prepare, print_json
from loadgen.experiments.backends import BackendError
from loadgen.exposition import Exposition
from loadgen.metrics import Summary, summarize

T = TypeVar("T")


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


@app.command(epilog="Example: lased-loadgen attack http://127.0.0.1:8080/ --rate 30 --duration 20 --seed 1 --json")
def attack(
    url: Annotated[str, typer.Argument(help="Where to send GET requests.")],
    rate: Annotated[float, typer.Option(help="Requests a second, on average.")],
    duration: Annotated[float, typer.Option(help="Seconds of traffic.")],
    arrivals: Annotated[
        str, typer.Option(help="Arrivals: poisson, constant, mmpp:ratio=5,period=10, wave:depth=0.8,period=60.")
    ] = "poisson",
    seed: Seed = 1,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds after which a request counts as unanswered.")
    ] = 30.0,
    out: Annotated[Path | None, typer.Option(help="Write the raw stamps and the summary into this folder.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve the run's metrics for Prometheus there.")
    ] = None,
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
    exposition = Exposition(rate) if metrics is not None else None
    with exposition.served(*_address(metrics)) if exposition and metrics else nullcontext():
        run = Attack(url, offsets, timeout, exposition)
        summary = until_signal(lambda stop: _attack(run, rate, duration, stop, out))
    if as_json:
        print(json.dumps(summary.as_json()))  # noqa: T201
    else:
        output().print(report.summary_table(summary))
        for line in (*summary.warnings, *report.summary_counts(summary)):
            print(line)  # noqa: T201
    if not summary.completed:
        raise typer.Exit(1)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(
            f"--metrics is where this command serves its own metrics: HOST:PORT, as in 127.0.0.1:9100, not {text!r}"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


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
        print_json(show.as_json(scene, runs, picture))
    elif runs:
        output().print(report.demo_table(scene, runs))
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is long ends by either, as by Ctrl-C
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
        leave("broken off", 130)
    except BrokenOffError as error:
        leave(str(error), 1)
    except SystemExit as end:
        if end.code == 130:  # how typer tells of Ctrl-C
            leave("broken off", 130)
        raise


def leave(message: str, code: int) -> NoReturn:
    """End soon: a replication that is being run in a thread cannot be stopped and may take long."""
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in others:
        thread.join(1.0)
    if any(thread.is_alive() for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
