"""The command `attack`: open-loop traffic, and a judgement of its results."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import typer

from dispatcher.errors import ConfigError
from loadgen.attack import html_report, run, thresholds
from loadgen.attack.driver import Limits
from loadgen.attack.measure import Measures
from loadgen.attack.plan import Plan, Traffic
from loadgen.attack.progress import RunProgress
from loadgen.attack.prometheus import RunMetrics
from loadgen.attack.records import Records
from loadgen.attack.summary import Summary, exit_code, summarize
from loadgen.attack.targets import Request, body_of, header, weights_of
from loadgen.cli import attack_options
from loadgen.cli.app import Json, Seed, app, console, output, prepare, until_signal
from loadgen.cli.attack_options import RowsFormat
from loadgen.cli.attack_screen import AttackScreen, summary_lines, summary_table
from loadgen.experiments.live.backends import BackendError
from loadgen.plot import PlotError


@app.command(
    epilog="Examples: lased-loadgen attack http://127.0.0.1:8080/ --rate 30 --duration 20 --seed 1 --json; "
    "lased-loadgen attack http://127.0.0.1:8080/ --stages 10s@50,30s@50..200 --fail-if 'p99>200ms' --out out/run"
)
def attack(
    urls: attack_options.Urls,
    rate: attack_options.Rate = None,
    duration: attack_options.Duration = None,
    arrivals: attack_options.Arrivals = "poisson",
    stages: attack_options.StagesText = None,
    warmup: attack_options.Warmup = 0.0,
    seed: Seed = 1,
    weights: attack_options.Weights = None,
    method: attack_options.Method = "GET",
    headers: attack_options.Headers = None,
    body: attack_options.Body = None,
    body_file: attack_options.BodyFile = None,
    body_bytes: attack_options.BodyBytes = 0.0,
    body_law: attack_options.BodyLaw = "fixed",
    keepalive: attack_options.KeepAlive = True,
    insecure: attack_options.Insecure = False,
    authority: attack_options.Authority = None,
    timeout: attack_options.Timeout = 30.0,
    drain: attack_options.Drain = None,
    max_in_flight: attack_options.MaxInFlight = 0,
    processes: attack_options.Processes = 1,
    spin: attack_options.Spin = 0.0,
    fail_if: attack_options.FailIf = None,
    out: attack_options.Out = None,
    rows: attack_options.Rows = RowsFormat.JSONL,
    metrics: attack_options.Metrics = None,
    as_json: Json = False,
) -> None:
    """Send open-loop traffic: requests are sent at their planned times, whatever the responses. Ctrl-C ends it early.

    Exits 0 if all is well, 3 if a --fail-if is true, 4 if the run is invalid: its traffic was not the requested one.
    """
    try:
        if body_bytes and (body is not None or body_file is not None):
            raise ValueError("use --body-bytes without --body and --body-file")
        rules = [thresholds.parse(text) for text in fail_if or ()]
        request = Request(
            tuple(urls),
            method,
            tuple(map(header, headers or ())),
            body_of(body, body_file),
            sizes=body_bytes > 0,
            keepalive=keepalive,
            verify=not insecure,
            authority=str(authority or ""),
        )
        request.tls()  # a file of certificates that cannot be read must be known before the run
        traffic = Traffic(arrivals, rate, duration, stages, warmup, seed)
        limits = Limits(timeout, drain, max_in_flight, spin / 1e3)
        plan = Plan(traffic, request, limits, weights_of(weights, urls), body_law, body_bytes, processes)
    except ssl.SSLError as error:
        raise ConfigError(f"--cacert {authority}: no certificates in PEM form: {error.reason}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if out is not None:
        prepare(out)
        # A missing package must not be noticed only after the run.
        if rows is RowsFormat.PARQUET and find_spec("pyarrow") is None:
            raise ConfigError("--rows parquet needs pyarrow: pip install 'lased-dispatcher[parquet]'")
    address = attack_options.metrics_address(metrics) if metrics else None
    with tempfile.TemporaryDirectory(prefix="lased-attack-", dir=out, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with console.status("drawing the schedule") if console.is_terminal else nullcontext():
            planned = run.Run(plan, _draw(plan, folder))
        measures, summary = _carry_out(planned, folder, address, rules)
        # The result is printed before any file is written, so that a full disk does not cost it.
        if as_json:
            print(summary.model_dump_json(), flush=True)  # noqa: T201
        else:
            output().print(summary_table(summary))
            print("\n".join(summary_lines(summary)), flush=True)  # noqa: T201
        if out is not None:
            _write(planned, measures, summary, out, rows)
            if not as_json:
                print(f"summary, rows, histograms and report.html in {out}")  # noqa: T201
    raise typer.Exit(exit_code(summary))


def _draw(plan: Plan, folder: Path) -> Records:
    try:
        return plan.draw(folder)
    except (ValueError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ConfigError(text) from None


def _carry_out(
    planned: run.Run, folder: Path, address: tuple[str, int] | None, rules: Sequence[thresholds.Threshold]
) -> tuple[Measures, Summary]:
    """Send the traffic, with a display and metrics, and return the results."""
    progress = RunProgress(planned.records)
    metrics = RunMetrics(progress, len(planned.records) / planned.seconds)
    screen = AttackScreen(console, progress, planned.seconds)
    with metrics.serve(*address) if address else nullcontext(), screen:
        until_signal(lambda stop: run.attack(planned, folder, progress, screen.update, stop, screen.on_stop))
    with console.status("counting") if console.is_terminal else nullcontext():
        measures = planned.measures()
        return measures, summarize(planned.plan, planned.records, measures, planned.efforts, rules)


def _write(planned: run.Run, measures: Measures, summary: Summary, out: Path, rows: RowsFormat) -> None:
    """Write the run's folder. Raises BackendError."""
    title = f"lased-loadgen attack {' '.join(planned.plan.request.urls)}"
    try:
        run.write(planned, measures, summary, out, rows)
        html_report.write(summary, measures, title, out / "report.html")
    except PlotError as error:
        console.print(f"no report.html: {error}")
    except OSError as error:
        raise BackendError(f"cannot write into {out}: {error.strerror}") from error
