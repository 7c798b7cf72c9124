"""OpenTelemetry spans of requests, for the extra `otel`. A span continues the client's trace.

The pool receives the context of our span. This module is imported only if tracing is configured.
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

CONTEXT_HEADERS = (b"traceparent", b"tracestate")
CONTEXT = TraceContextTextMapPropagator()


class RequestSpan:
    """The span of one request.

    traceparent: the header value for the pool, as in W3C Trace Context.
    """

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        CONTEXT.inject(carrier, trace.set_span_in_context(span))
        self.traceparent = carrier.get("traceparent", "").encode()

    def end(self, exchange: Exchange) -> None:
        """Set the attributes of the finished request and end the span."""
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
    """Starts a span for each request and exports the spans in batches from a thread.

    endpoint: URL of the collector's OTLP/HTTP receiver.
    service: name of this service in the traces.
    exporter: receives the spans instead of the collector at `endpoint`.
    """

    def __init__(self, endpoint: str, service: str, exporter: SpanExporter | None = None) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("lased-dispatcher")

    def begin(self, request: Request) -> RequestSpan:
        """Start the span of a request, as a child of the client's span if the request names one."""
        headers = {name.lower(): value for name, value in request.headers}
        carrier = {name.decode(): headers[name].decode("latin1") for name in CONTEXT_HEADERS if name in headers}
        method = request.method.decode("latin1")
        # Only the path is exported, because a query may hold secrets.
        path = request.target.partition(b"?")[0].decode("latin1")
        span = self._tracer.start_span(
            method,
            context=CONTEXT.extract(carrier),
            kind=trace.SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path},
        )
        return RequestSpan(span)

    def close(self) -> None:
        """Export the remaining spans."""
        self._provider.shutdown()
