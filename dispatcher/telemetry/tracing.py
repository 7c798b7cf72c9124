"""Requests as OpenTelemetry spans; the extra `otel`. A client's trace is gone on with, and the pool told of our span.

Imported only where tracing is configured.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dispatcher.http.request import Request
from dispatcher.proxy.exchange import Exchange

PROPAGATED = (b"traceparent", b"tracestate")
CONTEXT = TraceContextTextMapPropagator()


class RequestSpan:
    """context.Span."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        CONTEXT.inject(carrier, trace.set_span_in_context(span))
        self.traceparent = carrier.get("traceparent", "").encode()

    def end(self, exchange: Exchange) -> None:
        span, ticket = self._span, exchange.last_ticket
        span.set_attribute("http.response.status_code", exchange.status)
        span.set_attribute("lased.pool", exchange.pool)
        span.set_attribute("lased.retries", exchange.retries)
        if ticket is not None:
            span.set_attribute("lased.phase", ticket.decision.phase.value)
            span.set_attribute("lased.in_flight", ticket.in_flight_before)
        if exchange.status >= 500:
            span.set_status(trace.StatusCode.ERROR, exchange.error.reason if exchange.error else "")
        span.end()


class OpenTelemetry:
    """context.Spans. exporter: where they go; by default to a collector at `endpoint`, in batches, by a thread."""

    def __init__(self, endpoint: str, service: str, exporter: SpanExporter | None = None) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("lased-dispatcher")

    def begin(self, request: Request) -> RequestSpan:
        said = {name.lower(): value for name, value in request.headers}
        carrier = {name.decode(): said[name].decode("latin1") for name in PROPAGATED if name in said}
        method = request.method.decode("latin1")
        span = self._tracer.start_span(
            method,
            context=CONTEXT.extract(carrier),
            kind=trace.SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": request.target.partition(b"?")[0].decode("latin1")},
        )
        return RequestSpan(span)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
