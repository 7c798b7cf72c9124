"""Load reports of pools: parsing, plausibility, and forwarding to clients."""

import pytest

from dispatcher.core.types import Report
from dispatcher.http import load_report as orca
from tests.proxy.harness import (
    front,
)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (
            b'JSON {"rps_fractional": 12.5, "named_metrics": {"queue_depth": 3, "completed": 9, "busy_seconds": 0.5}}',
            {"rps": 12.5, "queue_depth": 3, "served": 9, "busy": 0.5},
        ),
        (b'JSON {"cpu_utilization": 0.5}', {"utilization": 0.5}),
        (b'JSON {"cpu_utilization": 0.5, "application_utilization": 1.2}', {"utilization": 1.2}),
        (
            b"TEXT cpu_utilization=0.3, named_metrics.queue_depth=4,named_metrics.other=x",
            {"utilization": 0.3, "queue_depth": 4},
        ),
        (b"TEXT named_metrics.queue_depth=-1, rps_fractional=7", {"rps": 7}),
        (b'JSON {"rps_fractional": true, "named_metrics": {"queue_depth": 1}}', {"queue_depth": 1}),
    ],
)
def test_reports_are_read(value, fields):
    assert orca.parse(value, 1.0) == Report(1.0, **fields)


NOTHING = (
    b"",
    b"JSON",
    b"JSON {",
    b"JSON []",
    b"JSON 3",
    b"JSON null",
    b'JSON {"rps_fractional": "9"}',
    b"BIN 12345",
    b"TEXT",
    b"TEXT x",
    b'JSON {"rps_fractional": 1e999}',
    b'JSON {"rps_fractional": NaN}',
    b'JSON {"named_metrics": [1]}',
    b"TEXT rps_fractional=nan",
    b"TEXT rps_fractional=inf",
    b'JSON {"rps_fractional": 1' + b"0" * 400 + b"}",
    b"JSON " + b"[" * 90_000,
    b"json {}",
    b"\xff\xfe",
)


@pytest.mark.parametrize("value", NOTHING)
def test_unusable_reports_are_ignored(value):
    assert orca.parse(value, 1.0) is None


def reporting(value):
    async def script(pool):
        while True:
            await pool.message()
            await pool.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nEndpoint-Load-Metrics: %s\r\n\r\nok" % value)

    return script


GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
VALUE = b"TEXT named_metrics.queue_depth=4"


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("read", [False, True])
async def test_a_report_is_read_and_forwarded_as_configured(read, forward):
    settings = {"read": read, "forward": forward}
    async with front(reporting(VALUE), policy="partial_sed", reports=settings) as f:
        head, body = await f.ask(GET)
        assert body == b"ok"
        assert (b"endpoint-load-metrics" in head.lower()) is forward
        assert (b"Endpoint-Load-Metrics: " + VALUE in head) is forward
        await f.wait_idle()
        assert f.service.router.policy.observations["p0"].usual == (4.0 if read else None)


async def test_an_unusable_report_does_no_harm():
    async with front(reporting(b"JSON " + b"{" * 3000), policy="partial_sed") as f:
        head, body = await f.ask(GET)
        assert (head.split(b" ")[1], body) == (b"200", b"ok")
        await f.wait_idle()
        assert f.metric("lased_policy_errors_total") == 0
