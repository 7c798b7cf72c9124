"""The command `demo`: two real pools, the dispatcher, and traffic, first with LASED and then with Greedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli.app import Json, Seed, app, console, output, prepare, print_json, until_signal
from loadgen.cli.demo_screen import LiveScreen, PlainScreen, Screen, demo_table, demo_verdict
from loadgen.cli.progress import try_drawing
from loadgen.experiments.live import demo_picture
from loadgen.experiments.live.demo import Scene, report, run_demo


@app.command(epilog="Example: lased-loadgen demo --json --duration 30")
def demo(
    duration: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Seconds of traffic for each policy.")] = 30.0,
    seed: Seed = 1,
    out: Annotated[Path, typer.Option(help="Folder of the picture.")] = Path("out"),
    as_json: Json = False,
) -> None:
    """Two real pools, the dispatcher, Poisson traffic: LASED learns, then Greedy on the same traffic does not."""
    prepare(out)
    scene = Scene(duration=duration, seed=seed)
    interactive = console.is_terminal and not as_json
    screen: Screen = LiveScreen(scene, console) if interactive else PlainScreen(console)
    console.print(
        "Pools of 50 and 100 services a second; the dispatcher's guesses are 50 and 1.\n"
        f"30 requests a second for {duration:g} s, first by lased, then the same by greedy. Ctrl-C ends it early.\n"
    )
    with screen:
        runs = until_signal(lambda stop: run_demo(scene, screen.update, stop))
    runs = [run for run in runs if run.rows]  # the last one may have ended before its first request
    picture = try_drawing(lambda path: demo_picture.draw(scene, runs, path), out / "demo.png") if runs else None
    if as_json:
        print_json(report(scene, runs, picture))
    elif runs:
        output().print(demo_table(scene, runs))
        print(demo_verdict(scene, runs))  # noqa: T201
        if picture:
            print(f"picture: {picture}")  # noqa: T201
    if not any(run.records.completed.any() for run in runs):
        raise typer.Exit(1)
