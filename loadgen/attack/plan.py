"""What a run was asked to do: which traffic, for how long, what is sent, which limits. Kept with its results."""

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
from loadgen.attack.schedule import BODY, Block, blocks, choose_bodies, choose_owners, choose_targets, trace
from loadgen.attack.targets import Request
from workers.distributions import parse as parse_law

TRACE = "trace:"


@dataclass(frozen=True)
class Traffic:
    """Instants of a run. Raises ValueError with one clear line.

    arrivals: a process as `arrivals.parse` reads it, or `trace:FILE`. rate: requests a second; None where stages or a
    trace say it. stages: as `arrivals.parse_stages` reads them. duration: seconds, None for all of the stages or the
    trace. warmup: the first seconds of it are sent and not measured. Seeds: streams `arrivals`, `targets`, `bodies`
    and `owners` of `seed`.
    """

    arrivals: str = "poisson"
    rate: float | None = None
    duration: float | None = None
    stages: str | None = None
    warmup: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        traced = self.arrivals.startswith(TRACE)
        if traced and (self.rate is not None or self.stages is not None):
            raise ValueError("a trace says when to send: leave --rate and --stages away")
        if self.stages is not None and self.rate is not None:
            raise ValueError("--stages say the rates: leave --rate away")
        if not traced and self.stages is None and (self.rate is None or self.duration is None):
            raise ValueError("say --rate and --duration, or --stages, or --arrivals trace:FILE")
        if self.duration is not None and not 0 < self.duration < math.inf:
            raise ValueError(f"the duration must be positive, not {self.duration:g}")
        if not 0 <= self.warmup < math.inf:
            raise ValueError(f"the warm-up must not be negative, not {self.warmup:g}")
        self.process()

    def process(self) -> ArrivalProcess | None:
        """Anew from its beginning; None for a trace."""
        if self.arrivals.startswith(TRACE):
            return None
        draws = stream(self.seed, "arrivals")
        if self.stages is None:
            assert self.rate is not None
            return parse(self.arrivals, self.rate, draws)
        stages = parse_stages(self.stages)
        if self.arrivals.partition(":")[0] not in ("poisson", "constant", "gamma"):
            raise ValueError(f"stages go with poisson, constant or gamma arrivals, not {self.arrivals}")
        return Stages(parse(self.arrivals, 1.0, draws), stages)

    def blocks(self) -> Iterator[Block]:
        """The instants. Raises ValueError, OSError."""
        process = self.process()
        if process is None:
            return trace(Path(self.arrivals.removeprefix(TRACE)), self.duration or math.inf)
        return blocks(process, self.seconds(0.0))

    def seconds(self, last: float) -> float:
        """How long the traffic lasts; a trace of no given duration lasts to its last instant."""
        process = self.process()
        if self.duration is not None:
            return self.duration
        return process.seconds if isinstance(process, Stages) else last


@dataclass(frozen=True)
class Plan:
    """The whole run. body_law, body_bytes: the law and mean of the bodies' sizes, where they are drawn."""

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
        if not 0 <= self.body_bytes <= BODY:
            raise ValueError(f"bodies must be from 0 to {BODY:,} bytes, not {self.body_bytes:g}")

    def draw(self, folder: Path) -> Records:
        """The rows of the run, in files of this folder. Raises ValueError, OSError."""
        seed, request = self.traffic.seed, self.request
        law = parse_law(self.body_law, 1 / self.body_bytes, stream(seed, "bodies")) if self.body_bytes else None
        records = Records.create(folder, self.traffic.blocks())
        if not len(records):
            traced = self.traffic.process() is None
            more = "the trace says none in that time" if traced else "raise the rate or the duration"
            raise ValueError(f"the schedule holds no request: {more}")
        seconds = self.traffic.seconds(float(records.planned[-1]))
        if not seconds:
            raise ValueError("all of the trace is at its beginning: say how long it lasts by --duration")
        if self.traffic.warmup >= seconds:
            raise ValueError(f"the warm-up of {self.traffic.warmup:g} s leaves nothing of {seconds:g} s to measure")
        choose_targets(records, self.weights, stream(seed, "targets"))
        if request.sizes and law is not None:
            choose_bodies(records, law)
        choose_owners(records, self.processes, stream(seed, "owners"))
        return records

    def as_json(self) -> dict[str, Any]:
        """What is kept: of the headers the names only, their values may be secrets."""
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
