"""The command `lased-workers`: one pool in the foreground until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
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

from workers.distributions import ServiceTime, options_in, parse
from workers.pool import Pool
from workers.profiles import Profiled, parse_profile
from workers.scheduling.contexts import Logistic
from workers.scheduling.disciplines import Discipline, Esept, Fcfs, Sept
from workers.scheduling.lcp import Lcp
from workers.server import LivePool, make_server
from workers.shared import SharedPool
from workers.timing import precise_loop

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)


DISCIPLINES = ("fcfs", "ps", "sept", "esept", "lcp")


class LoadForm(StrEnum):
    """Of the load report."""

    NONE = "none"
    JSON = "json"
    TEXT = "text"


def fail(message: str, code: int) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(code)


def host_and_port(text: str) -> tuple[str, int]:
    """ "HOST:PORT" taken apart; an IPv6 host stands in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:9001")
    return host.strip("[]"), int(port)


@app.command(
    epilog="Examples: lased-workers --listen 127.0.0.1:9001 --rate 50 --servers 2 --service lognormal:cv=2;"
    " lased-workers --listen 127.0.0.1:9001 --rate 115 --service logistic:1=2.2,/report=-4.4 --discipline esept"
)
def pool(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")],
    rate: Annotated[float, typer.Option(help="Services a second and server; for logistic services rounds a second.")],
    servers: Annotated[
        str,
        typer.Option(metavar="N", help="Parallel servers behind the one queue; inf: every request is served at once."),
    ] = "1",
    service: Annotated[
        str,
        typer.Option(
            help="Law of service times: exp, fixed, lognormal:cv=2, hyperexp:cv=2, pareto:shape=2.5; mean 1/rate. Or by"
            " the request: logistic:1=2,x1=-4, rounds of 1/rate s, each the last with chance 1/(1+exp(-sum)); the sum"
            " is over coefficients of the constant 1, of methods (POST=-1), paths (/report=-4), body (of"
            " ln(1+bytes)/10), and x1 to x32, the numbers of the header X-Job-Context."
        ),
    ] = "exp",
    discipline: Annotated[
        str,
        typer.Option(
            help="Who is served next: fcfs, the oldest; or ps, all at once, of n requests each at the speed"
            " min(1, SERVERS/n); or, of logistic services, the shortest expected: sept, or"
            " esept, as learned, with age=0.02 rounds of credit for each waited; or lcp:horizon=60, as learned, with a"
            " plan for the last window=100 rounds before all is over, 60 s from the first request. More options:"
            " sept:age, esept:kappa, lcp:kmax, lcp:kappa, lcp:learn."
        ),
    ] = "fcfs",
    profile: Annotated[
        str,
        typer.Option(help="How the rate changes: step:at=60,factor=0.2 or wave:period=60,depth=0.5, from the start."),
    ] = "",
    limit: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests in service at once, under fcfs or ps; the others wait in front, in order of arrival."
            " 0: no limit.",
        ),
    ] = 0,
    capacity: Annotated[
        int, typer.Option(min=0, help="Requests waiting and in service; beyond it, 503. 0: no limit.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the service times.")] = 1,
    stream: Annotated[str, typer.Option(help="Name of their random stream; default work/<name>.")] = "",
    name: Annotated[str, typer.Option(help="What the pool calls itself in X-Pool; default the address.")] = "",
    report: Annotated[
        bool, typer.Option(help="Tell each service time in Server-Timing; under ps that of a request that is alone.")
    ] = True,
    load_report: Annotated[
        LoadForm, typer.Option(help="Tell backlog and load in endpoint-load-metrics (ORCA).")
    ] = LoadForm.NONE,
) -> None:
    """Run one worker pool: SERVERS parallel servers behind one queue, or shared by all requests."""
    try:
        host, port = host_and_port(listen)
        stream = stream or f"work/{name or listen}"
        law: ServiceTime = parse(service, rate, Random(f"{seed}/{stream}"))
        shape = parse_profile(profile) if profile else None
        make = pool_maker(discipline, law, server_count(servers), limit, capacity)
        if shape and isinstance(law, Logistic):
            raise ValueError("--profile goes with services that do not depend on the request")
    except ValueError as error:
        raise fail(str(error), 2) from None
    try:
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            contextual = law if isinstance(law, Logistic) else None
            if shape:
                law = Profiled(law, shape, origin=runner.get_loop().time())
            live = make(law)
            runner.run(serve(live, host, port, name, report, load_report.value, contextual))
    except OSError as error:
        raise fail(f"cannot listen on {listen}: {os.strerror(error.errno or 0)}", 1) from None


