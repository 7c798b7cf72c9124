"""The command `attack`: open-loop traffic, and what may be said of it. Registered by being imported."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.errors import ConfigError
from loadgen.attack import thresholds
from loadgen.attack.driver import Limits
from loadgen.attack.measure import Measures
from loadgen.attack.plan import Plan, Traffic
from loadgen.attack.progress import Watch
from loadgen.attack.prometheus import Exposition
from loadgen.attack.records import Records
from loadgen.attack.run import Run
from loadgen.attack.run import attack as send
from loadgen.attack.run import write as write_run
from loadgen.attack.summary import Summary, exit_code, summarize
from loadgen.attack.targets import Request, body_of, header, weights_of
from loadgen.cli import screens as report
from loadgen.cli.app import Json, Seed, app, console, output, prepare, until_signal
from loadgen.experiments.live.backends import BackendError
from loadgen.plot import PlotError


class Form(StrEnum):
    """Of the raw rows."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    NONE = "none"


@app.command(
    epilog="Examples: lased-loadgen attack http://127.0.0.1:8080/ --rate 30 --duration 20 --seed 1 --json; "
    "lased-loadgen attack http://127.0.0.1:8080/ --stages 10s@50,30s@50..200 --fail-if 'p99>200ms' --out out/run"
)
def attack(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Where to send requests; several by weight.")],
    rate: Annotated[float | None, typer.Option(help="Requests a second, on average.")] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds of traffic; default all of the stages or trace.")
    ] = None,
    arrivals: Annotated[
        str,
        typer.Option(
            help="poisson, constant, gamma:burstiness=0.5, onoff:on=1,off=4, mmpp:ratio=5,period=10,"
            " sine:depth=0.8,period=60, or trace:FILE of instants, one a line."
        ),
    ] = "poisson",
    stages: Annotated[
        str | None, typer.Option(help="Rates that change, as in 10s@50,30s@50..200: SECONDS@RATE or SECONDS@FROM..TO.")
    ] = None,
    warmup: Annotated[float, typer.Option(help="The first seconds of the traffic are sent and not measured.")] = 0.0,
    seed: Seed = 1,
    weights: Annotated[
        str | None, typer.Option(help="How often each URL is taken, as in 3,1; default all alike.")
    ] = None,
    method: Annotated[str, typer.Option("--method", "-X", help="The method.")] = "GET",
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME: VALUE", help="A header; repeat for more.")
    ] = None,
    body: Annotated[str | None, typer.Option(help="Text that goes with each request.")] = None,
    body_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A file that goes with each request.")
    ] = None,
    body_bytes: Annotated[
        float, typer.Option(min=0, help="Instead, so many zero bytes on average, by --body-law.")
    ] = 0.0,
    body_law: Annotated[
        str, typer.Option(help="fixed, exp, lognormal:cv=2, hyperexp:cv=2 or pareto:shape=2.5.")
    ] = "fixed",
    keepalive: Annotated[bool, typer.Option(help="Whether connections serve more than one request.")] = True,
    insecure: Annotated[bool, typer.Option("--insecure", help="Take any certificate.")] = False,
    authority: Annotated[
        Path | None, typer.Option("--cacert", exists=True, dir_okay=False, help="Certificates to be trusted, PEM.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="Seconds after which a request counts as unanswered.")
    ] = 30.0,
    drain: Annotated[
        float | None,
        typer.Option(min=0, max=86_400, help="Seconds to wait for answers in the end; default as long as --timeout."),
    ] = None,
    max_in_flight: Annotated[
        int,
        typer.Option(
            min=0, help="Drop, and count, what is due while so many are open (shared among processes); 0: never."
        ),
    ] = 0,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Sending processes that share the plan.")] = 1,
    spin: Annotated[
        float, typer.Option(min=0, max=100, help="Keep awake for so many ms before each send: exact, takes a core.")
    ] = 0.0,
    fail_if: Annotated[
        list[str] | None,
        typer.Option("--fail-if", help=f"Exit 3 if it is so, {thresholds.HINT}; repeat for more."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the raw rows, histograms, summary and a page of the run.")
    ] = None,
    rows: Annotated[Form, typer.Option(help="Of the raw rows: jsonl (gzipped), parquet, none.")] = Form.JSONL,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve the run's metrics for Prometheus there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send open-loop traffic: requests leave at their planned times, whatever the answers do. Ctrl-C ends it early.

    Exits 0 if all is well, 3 if a --fail-if is true, 4 if the run is invalid: its traffic was not the one asked for.
    """
    try:
        rules = [thresholds.parse(text) for text in fail_if or ()]
        plan = Plan(
            Traffic(arrivals, rate, duration, stages, warmup, seed),
            Request(tuple(urls), method, tuple(map(header, headers or ())), body_of(body, body_file),
                    body_bytes > 0, keepalive, not insecure, str(authority or "")),
            Limits(timeout, drain, max_in_flight, spin / 1e3),
            weights_of(weights, urls), body_law, body_bytes, processes,
        )  # fmt: skip
        plan.request.tls()
        if body_bytes and (body is not None or body_file is not None):
            raise ValueError("--body-bytes takes the place of a body that is given")
    except ssl.SSLError as error:
        raise ConfigError(f"--cacert {authority}: no certificates in PEM form: {error.reason}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if out is not None:
        prepare(out)
        if rows is Form.PARQUET and find_spec("pyarrow") is None:
            raise ConfigError("--rows parquet needs pyarrow: pip install 'lased-dispatcher[parquet]'")
    address = _address(metrics) if metrics else None
    with tempfile.TemporaryDirectory(prefix="lased-attack-", dir=out, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with console.status("drawing the schedule") if console.is_terminal else nullcontext():
            run = Run(plan, _drawn(plan, folder))
        found, summary = _carried_out(run, folder, address, rules)
        if as_json:
            print(summary.model_dump_json(), flush=True)  # noqa: T201
        else:
            output().print(report.summary_table(summary))
            print("\n".join(report.summary_lines(summary)), flush=True)  # noqa: T201
        if out is not None:
            _kept(run, found, summary, out, rows)
            if not as_json:
                print(f"summary, rows, histograms and report.html in {out}")  # noqa: T201
    raise typer.Exit(exit_code(summary))


def _drawn(plan: Plan, folder: Path) -> Records:
    try:
        return plan.draw(folder)
    except (ValueError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ConfigError(said) from None


def _carried_out(
    run: Run, folder: Path, address: tuple[str, int] | None, rules: Sequence[thresholds.Threshold]
) -> tuple[Measures, Summary]:
    watch = Watch(run.records)
    exposition = Exposition(watch, len(run.records) / run.seconds)
    screen = report.AttackScreen(console, watch, run.seconds)
    with exposition.served(*address) if address else nullcontext(), screen:
        until_signal(lambda stop: send(run, folder, watch, screen.looked, stop, screen.stopped))
    with console.status("counting") if console.is_terminal else nullcontext():
        found = run.measures()
        return found, summarize(run.plan, run.records, found, run.efforts, rules)


def _kept(run: Run, found: Measures, summary: Summary, out: Path, rows: Form) -> None:
    """Write the run's folder. What was found has been told already, so an error costs no result. Raises
    BackendError."""
    from loadgen.attack import html_report as html

    try:
        write_run(run, found, summary, out, rows)
        html.write(summary, found, f"lased-loadgen attack {' '.join(run.plan.request.urls)}", out / "report.html")
    except PlotError as error:
        console.print(f"no report.html: {error}")
    except OSError as error:
        raise BackendError(f"cannot write into {out}: {error.strerror}") from error


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(
            f"--metrics is where this command serves its own metrics: HOST:PORT, as in 127.0.0.1:9100, not {text!r}"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
