"""The options of the command `attack`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dispatcher.errors import ConfigError
from dispatcher.platform.sockets import parse_address
from loadgen.attack import thresholds


class RowsFormat(StrEnum):
    """The format of the raw rows."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    NONE = "none"


# The traffic.
Urls = Annotated[list[str], Argument(metavar="URL...", help="Where to send requests; several by weight.")]
Rate = Annotated[float | None, Option(help="Requests a second, on average.")]
Duration = Annotated[float | None, Option(help="Seconds of traffic; default all of the stages or trace.")]
Arrivals = Annotated[
    str,
    Option(
        help="poisson, constant, gamma:burstiness=0.5, onoff:on=1,off=4, mmpp:ratio=5,period=10,"
        " sine:depth=0.8,period=60, or trace:FILE of instants, one a line."
    ),
]
StagesText = Annotated[
    str | None, Option(help="Rates that change, as in 10s@50,30s@50..200: SECONDS@RATE or SECONDS@FROM..TO.")
]
Warmup = Annotated[float, Option(help="The first seconds of the traffic are sent and not measured.")]

# The requests.
Weights = Annotated[str | None, Option(help="How often each URL is used, as in 3,1; default all equally often.")]
Method = Annotated[str, Option("--method", "-X", help="The method.")]
Headers = Annotated[
    list[str] | None, Option("--header", "-H", metavar="NAME: VALUE", help="A header; repeat for more.")
]
Body = Annotated[str | None, Option(help="Text of each request's body.")]
BodyFile = Annotated[Path | None, Option(exists=True, dir_okay=False, help="A file with each request's body.")]
BodyBytes = Annotated[float, Option(min=0, help="Instead, a mean number of zero bytes, drawn by --body-law.")]
BodyLaw = Annotated[str, Option(help="fixed, exp, lognormal:cv=2, hyperexp:cv=2 or pareto:shape=2.5.")]
KeepAlive = Annotated[bool, Option(help="Whether connections serve more than one request.")]
Insecure = Annotated[bool, Option("--insecure", help="Accept any certificate.")]
Authority = Annotated[
    Path | None, Option("--cacert", exists=True, dir_okay=False, help="Certificates to be trusted, PEM.")
]

# The limits.
Timeout = Annotated[float, Option(min=0.001, max=86_400, help="Seconds after which a request counts as unanswered.")]
Drain = Annotated[
    float | None,
    Option(min=0, max=86_400, help="Seconds to wait for responses at the end; default as long as --timeout."),
]
MaxInFlight = Annotated[
    int,
    Option(min=0, help="Drop and count requests that are due while this many are open, in all processes; 0: never."),
]
Processes = Annotated[int, Option(min=1, max=64, help="Sending processes that share the plan.")]
Spin = Annotated[float, Option(min=0, max=100, help="Poll for so many ms before each request: exact, uses a core.")]

# The results.
FailIf = Annotated[
    list[str] | None, Option("--fail-if", help=f"Exit 3 if this is true, {thresholds.HINT}; repeat for more.")
]
Out = Annotated[Path | None, Option(help="Folder for the raw rows, histograms, summary and a page of the run.")]
Rows = Annotated[RowsFormat, Option(help="Format of the raw rows: jsonl (gzipped), parquet, none.")]
Metrics = Annotated[str | None, Option(metavar="HOST:PORT", help="Serve the run's metrics for Prometheus there.")]


def metrics_address(text: str) -> tuple[str, int]:
    """Parse the HOST:PORT of --metrics. Raises ConfigError."""
    try:
        address = parse_address(text)
        if address.path:
            raise ValueError
    except ValueError:
        raise ConfigError(f"--metrics must be HOST:PORT, as in 127.0.0.1:9100, not {text!r}") from None
    return address.host, address.port
