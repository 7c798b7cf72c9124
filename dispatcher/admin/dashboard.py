"""The page of the admin side: one HTML file, and a stream of what it shows, once a second as server-sent events.

The file needs nothing from anywhere else, and its policy (CSP) lets it have nothing: its script and style are allowed
by their hashes alone. The past is sampled all the time, so that a page just opened shows the last minutes.
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

EVERY = 1.0  # seconds between two pictures
KEPT = 600  # pictures of the past
MOST = 20  # pages at a time

State = dict[str, Any]


class Live:
    """picture: takes one of the present, JSON-able, with `pools` and `regret` in it."""

    def __init__(self, picture: Callable[[], State]) -> None:
        self._picture = picture
        self._past: deque[State] = deque(maxlen=KEPT)
        self._watching = 0
        self._taken = asyncio.Condition()
        self._last: State = {}
        self._html = (files("dispatcher.admin") / "page.html").read_text(encoding="utf-8")
        self._policy = policy(self._html)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self.page), web.get("/events", self.events)]

    async def take_pictures(self) -> None:
        """For ever, until cancelled."""
        while True:
            self._last = now = self._picture()
            past: State = {"regret": now["regret"] and now["regret"]["total"]}
            for key, of in (("estimates", "estimate"), ("routed", "routed")):
                past[key] = {pool["name"]: pool[of] for pool in now["pools"]}
            self._past.append(past)
            async with self._taken:
                self._taken.notify_all()
            await asyncio.sleep(EVERY)

    async def page(self, request: web.Request) -> web.Response:
        """The page itself; it holds no data."""
        return web.Response(
            text=self._html,
            content_type="text/html",
            headers={"Content-Security-Policy": self._policy, "X-Content-Type-Options": "nosniff",
                     "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"},
        )  # fmt: skip

    async def events(self, request: web.Request) -> web.StreamResponse:
        """First the past, then the present once a second."""
        if self._watching >= MOST:
            return web.Response(status=503, text=f"{MOST} pages are watching already\n", headers={"Retry-After": "10"})
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await stream.prepare(request)
        self._watching += 1
        try:
            await stream.write(event("past", list(self._past)) + event("now", self._picture()))
            while True:
                async with self._taken:
                    await self._taken.wait()
                await stream.write(event("now", self._last))
        except ConnectionResetError:
            return stream  # the page was closed
        finally:
            self._watching -= 1


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def policy(html: str) -> str:
    """The Content-Security-Policy under which this page, as it is, works and nothing else does."""

    def hashes(tag: str) -> str:
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(b.encode()).digest()).decode()}'" for b in bodies)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
