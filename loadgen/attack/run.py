"""One attack from its plan to its summary: rows in a folder, processes that send, something that watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen.attack.export import write_rows
from loadgen.attack.measure import Measures, measure
from loadgen.attack.plan import Plan
from loadgen.attack.progress import Watch
from loadgen.attack.records import Effort, Records
from loadgen.attack.schedule import write_trace
from loadgen.attack.summary import Summary
from loadgen.attack.worker_process import senders, write_job

LOOK_EVERY = 0.5  # seconds


class Run:
    """What was measured. records: its rows, in files of the folder that was given."""

    def __init__(self, plan: Plan, records: Records) -> None:
        self.plan, self.records = plan, records
        self.efforts: Sequence[Effort] = ()
        self.cut = float("inf")

    @property
    def seconds(self) -> float:
        """Of the traffic as planned."""
        return self.plan.traffic.seconds(float(self.records.planned[-1]))

    def measures(self) -> Measures:
        ended = [effort.elapsed for effort in self.efforts] or [float("inf")]
        traffic = self.plan.traffic
        return measure(self.records, traffic.process(), self.seconds, traffic.warmup, self.cut, ended)


async def attack(
    run: Run,
    folder: Path,
    watch: Watch,
    looked: Callable[[float], None],
    stop: asyncio.Event,
    stopped: Callable[[], None],
) -> None:
    """Send the plan. looked: told the seconds since the start after each look of `watch`. stop: ends the sending early,
    which `stopped` is told. Raises SenderError."""
    loop = asyncio.get_running_loop()
    write_job(folder, run.plan.request, run.plan.limits, run.plan.processes)
    async with senders(folder, run.plan.processes) as running:
        start = await running.begin()

        async def looking() -> None:
            while True:
                at = loop.time() - start
                watch.look(at)
                with contextlib.suppress(OSError):  # whoever watched may have gone; the run goes on
                    looked(at)
                await asyncio.sleep(LOOK_EVERY)

        async def stopping() -> None:
            await stop.wait()
            run.cut = max(0.0, loop.time() - start)
            running.stop()
            with contextlib.suppress(OSError):
                stopped()

        jobs = [asyncio.create_task(looking()), asyncio.create_task(stopping())]
        try:
            run.efforts = await running.ended(run.records)
        finally:
            for job in jobs:
                job.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*jobs)
        watch.look(loop.time() - start)


def write(run: Run, found: Measures, summary: Summary, folder: Path, form: str) -> list[Path]:
    """The run's folder: plan, schedule, rows, histograms and summary. form: of the rows. Raises OSError, RowsError."""
    made = [folder / "summary.json", folder / "schedule.csv.gz"]
    made[0].write_text(summary.model_dump_json(indent=1) + "\n")
    write_trace(run.records, made[1])
    for view, histogram in found.views.items():
        made.append(folder / f"{view}.hgrm")
        histogram.write_hgrm(made[-1])
    if form != "none":
        made.append(write_rows(run.records, run.plan.request.urls, folder, form))
    return made
