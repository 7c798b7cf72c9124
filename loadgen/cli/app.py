"""What the commands of `lased-loadgen` share: the application, the consoles, common options and their parsers."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import tempfile
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from dispatcher.errors import ConfigError
from loadgen.experiments.live.backends import BackendError
from loadgen.sim.sweep import Engine

T = TypeVar("T")
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Send traffic, simulate, compare, and show the dispatcher learn.",
)
console = Console(stderr=True)
FILE_COLUMNS = 132  # width of a table that goes into a file or a pipe

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.")]
Jobs = Annotated[int, typer.Option(min=0, help="Cores to use; 0 for all.")]
Dask = Annotated[str, typer.Option(metavar="ADDRESS", help="Run on this Dask scheduler, as in tcp://host:8786.")]
EngineOption = Annotated[
    Engine, typer.Option(help="object: the live service's own objects; compiled: equal and faster; auto: if possible.")
]
ServiceLaw = Annotated[
    str, typer.Option(help="Service law: exp, fixed, lognormal:cv=2, hyperexp:cv=2, pareto:shape=2.5; mean 1/rate.")
]
Process = Annotated[
    str, typer.Option(help="Arrivals: poisson, constant, mmpp:ratio=5,period=100, wave:depth=0.8,period=1000.")
]
TrueRates = Annotated[str, typer.Option(help="True rates by pool, services a second and server.")]
Guesses = Annotated[str | None, typer.Option(help="Initial estimates by pool; default the true rates.")]
Servers = Annotated[str | None, typer.Option(help="Servers by pool; default one each.")]
Warmup = Annotated[int, typer.Option(min=0, help="Requests left out of the means, not of the regret.")]


class Backend(StrEnum):
    """Where experiments run."""

    SIM = "sim"
    LIVE = "live"


BackendOption = Annotated[Backend, typer.Option(help="sim: virtual time; live: real processes on this machine.")]


class InterruptedRunError(Exception):
    """A long command was interrupted. The message explains how to continue it."""


def until_signal(main: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that can end early.

    main: gets an event, which the first SIGINT or SIGTERM sets. A second signal cancels the coroutine.
    """

    async def run() -> T:
        stop = asyncio.Event()
        task = asyncio.ensure_future(main(stop))

        def on_signal() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        return await task

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return asyncio.run(run())
    finally:
        # The event loop restores the system's handlers, not those that were set before.
        for number, handler in before.items():
            signal.signal(number, handler)


def output() -> Console:
    """Return the console for results that are not JSON."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=FILE_COLUMNS)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(value))  # noqa: T201


def numbers(text: str, name: str) -> tuple[float, ...]:
    """Parse "5,10" into positive numbers. name: of the option. Raises ConfigError."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--{name} must be numbers separated by commas, as in 5,10, not {text!r}") from None
    if not all(0 < value < math.inf for value in values):
        raise ConfigError(f"--{name}: every value must be positive, not {text}")
    return values


def whole_numbers(text: str, name: str) -> tuple[int, ...]:
    """Parse "1,4" into positive whole numbers. name: of the option. Raises ConfigError."""
    values = numbers(text, name)
    if any(value != int(value) for value in values):
        raise ConfigError(f"--{name} must be whole numbers, not {text}")
    return tuple(int(value) for value in values)


def prepare(folder: Path) -> None:
    """Create the folder, and check that it is writable before any work is done. Raises BackendError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BackendError(f"cannot write into {folder}: {error.strerror}") from error
