"""Describes a run before it starts: the traffic, the requests and the limits. It is kept with the results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import ArrivalProcess, Stages, parse, parse_stages
from loadgen.attack.driver import Limits
from loadgen.attack.records import Records
from loadgen.attack.schedule import MAX_BODY_BYTES, Block, blocks, choose_bodies, choose_owners, choose_targets, trace
from loadgen.attack.targets import Request
from workers import distributions

TRACE_PREFIX = "trace:"
STAGE_PROCESSES = ("poisson", "constant", "gamma")  # the processes that stages can change


@dataclass(frozen=True)
class Traffic:
    """The instants at which a run sends requests.

    arrivals: a process as `arrivals.parse` reads it, or `trace:FILE`.
    rate: requests a second; None if stages or a trace determine it.
    duration: seconds; None for all of the stages or of the trace.
    stages: as `arrivals.parse_stages` reads them.
    warmup: seconds at the beginning that are sent and not measured.
    seed: of the streams `arrivals`, `targets`, `bodies` and `owners`.
    Raises ValueError with one clear line.
    """

    arrivals: str = "poisson"
    rate: float | None = None
    duration: float | None = None
    stages: str | None = None
    warmup: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        traced = self.arrivals.startswith(TRACE_PREFIX)
        if traced and (self.rate is not None or self.stages is not None):
            raise ValueError("a trace determines the instants: use it without --rate and --stages")
        if self.stages is not None and self.rate is not None:
            raise ValueError("use either --stages or --rate")
        if not traced and self.stages is None and (self.rate is None or self.duration is None):
            raise ValueError("use --rate and --duration, or --stages, or --arrivals trace:FILE")
        if self.duration is not None and not 0 < self.duration < math.inf:
            raise ValueError(f"the duration must be positive, not {self.duration:g}")
        if not 0 <= self.warmup < math.inf:
            raise ValueError(f"the warm-up must not be negative, not {self.warmup:g}")
        self.process()  # raises ValueError if the process or the stages are wrong

    def process(self) -> ArrivalProcess | None:
        """Return the arrival process from its beginning; None for a trace."""
        if self.arrivals.startswith(TRACE_PREFIX):
            return None
        draws = stream(self.seed, "arrivals")
        if self.stages is None:
            assert self.rate is not None
            return parse(self.arrivals, self.rate, draws)
        stages = parse_stages(self.stages)
        if self.arrivals.partition(":")[0] not in STAGE_PROCESSES:
            raise ValueError(f"stages need poisson, constant or gamma arrivals, not {self.arrivals}")
        return Stages(parse(self.arrivals, 1.0, draws), stages)  # the stages change the clock of a process of rate 1

    def blocks(self) -> Iterator[Block]:
        """Return the instants, block by block. Raises ValueError and OSError."""
        process = self.process()
        if process is None:
            return trace(Path(self.arrivals.removeprefix(TRACE_PREFIX)), self.duration or math.inf)
        return blocks(process, self.seconds(0.0))  # only a trace needs the last instant

    def seconds(self, last: float) -> float:
        """Return the length of the traffic. last: the last instant, at which a trace without a duration ends."""
        process = self.process()
        if self.duration is not None:
            return self.duration
        return process.seconds if isinstance(process, Stages) else last


@dataclass(frozen=True)
class Plan:
    """The whole run.

    weights: how often each URL is chosen. processes: how many processes share the plan.
    body_law, body_bytes: law and mean of the sizes of bodies, if sizes are drawn.
    """

    traffic: Traffic
    request: Request
    limits: Limits
    weights: tuple[float, ...] = (1.0,)
    body_law: str = "fixed"
    body_bytes: float = 0.0
    processes: int = 1

    def __post_init__(self) -> None:
        if 0 < self.limits.max_in_flight < self.processes:
            raise ValueError(f"{self.processes} processes cannot share {self.limits.max_in_flight} requests in flight")
        if not 0 <= self.body_bytes <= MAX_BODY_BYTES:
            raise ValueError(f"bodies must be from 0 to {MAX_BODY_BYTES:,} bytes, not {self.body_bytes:g}")

    def draw(self, folder: Path) -> Records:
        """Return the rows of the run, in files of this folder. Raises ValueError and OSError."""
        seed, request, law = self.traffic.seed, self.request, None
        if self.body_bytes:
            law = distributions.parse(self.body_law, 1 / self.body_bytes, stream(seed, "bodies"))
        records = Records.create(folder, self.traffic.blocks())
        if not len(records):
            traced = self.traffic.process() is None
            advice = "the trace has none in that time" if traced else "raise the rate or the duration"
            raise ValueError(f"the schedule holds no request: {advice}")
        seconds = self.traffic.seconds(float(records.planned[-1]))
        if not seconds:  # rates are requests by seconds
            raise ValueError("all instants of the trace are 0: set the length of the traffic with --duration")
        if self.traffic.warmup >= seconds:
            raise ValueError(f"the warm-up of {self.traffic.warmup:g} s leaves nothing of {seconds:g} s to measure")
        choose_targets(records, self.weights, stream(seed, "targets"))
        if request.sizes and law is not None:
            choose_bodies(records, law)
        choose_owners(records, self.processes, stream(seed, "owners"))
        return records

    def as_json(self) -> dict[str, Any]:
        """Return what the results contain. The values of headers are left out, because they may be secrets."""
        request = self.request
        return {
            "traffic": asdict(self.traffic),
            "urls": list(request.urls),
            "weights": list(self.weights),
            "method": request.method,
            "headers": [name for name, _ in request.headers],
            "body": {"law": self.body_law, "mean": self.body_bytes} if request.sizes else len(request.body),
            "keepalive": request.keepalive,
            "limits": asdict(self.limits),
            "processes": self.processes,
        }
