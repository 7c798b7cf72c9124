"""Starts worker pools and dispatchers as processes on free ports, and stops them at the end of a block.

Each child prints its address on its standard output. On Linux the kernel stops it if this process dies. It runs in a
session of its own, so a Ctrl-C in the terminal reaches only this process, which stops the children in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

START_SECONDS = 20.0
STOP_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_log_numbers = itertools.count(1)  # two children of one name must not write into one log


class BackendError(Exception):
    """A process that an experiment needs did not start or ended too early, or a folder is not writable."""


def _prepare_child() -> Callable[[], None] | None:
    """Return a function for the child to call, which makes the kernel terminate it when its parent dies."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork: the child may do as little as possible before its exec
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """A running command. log: the file of its standard error."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    async def line(self, prefix: str) -> str:
        """Read the next line of its output, and return the text after `prefix`. Raises BackendError."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                text = (await self.process.stdout.readline()).decode().strip()
        except TimeoutError:
            raise BackendError(f"{self.name} did not start in {START_SECONDS:g} s") from None
        if not text.startswith(prefix):
            raise BackendError(f"{self.name} did not start: {self.last_log_line()}")
        return text.removeprefix(prefix).strip()

    def last_log_line(self) -> str:
        """Return the last line of its log, or a remark that there is none."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    async def stop(self) -> None:
        """Terminate the process, and kill it if it does not end in STOP_SECONDS."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
            except TimeoutError:
                self.process.kill()
        await self.process.wait()


def started(module: str, arguments: Sequence[str], folder: Path) -> contextlib.AbstractAsyncContextManager[Child]:
    """Run `python -m module arguments…` inside the block. folder: of the log."""
    return running(module, [sys.executable, "-m", module, *arguments], folder)


@contextlib.asynccontextmanager
async def running(
    name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Child]:
    """Run a command inside the block. folder: of the log. environment: variables to add."""
    log = folder / f"{name}-{next(_log_numbers)}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            preexec_fn=_prepare_child(),
            env={**os.environ, **(environment or {})},
        )
    child = Child(name, process, log)
    try:
        yield child
    finally:
        await asyncio.shield(child.stop())  # a second Ctrl-C must not leave the child behind


@dataclass(frozen=True, slots=True)
class LivePoolSpec:
    """One pool of an experiment.

    rate: true rate, services a second and server. guess: the rate in the dispatcher's configuration.
    rounds: rounds a second and server, if a service takes several rounds; else 0.
    """

    name: str
    rate: float
    guess: float
    servers: int = 1
    rounds: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What all worker pools of an experiment have in common.

    service: law of the service times. report: whether responses carry their service time.
    load_report: the format of the load report. arguments: further arguments of the command.
    """

    service: str = "exp"
    report: bool = True
    load_report: str = "none"
    arguments: Sequence[str] = ()


USUAL_WORKERS = WorkerOptions()


@dataclass(frozen=True, slots=True)
class LiveSystem:
    """A running dispatcher and its pools.

    url, admin: of the dispatcher. rows: the file of its decisions. workers, addresses: by pool.
    """

    url: str
    admin: str
    rows: Path
    workers: dict[str, Child]
    addresses: dict[str, str]
    dispatcher: Child

    async def state(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """Return the dispatcher's state from its admin endpoint."""
        async with session.get(f"{self.admin}/state") as response:
            state: dict[str, Any] = await response.json()
            return state


@contextlib.asynccontextmanager
async def live_pools(
    pools: Sequence[LivePoolSpec], folder: Path, seed: int = 1, common: WorkerOptions = USUAL_WORKERS
) -> AsyncIterator[tuple[dict[str, Child], dict[str, str]]]:
    """Run worker pools inside the block; yields their processes and addresses by name.

    Pool i draws its services from the stream `work/i` of the seed, so two systems with one seed have equal services.

    folder: of the logs. common: options of all pools.
    """
    async with contextlib.AsyncExitStack() as stack:
        workers, addresses = {}, {}
        for i, pool in enumerate(pools):
            options = {
                "--listen": "127.0.0.1:0",
                "--rate": str(pool.rounds or pool.rate),
                "--servers": str(pool.servers),
                "--service": common.service,
                "--seed": str(seed),
                "--stream": f"work/{i}",
                "--name": pool.name,
                "--load-report": common.load_report,
            }
            arguments = [
                *itertools.chain.from_iterable(options.items()),
                "--report" if common.report else "--no-report",
                *common.arguments,
            ]
            workers[pool.name] = await stack.enter_async_context(started("workers", arguments, folder))
        # All pools are started before the first address is awaited, so they start at the same time.
        for pool in pools:
            addresses[pool.name] = await workers[pool.name].line("listening on")
        yield workers, addresses


@contextlib.asynccontextmanager
async def live_system(
    policy: str,
    pools: Sequence[LivePoolSpec],
    seed: int = 1,
    common: WorkerOptions = USUAL_WORKERS,
    options: dict[str, Any] | None = None,
    extra: str = "",
) -> AsyncIterator[LiveSystem]:
    """Run worker pools and one dispatcher inside the block. The arguments are those of `live_fleet`."""
    async with live_fleet(policy, pools, 1, seed, common, options, extra) as (system,):
        yield system


@contextlib.asynccontextmanager
async def live_fleet(
    policy: str,
    pools: Sequence[LivePoolSpec],
    dispatchers: int,
    seed: int = 1,
    common: WorkerOptions = USUAL_WORKERS,
    options: dict[str, Any] | None = None,
    extra: str = "",
) -> AsyncIterator[list[LiveSystem]]:
    """Run worker pools and several dispatchers in front of them inside the block.

    common: options of all pools. options: of the policy.
    extra: top-level keys for the dispatchers' configuration, TOML.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="lased-")))
        workers, addresses = await stack.enter_async_context(live_pools(pools, folder, seed, common))
        systems = []
        for k in range(dispatchers):
            rows, file = folder / f"rows-{k}.jsonl", folder / f"dispatcher-{k}.toml"
            file.write_text(_configuration(policy, options or {}, pools, addresses, rows, seed + k, extra))
            arguments = ["serve", "--config", str(file)]
            dispatcher = await stack.enter_async_context(started("dispatcher", arguments, folder))
            url, admin = await dispatcher.line("listening on"), await dispatcher.line("admin on")
            systems.append(LiveSystem(f"http://{url}", f"http://{admin}", rows, workers, addresses, dispatcher))
        yield systems


def _configuration(
    policy: str,
    options: dict[str, Any],
    pools: Sequence[LivePoolSpec],
    addresses: dict[str, str],
    rows: Path,
    seed: int,
    extra: str,
) -> str:
    """Return the dispatcher's configuration file, TOML."""
    # The strings, numbers, booleans and lists of JSON are also valid in TOML.
    lines = [
        'listen = "127.0.0.1:0"',
        'admin = "127.0.0.1:0"',
        f"seed = {seed}",
        f"rows = {json.dumps(str(rows))}",
        extra,
    ]
    lines += ["[policy]", f"name = {json.dumps(policy)}"]
    lines += [f"options.{key} = {json.dumps(value)}" for key, value in options.items()]
    for pool in pools:
        lines += ["[[pools]]", f"name = {json.dumps(pool.name)}", f'url = "http://{addresses[pool.name]}"']
        lines += [f"servers = {pool.servers}", f"guess = {float(pool.guess)}", f"true_rate = {float(pool.rate)}"]
    return "\n".join(lines) + "\n"
