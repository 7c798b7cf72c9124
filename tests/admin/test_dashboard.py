"""The dashboard, its stream of events, and `dispatcher top`. A real browser renders the page if one is installed."""

import asyncio
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile

import aiohttp
import pytest
from rich.console import Console

from dispatcher.admin import dashboard
from dispatcher.admin.dashboard import MAX_VIEWERS, content_security_policy
from dispatcher.top import picture
from tests.proxy.harness import (
    answer_ok,
    front,
    get,
)

TOKEN = "0123456789abcdef-page"  # noqa: S105 - of these tests only


def address(f):
    return f"http://{f.admin[0]}:{f.admin[1]}"


async def read(stream, n):
    """The next n events: [(name, data)]."""
    events = []
    while len(events) < n:
        block = (await asyncio.wait_for(stream.content.readuntil(b"\n\n"), 5)).decode()
        name, data = (line.partition(": ")[2] for line in block.strip().split("\n"))
        events.append((name, json.loads(data)))
    return events


@pytest.fixture
def quick_samples(monkeypatch):
    monkeypatch.setattr(dashboard, "SAMPLE_INTERVAL_SECONDS", 0.02)


@pytest.mark.usefixtures("quick_samples")
async def test_the_stream_sends_the_past_and_then_the_present():
    async with front(answer_ok, answer_ok, policy="lased") as f:
        for _ in range(5):
            await f.ask(get())
        async with aiohttp.ClientSession() as session, session.get(f"{address(f)}/events") as stream:
            assert stream.content_type == "text/event-stream"
            (past, pictures), (now, state) = await read(stream, 2)
            assert (past, now) == ("past", "now")
            assert set(pictures[0]) == {"regret", "estimates", "routed"}
            (_, later), *_ = await read(stream, 1)
            assert later["decisions"] == state["decisions"] == 5
            assert [pool["name"] for pool in later["pools"]] == ["p0", "p1"]
            assert sum(pool["routed"] for pool in later["pools"]) == 5
            assert [row["n"] for row in later["last"]] == [5, 4, 3, 2, 1]
            assert later["regret"]["total"] >= 0


@pytest.mark.usefixtures("quick_samples")
async def test_the_number_of_viewers_is_limited():
    async with front() as f, aiohttp.ClientSession() as session:
        streams = [await session.get(f"{address(f)}/events") for _ in range(MAX_VIEWERS)]
        async with session.get(f"{address(f)}/events") as refused:
            assert refused.status == 503
        for stream in streams:
            stream.close()
        for _ in range(100):
            async with session.get(f"{address(f)}/events") as again:
                if again.status == 200:
                    break
            await asyncio.sleep(0.05)
        assert again.status == 200


async def test_the_page_can_load_nothing_but_its_own_data():
    async with front() as f, aiohttp.ClientSession() as session, session.get(address(f)) as answer:
        html, rules = await answer.text(), answer.headers["Content-Security-Policy"]
    assert rules.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in rules
    assert content_security_policy(html) == rules
    assert content_security_policy(html.replace("follow();", "evil();", 1)) != rules, "another script is another hash"
    assert not re.search(r'(src|href)="(?!/)', html), "nothing from elsewhere"
    assert " style=" not in html
    assert " on" not in re.sub(r"<script>.*</script>", "", html, flags=re.DOTALL).replace(" on ", "")


async def test_a_token_protects_the_data_but_not_the_page():
    async with front(admin_token=TOKEN) as f, aiohttp.ClientSession() as session:
        async with session.get(address(f)) as page:
            assert page.status == 200
            assert "p0" not in await page.text()
        async with session.get(f"{address(f)}/events") as refused:
            assert refused.status == 401
        async with session.get(f"{address(f)}/events", headers={"Authorization": f"Bearer {TOKEN}"}) as stream:
            assert stream.status == 200


