"""Every error that this package raises on purpose.

Foreign exceptions (OSError, parser errors, validation errors) are mapped to these classes where they arise. Errors of
one request carry the status of the response that the client gets.
"""

from __future__ import annotations


class DispatcherError(Exception):
    """The base of all errors of this package."""


class ConfigError(DispatcherError):
    """The configuration is wrong. The message names the key's path, what is wrong and what to do."""


class StartError(DispatcherError):
    """The configuration is valid but the service cannot start, for example because a port is taken."""


class PolicyError(DispatcherError):
    """A policy broke its contract. The request is still served, by a safe choice; the error is counted and logged."""


class InternalError(DispatcherError):
    """An invariant does not hold. This is a bug of the dispatcher."""


class RequestError(DispatcherError):
    """One request cannot be served as asked.

    status: of the response that the client gets.
    reason: a word from a bounded set, for metrics.
    public: the text for the client; the message itself may name pools and addresses and is for logs.
    retry_cause: the word in `retry.on` that allows another attempt; empty if none does.
    """

    status = 500
    reason = "error"
    public = "the request cannot be served"
    retry_cause = ""


class BadRequest(RequestError):
    """The client's request is malformed, too large or too slow. The status is 400 unless another one is given."""

    def __init__(self, message: str, status: int = 400, reason: str = "bad_request") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.public = message


class ClientLeft(RequestError):
    """The client closed its connection before it had the whole response. No response is sent."""

    status = 499
    reason = "client_left"


class NoPoolAvailable(RequestError):
    """No pool is open."""

    status = 503
    reason = "no_pool"
    public = "no pool is available"


class PoolsFull(NoPoolAvailable):
    """Pools are open, but each has as many requests in flight as it may have."""

    reason = "pools_full"
    public = "all pools are busy"


class QueueFull(PoolsFull):
    """Every pool is full, and so is the admission queue."""

    reason = "queue_full"


class QueueTimeout(PoolsFull):
    """No pool had room while the request waited."""

    reason = "queue_timeout"


class OutOfResources(RequestError):
    """This process has no file descriptor or port left. The pool is not at fault."""

    status = 503
    reason = "resources"
    public = "too many connections"


class HandlerFailed(RequestError):
    """A bug of the dispatcher ended the request."""

    reason = "internal"
    public = "internal error"


class UpstreamError(RequestError):
    """An attempt failed at its pool."""


class UpstreamUnreachable(UpstreamError):
    """No connection to the pool could be made. No byte of the request was sent."""

    status = 502
    reason = "connect"
    public = "the pool cannot be reached"
    retry_cause = "connect"


class UpstreamConnectTimeout(UpstreamUnreachable):
    """The pool did not accept a connection in time."""

    status = 504
    reason = "connect_timeout"
    public = "the pool did not accept a connection in time"


class UpstreamStale(UpstreamError):
    """The pool closed a kept-alive connection before it sent any byte of the response."""

    status = 502
    reason = "stale"
    public = "the pool closed the connection without an answer"
    retry_cause = "stale"


class UpstreamProtocolError(UpstreamError):
    """The pool's response is not valid HTTP, or it was broken off."""

    status = 502
    reason = "protocol"
    public = "the pool gave no proper answer"


class UpstreamClosed(UpstreamProtocolError):
    """The pool closed a fresh connection before it sent any byte of the response."""

    reason = "reset"
    retry_cause = "reset"


class UpstreamRejected(UpstreamError):
    """The pool's response has a status for which another attempt is made. The response is discarded."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the pool answered {status}")
        self.status = status
        self.reason = self.retry_cause = str(status)


class UpstreamTimeout(UpstreamError):
    """The pool did not send its response, or the rest of it, in time."""

    status = 504
    reason = "timeout"
    public = "the pool did not answer in time"
    retry_cause = "timeout"
