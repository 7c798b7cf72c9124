"""The command `lased-workers`: it runs one pool in the foreground until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import Annotated, NoReturn

import typer
from aiohttp import web

from workers.distributions import ServiceTime, parse
from workers.pool import Pool
from workers.profiles import Profile, Profiled, parse_profile
from workers.queue_pool import QueuePool
from workers.scheduling.contexts import Logistic
from workers.scheduling.disciplines import Discipline, Esept, Fcfs, Sept
from workers.scheduling.lcp import Lcp
from workers.server import make_server
from workers.sharing_pool import SharingPool
from workers.spec import make_from_spec, parse_spec
from workers.timing import precise_loop

DISCIPLINES = ("fcfs", "ps", "sept", "esept", "lcp")
PoolMaker = Callable[[ServiceTime], Pool]

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)


class LoadForm(StrEnum):
    """The form of the load report in each response."""

    NONE = "none"
    JSON = "json"
    TEXT = "text"


Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")]
Rate = Annotated[float, typer.Option(help="Services a second and server; for logistic services rounds a second.")]
ServerCount = Annotated[
    str,
    typer.Option(metavar="N", help="Parallel servers behind the one queue; inf: every request is served at once."),
]
Service = Annotated[
    str,
    typer.Option(
        help="Law of service times: exp, fixed, lognormal:cv=2, hyperexp:cv=2, pareto:shape=2.5; mean 1/rate. Or by"
        " the request: logistic:1=2,x1=-4, rounds of 1/rate s, each the last with chance 1/(1+exp(-sum)); the sum"
        " is over coefficients of the constant 1, of methods (POST=-1), paths (/report=-4), body (of"
        " ln(1+bytes)/10), and x1 to x32, the numbers of the header X-Job-Context."
    ),
]
DisciplineSpec = Annotated[
    str,
    typer.Option(
        help="Which request is served next: fcfs, the oldest; or ps, all at once, of n requests each at the speed"
        " min(1, SERVERS/n); or, of logistic services, the shortest expected: sept, or"
        " esept, as learned, with age=0.02 rounds of credit for each waited; or lcp:horizon=60, as learned, with a"
        " plan for the last window=100 rounds before the end, 60 s from the first request. More options:"
        " sept:age, esept:kappa, lcp:kmax, lcp:kappa, lcp:learn."
    ),
]
ProfileSpec = Annotated[
    str,
    typer.Option(help="How the rate changes: step:at=60,factor=0.2 or wave:period=60,depth=0.5, from the start."),
]
Limit = Annotated[
    int,
    typer.Option(
        min=0,
        help="Requests in service at once, under fcfs or ps; the others wait in front, in order of arrival. 0: no"
        " limit.",
    ),
]
Capacity = Annotated[int, typer.Option(min=0, help="Requests waiting and in service; beyond it, 503. 0: no limit.")]
Seed = Annotated[int, typer.Option(help="Seed of the service times.")]
StreamName = Annotated[str, typer.Option(help="Name of their random stream; default work/<name>.")]
PoolName = Annotated[str, typer.Option(help="The pool's name in X-Pool; default the address.")]
Report = Annotated[
    bool,
    typer.Option(help="Report each service time in Server-Timing; under ps that of a request that is alone."),
]
LoadReport = Annotated[LoadForm, typer.Option(help="Report backlog and load in endpoint-load-metrics (ORCA).")]


@app.command(
    epilog="Examples: lased-workers --listen 127.0.0.1:9001 --rate 50 --servers 2 --service lognormal:cv=2;"
    " lased-workers --listen 127.0.0.1:9001 --rate 115 --service logistic:1=2.2,/report=-4.4 --discipline esept"
)
def pool(
    listen: Listen,
    rate: Rate,
    servers: ServerCount = "1",
    service: Service = "exp",
    discipline: DisciplineSpec = "fcfs",
    profile: ProfileSpec = "",
    limit: Limit = 0,
    capacity: Capacity = 10_000,
    seed: Seed = 1,
    stream: StreamName = "",
    name: PoolName = "",
    report: Report = True,
    load_report: LoadReport = LoadForm.NONE,
) -> None:
    """Run one worker pool: SERVERS parallel servers behind one queue, or shared by all requests."""
    try:
        host, port = host_and_port(listen)
        law = parse(service, rate, Random(f"{seed}/{stream or f'work/{name or listen}'}"))
        shape = parse_profile(profile) if profile else None
        make = pool_maker(discipline, law, server_count(servers), limit, capacity)
        # A law with a profile knows no contexts, so its services would not depend on the request.
        if shape and isinstance(law, Logistic):
            raise ValueError("--profile goes with services that do not depend on the request")
    except ValueError as error:
        raise fail(str(error), 2) from None
    try:
        run(make, law, shape, host, port, name, report, load_report)
    except OSError as error:
        raise fail(f"cannot listen on {listen}: {os.strerror(error.errno or 0)}", 1) from None


def fail(message: str, code: int) -> typer.Exit:
    """Print an error and return the exception that ends the command with this code."""
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(code)


def host_and_port(text: str) -> tuple[str, int]:
    """Split "HOST:PORT"; an IPv6 host stands in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:9001")
    return host.strip("[]"), int(port)