async def browse(f, until):
    """The page that a browser shows once this JavaScript condition holds, by the DevTools protocol."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium here")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            address(f),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            return await asyncio.wait_for(_look(process, until), 40)
        finally:
            process.kill()
            await process.wait()
            process._transport.close()


async def _look(process, until):
    while b"DevTools listening on" not in (line := await process.stderr.readline()):
        assert line, "the browser did not start"
    port = re.search(rb"://([^/]+)/", line)[1].decode()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{port}/json") as pages:
            page = next(each for each in await pages.json() if each["type"] == "page")
        async with session.ws_connect(page["webSocketDebuggerUrl"]) as tools:

            async def value(expression):
                await tools.send_json({"id": 1, "method": "Runtime.evaluate", "params": {"expression": expression}})
                return (await tools.receive_json())["result"]["result"].get("value")

            while not await value(until):
                await asyncio.sleep(0.1)
            return await value("document.documentElement.outerHTML")


@pytest.mark.slow
async def test_a_browser_shows_pools_plane_regret_and_decisions():
    async with front(answer_ok, answer_ok, policy="lased") as f:
        for _ in range(20):
            await f.ask(get())
        dom = await browse(f, "document.getElementById('decisions').children.length == 12")
    text = re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style)>.*?</\1>", "", dom, flags=re.DOTALL))
    assert re.search(r'<p id="status" role="status">live</p>', dom)
    assert "policy lased · 20 decisions" in text
    assert re.search(r"p0\s+up\s+0", text)
    assert len(re.findall(r"<rect", dom)) > 144, "the state plane"
    assert re.search(r'aria-label="Of 144 states, \d+ send the next request to p0', dom)
    assert "forced trial" in text
    assert re.search(r"of 20 decisions: \d+ exploration", text)


@pytest.mark.slow
async def test_a_browser_shows_what_curve_learns_and_which_oracle_is_meant():
    async with front(answer_ok, answer_ok, policy="curve") as f:
        for _ in range(20):
            await f.ask(get())
        dom = await browse(f, "document.getElementById('decisions').children.length == 12")
    text = re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style)>.*?</\1>", "", dom, flags=re.DOTALL))
    for column in ("answers in", "keeps up to", "at most a second"):
        assert column in text
    assert re.search(r"[\d.e-]+ ms \([\d.e-]+ to ([\d.e+-]+|∞)\)", text)
    assert "The oracle: the score of curve" in text
    assert re.search(r'aria-label="Of 144 states, \d+ send the next request to p0', dom)


@pytest.mark.slow
async def test_a_browser_without_the_token_is_asked_for_it():
    async with front(admin_token=TOKEN) as f:
        dom = await browse(f, "!document.getElementById('login').hidden")
    assert "needs the admin token" in dom
    assert not re.search(r'<form id="login" hidden', dom)


@pytest.mark.slow
async def test_top_shows_the_state_once_and_explains_errors():
    async def top(f, **environment):
        command = [sys.executable, "-m", "dispatcher", "top", "--once", "--admin", address(f)]
        return await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=30, env={"COLUMNS": "120", **environment}
        )

    async with front(answer_ok, answer_ok, policy="lased") as f:
        for _ in range(3):
            await f.ask(get())
        await asyncio.sleep(1.1)
        done = await top(f)
        assert done.returncode == 0, done.stderr
        assert "policy lased  3 decisions" in done.stdout
        assert re.search(r"p0\s+up\s+0", done.stdout)
        assert "forced trial" in done.stdout
    gone = await top(f)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.startswith(f"error: cannot read from {address(f)}")
    async with front(admin_token=TOKEN) as f:
        refused = await top(f)
        assert (refused.returncode, refused.stderr) == (
            2,
            "error: the admin side requires a token: set LASED_ADMIN_TOKEN\n",
        )
        assert (await top(f, LASED_ADMIN_TOKEN=TOKEN)).returncode == 0


def test_top_shows_a_pool_without_an_estimate():
    pool = {
        "name": "a",
        "verdict": "drained",
        "in_flight": 0,
        "servers": 2,
        "routed": 0,
        "interval": [None, None],
        "estimate": None,
        "true_rate": None,
        "observations": None,
    }
    now = {
        "version": "0",
        "policy": {"name": "jsq"},
        "decisions": 0,
        "episode": None,
        "regret": None,
        "pools": [pool],
        "last": [],
    }
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(picture(now, now))
    assert re.search(r"a\s+drained\s+0 of 2\s+–", console.export_text())
