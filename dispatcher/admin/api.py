"""The endpoints that change the running service, and the access control of the admin side.

The admin side is for operators and their programs, not for other web sites. It refuses a request that a page of
another site caused, and a request for a foreign host name (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.platform.sockets import Address

PUBLIC_PATHS = ("/", "/healthz", "/readyz")  # the page without data, and the probes of orchestrators
READ_METHODS = ("GET", "HEAD")
MAX_BODY_BYTES = 65536
_HOST_WITHOUT_PORT = re.compile(r"^(.*?)(?::[0-9]{1,5})?$", re.DOTALL)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of the service that the API offers. A change that is not possible raises ConfigError and changes
    nothing.

    about: returns version, policy and shadow policies.
    pools: returns the configuration of each pool.
    drain_pool: takes the name and True to drain, False to use the pool again.
    """

    about: Callable[[], dict[str, Any]]
    pools: Callable[[], list[dict[str, Any]]]
    add_pool: Callable[[dict[str, Any]], None]
    remove_pool: Callable[[str], None]
    drain_pool: Callable[[str, bool], None]
    forget_pool: Callable[[str], None]
    set_policy: Callable[[dict[str, Any]], None]
    reload: Callable[[], None]


class AdminAuth:
    """Decides which requests the admin side accepts.

    token: all but the public paths require it; empty for no token.
    address: the address on which the admin side listens.
    """

    def __init__(self, token: str, address: Address) -> None:
        self._token = token.encode()
        self._local = bool(address.path) or _is_loopback(address.host)

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a refused request with its reason, and pass any other request on."""
        reason, status = self._objection(request)
        if reason:
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            return json_response({"error": reason}, status, headers)
        return await handler(request)

    def _objection(self, request: web.Request) -> tuple[str, int]:
        """Return the reason and status of a refusal; an empty reason accepts the request."""
        # A rebound name reaches the loopback address from a browser. A token protects against that anyway.
        if self._local and not self._token and not _is_loopback(_HOST_WITHOUT_PORT.sub(r"\1", request.host)):
            return f"{request.host!r} is not a name of this service; on this machine, use localhost", 421
        # Browsers set these headers on requests that a page causes; other programs do not send them.
        origin = request.headers.get("Origin")
        foreign_page = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        if foreign_page or (origin is not None and origin.partition("://")[2] != request.host):
            return "refused: the request comes from a page of another site", 403
        if request.path in PUBLIC_PATHS:
            return "", 0
        if self._token:
            authorization = request.headers.get("Authorization", "")
            if not hmac.compare_digest(authorization.encode("utf-8", "replace"), b"Bearer " + self._token):
                return "the admin token is required: Authorization: Bearer TOKEN", 401
        elif not self._local and request.method not in READ_METHODS:
            return "set admin_token to change anything from other machines", 403
        return "", 0


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host[1:-1] if host[:1] + host[-1:] == "[]" else host).is_loopback
    except ValueError:
        return False


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a response with indented JSON, which people can read too."""
    return web.Response(
        text=json.dumps(value, indent=1) + "\n", status=status, headers=headers, content_type="application/json"
    )


class AdminApi:
    """The request handlers of the endpoints that change the service."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/pools", self.pools),
            web.post("/pools", self.add_pool),
            web.delete("/pools/{name}", self.remove_pool),
            web.post("/pools/{name}/{verb:drain|undrain}", self.drain_pool),
            web.post("/pools/{name}/forget", self.forget_pool),
            web.post("/policy", self.set_policy),
            web.post("/reload", self.reload),
        ]

    async def pools(self, request: web.Request) -> web.Response:
        """Return the present configuration of the pools."""
        return json_response({"pools": self._operations.pools()})

    async def add_pool(self, request: web.Request) -> web.Response:
        """Add a pool. The body is an entry of [[pools]] as JSON."""
        entry = await _body(request)
        return self._apply(lambda: self._operations.add_pool(entry), 201)

    async def remove_pool(self, request: web.Request) -> web.Response:
        """Remove a pool. Its present requests run to their end."""
        name = self._pool(request)
        return self._apply(lambda: self._operations.remove_pool(name))

    async def drain_pool(self, request: web.Request) -> web.Response:
        """Stop sending new requests to a pool, or start again."""
        name, drained = self._pool(request), request.match_info["verb"] == "drain"
        return self._apply(lambda: self._operations.drain_pool(name, drained))

    async def forget_pool(self, request: web.Request) -> web.Response:
        """Discard what was learned about a pool, in all dispatchers that share it."""
        name = self._pool(request)
        return self._apply(lambda: self._operations.forget_pool(name))

    async def set_policy(self, request: web.Request) -> web.Response:
        """Change the policy or its options. The body is the section [policy] as JSON."""
        entry = await _body(request)
        return self._apply(lambda: self._operations.set_policy(entry))

    async def reload(self, request: web.Request) -> web.Response:
        """Read the configuration again, as at SIGHUP."""
        return self._apply(self._operations.reload)

    def _pool(self, request: web.Request) -> str:
        """Return the pool that the path names. Raises a response with status 404 if it is not configured."""
        name = request.match_info["name"]
        configured = [pool["name"] for pool in self._operations.pools()]
        if name not in configured:
            raise _refusal(f"there is no pool {name!r}; there are: {', '.join(configured)}", 404)
        return name

    def _apply(self, change: Callable[[], None], status: int = 200) -> web.Response:
        """Make a change and return the resulting configuration."""
        try:
            change()
        except ConfigError as error:
            raise _refusal(str(error), 400) from error
        except DispatcherError as error:
            raise _refusal(str(error), 500) from error
        return json_response({**self._operations.about(), "pools": self._operations.pools()}, status)


async def _body(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in the body. Raises a response with status 400 or 415."""
    if request.content_type != "application/json":  # a form of another site cannot send this type
        raise _refusal("the body must be JSON: Content-Type: application/json", 415)
    try:
        entry = json.loads(await request.text())
    except (ValueError, LookupError, RecursionError) as error:  # LookupError: an unknown charset
        raise _refusal(f"the body is not JSON: {error}", 400) from error
    if not isinstance(entry, dict):
        raise _refusal("the body must be a JSON object", 400)
    return entry


class _Refusal(web.HTTPException):
    """A response that is raised; its status is set afterwards, but the class must have one."""

    status_code = 400


def _refusal(reason: str, status: int) -> web.HTTPException:
    refusal = _Refusal(text=json.dumps({"error": reason}) + "\n", content_type="application/json")
    refusal.set_status(status)
    return refusal
