"""What is told of a request: to the pool about the client, to the access log, to a tracing system."""

import asyncio
import json
from ipaddress import ip_network

import pytest

from dispatcher.errors import StartError
from dispatcher.http.forwarded import Peer
from dispatcher.http.request import forward_request, parse_request
from dispatcher.telemetry.access_log import AccessLog
from tests.net.harness import answer_ok, eventually, front, get, status

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


def told(address, *fields, host="shop.example", trusted=TRUSTED):
    """The lines about the origin that a pool gets."""
    request = parse_request(get("/", *fields, host=host))
    head = forward_request(request, Peer(address, 5000, b"http", trusted)).decode("latin1")
    return [line for line in head.split("\r\n") if line.lower().startswith(("x-f", "x_f", "forwarded"))]


def test_a_stranger_is_not_believed():
    claims = ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil",
              "Forwarded: for=6.6.6.6", "X_Forwarded_For: 6.6.6.6", "x_forwarded-for: 6.6.6.6"]  # fmt: skip
    assert told("192.0.2.1", *claims) == [
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: shop.example",
        'Forwarded: for="192.0.2.1:5000";host="shop.example";proto=http',
    ]


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_a_trusted_proxy_is_believed_and_added_to(address):
    claims = ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 7.7.7.7", "X-Forwarded-Proto: https",
              "X-Forwarded-Host: front.example", 'Forwarded: for="[2001:db8::1]"']  # fmt: skip
    node = f'"[{address}]:5000"' if ":" in address else f'"{address}:5000"'
    assert told(address, *claims) == [
        f"X-Forwarded-For: 6.6.6.6, 7.7.7.7, {address}",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: front.example",
        f'Forwarded: for="[2001:db8::1]", for={node};host="shop.example";proto=http',
    ]


def test_ipv6_is_bare_in_one_and_quoted_in_the_other():
    assert told("fd00::1%eth0", trusted=())[::3] == [
        "X-Forwarded-For: fd00::1",
        'Forwarded: for="[fd00::1]:5000";host="shop.example";proto=http',
    ]


@pytest.mark.parametrize(
    "nominated", ["x-forwarded-for", "X-Forwarded-For, X-Forwarded-Proto", "forwarded, X-FORWARDED-HOST"]
)
def test_nobody_can_take_ours_away(nominated):
    assert len(told("192.0.2.1", f"Connection: {nominated}")) == 4


# -- the access log


def written(f):
    """What was logged is in the file now."""
    assert f.service.access_log.wait_idle()
    f.service.access_log.flush()
    assert f.service.access_log.wait_idle()


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_line_says_what_became_of_a_request(tmp_path):
    path = tmp_path / "access.log"

    async def timed(wire):
        await wire.until(b"\r\n\r\n")
        await wire.send(b"HTTP/1.1 201 Created\r\nServer-Timing: service;dur=0.5\r\nContent-Length: 2\r\n\r\nok")

    async with front(timed, None, policy="round_robin", access_log={"path": str(path)}) as f:
        await f.ask(get("/a?b", "User-Agent: test", "traceparent: 00-aa-bb-01"))
        await f.ask(get("/a?b", "User-Agent: test", "traceparent: 00-aa-bb-01"))
        written(f)
        first, second = entries(path)
        expected = {"client": "127.0.0.1", "method": "GET", "target": "/a?b", "host": "test", "version": "1.1",
                    "status": 201, "pool": "p0", "phase": "exploit"}  # fmt: skip
        assert {key: first[key] for key in expected} == expected
        assert (first["user_agent"], first["traceparent"], first["service_time"]) == ("test", "00-aa-bb-01", 0.0005)
        assert (first["retries"], second["retries"]) == (0, 1)
        assert first["response_time"] > 0
        assert first["bytes"] > len("ok")
        assert (first["ended_by"], first["error"]) == (None, None)


async def test_it_says_who_ended_what_did_not_end_well(tmp_path):
    path = tmp_path / "access.log"

    async def script(wire):
        head = await wire.until(b"\r\n\r\n")
        if b"/cut" in head:
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        elif b"/wait" in head:
            asked.set()
            await wire.rest()

    asked = asyncio.Event()
    async with front(script, access_log={"path": str(path)}) as f:
        client = await f.client()
        await client.send(get("/wait"))
        await asked.wait()
        client.close()
        await f.wait_idle()
        client = await f.client()
        await client.send(get("/cut"))
        await client.rest()
        await f.ask(get("/nothing"))
        await f.ask(b"GET / HTTP/1.1\r\n\r\n")
        await f.ask(b"GET x HTTP/1.1\r\nHost: a\r\n\r\n")
        f.service.drain_pool("p0", True)
        await f.ask(get("/closed"))
        await eventually(lambda: len(f.service.access_log._writer._waiting) == 6)
        written(f)
        assert [(each["status"], each["ended_by"], each["error"]) for each in entries(path)] == [
            (499, "client", None),
            (200, "pool", "protocol"),
            (502, "pool", "reset"),
            (400, "dispatcher", "bad_request"),
            (400, "dispatcher", "bad_request"),
            (503, "dispatcher", "no_pool"),
        ]


@pytest.mark.parametrize("form", ["json", "combined"])
async def test_a_line_is_a_line_whatever_a_client_sends(tmp_path, form):
    path = tmp_path / "access.log"
    nasty = 'a" \\ \t\xe9\x85 - - [01/Jan/2000] "GET / HTTP/1.1" 200'
    async with front(access_log={"path": str(path), "format": form}) as f:
        await f.ask(get('/x"y', f"User-Agent: {nasty}", f"Referer: {nasty}"))
        written(f)
        (line,) = path.read_bytes().decode("ascii").splitlines()
        if form == "json":
            assert json.loads(line)["user_agent"] == nasty
        else:
            assert line.count('"') == 6, "two quotes for each of request, referer, agent"
            assert r"a\x22 \x5c \x09\xe9\x85" in line
            assert " pool=p0 phase=exploit " in line


async def test_a_log_that_was_moved_away_is_begun_anew_at_a_reload(tmp_path):
    path = tmp_path / "access.log"
    async with front(access_log={"path": str(path)}) as f:
        await f.ask(get("/first"))
        path.rename(tmp_path / "access.log.1")
        f.service.reload()
        await f.ask(get("/second"))
        written(f)
        assert [entry["target"] for entry in entries(tmp_path / "access.log.1")] == ["/first"]
        assert [entry["target"] for entry in entries(path)] == ["/second"]


def test_a_log_that_cannot_be_written_is_named():
    with pytest.raises(StartError, match=r"access_log\.path: cannot write /nowhere/x: No such file"):
        AccessLog("/nowhere/x", "json")


# -- tracing


async def test_a_trace_goes_on_through_us_and_its_span_says_what_happened():
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


async def test_without_tracing_a_clients_trace_passes_as_it_is():
    seen = []

    async def script(wire):
        seen.append(await wire.until(b"\r\n\r\n"))
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with front(script, answer_ok) as f:
        assert status(await f.ask(get("/", "traceparent: 00-11-22-01"))) == 200
        assert b"\r\ntraceparent: 00-11-22-01\r\n" in seen[0]
