"""The processes that send: `python -m loadgen.attack.worker_process FOLDER K`, one for each share of a plan.

They do nothing else, so that neither a display nor a scrape makes a request late. The rows are files of the folder,
seen by all. On its standard output a process says `ready`, hears `start <instant>` (of the monotonic clock, which
processes of one machine share) or `stop` on its standard input, and says last, in JSON, what it did. The end of its
input is a stop.
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
LEAD = 0.2  # seconds between everybody's being ready and the start of the schedule
LINE = 1 << 22  # bytes of a line that a process says
FORGET_EVERY = 5.0  # seconds


class SenderError(DispatcherError):
    """A sending process did not start, or ended too soon."""


def write_job(folder: Path, request: Request, limits: Limits, processes: int = 1) -> None:
    """What the processes are to do, beside the rows; for this user's eyes only, for headers may hold secrets."""
    given = {key: value for key, value in vars(request).items() if key not in ("targets", "body")}
    (folder / "body.bin").write_bytes(request.body)
    path = folder / "job.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps({"request": given, "limits": asdict(limits), "processes": processes}))


def _read_job(folder: Path) -> tuple[Request, Limits, int]:
    job = json.loads((folder / "job.json").read_text())
    given = job["request"]
    given["urls"], given["headers"] = tuple(given["urls"]), tuple(tuple(pair) for pair in given["headers"])
    return Request(**given, body=(folder / "body.bin").read_bytes()), Limits(**job["limits"]), job["processes"]


class Senders:
    """The processes of a run, from the side of the one that started them."""

    def __init__(self, folder: Path, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._folder, self._processes = folder, processes
        self.start = 0.0

    async def begin(self) -> float:
        """Let all start at the same instant, which is returned. Raises SenderError."""
        for k in range(len(self._processes)):
            await self._line(k, READY_SECONDS)
        self.start = asyncio.get_running_loop().time() + LEAD
        self._say(f"start {self.start!r}\n")
        return self.start

    def stop(self) -> None:
        """Send nothing more; what is open is waited for."""
        self._say("stop\n")

    async def ended(self, records: Records) -> list[Effort]:
        """What each did; the pools' names go into the records. Raises SenderError."""
        try:
            async with asyncio.TaskGroup() as group:
                lines = [group.create_task(self._line(k, None)) for k in range(len(self._processes))]
        except* SenderError as failed:
            raise failed.exceptions[0] from None
        efforts = []
        for k, line in enumerate(lines):
            said = json.loads(line.result())
            efforts.append(Effort(**said["effort"]))
            self._rename(records, k, said["names"])
        return efforts

    @staticmethod
    def _rename(records: Records, owner: int, names: Sequence[str]) -> None:
        """Every process numbers the pools as it meets them: give them the numbers of the records."""
        for name in names:
            if name not in records.names:
                records.names.append(name)
        codes = [records.names.index(name) for name in names]
        if codes == list(range(len(codes))):
            return
        for rows in records.chunks():
            mine = records.owner[rows] == owner
            records.pool[rows][mine] = [codes[code] for code in records.pool[rows][mine].tolist()]

    def _say(self, text: str) -> None:
        for process in self._processes:
            assert process.stdin is not None
            if not process.stdin.is_closing():
                process.stdin.write(text.encode())

    async def _line(self, k: int, wait: float | None) -> str:
        process = self._processes[k]
        assert process.stdout is not None
        try:
            async with asyncio.timeout(wait):
                line = await process.stdout.readline()
        except ValueError:
            raise SenderError(f"sending process {k} said too much in a line") from None
        except TimeoutError:
            raise SenderError(f"sending process {k} was not ready in {READY_SECONDS:g} s") from None
        if line.startswith(b"error: "):
            raise SenderError(line.decode().removeprefix("error: ").strip())
        if not line:
            if (code := await process.wait()) < 0:
                raise SenderError(f"sending process {k} was killed by signal {-code}")
            said = (self._folder / f"sender-{k}.log").read_text(errors="replace").strip().splitlines()
            raise SenderError(f"sending process {k} ended: {said[-1] if said else 'it said nothing'}")
        return line.decode()


@contextlib.asynccontextmanager
async def senders(folder: Path, processes: int) -> AsyncIterator[Senders]:
    """Processes 0 … processes − 1, ended at the end of the block, whatever happens in it."""
    running: list[asyncio.subprocess.Process] = []
    try:
        for k in range(processes):
            with (folder / f"sender-{k}.log").open("wb") as log:
                running.append(
                    await asyncio.create_subprocess_exec(
                        sys.executable, "-P", "-m", "loadgen.attack.worker_process", str(folder), str(k),
                        env=_environment(),
                        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                        start_new_session=True, limit=LINE,
                    )
                )  # fmt: skip
        yield Senders(folder, running)
    finally:
        for process in running:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()


def _environment() -> dict[str, str]:
    """With this very package to be found, and nothing of the folder that the command runs in (-P)."""
    paths = [str(Path(__file__).resolve().parent.parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


async def _main(folder: Path, owner: int) -> dict[str, Any]:
    request, limits, processes = _read_job(folder)
    records = Records.open(folder)
    attack = Attack(request, records, limits.shared(owner, processes), owner)
    await attack.prepare()
    print("ready", flush=True)  # noqa: T201
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    word, _, instant = (await reader.readline()).decode().partition(" ")
    if word == "start":
        gc.collect()
        gc.freeze()  # what lives as long as the run need not be looked through again
        jobs = [asyncio.create_task(_stop_when_told(reader, attack)), asyncio.create_task(_forget(records, attack))]
        await attack.run(float(instant))
        for job in jobs:
            job.cancel()
    return {"effort": asdict(attack.effort), "names": records.names}


async def _stop_when_told(reader: asyncio.StreamReader, attack: Attack) -> None:
    attack.stop(wait=bool(await reader.readline()))  # nothing: who started us is gone


async def _forget(records: Records, attack: Attack) -> None:
    """Give the memory of rows back that are over."""
    while True:
        await asyncio.sleep(FORGET_EVERY)
        records.forget(attack.settled)


def main() -> None:
    """A sending process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # nothing else may cap the requests in flight
    try:
        print(json.dumps(asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2])))), flush=True)  # noqa: T201
    except OSError as error:
        print(f"error: {error}", flush=True)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
