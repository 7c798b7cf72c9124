"""Runs an experiment cell by cell, keeps what is finished, and writes what it found: rows, manifest, verdicts, picture.

An interrupted run loses only the cells that were being run; the same command goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from loadgen.experiments import claims
from loadgen.experiments.live import replication as live
from loadgen.experiments.results import Measured, Results, Store, fingerprint, write_rows
from loadgen.experiments.spec import Cell, Size, Spec, cells
from loadgen.sim.model import Result
from loadgen.sim.sweep import Engine, sweep, units

Backend = Literal["sim", "live"]
Told = Callable[[int, int, str], None]  # replications done, of how many, of which cell


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run: an experiment in one size, where its results go, and how."""

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
        return list(cells(self.spec, self.size, self.backend == "live"))


def run(plan: Plan, told: Told) -> Results:
    """Run every cell that is not kept already. told: hears of progress. Raises KeyboardInterrupt as it comes."""
    wanted = plan.cells()
    plan.folder.mkdir(parents=True, exist_ok=True)
    store = Store(plan.folder)
    rate = plan.size.live.rate if plan.backend == "live" and plan.size.live else None
    marks = [fingerprint(cell, plan.seeds, plan.backend, rate) for cell in wanted]
    found = [store.find(cell, mark) for cell, mark in zip(wanted, marks, strict=True)]
    missing = [i for i, one in enumerate(found) if one is None]
    total, done = len(wanted) * len(plan.seeds), (len(wanted) - len(missing)) * len(plan.seeds)
    told(done, total, "")

    def finished(i: int, results: Sequence[Result]) -> None:
        found[i] = measured = Measured.of(wanted[i], results)
        store.add(marks[i], measured)

    def advanced(i: int, count: int) -> None:
        nonlocal done
        done += count
        told(done, total, wanted[i].name)

    if plan.backend == "live":
        asyncio.run(_run_live(plan, {i: wanted[i] for i in missing}, finished, advanced))
    else:
        _run_simulated(plan, {i: wanted[i] for i in missing}, finished, advanced)
    return Results([one for one in found if one is not None])


def _run_simulated(
    plan: Plan, missing: dict[int, Cell], finished: Callable[[int, Sequence[Result]], None],
    advanced: Callable[[int, int], None],
) -> None:  # fmt: skip
    order = list(missing)
    work = units([(missing[i].scenario, plan.seeds) for i in order], plan.engine)
    open_cells: dict[int, list[Result]] = defaultdict(list)
    for unit, results in sweep(work, plan.jobs, plan.dask):
        i = order[unit.index]
        open_cells[i] += results
        if len(open_cells[i]) == len(plan.seeds):
            finished(i, open_cells.pop(i))
        advanced(i, len(results))


async def _run_live(
    plan: Plan, missing: dict[int, Cell], finished: Callable[[int, Sequence[Result]], None],
    advanced: Callable[[int, int], None],
) -> None:  # fmt: skip
    assert plan.size.live is not None, "`cells` has refused a size without a live form"
    for i, cell in missing.items():
        results = []
        for seed in plan.seeds:
            results.append(await live.measure(cell.scenario, plan.size.live.rate, seed))
            advanced(i, 1)
        finished(i, results)


def write(plan: Plan, results: Results, verdicts: Sequence[claims.Verdict]) -> None:
    """rows.csv, manifest.json and verdicts.json into the plan's folder."""
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
    said = [{**asdict(verdict), "claim": verdict.claim.says} for verdict in verdicts]
    for name, value in (("manifest", manifest), ("verdicts", said)):
        text = json.dumps(value, indent=1, ensure_ascii=False)
        (plan.folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
