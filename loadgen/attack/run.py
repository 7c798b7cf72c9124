"""Carries out a plan: starts the sending processes, follows their progress, and writes the results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen.attack.export import write_rows
from loadgen.attack.measure import Measures, measure
from loadgen.attack.plan import Plan
from loadgen.attack.progress import RunProgress
from loadgen.attack.records import Effort, Records
from loadgen.attack.schedule import write_trace
from loadgen.attack.summary import Summary
from loadgen.attack.worker_process import sending_processes, write_job

UPDATE_INTERVAL_SECONDS = 0.5


class Run:
    """One run of a plan.

    records: its rows. efforts: what each sending process did; empty until the run has finished.
    cut: seconds after the start at which the run was ended early; infinite if it was not.
    """

    def __init__(self, plan: Plan, records: Records) -> None:
        self.plan, self.records = plan, records
        self.efforts: Sequence[Effort] = ()
        self.cut = float("inf")

    @property
    def seconds(self) -> float:
        """The planned length of the traffic."""
        return self.plan.traffic.seconds(float(self.records.planned[-1]))

    def measures(self) -> Measures:
        """Compute the measurements from the rows."""
        ended = [effort.elapsed for effort in self.efforts] or [float("inf")]  # not known before the run has finished
        traffic = self.plan.traffic
        return measure(self.records, traffic.process(), self.seconds, traffic.warmup, self.cut, ended)


async def attack(
    run: Run,
    folder: Path,
    progress: RunProgress,
    on_update: Callable[[float], None],
    stop: asyncio.Event,
    on_stop: Callable[[], None],
) -> None:
    """Send the plan, and set the run's efforts.

    folder: of the rows. progress: updated while the run lasts.
    on_update: called with the seconds since the start after each update.
    stop: ends the sending early. on_stop: called when that happens.
    Raises SendingProcessError.
    """
    loop = asyncio.get_running_loop()
    write_job(folder, run.plan.request, run.plan.limits, run.plan.processes)
    async with sending_processes(folder, run.plan.processes) as running:
        start = await running.begin()

        async def update() -> None:
            while True:
                at = loop.time() - start
                progress.update(at)
                with contextlib.suppress(OSError):  # the terminal may be closed; the run must not end with it
                    on_update(at)
                await asyncio.sleep(UPDATE_INTERVAL_SECONDS)

        async def end_early() -> None:
            await stop.wait()
            run.cut = max(0.0, loop.time() - start)
            running.stop()
            with contextlib.suppress(OSError):
                on_stop()

        jobs = [asyncio.create_task(update()), asyncio.create_task(end_early())]
        try:
            run.efforts = await running.wait(run.records)
        finally:
            for job in jobs:
                job.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*jobs)
        progress.update(loop.time() - start)  # the last responses may have come since the last regular update


def write(run: Run, measures: Measures, summary: Summary, folder: Path, rows_format: str) -> None:
    """Write summary, schedule, histograms and rows into the folder.

    rows_format: jsonl, parquet or none. Raises OSError and RowsError.
    """
    (folder / "summary.json").write_text(summary.model_dump_json(indent=1) + "\n")
    write_trace(run.records, folder / "schedule.csv.gz")
    for view, histogram in measures.views.items():
        histogram.write_hgrm(folder / f"{view}.hgrm")
    if rows_format != "none":
        write_rows(run.records, run.plan.request.urls, folder, rows_format)
