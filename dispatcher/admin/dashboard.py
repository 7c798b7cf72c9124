"""The dashboard: one HTML page, and a stream of server-sent events that feeds it once a second.

The page needs no other file, and its Content-Security-Policy allows none: script and style are allowed by their hashes.
The state is sampled all the time, so that a page shows the last minutes as soon as it is opened.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections import deque
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from aiohttp import web

from dispatcher.admin.state import State

SAMPLE_INTERVAL_SECONDS = 1.0
MAX_SAMPLES = 600
MAX_VIEWERS = 20
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


class Dashboard:
    """Serves the page and its stream.

    read_state: returns the present state as JSON values; `pools` and `regret` are among them.
    """

    def __init__(self, read_state: Callable[[], State]) -> None:
        self._read_state = read_state
        self._samples: deque[State] = deque(maxlen=MAX_SAMPLES)
        self._viewers = 0
        self._sampled = asyncio.Condition()
        self._state: State = {}
        self._html = (files("dispatcher.admin") / "page.html").read_text(encoding="utf-8")
        self._headers = {"Content-Security-Policy": content_security_policy(self._html), **HEADERS}

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self._get_page), web.get("/events", self._get_events)]

    async def sample_forever(self) -> None:
        """Sample the state once a second until cancelled."""
        while True:
            self._state = state = self._read_state()
            self._samples.append(_sample(state))
            async with self._sampled:
                self._sampled.notify_all()
            await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)

    async def _get_page(self, request: web.Request) -> web.Response:
        """Return the page; it contains no data."""
        return web.Response(text=self._html, content_type="text/html", headers=self._headers)

    async def _get_events(self, request: web.Request) -> web.StreamResponse:
        """Send the samples as event `past`, then the state as event `now`, at once and with each sample."""
        if self._viewers >= MAX_VIEWERS:
            text = f"{MAX_VIEWERS} pages are open already\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "10"})
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await stream.prepare(request)
        self._viewers += 1
        try:
            await stream.write(event("past", list(self._samples)) + event("now", self._read_state()))
            while True:
                async with self._sampled:
                    await self._sampled.wait()
                await stream.write(event("now", self._state))
        except ConnectionResetError:
            return stream  # the page was closed
        finally:
            self._viewers -= 1


def _sample(state: State) -> State:
    """Return the part of a state that the page draws over time."""
    return {
        "regret": state["regret"] and state["regret"]["total"],
        "estimates": {pool["name"]: pool["estimate"] for pool in state["pools"]},
        "routed": {pool["name"]: pool["routed"] for pool in state["pools"]},
    }


def event(name: str, data: Any) -> bytes:
    """Return a server-sent event with JSON data."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def content_security_policy(html: str) -> str:
    """Return the policy that allows the scripts and styles in this page and nothing else."""

    def hashes(tag: str) -> str:
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(b.encode()).digest()).decode()}'" for b in bodies)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
