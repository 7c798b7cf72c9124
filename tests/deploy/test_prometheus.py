"""The rules and the scrape: each alert has its tests and its page in the runbook, each metric in the rules exists."""

import asyncio
import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest
import yaml

from dispatcher.persistence.redis_sync import SharedLearning
from tests.proxy.harness import answer_ok, front, get

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "prometheus"
RULES = sorted((HERE / "rules").glob("*.yml"))
TESTS = sorted((HERE / "tests").glob("*.yml"))
LINES = 510  # of a scrape with 10 pools: rendering takes 12 to 20 µs each
PARALLEL = 50

promtool_is_needed = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (Debian: prometheus)"
)


def promtool(*arguments, text=None):
    return subprocess.run(["promtool", *map(str, arguments)], input=text, capture_output=True, text=True, check=False)


def rules(kind):
    """All rules of a kind, alert or record, by name."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


ALERTS = rules("alert")


def anchors(text):
    """Those that GitHub makes of headings of one word."""
    return {heading.lower() for heading in re.findall(r"^#+ (\w+)$", text, re.MULTILINE)}


async def scrape(f):
    async with aiohttp.ClientSession() as session, session.get("http://{}:{}/metrics".format(*f.admin)) as answer:
        assert answer.status == 200
        return await answer.text()


def names(text):
    """Of the series that there are, or will be once something has happened."""
    there = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        there |= {name + end for end in ("_bucket", "_count", "_sum")} if kind == "histogram" else {name}
    return there


def series(text):
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


@promtool_is_needed
@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", HERE / "prometheus.yml"),
        ("check", "rules", "--lint-fatal", *RULES),
        pytest.param(("test", "rules", *TESTS), marks=pytest.mark.slow),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_promtool_finds_nothing(command):
    done = promtool(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_scrapes_the_dispatcher_and_loads_the_rules():
    config = yaml.safe_load((HERE / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job["static_configs"] for job in config["scrape_configs"]}
    assert jobs == {
        "lased-dispatcher": [{"targets": ["dispatcher:9090"]}],
        "lased-loadgen": [{"targets": ["loadgen:9100"]}],
    }
    assert sorted(path for pattern in config["rule_files"] for path in HERE.glob(pattern)) == RULES


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_who_reads_it_needs(name):
    alert = ALERTS[name]
    notes = alert["annotations"]
    assert re.fullmatch(r"Lased([A-Z][a-z]+)+", name)
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert "{{" not in notes["summary"]
    assert "{{" in notes["description"]
    page, _, anchor = notes["runbook_url"].partition("#")
    path = ROOT / page.partition("/blob/main/")[2]
    assert anchor == name.lower()
    assert anchor in anchors(path.read_text())


@pytest.mark.parametrize("name", ALERTS)
def test_a_page_of_the_runbook_says_all_three(name):
    page = (ROOT / "docs" / "runbook.md").read_text().partition(f"## {name}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\*\*(\w+)\.\*\*", page, re.MULTILINE) == ["Means", "Look", "Do"]


def test_the_runbook_has_no_other_pages_and_no_broken_links():
    text = (ROOT / "docs" / "runbook.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(ALERTS)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert not path or (ROOT / "docs" / path).exists(), target
        assert not anchor or anchor in anchors(text), target


def test_every_alert_is_tried_in_both_directions():
    tried = {
        (check["alertname"], bool(check["exp_alerts"]))
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        for check in test["alert_rule_test"]
    }
    assert tried == {(name, fires) for name in ALERTS for fires in (True, False)}


async def test_every_metric_of_the_rules_and_the_runbook_exists():
    async with front(policy="lased") as f:
        SharedLearning("redis://localhost", "test", lambda: None, f.service.registry)
        there = names(await scrape(f))
    records = rules("record")
    for name, rule in (ALERTS | records).items():
        expression = rule["expr"]
        assert set(re.findall(r"[a-z_]+:lased_[a-z0-9_:]+", expression)) <= set(records), name
        assert set(re.findall(r"(?<![:\w])lased_\w+", expression)) <= there, name
    quoted = " ".join(re.findall(r"`([^`]+)`", (ROOT / "docs" / "runbook.md").read_text()))
    assert set(re.findall(r"[a-z_]+:lased_[a-z0-9_:]+", quoted)) <= set(records)
    assert set(re.findall(r"(?<![:\w])lased_\w+", quoted)) <= there


@promtool_is_needed
async def test_a_scrape_is_clean():
    async with front(answer_ok, None, policy="lased", shadow=["jsq"]) as f:
        for _ in range(20):
            await f.ask(get())
        await f.ask(b"nonsense\r\n\r\n")
        text = await scrape(f)
    done = promtool("check", "metrics", text=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_a_scrape_of_ten_pools_is_short():
    async with front(*[answer_ok] * 10, policy="lased") as f:
        for _ in range(50):
            await f.ask(get())
        text = await scrape(f)
    lines = [line for line in text.splitlines() if "_created" not in line]  # which `serve` switches off
    assert len(lines) < LINES


# -- whatever clients send


def odd(i):
    """A request of which every part that a client chooses is new; one kind in eight."""
    word = f"odd{i}"
    return (
        get(f"/{word}?{word}={i}", f"X-{word}: {word}", method=word.upper()),
        get("/" + word * 500, method="GET"),
        get(f"/%00{word}/\xff\xe9", f"User-Agent: {word}"),
        get("*", method="OPTIONS", host=f"{word}.example"),
        get(f"/{word}", method=f"({word})"),
        f"GET /{word} HTTP/9.{i}\r\nHost: {word}\r\n\r\n".encode(),
        get(f"{word}:443", method="CONNECT"),
        get(f"/{word}", f"Content-Length: {word}", f"Transfer-Encoding: {word}", method="POST"),
    )[i % 8]


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_label_values_are_bounded(count):
    async with front(policy="lased", health={"passive_failures": 0, "error_ratio": 0}) as f:
        left = iter(range(count))

        async def send(these):
            for i in these:
                client = await f.client()
                with contextlib.suppress(EOFError, ConnectionError):
                    await client.send(odd(i))
                    await client.message()
                client.kill()
                f.clients.remove(client)

        await send(next(left) for _ in range(80))
        before = await scrape(f)
        await asyncio.gather(*[send(left) for _ in range(PARALLEL)])
        await f.wait_idle()
        after = await scrape(f)
        reasons = re.findall(r'^lased_rejected_total\{reason="(\w+)"\}', after, re.MULTILINE)
        counted = sum(f.metric("lased_rejected_total", reason=reason) for reason in reasons)
        counted += sum(f.metric("lased_requests_total", pool="p0", code=code) for code in ("2xx", "4xx", "5xx"))
    assert counted == count
    assert series(after) == series(before)
    assert "odd" not in after.lower()
