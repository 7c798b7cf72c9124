"""The command `lased-loadgen`: the demonstration here, others in `traffic`, `lab`, `versus`. Only results go
to stdout."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dispatcher.errors import ConfigError, DispatcherError
from loadgen.cli import demo as show
from loadgen.cli import screens as report
from loadgen.cli.app import BrokenOffError, Json, Seed, app, console, output, prepare, print_json, until_signal
from loadgen.experiments.live.backends import BackendError


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
    from loadgen.cli import demo_picture
    from loadgen.plot import PlotError

    if not runs:
        return None
    try:
        demo_picture.draw(scene, runs, path)
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
