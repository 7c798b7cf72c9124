"""The admin side, on a port of its own: metrics, health, what the policy believes and why it chose.

aiohttp serves it. Metrics are rendered in a thread, from a picture taken on the loop, so that a scrape does not hold
requests up for longer than the picture takes.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from dispatcher.core.interfaces import Learner
from dispatcher.core.regret import RegretMeter
from dispatcher.errors import StartError
from dispatcher.net.server import Server, cannot_listen
from dispatcher.recorders.memory import Row, Rows
from dispatcher.recorders.prometheus import LearningCollector

INDEX = """/metrics  for Prometheus
/state    what is believed and counted now, JSON
/explain  the last decisions and why, JSON
/healthz  alive
/readyz   some pool is usable, and not draining
"""
EXPLAINED = 100  # decisions that /explain remembers


def readable(value: Any) -> str:
    """JSON for people too."""
    return json.dumps(value, indent=1) + "\n"


class Admin:
    """Answers about a running service. about: fixed facts for /state (version, policy and its options)."""

    def __init__(
        self,
        server: Server,
        meter: RegretMeter,
        rows: Rows,
        registry: CollectorRegistry,
        collector: LearningCollector,
        clock: Callable[[], float],
        about: Mapping[str, Any],
    ) -> None:
        self._server = server
        self._meter = meter
        self._rows = rows
        self._registry = registry
        self._collector = collector
        self._clock = clock
        self._about = about
        self._runner: web.AppRunner | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start; returns the bound address. Raises StartError."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/", self.index),
                web.get("/metrics", self.metrics),
                web.get("/healthz", self.healthz),
                web.get("/readyz", self.readyz),
                web.get("/state", self.state),
                web.get("/explain", self.explain),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.close()
            raise StartError(cannot_listen("admin", host, port, error)) from error
        address = self._runner.addresses[0]
        return address[0], address[1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def index(self, request: web.Request) -> web.Response:
        """What there is."""
        return web.Response(text=INDEX)

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
        if self._server.ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="draining\n" if self._server.draining else "no pool is usable\n")

    async def state(self, request: web.Request) -> web.Response:
        """What is believed and counted now."""
        policy = self._server.router.policy
        learner = policy if isinstance(policy, Learner) else None
        state: dict[str, Any] = {
            **self._about,
            "decisions": self._rows.count,
            "draining": self._server.draining,
            "regret": {"total": self._meter.total, **self._meter.by_cause} if self._meter.known else None,
            "episode": self._episode(learner) if learner else None,
            "pools": self._pools(learner),
        }
        return web.json_response(state, dumps=readable)

    def _episode(self, learner: Learner) -> dict[str, Any]:
        episode = learner.episode
        age = self._clock() - episode.began_at if episode.arrivals and episode.began_at is not None else 0.0
        return {
            "number": episode.number,
            "arrivals": episode.arrivals,
            "explored": episode.explored,
            "open_seconds": age,
        }

    def _pools(self, learner: Learner | None) -> list[dict[str, Any]]:
        router, health = self._server.router, self._server.forwarder.health
        estimates = learner.estimates() if learner else {}
        pools = []
        for spec in health.specs:
            entry: dict[str, Any] = {
                "name": spec.id,
                "servers": spec.servers,
                "in_flight": router.fleet.count(spec.id),
                "up": health.is_up(spec.id),
                "guess": spec.guess,
                "true_rate": spec.true_rate,
            }
            estimate = estimates.get(spec.id)
            low, high = estimate.interval if estimate else (None, None)
            entry |= {
                "estimate": estimate.rate if estimate else None,
                "interval": [low, high if high is not None and math.isfinite(high) else None],
                "observations": estimate.observations if estimate else None,
                "rate_in_use": learner.rate(spec.id) if learner and spec.id in router.fleet else None,
            }
            pools.append(entry)
        return pools

    async def explain(self, request: web.Request) -> web.Response:
        """The last decisions, newest first."""
        return web.json_response(
            {"decisions": [self._explained(row) for row in reversed(self._rows.rows)]}, dumps=readable
        )

    def _explained(self, row: Row) -> dict[str, Any]:
        pools = [
            {"name": pool, "in_flight": q, "rate": rate}
            for pool, q, rate in zip(row.pools, row.in_flight, row.rates, strict=True)
        ]
        return {
            "n": row.n,
            "seconds_ago": self._clock() - row.time,
            "pool": row.pool,
            "phase": row.phase,
            "episode": row.episode,
            "wrong_because_of": row.cause,
            "scores": row.scores,
            "pools": pools,
        }