def server_count(text: str) -> float:
    """A whole number of servers, or infinity. Raises ValueError.

    >>> server_count("4"), server_count("inf")
    (4, inf)
    """
    if text == "inf":
        return math.inf
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"--servers must be a whole number of at least 1, or inf, not {text!r}")
    return int(text)


def pool_maker(
    discipline: str, law: ServiceTime, servers: float, limit: int, capacity: int
) -> Callable[[ServiceTime], Pool]:
    """What makes the pool of this discipline, for the law as it will be. limit: 0 for none. Raises ValueError.

    A request has a server for itself under all disciplines but ps, so a limit there is a number of servers.
    """
    name, options = options_in(discipline, "discipline", DISCIPLINES)
    if name in ("fcfs", "ps") and options:
        raise ValueError(f"{name} takes no options")
    if name == "ps":
        return lambda law: SharedPool(law, servers, limit or None, capacity)
    if limit and name != "fcfs":
        raise ValueError(f"--limit goes with --discipline fcfs or ps, not with {name}")
    servers = min(servers, limit or math.inf)
    if math.isfinite(servers):
        order = order_of(name, options, law, int(servers))
        tick = law.tick if isinstance(law, Logistic) else 1.0
        return lambda law: LivePool(law, int(servers), capacity, order, tick)
    if name != "fcfs":
        raise ValueError(f"{name} needs a number of servers: with --servers inf no request waits")
    return lambda law: SharedPool(law, servers, None, capacity)


def order_of(name: str, options: dict[str, float], law: ServiceTime, servers: int) -> Discipline:
    """The discipline of this name. Raises ValueError."""
    if name == "fcfs":
        return Fcfs()
    if not isinstance(law, Logistic):
        raise ValueError(f"{name} needs services that depend on the request: --service logistic:...")
    if name == "lcp" and servers > 1:
        raise ValueError("lcp plans for one server: leave --servers at 1, or take esept")
    try:
        if name == "sept":
            return Sept(law.theta, **options)
        if name == "esept":
            return Esept(len(law.theta), **options)
        if "horizon" not in options:
            raise ValueError("lcp must know when all is over: lcp:horizon=SECONDS, from the first request on")
        horizon = options.pop("horizon") * law.rate
        window, kmax = (whole(options.pop(key, usual), key) for key, usual in (("window", 100.0), ("kmax", 3.0)))
        return Lcp(len(law.theta), horizon, window, kmax, **options)
    except TypeError:
        raise ValueError(f"discipline {name} has an option that it does not take") from None


def whole(value: float, name: str) -> int:
    """The value, which must be a whole number. Raises ValueError."""
    if not value.is_integer():
        raise ValueError(f"{name} must be a whole number, not {value:g}")
    return int(value)


async def serve(
    live: Pool, host: str, port: int, name: str, report: bool, load: str = "none", law: Logistic | None = None
) -> None:
    """Listen until a signal comes. Prints the address, which a port of 0 leaves open. Raises OSError."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
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
        await ended.wait()
    finally:
        await runner.cleanup()
    told = f"served {live.served}, dropped {live.dropped}"
    if live.served:
        service, wait = live.busy_time / live.served * 1e3, live.waited / live.begun * 1e3
        told += f", mean service {service:.6f} ms, mean wait {wait:.3f} ms, longest {live.longest_wait * 1e3:.3f} ms"
    typer.echo(told, err=True)


def main() -> NoReturn:
    """Run the command; errors in one line, exit 2 for usage, 1 for the rest."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="lased-workers") or 0)
    except typer.TyperException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


if __name__ == "__main__":
    main()
