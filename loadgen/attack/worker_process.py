"""Runs the sending processes: `python -m loadgen.attack.worker_process FOLDER K`, one for each share of a plan.

They do nothing else, so neither a display nor a scrape delays a request. The rows are files in the folder, which all
processes map. A process writes `ready` to its standard output. It reads `start <instant>` from its standard input; the
instant is one of the monotonic clock, which processes of one machine share. It stops early when it reads `stop` or the
end of its input. Its last line of output is what it did, in JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dispatcher.errors import DispatcherError
from loadgen.attack.driver import Attack, Limits
from loadgen.attack.records import Effort, Records
from loadgen.attack.targets import Request

READY_SECONDS = 30.0
START_DELAY_SECONDS = 0.2  # from the moment at which all processes are ready to the start of the schedule
MAX_LINE_BYTES = 1 << 22  # of a line that a process writes; the last one may hold a thousand pool names
RELEASE_INTERVAL_SECONDS = 5.0


class SendingProcessError(DispatcherError):
    """A sending process did not start, or ended too early."""


def write_job(folder: Path, request: Request, limits: Limits, processes: int = 1) -> None:
    """Write what the processes have to do into the folder of the rows."""
    # The targets follow from the URLs. The body is bytes, which JSON cannot hold.
    fields = {key: value for key, value in vars(request).items() if key not in ("targets", "body")}
    (folder / "body.bin").write_bytes(request.body)
    path = folder / "job.json"
    path.touch(mode=0o600)  # headers may contain secrets, so only this user may read the file
    path.write_text(json.dumps({"request": fields, "limits": asdict(limits), "processes": processes}))


def _read_job(folder: Path) -> tuple[Request, Limits, int]:
    job = json.loads((folder / "job.json").read_text())
    fields = job["request"]
    fields["urls"], fields["headers"] = tuple(fields["urls"]), tuple(tuple(pair) for pair in fields["headers"])
    return Request(**fields, body=(folder / "body.bin").read_bytes()), Limits(**job["limits"]), job["processes"]


class SendingProcesses:
    """The sending processes of a run, seen from the process that started them."""

    def __init__(self, folder: Path, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._folder, self._processes = folder, processes

    async def begin(self) -> float:
        """Start the schedule in all processes at one instant of the loop's clock, and return it.

        Raises SendingProcessError.
        """
        for k in range(len(self._processes)):
            await self._read_line(k, READY_SECONDS)
        start = asyncio.get_running_loop().time() + START_DELAY_SECONDS
        self._write(f"start {start!r}\n")
        return start

    def stop(self) -> None:
        """Send nothing more. The processes still wait for open requests."""
        self._write("stop\n")

    async def wait(self, records: Records) -> list[Effort]:
        """Wait until all processes have finished, and return what each of them did.

        records: its pool names are completed. Raises SendingProcessError.
        """
        try:
            async with asyncio.TaskGroup() as group:
                lines = [group.create_task(self._read_line(k, None)) for k in range(len(self._processes))]
        except* SendingProcessError as failed:
            raise failed.exceptions[0] from None  # the group only matters inside: one error ends the run
        efforts = []
        for k, line in enumerate(lines):
            report = json.loads(line.result())
            efforts.append(Effort(**report["effort"]))
            self._renumber_pools(records, k, report["names"])
        return efforts

    @staticmethod
    def _renumber_pools(records: Records, owner: int, names: Sequence[str]) -> None:
        """Replace the pool numbers of one process by those of the records.

        Every process numbers the pools in the order in which it sees them.
        """
        for name in names:
            if name not in records.names:
                records.names.append(name)
        codes = [records.names.index(name) for name in names]
        if codes == list(range(len(codes))):
            return  # the numbers are already the same, as always with a single process
        for rows in records.chunks():
            own = records.owner[rows] == owner
            records.pool[rows][own] = [codes[code] for code in records.pool[rows][own].tolist()]

    def _write(self, text: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            if not process.stdin.is_closing():
                process.stdin.write(text.encode())

    async def _read_line(self, k: int, wait: float | None) -> str:
        process = self._processes[k]
        assert process.stdout is not None
        try:
            async with asyncio.timeout(wait):
                line = await process.stdout.readline()
        except ValueError:
            raise SendingProcessError(f"sending process {k} wrote a line that is too long") from None
        except TimeoutError:
            raise SendingProcessError(f"sending process {k} was not ready in {READY_SECONDS:g} s") from None
        if line.startswith(b"error: "):
            raise SendingProcessError(line.decode().removeprefix("error: ").strip())
        if not line:  # the output has ended
            if (code := await process.wait()) < 0:
                raise SendingProcessError(f"sending process {k} was killed by signal {-code}")
            log = (self._folder / f"sender-{k}.log").read_text(errors="replace").strip().splitlines()
            raise SendingProcessError(f"sending process {k} ended: {log[-1] if log else 'its log is empty'}")
        return line.decode()


@contextlib.asynccontextmanager
async def sending_processes(folder: Path, processes: int) -> AsyncIterator[SendingProcesses]:
    """Run the processes 0 … processes − 1 inside the block. folder: of the rows and of the job."""
    running: list[asyncio.subprocess.Process] = []
    try:
        for k in range(processes):
            running.append(await _start(folder, k))
        yield SendingProcesses(folder, running)
    finally:
        for process in running:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()


async def _start(folder: Path, k: int) -> asyncio.subprocess.Process:
    # -P keeps the current folder off the import path. The package itself must be on it, wherever the command runs.
    command = [sys.executable, "-P", "-m", "loadgen.attack.worker_process", str(folder), str(k)]
    paths = [str(Path(__file__).resolve().parent.parent.parent), os.environ.get("PYTHONPATH", "")]
    with (folder / f"sender-{k}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C must not reach this process: the starting process stops it in order
            limit=MAX_LINE_BYTES,
        )


async def _run(folder: Path, owner: int) -> dict[str, Any]:
    """Send the share of one process, and return its report."""
    request, limits, processes = _read_job(folder)
    records = Records.open(folder)
    attack = Attack(request, records, limits.share(owner, processes), owner)
    await attack.prepare()
    print("ready", flush=True)  # noqa: T201
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    word, _, instant = (await reader.readline()).decode().partition(" ")
    if word == "start":
        gc.collect()
        gc.freeze()  # objects that live as long as the run need no further collection
        jobs = [asyncio.create_task(_stop_on_input(reader, attack)), asyncio.create_task(_release(records, attack))]
        await attack.run(float(instant))
        for job in jobs:
            job.cancel()
    return {"effort": asdict(attack.effort), "names": records.names}


async def _stop_on_input(reader: asyncio.StreamReader, attack: Attack) -> None:
    line = await reader.readline()
    # The end of the input means that the starting process has died, so no one will read the results.
    attack.stop(drain=bool(line))


async def _release(records: Records, attack: Attack) -> None:
    """Give the memory of finished rows back to the system from time to time."""
    while True:
        await asyncio.sleep(RELEASE_INTERVAL_SECONDS)
        records.release(attack.first_open_row)


def main() -> None:
    """Run one sending process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the starting process decides when to stop
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the number of open files must not limit the open load
    try:
        print(json.dumps(asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2])))), flush=True)  # noqa: T201
    except OSError as error:
        print(f"error: {error}", flush=True)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
