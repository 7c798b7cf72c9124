"""The admin side, on a port of its own: metrics, health, what the policy believes and why it chose.

aiohttp serves it. Metrics are rendered in a thread, from a picture taken on the loop, so that a scrape does not hold
requests up for longer than the picture takes.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from dispatcher.admin.api import LARGEST, Changes, Control, Guard, answer
from dispatcher.admin.dashboard import Live
from dispatcher.admin.plane import decision_plane
from dispatcher.core.estimate import CapacityEstimate, Estimate
from dispatcher.core.policy import BasePolicy
from dispatcher.core.regret import RegretMeter
from dispatcher.platform.sockets import Address, bound, listen_on
from dispatcher.proxy.listener import Listener
from dispatcher.telemetry.decisions import Row, Rows
from dispatcher.telemetry.metrics import LearningCollector

BACKLOG = 128
SHOWN = 12  # of them on the page
EXPLAINED = 100  # decisions that /explain remembers


def bounds(low: float, high: float) -> list[float | None]:
    """For JSON, which has no infinity."""
    return [low, high if math.isfinite(high) else None]


def curve_of(estimate: Estimate | None) -> dict[str, Any] | None:
    """The service time, capacity and throughput of a pool with 95 % intervals, where the policy learns them."""
    if not isinstance(estimate, CapacityEstimate):
        return None
    every = ("service_seconds", "capacity", "throughput")
    return {
        name: {"value": found.value, "interval": bounds(found.low, found.high)}
        for name, found in ((name, getattr(estimate, name)) for name in every)
    }


class Admin:
    """Answers about a running service, and hands changes to its `control`. token: that callers must bear."""

    def __init__(
        self,
        server: Listener,
        meter: RegretMeter,
        rows: Rows,
        registry: CollectorRegistry,
        collector: LearningCollector,
        clock: Callable[[], float],
        control: Control,
        token: str = "",
    ) -> None:
        self._server = server
        self._meter = meter
        self._rows = rows
        self._registry = registry
        self._collector = collector
        self._clock = clock
        self._control = control
        self._token = token
        self._runner: web.AppRunner | None = None
        self.live = Live(lambda: self.picture(SHOWN))

    async def listen(
        self, address: Address, reuse_port: bool = False, inherited: list[socket.socket] | None = None
    ) -> Address:
        """Start; returns the bound address. Raises StartError."""
        sockets = inherited or listen_on("admin", address, BACKLOG, reuse_port)
        where = bound(sockets[0])
        app = web.Application(client_max_size=LARGEST, middlewares=[Guard(self._token, where).admit])
        app.add_routes(Changes(self._control).routes())
        app.add_routes(self.live.routes())
        app.add_routes(
            [
                web.get("/metrics", self.metrics),
                web.get("/healthz", self.healthz),
                web.get("/readyz", self.readyz),
                web.get("/state", self.state),
                web.get("/explain", self.explain),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        for listening in sockets:
            await web.SockSite(self._runner, listening).start()
        return where

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        self._collector.refresh()
        body = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(self, request: web.Request) -> web.Response:
        """Alive: the loop turns."""
        return web.Response(text="ok\n")

    async def readyz(self, request: web.Request) -> web.Response:
        """Some pool is usable and we are not draining."""
        if self._server.is_ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="draining\n" if self._server.is_draining else "no pool is usable\n")

    async def state(self, request: web.Request) -> web.Response:
        """What is believed and counted now."""
        return answer(self.picture())

    def picture(self, decisions: int = 0) -> dict[str, Any]:
        """What is believed and counted now, with so many of the last decisions."""
        policy = self._server.router.policy
        state: dict[str, Any] = {
            **self._control.about(),
            "decisions": self._rows.count,
            "draining": self._server.is_draining,
            "regret": self._regret(),
            "plane": decision_plane(policy, self._server.router.fleet.pools, self._meter, self._clock()),
            "episode": self._episode(policy),
            "pools": self._pools(policy),
        }
        if decisions:
            rows = list(self._rows.rows)[-decisions:]
            state["last"] = [self._explained(row) for row in reversed(rows)]
        return state

    def _regret(self) -> dict[str, Any] | None:
        meter = self._meter
        if not meter.known:
            return None
        by_cause = {cause.value: count for cause, count in meter.by_cause.items()}
        excess = sum(meter.excess.values())
        return {"total": meter.total, **by_cause, "excess": excess, "oracle": meter.oracle}

    def _episode(self, learner: BasePolicy) -> dict[str, Any]:
        episode = learner.episode
        age = self._clock() - episode.began_at if episode.arrivals and episode.began_at is not None else 0.0
        return {
            "number": episode.number,
            "arrivals": episode.arrivals,
            "explored": episode.explored,
            "open_seconds": age,
        }

    def _pools(self, learner: BasePolicy) -> list[dict[str, Any]]:
        router, health = self._server.router, self._server.context.health
        estimates = learner.estimates()
        drawn = learner.probabilities()
        pools = []
        for spec in health.specs:
            entry: dict[str, Any] = {
                "name": spec.id,
                "servers": spec.servers,
                "in_flight": router.fleet.count(spec.id),
                "routed": self._rows.routed[spec.id],
                "up": health.is_up(spec.id),
                "verdict": health.verdict(spec.id),
                "routed_to": health.is_routable(spec.id),
                "guess": spec.guess,
                "true_rate": spec.true_rate,
            }
            estimate = estimates.get(spec.id)
            entry |= {
                "estimate": estimate.rate if estimate else None,
                "interval": bounds(*estimate.interval) if estimate else [None, None],
                "curve": curve_of(estimate),
                "observations": estimate.observations if estimate else None,
                "rate_in_use": learner.rate(spec.id) if spec.id in router.fleet else None,
                "probability": drawn.get(spec.id),
            }
            pools.append(entry)
        return pools

    async def explain(self, request: web.Request) -> web.Response:
        """The last decisions, newest first."""
        return answer({"decisions": [self._explained(row) for row in reversed(self._rows.rows)]})

    def _explained(self, row: Row) -> dict[str, Any]:
        pools = [
            {"name": pool, "in_flight": q, "rate": rate}
            for pool, q, rate in zip(row.pools, row.in_flight, map(float, row.rates), strict=True)
        ]
        return {
            "n": row.n,
            "seconds_ago": self._clock() - row.time,
            "pool": row.pool,
            "phase": row.phase,
            "episode": row.episode,
            "wrong_because_of": row.cause,
            "scores": list(map(float, row.scores)),
            "pools": pools,
        }
