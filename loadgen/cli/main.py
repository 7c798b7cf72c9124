"""Runs the command `lased-loadgen`. Only results go to stdout."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import NoReturn

import typer

from dispatcher.errors import ConfigError, DispatcherError

# A command registers itself with the application when its module is imported.
from loadgen.cli import attack, compare, demo, reproduce, simulate, theory  # noqa: F401
from loadgen.cli.app import InterruptedRunError, app
from loadgen.experiments.live.backends import BackendError

JOIN_SECONDS = 1.0  # for each thread, after an interrupt


def main() -> NoReturn:
    """Run a command. Errors are one line; the exit code is 2 for usage and configuration, 1 for other errors."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends long commands like Ctrl-C
    try:
        sys.exit(app(standalone_mode=False, prog_name="lased-loadgen") or 0)
    except (ConfigError, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        if message:  # it is empty if the help was printed instead
            print(f"error: {message}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except (DispatcherError, BackendError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except asyncio.CancelledError:
        leave("interrupted", 130)
    except InterruptedRunError as error:
        leave(str(error), 1)
    except SystemExit as end:
        if end.code == 130:  # typer's exit code after Ctrl-C
            leave("interrupted", 130)
        raise


def leave(message: str, code: int) -> NoReturn:
    """End the process after an interrupt, without waiting for threads that simulate: they cannot be stopped."""
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in others:
        thread.join(JOIN_SECONDS)
    if any(thread.is_alive() for thread in others):
        # `sys.exit` would wait for these threads. `os._exit` flushes nothing.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
