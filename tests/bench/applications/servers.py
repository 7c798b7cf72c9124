"""This module starts the application servers on free ports of 127.0.0.1.

Every server keeps idle connections longer than a turn lasts, so that none closes one as a balancer takes it. Limits on
connections are higher than any row needs. All other settings are the defaults.
"""

import contextlib
import importlib.util
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from loadgen.experiments.live.backends import running
from loadgen.experiments.live.balancers import free_port, listening
from tests.bench.applications.work import create_database

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
ROOT = HERE.parents[2]
IDLE = "600"  # seconds that an unused connection is kept
_WSGI = "tests.bench.applications.wsgi:application"
_ASGI = "tests.bench.applications.asgi:application"


def _gunicorn(worker):
    def command(pool, port):
        size = ["--workers", str(pool.workers), "--threads", str(pool.threads), "--worker-class", worker]
        quiet = ["--log-level", "warning", "--no-control-socket"]
        return ["gunicorn", "--bind", f"127.0.0.1:{port}", *size, "--keep-alive", IDLE, *quiet, _WSGI]

    return command


def _uvicorn(pool, port):
    quiet = ["--no-access-log", "--log-level", "warning"]
    return ["uvicorn", "--host", "127.0.0.1", "--port", str(port), "--timeout-keep-alive", IDLE, *quiet, _ASGI]


def _waitress(pool, port):
    limits = ["--connection-limit=2000", f"--channel-timeout={IDLE}"]
    return ["waitress", f"--listen=127.0.0.1:{port}", f"--threads={pool.threads}", *limits, _WSGI]


def _granian(pool, port):
    size = ["--workers", str(pool.workers), "--blocking-threads", str(pool.threads)]
    kind = ["--interface", "wsgi", "--http", "1", "--log-level", "warning"]
    return ["granian", "--host", "127.0.0.1", "--port", str(port), *size, *kind, _WSGI]


@dataclass(frozen=True)
class Server:
    """This is one kind of server. It runs the first of its Python `modules`, or `program` if one is named.

    `command` returns the arguments for a pool and a port, without the interpreter.
    """

    modules: tuple[str, ...]
    command: object
    program: str = ""

    def missing(self):
        """Returns the name of what has to be installed; empty if nothing."""
        if self.program and not shutil.which(self.program):
            return self.program
        return next((name for name in self.modules if importlib.util.find_spec(name) is None), "")

    def start(self, pool, port):
        """Returns the whole command line."""
        return [self.program or sys.executable, *([] if self.program else ["-m"]), *self.command(pool, port)]


SERVERS = {
    "sync": Server(("gunicorn",), _gunicorn("sync")),
    "gthread": Server(("gunicorn",), _gunicorn("gthread")),
    "uvicorn": Server(("uvicorn", "starlette"), _uvicorn),
    "waitress": Server(("waitress",), _waitress),
    "granian": Server(("granian",), _granian),
    "node": Server((), lambda pool, port: [str(HERE / "node.mjs")], program="node"),
}


def packages_missing(rows):
    """Returns Python packages that servers of these rows need and that are not installed."""
    kinds = {pool.kind for row in rows for pool in row.pools}
    return sorted({SERVERS[kind].missing() for kind in kinds if SERVERS[kind].modules} - {""})


def lacking(row):
    """Returns why the row cannot be run here; empty if it can."""
    missing = sorted({SERVERS[pool.kind].missing() for pool in row.pools} - {""})
    return f"not installed: {', '.join(missing)}" if missing else ""


@contextlib.asynccontextmanager
async def servers(row, seed, folder):
    """Runs the row's servers inside the block and yields their addresses. Raises BackendError."""
    async with contextlib.AsyncExitStack() as stack:
        started = []
        for i, pool in enumerate(row.pools):
            port, file = free_port(), folder / f"pool-{i}.sqlite"
            if pool.handler == "sqlite":
                create_database(file)
            spec = {
                "name": f"pool-{i}",
                "seed": seed,
                "handler": pool.handler,
                "mean": pool.mean,
                "connections": pool.connections,
                "file": str(file),
            }
            environment = {"APPLICATION": json.dumps(spec), "PORT": str(port), "PYTHONPATH": str(ROOT)}
            command = SERVERS[pool.kind].start(pool, port)
            started.append((await stack.enter_async_context(running(f"pool-{i}", command, folder, environment)), port))
        for child, port in started:
            await listening(child, port, "/")
        yield [f"127.0.0.1:{port}" for _, port in started]
