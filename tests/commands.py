"""Runs the commands of the project in the test's own process, which saves the start of an interpreter."""

import signal
import sys
from dataclasses import dataclass

from dispatcher.cli import main as dispatcher_main
from loadgen.cli.main import main as loadgen_main
from workers.__main__ import main as workers_main

MAINS = {"dispatcher": dispatcher_main, "workers": workers_main, "loadgen": loadgen_main}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def run_here(capsys, command, *arguments):
    """Run `lased-COMMAND` with these arguments. capsys: pytest's fixture."""
    argv, sys.argv = sys.argv, [f"lased-{command}", *map(str, arguments)]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    code = 0
    try:
        MAINS[command]()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = argv
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Ended(code, *capsys.readouterr())
