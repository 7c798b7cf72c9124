"""The load generator's own metrics: planned, sent, late and finished requests."""

import asyncio
import urllib.request

import numpy as np
import pytest
from aiohttp import web

from dispatcher.errors import ConfigError
from loadgen.attack.driver import Attack, Limits
from loadgen.attack.progress import RunProgress
from loadgen.attack.prometheus import RunMetrics
from loadgen.attack.records import Records
from loadgen.attack.targets import Request


async def test_a_run_is_reported_while_it_lasts():
    async def answer(request):
        return web.Response(status=200 if request.path == "/" else 503)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    urls = (f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{port}/no", "http://127.0.0.1:1/")
    records = Records(np.arange(15) / 200)
    records.target[:] = np.arange(15) % 3
    progress = RunProgress(records)
    metrics = RunMetrics(progress, 100.0)
    run = asyncio.create_task(Attack(Request(urls), records, Limits(timeout=1.0)).run())
    for at in (0.02, 0.05, 0.1):  # the counters are the same however often one looks
        await asyncio.sleep(0.03)
        progress.update(at)
    await run
    progress.update(1.0)
    progress.update(2.0)
    assert (progress.sent, progress.finished, progress.in_flight, progress.dropped) == (15, 15, 0, 0)
    value = metrics.registry.get_sample_value
    assert value("loadgen_target_rate") == 100
    assert value("loadgen_sent_total") == 15
    assert [value("loadgen_requests_total", {"outcome": o}) for o in ("completed", "refused", "unanswered")] == [
        5,
        5,
        5,
    ]
    assert value("loadgen_send_lateness_seconds_count") == 15
    assert value("loadgen_response_duration_seconds_count") == value("loadgen_service_duration_seconds_count") == 5
    assert value("loadgen_response_duration_seconds_sum") >= value("loadgen_service_duration_seconds_sum") > 0
    with metrics.serve("127.0.0.1", 0) as at:
        fetch = asyncio.to_thread(lambda: urllib.request.urlopen(f"http://127.0.0.1:{at}/metrics").read())
        assert b"loadgen_target_rate 100.0" in await fetch
        with pytest.raises(ConfigError, match=f"--metrics: 127.0.0.1:{at}: in use"), metrics.serve("127.0.0.1", at):
            pass
    await runner.cleanup()
