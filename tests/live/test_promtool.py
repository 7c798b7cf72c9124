"""Prometheus's own linter on a live scrape."""

import shutil
import subprocess

import aiohttp
import pytest

from loadgen.experiments.live.backends import LivePoolSpec, live_system


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)")
async def test_the_metrics_are_clean_and_few():
    pools = [LivePoolSpec(f"p{i}", 200.0, 200.0) for i in range(2)]
    async with live_system("lased", pools) as system, aiohttp.ClientSession() as session:
        for _ in range(20):
            async with session.get(system.url) as answer:
                await answer.read()
        async with session.get(f"{system.admin}/metrics") as answer:
            text = await answer.text()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
