"""The whole hierarchy of errors. Each says whose fault it was; those of a request carry their HTTP status.

Foreign exceptions (OSError, parser errors, validation errors) are mapped to these at the seam where they arise and
nowhere else.
"""

from __future__ import annotations


class DispatcherError(Exception):
    """Anything this package raises on purpose."""


class ConfigError(DispatcherError):
    """The user's configuration is wrong: the message names the key's path, what is wrong and what to do."""


class StartError(DispatcherError):
    """The configuration is right but the service cannot start, as when a port is taken."""


class PolicyError(DispatcherError):
    """A policy broke its contract. The request is still served, by a safe choice; the fault is counted and logged."""


class InternalError(DispatcherError):
    """Our own bug: an invariant does not hold."""


class RequestError(DispatcherError):
    """One request cannot be served as asked.

    status: the answer it gets. reason: a bounded word for metrics. public: what the client is told; the message itself
    may name pools and addresses and is for logs.
    """

    status = 500
    reason = "error"
    public = "the request cannot be served"


class BadRequest(RequestError):
    """The client's fault: malformed, too large or too slow. 400 unless told otherwise."""

    def __init__(self, message: str, status: int = 400, reason: str = "bad_request") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.public = message


class NoPoolAvailable(RequestError):
    """There is no open pool to send the request to."""

    status = 503
    reason = "no_pool"
    public = "no pool is available"


class PoolsFull(NoPoolAvailable):
    """Pools are open, but each has as many requests in flight as it may."""

    reason = "pools_full"
    public = "all pools are busy"


class QueueFull(PoolsFull):
    """Nor may another request wait for one."""

    reason = "queue_full"


class QueueTimeout(PoolsFull):
    """None had room while the request waited."""

    reason = "queue_timeout"


class UpstreamUnreachable(RequestError):
    """No connection to the pool could be made; not a byte of the request was sent."""

    status = 502
    reason = "connect"
    public = "the pool cannot be reached"


class OutOfResources(RequestError):
    """This process has no file or port left to reach a pool with; no pool's fault."""

    status = 503
    reason = "resources"
    public = "too many connections"


class UpstreamConnectTimeout(UpstreamUnreachable):
    """The pool did not accept a connection in time."""

    status = 504
    reason = "connect_timeout"
    public = "the pool did not accept a connection in time"


class UpstreamStale(RequestError):
    """A kept-alive connection turned out dead before any byte of the answer."""

    status = 502
    reason = "stale"
    public = "the pool closed the connection without an answer"


class UpstreamProtocolError(RequestError):
    """The pool answered what is no HTTP, broke off, or closed without an answer."""

    status = 502
    reason = "protocol"
    public = "the pool gave no proper answer"


class UpstreamClosed(UpstreamProtocolError):
    """The pool closed a fresh connection without a byte of an answer."""

    reason = "reset"


class UpstreamRefused(RequestError):
    """The pool gave an answer of a kind that is tried again."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the pool answered {status}")
        self.status = status
        self.reason = str(status)


class UpstreamTimeout(RequestError):
    """The pool did not answer, or did not go on, in time."""

    status = 504
    reason = "timeout"
    public = "the pool did not answer in time"
