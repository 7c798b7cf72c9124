"""The HTTP server of the admin side, on its own port: metrics, probes, state, dashboard and the API.

Metrics are rendered in a thread from a snapshot. A scrape therefore blocks the event loop only while the snapshot is
taken.
"""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from dispatcher.admin.api import MAX_BODY_BYTES, AdminApi, AdminAuth, Operations, json_response
from dispatcher.admin.dashboard import Dashboard
from dispatcher.admin.snapshot import Observer
from dispatcher.admin.snapshot_metrics import SnapshotCollector
from dispatcher.admin.state import State, decision, state_of
from dispatcher.platform.sockets import Address, bound, listen_on

ACCEPT_BACKLOG = 128
DASHBOARD_DECISIONS = 12  # decisions on the dashboard
EXPLAINED_DECISIONS = 100  # decisions that /explain shows


class Admin:
    """Serves the admin side of a running service.

    observer: reads the service.
    registry: the metrics; a collector of what the observer reads is added.
    operations: the operations that the API offers.
    token: the token that clients must send; empty for none.
    """

    def __init__(
        self, observer: Observer, registry: CollectorRegistry, operations: Operations, token: str = ""
    ) -> None:
        self._observer = observer
        self._registry = registry
        self._operations = operations
        self._token = token
        self._collector = SnapshotCollector()
        registry.register(self._collector)
        self._runner: web.AppRunner | None = None
        self.dashboard = Dashboard(self._dashboard_state)

    async def listen(
        self, address: Address, reuse_port: bool = False, inherited: list[socket.socket] | None = None
    ) -> Address:
        """Start to serve and return the bound address. Raises StartError.

        reuse_port: share the port with another process.
        inherited: sockets that listen already, instead of `address`.
        """
        sockets = inherited or listen_on("admin", address, ACCEPT_BACKLOG, reuse_port)
        bound_address = bound(sockets[0])
        auth = AdminAuth(self._token, bound_address)
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[auth.check])
        app.add_routes(AdminApi(self._operations).routes())
        app.add_routes(self.dashboard.routes())
        app.add_routes(
            [
                web.get("/metrics", self._get_metrics),
                web.get("/healthz", self._get_healthz),
                web.get("/readyz", self._get_readyz),
                web.get("/state", self._get_state),
                web.get("/explain", self._get_explain),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        for listening in sockets:
            await web.SockSite(self._runner, listening).start()
        return bound_address

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def refresh_metrics(self) -> None:
        """Take the snapshot that the registry shows until the next call."""
        self._collector.snapshot = self._observer.snapshot()

    def state(self) -> State:
        """Return what `/state` shows."""
        return state_of(self._observer.snapshot(), self._observer.plane())

    def _decisions(self, count: int | None = None) -> list[State]:
        now = self._observer.clock()
        return [decision(record, now) for record in self._observer.last_decisions(count)]

    def _dashboard_state(self) -> State:
        return {**self.state(), "last": self._decisions(DASHBOARD_DECISIONS)}

    async def _get_metrics(self, request: web.Request) -> web.Response:
        """Return the metrics in Prometheus' text format."""
        self.refresh_metrics()
        body = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_healthz(self, request: web.Request) -> web.Response:
        """Answer, which shows that the event loop runs."""
        return web.Response(text="ok\n")

    async def _get_readyz(self, request: web.Request) -> web.Response:
        """Answer with status 200 if some pool is usable and the service is not draining, else 503."""
        listener = self._observer.listener
        if listener.is_ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="draining\n" if listener.is_draining else "no pool is usable\n")

    async def _get_state(self, request: web.Request) -> web.Response:
        """Return the present state as JSON."""
        return json_response(self.state())

    async def _get_explain(self, request: web.Request) -> web.Response:
        """Return the last decisions as JSON, newest first."""
        return json_response({"decisions": self._decisions()})
