"""What the forwarding path tells whoever counts. A protocol only; the recorders answer it."""

from __future__ import annotations

from typing import Protocol

from dispatcher.errors import RequestError


class Events(Protocol):
    """Called on the hot path, so each must be quick. Every word given is from a bounded set."""

    def answered(self, pool: str, status: int, seconds: float) -> None:
        """A routed request is over: status as the client saw it (499 if it left), seconds from its head to the end."""
        ...

    def upstream_failed(self, pool: str, error: RequestError) -> None: ...
    def retried(self, reason: str) -> None: ...
    def rejected(self, reason: str) -> None:
        """A request was refused before it was routed."""
        ...

    def queued(self, seconds: float) -> None:
        """A request has waited for room so long, and is routed now, or not any more."""
        ...

    def client_left(self) -> None: ...
    def pool_up(self, pool: str, verdict: str) -> None:
        """up, drained, down (by probes) or ejected (by requests); told when it may have changed."""
        ...

    def pool_gone(self, pool: str) -> None:
        """It is not configured any more; requests on it may still end."""
        ...

    def internal_error(self, error: BaseException) -> None:
        """Our own bug, already answered with 500."""
        ...
