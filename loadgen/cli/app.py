"""What the commands of `lased-loadgen` share: the application, the console, and how their arguments are read."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from dispatcher.errors import ConfigError
from loadgen.experiments.live.backends import BackendError

T = TypeVar("T")
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Send traffic, simulate, compare, and show the dispatcher learn.",
)
console = Console(stderr=True)
WIDE = 132  # columns of a table that goes into a file or a pipe
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.")]


class BrokenOffError(Exception):
    """A long command was told to stop; the message says what is left of it."""


def until_signal(main: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine that is told, by an event, of the first SIGINT or SIGTERM; a second one breaks it off."""

    async def run() -> T:
        stop = asyncio.Event()
        task = asyncio.ensure_future(main(stop))

        def signalled() -> None:
            if stop.is_set():
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, signalled)
        return await task

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return asyncio.run(run())
    finally:
        for number, handler in before.items():  # the loop leaves them as the system has them
            signal.signal(number, handler)


def output() -> Console:
    """Where results go that are not JSON."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDE)


def print_json(value: Any) -> None:
    """One object on one line of the standard output."""
    print(json.dumps(value))  # noqa: T201


def numbers(text: str, name: str) -> tuple[float, ...]:
    """ "5,10" as numbers. Raises ConfigError."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--{name} must be numbers separated by commas, as in 5,10, not {text!r}") from None
    if not all(0 < value < math.inf for value in values):
        raise ConfigError(f"--{name}: every value must be positive, not {text}")
    return values


def whole_numbers(text: str, name: str) -> tuple[int, ...]:
    """ "1,4" as whole numbers. Raises ConfigError."""
    values = numbers(text, name)
    if any(value != int(value) for value in values):
        raise ConfigError(f"--{name} must be whole numbers, not {text}")
    return tuple(int(value) for value in values)


def prepare(folder: Path) -> None:
    """Make the folder, and see that it can be written into before any work is done for it. Raises BackendError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BackendError(f"cannot write into {folder}: {error.strerror}") from error
