"""The HTTP server in front of a stand-in pool. It serves every request, whatever its method and path."""

from __future__ import annotations

import json

from aiohttp import web

from workers.pool import Pool, QueueFullError
from workers.scheduling.contexts import HEADER, Logistic


def make_server(
    pool: Pool, name: str, report: bool = True, load: str = "none", law: Logistic | None = None
) -> web.Server:
    """Make an HTTP server that serves every request from this pool.

    name: the value of the response header `X-Pool`.
    report: whether each response carries the service time, as `Server-Timing: service;dur=<ms>`.
    load: the form of the load report in each response: none, json or text. The header is `endpoint-load-metrics` of
        Open Request Cost Aggregation (ORCA).
    law: computes the context of a request; None where services do not depend on the request.
    """

    async def handle(request: web.BaseRequest) -> web.Response:
        body_bytes = 0
        async for piece in request.content.iter_any():
            body_bytes += len(piece)  # a request joins the pool when its whole body is here
        context = law.context(request.method, request.path, body_bytes, request.headers.get(HEADER, "")) if law else ()
        try:
            service = await pool.serve(context)
        except QueueFullError:
            headers = {"X-Pool": name, "Retry-After": f"{pool.until_room:.0f}"}
            return web.Response(status=503, text="the queue is full\n", headers=headers)
        headers = {"X-Pool": name}
        if report:
            headers["Server-Timing"] = f"service;dur={service * 1e3:.6f}"
        if load != "none":
            headers["endpoint-load-metrics"] = load_report(pool, load)
        return web.Response(text=f"served by {name}\n", headers=headers)

    # A request whose client leaves must be cancelled, so that the pool drops it while it waits.
    return web.Server(handle, handler_cancellation=True, access_log=None)


def load_report(pool: Pool, form: str) -> str:
    """Return the value of the load report's header, as it is after a request has left.

    >>> from random import Random
    >>> from workers.distributions import Fixed
    >>> from workers.queue_pool import QueuePool
    >>> load_report(QueuePool(Fixed(10.0, Random(1))), "text")[:48]
    'TEXT application_utilization=0, rps_fractional=0'
    """
    plain = {"application_utilization": pool.utilization, "rps_fractional": round(pool.rate, 6)}
    named = {"queue_depth": pool.backlog, "completed": pool.served, "busy_seconds": round(pool.busy_time, 9)}
    if form == "json":
        return "JSON " + json.dumps(plain | {"named_metrics": named}, separators=(",", ":"))
    pairs = plain | {f"named_metrics.{key}": value for key, value in named.items()}
    return "TEXT " + ", ".join(f"{key}={value:.15g}" for key, value in pairs.items())
