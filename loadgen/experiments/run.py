"""Runs an experiment cell by cell, keeps finished cells, and writes its rows, manifest and verdicts.

An interrupted run loses only the cells that were running. The same command continues with the missing cells.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from loadgen.experiments.checkpoint import Checkpoint
from loadgen.experiments.claims import Verdict
from loadgen.experiments.live.replication import replicate
from loadgen.experiments.results import Measured, Results, mark_of, write_rows
from loadgen.experiments.spec import Cell, Size, Spec, grid
from loadgen.sim.model import Result
from loadgen.sim.sweep import Engine, sweep, units

Backend = Literal["sim", "live"]
Progress = Callable[[int, int, str], None]  # called with replications done, replications in all, name of the cell
OnCellFinished = Callable[[int, Sequence[Result]], None]  # called with the index of a cell and all of its results
OnReplications = Callable[[int, int], None]  # called with the index of a cell and the number of new replications


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment in one size, and how to run it.

    folder: of the results. seed: of the first replication. jobs: cores to use, 0 for all. dask: a scheduler's address.
    """

    spec: Spec
    size_name: Literal["quick", "full"]
    folder: Path
    seed: int = 1
    backend: Backend = "sim"
    engine: Engine = Engine.AUTO
    jobs: int = 0
    dask: str = ""

    @property
    def size(self) -> Size:
        return self.spec.sizes[self.size_name]

    @property
    def seeds(self) -> range:
        live = self.size.live
        return range(self.seed, self.seed + (live.reps if self.backend == "live" and live else self.size.reps))

    def cells(self) -> list[Cell]:
        return list(grid(self.spec, self.size, self.backend == "live"))


def run(plan: Plan, progress: Progress) -> Results:
    """Run every cell whose result is not in the folder yet, and return the results of all cells.

    progress: called at the start and after each step. KeyboardInterrupt is not caught; finished cells are kept.
    """
    cells = plan.cells()
    plan.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(plan.folder / "cells.jsonl")
    rate = plan.size.live.rate if plan.backend == "live" and plan.size.live else None
    marks = [mark_of(cell, plan.seeds, plan.backend, rate) for cell in cells]
    missing = {i: cell for i, cell in enumerate(cells) if marks[i] not in checkpoint}
    total, done = len(cells) * len(plan.seeds), (len(cells) - len(missing)) * len(plan.seeds)
    progress(done, total, "")

    def on_cell_finished(i: int, results: Sequence[Result]) -> None:
        checkpoint.add(marks[i], Measured.of(cells[i], results).as_json())

    def on_replications(i: int, count: int) -> None:
        nonlocal done
        done += count
        progress(done, total, cells[i].name)

    if plan.backend == "live":
        asyncio.run(_run_live(plan, missing, on_cell_finished, on_replications))
    else:
        _run_simulated(plan, missing, on_cell_finished, on_replications)
    # New results also come from the checkpoint, so a continued run gives the same numbers as an uninterrupted one.
    return Results([Measured.from_json(cell, checkpoint[mark]) for cell, mark in zip(cells, marks, strict=True)])


def _run_simulated(
    plan: Plan, missing: dict[int, Cell], on_cell_finished: OnCellFinished, on_replications: OnReplications
) -> None:
    order = list(missing)
    work = units([(missing[i].scenario, plan.seeds) for i in order], plan.engine)
    # Units of several cells run at the same time. Only a complete cell goes into the checkpoint.
    open_cells: dict[int, list[Result]] = defaultdict(list)
    for unit, results in sweep(work, plan.jobs, plan.dask):
        i = order[unit.index]
        open_cells[i] += results
        if len(open_cells[i]) == len(plan.seeds):
            on_cell_finished(i, open_cells.pop(i))
        on_replications(i, len(results))


async def _run_live(
    plan: Plan, missing: dict[int, Cell], on_cell_finished: OnCellFinished, on_replications: OnReplications
) -> None:
    assert plan.size.live is not None, "`cells` has refused a size without a live form"
    for i, cell in missing.items():
        results = []
        for seed in plan.seeds:
            results.append(await replicate(cell.scenario, plan.size.live.rate, seed))
            on_replications(i, 1)
        on_cell_finished(i, results)


def write(plan: Plan, results: Results, verdicts: Sequence[Verdict]) -> None:
    """Write rows.csv, manifest.json and verdicts.json into the plan's folder."""
    write_rows(results, plan.folder / "rows.csv")
    manifest: dict[str, Any] = {
        "experiment": plan.spec.model_dump(),
        "size": plan.size_name,
        "backend": plan.backend,
        "engine": plan.engine,
        "seeds": [plan.seeds[0], plan.seeds[-1]],
        "cells": len(results.cells),
        "version": version("lased-dispatcher"),
        "python": platform.python_version(),
        "host": {"system": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()},
    }
    for name, value in (("manifest", manifest), ("verdicts", [verdict.as_json() for verdict in verdicts])):
        text = json.dumps(value, indent=1, ensure_ascii=False)
        (plan.folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
