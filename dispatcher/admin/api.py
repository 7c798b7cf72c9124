"""The endpoints that change a running service, and who may call them. What they do is the service's affair (`Control`).

The admin side is for operators and their machines, not for browsers: a request that a page of another site may have
caused is refused, and so is one under a host name that is not ours (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import web

from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.platform.sockets import Address

OPEN = ("/", "/healthz", "/readyz")  # a page without data, and for orchestrators: no token
READING = ("GET", "HEAD")
_HOST = re.compile(r"^(.*?)(?::[0-9]{1,5})?$", re.DOTALL)  # without its port
LARGEST = 65536  # bytes of a body

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Control(Protocol):
    """What can be asked of the service. All raise ConfigError, with nothing changed, if it cannot be so."""

    def about(self) -> dict[str, Any]:
        """Version, policy and its options, shadows."""
        ...

    def pools(self) -> list[dict[str, Any]]:
        """The configuration of each pool."""
        ...

    def add_pool(self, entry: dict[str, Any]) -> None: ...
    def remove_pool(self, name: str) -> None: ...
    def drain_pool(self, name: str, drained: bool) -> None: ...
    def forget_pool(self, name: str) -> None: ...
    def set_policy(self, entry: dict[str, Any]) -> None: ...
    def reload(self) -> None: ...


class Guard:
    """Lets in who may come in. token: to be borne by all, empty for none. address: where the admin side listens."""

    def __init__(self, token: str, address: Address) -> None:
        self._token = token.encode()
        self._local = bool(address.path) or _is_loopback(address.host)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        why, status = self._objection(request)
        if why:
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            return answer({"error": why}, status, headers)
        return await handler(request)

    def _objection(self, request: web.Request) -> tuple[str, int]:
        if self._local and not self._token and not _is_loopback(_HOST.sub(r"\1", request.host)):
            return f"the host {request.host!r} is not ours; on this machine, use localhost", 421
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return "refused: another site's page asked", 403
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            return "refused: another site's page asked", 403
        if request.path in OPEN:
            return "", 0
        if self._token:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode("utf-8", "replace"), b"Bearer " + self._token):
                return "give the admin token: Authorization: Bearer TOKEN", 401
        elif not self._local and request.method not in READING:
            return "set admin_token to change anything from other machines", 403
        return "", 0


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host[1:-1] if host[:1] + host[-1:] == "[]" else host).is_loopback
    except ValueError:
        return False


def answer(what: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """JSON for people too."""
    return web.Response(
        text=json.dumps(what, indent=1) + "\n", status=status, headers=headers, content_type="application/json"
    )


class Changes:
    """The handlers."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/pools", self.pools),
            web.post("/pools", self.add),
            web.delete("/pools/{name}", self.remove),
            web.post("/pools/{name}/{verb:drain|undrain}", self.drain),
            web.post("/pools/{name}/forget", self.forget),
            web.post("/policy", self.policy),
            web.post("/reload", self.reload),
        ]

    async def pools(self, request: web.Request) -> web.Response:
        """The pools as they are configured now."""
        return answer({"pools": self._control.pools()})

    async def add(self, request: web.Request) -> web.Response:
        """A pool joins. The body is an entry of [[pools]], in JSON."""
        entry = await _body(request)
        return self._try(lambda: self._control.add_pool(entry), 201)

    async def remove(self, request: web.Request) -> web.Response:
        """A pool leaves; its requests are served to their end."""
        return self._try(lambda: self._control.remove_pool(self._name(request)))

    async def drain(self, request: web.Request) -> web.Response:
        """A pool gets no new request, or requests again."""
        drained = request.match_info["verb"] == "drain"
        return self._try(lambda: self._control.drain_pool(self._name(request), drained))

    async def forget(self, request: web.Request) -> web.Response:
        """What was learned of a pool is dropped, by all dispatchers that share it."""
        return self._try(lambda: self._control.forget_pool(self._name(request)))

    async def policy(self, request: web.Request) -> web.Response:
        """Another policy, or other options. The body is the section [policy], in JSON."""
        entry = await _body(request)
        return self._try(lambda: self._control.set_policy(entry))

    async def reload(self, request: web.Request) -> web.Response:
        """As SIGHUP."""
        return self._try(self._control.reload)

    def _name(self, request: web.Request) -> str:
        name = request.match_info["name"]
        there = [pool["name"] for pool in self._control.pools()]
        if name not in there:
            raise _refusal(f"there is no pool {name!r}; there are: {', '.join(there)}", 404)
        return name

    def _try(self, change: Callable[[], None], status: int = 200) -> web.Response:
        try:
            change()
        except ConfigError as error:
            raise _refusal(str(error), 400) from error
        except DispatcherError as error:
            raise _refusal(str(error), 500) from error
        return answer({**self._control.about(), "pools": self._control.pools()}, status)


async def _body(request: web.Request) -> dict[str, Any]:
    if request.content_type != "application/json":
        raise _refusal("the body must be JSON: Content-Type: application/json", 415)
    try:
        entry = json.loads(await request.text())
    except (ValueError, LookupError, RecursionError) as error:  # LookupError: a charset that nobody knows
        raise _refusal(f"the body is no JSON: {error}", 400) from error
    if not isinstance(entry, dict):
        raise _refusal("the body must be a JSON object", 400)
    return entry


class _Refused(web.HTTPException):
    """aiohttp answers with it; the status is given."""

    status_code = 400


def _refusal(why: str, status: int) -> web.HTTPException:
    refused = _Refused(text=json.dumps({"error": why}) + "\n", content_type="application/json")
    refused.set_status(status)
    return refused