def server_count(text: str) -> float:
    """Read a whole number of servers, or infinity. Raises ValueError.

    >>> server_count("4"), server_count("inf")
    (4, inf)
    """
    if text == "inf":
        return math.inf
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"--servers must be a whole number of at least 1, or inf, not {text!r}")
    return int(text)


def pool_maker(discipline: str, law: ServiceTime, servers: float, limit: int, capacity: int) -> PoolMaker:
    """Return the function that makes the pool of this discipline for its final law.

    The final law has the profile, whose origin is known only when the event loop runs.

    limit: the number of requests in service at once, 0 for no limit. Under all disciplines but ps a request has a
        server to itself, so a limit there is a number of servers.

    Raises ValueError.
    """
    name, options = parse_spec(discipline, "discipline")
    if name not in DISCIPLINES:
        raise ValueError(f"unknown discipline {name!r}; known: {', '.join(DISCIPLINES)}")
    if name in ("fcfs", "ps") and options:
        raise ValueError(f"{name} takes no options")
    if name == "ps":
        return lambda final: SharingPool(final, servers, limit or None, capacity)
    if limit and name != "fcfs":
        raise ValueError(f"--limit goes with --discipline fcfs or ps, not with {name}")
    servers = min(servers, limit or math.inf)
    if math.isfinite(servers):
        order = make_discipline(discipline, law, int(servers))
        tick = law.tick if isinstance(law, Logistic) else 1.0
        return lambda final: QueuePool(final, int(servers), capacity, order, tick)
    if name != "fcfs":
        raise ValueError(f"{name} needs a number of servers: with --servers inf no request waits")
    # With infinitely many servers no request waits, so there is no order and any number is in service.
    return lambda final: SharingPool(final, servers, None, capacity)


def make_discipline(text: str, law: ServiceTime, servers: int) -> Discipline:
    """Make the discipline that `text` describes, for one queue in front of so many servers. Raises ValueError."""
    name, _ = parse_spec(text, "discipline")
    if name == "fcfs":
        return Fcfs()
    if not isinstance(law, Logistic):
        raise ValueError(f"{name} needs services that depend on the request: --service logistic:...")
    if name == "lcp" and servers > 1:
        raise ValueError("lcp plans for one server: leave --servers at 1, or take esept")
    components, rounds_per_second = len(law.theta), law.rate

    def lcp(horizon: float, window: int = 100, kmax: int = 3, kappa: float = 1.0, learn: float = 0.0) -> Discipline:
        return Lcp(components, horizon * rounds_per_second, window, kmax, kappa, learn)

    makers: dict[str, Callable[..., Discipline]] = {
        "sept": functools.partial(Sept, law.theta),
        "esept": functools.partial(Esept, components),
        "lcp": lcp,
    }
    return make_from_spec(text, "discipline", makers)


def run(
    make: PoolMaker,
    law: ServiceTime,
    profile: Profile | None,
    host: str,
    port: int,
    name: str,
    report: bool,
    load_report: LoadForm,
) -> None:
    """Run a pool and its HTTP server until a signal comes. Raises OSError."""
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        contextual = law if isinstance(law, Logistic) else None
        if profile:
            # The profile starts when the pool does, so its origin is an instant of the pool's own loop.
            law = Profiled(law, profile, origin=runner.get_loop().time())
        runner.run(serve(make(law), host, port, name, report, load_report.value, contextual))


async def serve(
    live: Pool, host: str, port: int, name: str, report: bool, load: str = "none", law: Logistic | None = None
) -> None:
    """Listen until a signal comes. Prints the address, because port 0 takes a free one. Raises OSError."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listening = socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=4096
    )
    bound = listening.getsockname()
    server = make_server(live, name or f"{bound[0]}:{bound[1]}", report, load, law)
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening, backlog=4096).start()
        print(f"listening on {bound[0]}:{bound[1]}", flush=True)  # noqa: T201 - the command's result
        await stop.wait()
    finally:
        await runner.cleanup()
    typer.echo(summary(live), err=True)


def summary(live: Pool) -> str:
    """Describe in one line what the pool has served."""
    text = f"served {live.served}, dropped {live.dropped}"
    if not live.served:
        return text
    service, wait = live.busy_time / live.served * 1e3, live.waited / live.begun * 1e3
    return f"{text}, mean service {service:.6f} ms, mean wait {wait:.3f} ms, longest {live.longest_wait * 1e3:.3f} ms"


def main() -> NoReturn:
    """Run the command; errors take one line and exit with 2 for usage, 1 for the rest."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="lased-workers") or 0)
    except typer.TyperException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


if __name__ == "__main__":
    main()
