"""The command `reproduce`: an experiment or a study, with a verdict on each of its claims."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.cli.app import Backend, BackendOption, Dask, EngineOption, Jobs, Json, Seed, app, output, print_json
from loadgen.cli.progress import run_resumable, try_drawing
from loadgen.experiments import pictures, tables
from loadgen.experiments.claims import Verdict, judge
from loadgen.experiments.results import Results
from loadgen.experiments.run import Plan, run, write
from loadgen.experiments.spec import load
from loadgen.experiments.studies import runner
from loadgen.sim.sweep import Engine


class SizeName(StrEnum):
    """The size of an experiment."""

    QUICK = "quick"
    FULL = "full"


@app.command(epilog="Example: lased-loadgen reproduce fig4 --size quick")
def reproduce(
    figure: Annotated[
        str, typer.Argument(help="fig4, fig5, starvation, fig8, one of our own, or a file ending in .toml.")
    ],
    backend: BackendOption = Backend.SIM,
    size: Annotated[SizeName, typer.Option(help="quick: seconds; full: as in print.")] = SizeName.QUICK,
    out: Annotated[
        Path, typer.Option(help="Folder of the results; finished cells in it are kept and not run again.")
    ] = Path("out"),
    seed: Seed = 1,
    engine: EngineOption = Engine.AUTO,
    jobs: Jobs = 0,
    dask: Dask = "",
    as_json: Json = False,
) -> None:
    """Repeat a figure of the paper: rows, table, picture, and a verdict on each claim. Exits 1 if one fails."""
    if (study := runner.find(figure)) is not None:
        if backend is Backend.LIVE:
            raise ConfigError(f"{figure} is simulated only")
        _reproduce_study(study, size.value, out / f"{figure}-{size.value}", seed, jobs, as_json)
        return
    spec = load(figure)
    if size.value not in spec.sizes:
        raise ConfigError(f"{spec.name} has no size {size.value!r}; it has: {', '.join(spec.sizes)}")
    folder = out / f"{spec.name}-{size.value}-{backend.value}"
    plan = Plan(spec, size.value, folder, seed, backend.value, engine, jobs, dask)
    results = run_plan(plan)
    verdicts = judge(spec, results, size.value, live=backend is Backend.LIVE)
    write(plan, results, verdicts)
    picture = try_drawing(lambda path: pictures.draw(spec, results, path), folder / f"{spec.name}.png")
    _show(spec.name, folder, picture, verdicts, [tables.table(spec, results)], "rows, manifest, verdicts", as_json)


def run_plan(plan: Plan) -> Results:
    """Run an experiment with a progress bar. Raises InterruptedRunError after Ctrl-C."""
    return run_resumable(lambda report: run(plan, report), plan.folder, plan.spec.name, "cells", "replications")


def _reproduce_study(study: runner.Study, size: str, folder: Path, seed: int, jobs: int, as_json: bool) -> None:
    results = run_resumable(
        lambda report: runner.run(study, size, seed, folder, jobs, report), folder, study.name, "pieces"
    )
    verdicts = study.verdicts(results, size)
    runner.write(study, results, verdicts, folder)
    picture = try_drawing(lambda path: study.draw(results, path), folder / f"{study.name}.png")
    _show(study.name, folder, picture, verdicts, study.tables(results), "rows, verdicts", as_json)


def _show(
    name: str,
    folder: Path,
    picture: str | None,
    verdicts: Sequence[Verdict],
    printed: Sequence[Table | Group],
    files: str,
    as_json: bool,
) -> None:
    """Print the results. files: the kinds of files in the folder. Exits with 1 if a claim does not hold."""
    if as_json:
        texts = [verdict.as_json() for verdict in verdicts]
        print_json({"experiment": name, "folder": str(folder), "picture": picture, "verdicts": texts})
    else:
        for table in printed:
            output().print(table)
        output().print(tables.verdict_lines(verdicts), soft_wrap=True)
        print(f"{files}{' and picture' if picture else ''} in {folder}")  # noqa: T201
    if any(verdict.holds is False for verdict in verdicts):  # None is a claim that was not judged
        raise typer.Exit(1)
