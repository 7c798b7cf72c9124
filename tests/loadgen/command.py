"""Runs `lased-loadgen` inside the test process, which saves the time of starting a new one."""

import signal
import sys
from dataclasses import dataclass

from loadgen.cli.main import main


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_command(capsys, *words):
    """Run a command, and return its exit code and output. capsys: pytest's fixture."""
    arguments, handler = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = ["lased-loadgen", *map(str, words)]
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = arguments
        signal.signal(signal.SIGTERM, handler)
    return Done(code, *capsys.readouterr())
