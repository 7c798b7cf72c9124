"""OpenTelemetry tracing of requests."""

import asyncio

import pytest

from tests.proxy.harness import (
    answer_ok,
    front,
    get,
    status,
)


async def test_a_span_continues_the_clients_trace_and_describes_the_request():
    trace = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from dispatcher.telemetry.tracing import OpenTelemetry

    exporter, seen = trace.InMemorySpanExporter(), []

    async def script(wire):
        while True:
            seen.append(await wire.until(b"\r\n\r\n"))
            await wire.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    async with front(script) as f:
        spans = OpenTelemetry("", "test", exporter)
        f.service.context.begin_span = spans.begin
        theirs = "0af7651916cd43dd8448eb211c80319c"
        await f.ask(get("/a?secret", f"traceparent: 00-{theirs}-b7ad6b7169203331-01", "tracestate: x=1"))
        await f.ask(get("/b"))
        await f.wait_idle()
        await asyncio.to_thread(spans.close)
    first, second = exporter.get_finished_spans()
    assert f"{first.context.trace_id:032x}" == theirs
    assert f"{first.parent.span_id:016x}" == "b7ad6b7169203331"
    assert b"\r\ntraceparent: 00-%b-%016x-01\r\n" % (theirs.encode(), first.context.span_id) in seen[0]
    assert seen[0].lower().count(b"traceparent:") == 1
    assert b"\r\ntracestate: x=1\r\n" in seen[0]
    assert first.attributes["lased.pool"] == "p0"
    assert first.attributes["http.response.status_code"] == 503
    assert first.attributes["url.path"] == "/a", "what stands in a query may be secret"
    assert not first.status.is_ok
    assert second.parent is None
    assert second.context.trace_id != first.context.trace_id


async def test_without_tracing_the_clients_trace_is_forwarded_unchanged():
    seen = []

    async def script(wire):
        seen.append(await wire.until(b"\r\n\r\n"))
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with front(script, answer_ok) as f:
        assert status(await f.ask(get("/", "traceparent: 00-11-22-01"))) == 200
        assert b"\r\ntraceparent: 00-11-22-01\r\n" in seen[0]
