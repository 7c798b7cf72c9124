"""Live processes: worker pools and dispatchers, started by their command lines on free ports, ended with us.

Each child prints the address it got on its standard output. It is told to end if we die (Linux), and is out of reach
of the terminal's Ctrl-C, so that we decide the order in which things end.
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
from typing import Any

import aiohttp

START_SECONDS = 20.0
STOP_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
_numbers = itertools.count(1)


class BackendError(Exception):
    """A process that an experiment needs did not start, or ended too soon."""


def _prepare_child() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """A running command. log: what it wrote to standard error."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    async def line(self, prefix: str) -> str:
        """What follows `prefix` on the next line of its output. Raises BackendError."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                text = (await self.process.stdout.readline()).decode().strip()
        except TimeoutError:
            raise BackendError(f"{self.name} did not start in {START_SECONDS:g} s") from None
        if not text.startswith(prefix):
            raise BackendError(f"{self.name} did not start: {self.said()}")
        return text.removeprefix(prefix).strip()

    def said(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    async def stop(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
            except TimeoutError:
                self.process.kill()
        await self.process.wait()


def started(module: str, arguments: Sequence[str], folder: Path) -> contextlib.AbstractAsyncContextManager[Child]:
    """`python -m module arguments…`, ended at the end of the block, whatever happens in it."""
    return running(module, [sys.executable, "-m", module, *arguments], folder)


@contextlib.asynccontextmanager
async def running(
    name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Child]:
    """A command, ended at the end of the block, whatever happens in it. environment: variables that are added."""
    log = folder / f"{name}-{next(_numbers)}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors,
            start_new_session=True, preexec_fn=_prepare_child(), env={**os.environ, **(environment or {})},
        )  # fmt: skip
    child = Child(name, process, log)
    try:
        yield child
    finally:
        await asyncio.shield(child.stop())


@dataclass(frozen=True, slots=True)
class LivePoolSpec:
    """One pool of an experiment: its name, true rate per second and server, and the guess it is configured with.
    rounds: that a server does a second, where a service takes several; else 0."""

    name: str
    rate: float
    guess: float
    servers: int = 1
    rounds: float = 0.0


@dataclass(frozen=True, slots=True)
class LiveSystem:
    """A running dispatcher and its pools: addresses, processes, and `rows`, the file of its decisions."""

    url: str
    admin: str
    rows: Path
    workers: dict[str, Child]
    addresses: dict[str, str]
    dispatcher: Child

    async def state(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """GET /state."""
        async with session.get(f"{self.admin}/state") as answer:
            found: dict[str, Any] = await answer.json()
            return found


@contextlib.asynccontextmanager
async def live_pools(
    pools: Sequence[LivePoolSpec], folder: Path, seed: int = 1, report: bool = True, service: str = "exp",
    load_report: str = "none", more: Sequence[str] = (),
) -> AsyncIterator[tuple[dict[str, Child], dict[str, str]]]:  # fmt: skip
    """Worker pools, and the address of each. Pool i draws its services from the stream `work/i` of `seed`, so two
    systems of one seed serve alike. more: arguments of their command lines."""
    async with contextlib.AsyncExitStack() as stack:
        workers, addresses = {}, {}
        for i, pool in enumerate(pools):
            rate = str(pool.rounds or pool.rate)
            arguments = ["--listen", "127.0.0.1:0", "--rate", rate, "--servers", str(pool.servers),
                         "--service", service, "--seed", str(seed), "--stream", f"work/{i}", "--name", pool.name,
                         "--report" if report else "--no-report", "--load-report", load_report, *more]  # fmt: skip
            workers[pool.name] = await stack.enter_async_context(started("workers", arguments, folder))
        for pool in pools:
            addresses[pool.name] = await workers[pool.name].line("listening on")
        yield workers, addresses


@contextlib.asynccontextmanager
async def live_system(
    policy: str, pools: Sequence[LivePoolSpec], seed: int = 1, report: bool = True, service: str = "exp",
    options: dict[str, Any] | None = None, extra: str = "", more: Sequence[str] = (),
) -> AsyncIterator[LiveSystem]:  # fmt: skip
    """Worker pools, as `live_pools` runs them, and a dispatcher in front of them. extra: more TOML for the dispatcher's
    file, top-level keys."""
    async with live_fleet(policy, pools, 1, seed, report, service, options, extra, more=more) as (system,):
        yield system


@contextlib.asynccontextmanager
async def live_fleet(
    policy: str, pools: Sequence[LivePoolSpec], dispatchers: int, seed: int = 1, report: bool = True,
    service: str = "exp", options: dict[str, Any] | None = None, extra: str = "", load_report: str = "none",
    more: Sequence[str] = (),
) -> AsyncIterator[list[LiveSystem]]:  # fmt: skip
    """As `live_system`, with several dispatchers in front of the same pools. load_report: what these tell of their
    load."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="lased-")))
        workers, addresses = await stack.enter_async_context(
            live_pools(pools, folder, seed, report, service, load_report, more)
        )
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
    policy: str, options: dict[str, Any], pools: Sequence[LivePoolSpec], addresses: dict[str, str], rows: Path,
    seed: int, extra: str,
) -> str:  # fmt: skip
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
