"""Changes of a running service through the admin side, and the access to it."""

import asyncio
import json
import sys

import aiohttp
import pytest

from dispatcher.registry import registered
from tests.proxy.harness import Pool, answer_ok, eventually, front, get, routable_pools, status

TOKEN = "0123456789abcdef-secret"  # noqa: S105 - of these tests only


async def call(f, method, path, body=None, **headers):
    """(status, JSON) of an admin request, with these fields."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    data = json.dumps(body) if isinstance(body, dict) else body
    if body is not None:
        named.setdefault("Content-Type", "application/json")
    url = f"http://{f.admin[0]}:{f.admin[1]}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, data=data, headers=named) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text


async def test_pools_come_are_drained_and_go():
    async with front() as f:
        fresh = await Pool(answer_ok).open()
        entry = {"name": "new", "url": f"http://127.0.0.1:{fresh.port}", "guess": 7.5}
        code, there = await call(f, "POST", "/pools", entry)
        assert code == 201
        assert [(pool["name"], pool["guess"]) for pool in there["pools"]] == [("p0", 1.0), ("new", 7.5)]
        assert routable_pools(f) == ["p0", "new"]
        assert (await call(f, "POST", "/pools/p0/drain"))[0] == 200
        assert routable_pools(f) == ["new"]
        assert (await f.ask(get("/here")))[1] == b"/here"
        assert f.pools[0].connections == []
        assert (await call(f, "POST", "/pools/p0/undrain"))[0] == 200
        code, there = await call(f, "DELETE", "/pools/new")
        assert (code, [pool["name"] for pool in there["pools"]]) == (200, ["p0"])
        assert (await call(f, "GET", "/pools"))[1]["pools"][0]["drained"] is False
        await fresh.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "why"),
    [
        ("POST", "/pools", {"name": "p0", "url": "http://127.0.0.1:1"}, 400, "two pools are named 'p0'"),
        ("POST", "/pools", {"name": "x"}, 400, "pools.1.url: is missing"),
        ("POST", "/pools", {"name": "x", "url": "http://h:1", "wieght": 3}, 400, "unknown key"),
        ("POST", "/pools", {"name": "../x", "url": "http://h:1"}, 400, "pools.1.name"),
        ("POST", "/pools", "[1]", 400, "must be a JSON object"),
        ("POST", "/pools", "{", 400, "is not JSON"),
        ("POST", "/pools", "{" + " " * 70_000, 413, ""),
        ("DELETE", "/pools/p0", None, 400, "pools: list should have at least 1 item"),
        ("DELETE", "/pools/p9", None, 404, "there is no pool 'p9'; there are: p0"),
        ("POST", "/pools/p9/drain", None, 404, "there is no pool"),
        ("POST", "/pools/p0/explode", None, 404, ""),
        ("POST", "/policy", {"name": "jqs"}, 400, "did you mean 'jsq'"),
        ("POST", "/policy", {"name": "lased", "options": {"n0": 0}}, 400, "n0 must be from 1"),
        ("GET", "/policy", None, 405, ""),
    ],
)
async def test_an_invalid_change_is_reported_and_changes_nothing(method, path, body, code, why):
    async with front() as f:
        before = f.service.config
        got, answer = await call(f, method, path, body)
        assert got == code
        assert why in (answer["error"] if isinstance(answer, dict) else answer)
        assert f.service.config is before
        assert (await f.ask(get("/still")))[1] == b"/still"


async def test_a_body_without_the_json_content_type_is_refused():
    async with front() as f:
        code, answer = await call(f, "POST", "/policy", {"name": "jsq"}, Content_Type="text/plain")
        assert (code, answer["error"]) == (415, "the body must be JSON: Content-Type: application/json")


async def test_without_the_token_only_the_health_is_visible():
    async with front(admin_token=TOKEN) as f:
        for path in ("/metrics", "/state", "/explain", "/pools"):
            assert (await call(f, "GET", path))[0] == 401
            assert (await call(f, "GET", path, Authorization=f"Bearer {TOKEN}"))[0] == 200
        for wrong in ("", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"bearer{TOKEN}", "Bearer é"):
            assert (await call(f, "POST", "/reload", Authorization=wrong))[0] == 401
        assert (await call(f, "GET", "/healthz"))[0] == 200
        assert (await call(f, "GET", "/readyz"))[0] == 200
        assert TOKEN not in repr(f.service.config)


@pytest.mark.parametrize(
    "fields",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_a_page_of_another_site_is_refused(fields):
    async with front() as f:
        assert (await call(f, "POST", "/reload", **fields))[0] == 403
        assert (await call(f, "GET", "/state", **fields))[0] == 403


async def test_the_own_page_and_a_plain_client_are_accepted():
    async with front() as f:
        own = f"http://{f.admin[0]}:{f.admin[1]}"
        assert (await call(f, "GET", "/state", Origin=own, Sec_Fetch_Site="same-origin"))[0] == 200
        assert (await call(f, "POST", "/reload", Origin=own))[0] == 200
        assert (await call(f, "POST", "/reload"))[0] == 200


@pytest.mark.parametrize(
    ("host", "code"),
    [("localhost:1", 200), ("[::1]", 200), ("127.0.0.1", 200), ("evil.example", 421), ("127.0.0.1.evil.example", 421)],
)
async def test_a_host_name_that_points_to_this_machine_is_refused(host, code):
    async with front() as f:
        assert (await call(f, "GET", "/state", Host=host))[0] == code


async def test_from_other_machines_nothing_changes_without_a_token():
    async with front(admin="0.0.0.0:0") as f:
        f.admin = ("127.0.0.1", f.admin[1])
        assert (await call(f, "GET", "/state"))[0] == 200
        code, answer = await call(f, "POST", "/reload")
        assert (code, answer["error"]) == (403, "set admin_token to change anything from other machines")


async def test_a_new_policy_starts_with_what_was_learned():
    async with front(answer_ok, answer_ok, policy="greedy") as f:
        for _ in range(6):
            await f.ask(get())
        before = {pool: mean.total for pool, mean in f.service.router.policy.estimates().items() if mean.observations}
        assert before
        assert (await call(f, "POST", "/policy", {"name": "jsq"}))[1]["policy"]["name"] == "jsq"
        for _ in range(3):
            await f.ask(get())
        assert (await call(f, "POST", "/policy", {"name": "lased", "options": {"n0": 3}}))[0] == 200
        after = {pool: mean.total for pool, mean in f.service.router.policy.estimates().items() if mean.observations}
        assert before == after, "jsq keeps what was learned"
        assert f.metric("lased_policy_info", policy="lased", ties="first") == 1
        assert f.metric("lased_policy_info", policy="greedy", ties="first") == 0
        total = sum(f.metric("lased_requests_total", pool=pool, code="2xx") for pool in ("p0", "p1"))
        assert total == 9, "no counter began anew"


async def test_policies_change_under_traffic_and_every_count_stays_right():
    async def slow(wire):
        while True:
            await wire.until(b"\r\n\r\n")
            await asyncio.sleep(0.003)
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def client_loop(f, answers):
        client = await f.client()
        while not over.is_set():
            await client.send(get())
            answers.append(status(await client.message()))

    over = asyncio.Event()
    async with front(slow, slow, answer_ok, policy="jsq", shadow=["lased", "greedy", "round_robin"]) as f:
        answers = []
        clients = [asyncio.create_task(client_loop(f, answers)) for _ in range(8)]
        for name in [*registered(), *reversed(registered())]:
            f.service.control.set_policy({"name": name})
            n = len(answers)
            await eventually(lambda n=n: len(answers) > n + 16)
        over.set()
        await asyncio.gather(*clients)
        await f.wait_idle()
        assert set(answers) == {200}
        assert f.metric("lased_policy_errors_total") == 0
        assert all(shadow.faults == 0 for shadow in f.service.shadows.all())


async def test_shadows_are_scored_on_the_traffic_that_they_do_not_route():
    async with front(answer_ok, answer_ok, policy="round_robin", shadow=["jsq", "round_robin"]) as f:
        for _ in range(40):
            await f.ask(get())
        f.service.admin.refresh_metrics()
        assert f.metric("lased_shadow_disagreements_total", policy="round_robin") == 0
        assert f.metric("lased_shadow_disagreements_total", policy="jsq") == 20, "alone, jsq takes the first"
        assert f.metric("lased_shadow_decisions_total", policy="jsq", pool="p0") == 40
        assert f.metric("lased_shadow_errors_total", policy="jsq") == 0
        assert f.metric("lased_shadow_regret_decisions_total", policy="jsq", cause="estimation") == 0
        assert len(f.pools[1].connections) > 0
        state = (await call(f, "GET", "/state"))[1]["shadow"]
        assert [(each["policy"], each["decisions"], each["disagreements"]) for each in state] == [
            ("jsq", 40, 20),
            ("round_robin", 40, 0),
        ]


async def raw(f, head, body=b""):
    """The status of an admin request, byte for byte."""
    reader, writer = await asyncio.open_connection(*f.admin)
    writer.write(head + body)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' + b"[" * 30000,
        b'{"name":"lased","options":{"n0":Infinity}}',
        b'{"name":"lased","options":{"c":NaN}}',
        b'{"name":"lased","options":{"c":' + b"9" * 4000 + b"}}",
        b'{"name":"envoy_least_request","options":{"choice_count":1000000000}}',
        b'{"name":"greedy","options":{"estimator":"window:size=1e400"}}',
        b'{"name":"\\ud800"}',
        b'{"name":"\xff"}',
        b'{"name":"antigravity:geohash"}',
        b'{"name":3}',
        b'{"name":[]}',
        b"{}x",
    ],
)
async def test_odd_policies_are_a_400(body):
    async with front() as f:
        head = b"POST /policy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        assert await raw(f, head + b"Content-Length: %d\r\n\r\n" % len(body), body) == 400
        charset = head.replace(b"json\r\n", b"json; charset=foo\r\n")
        assert await raw(f, charset + b"Content-Length: %d\r\n\r\n" % len(body), body) == 400
        assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "host", ["evil.example", "", "localhost:x", "localhost:999999", "\x80", "a@127.0.0.1", "[::1", "::1]"]
)
async def test_odd_hosts_are_refused(host):
    async with front() as f:
        assert await raw(f, f"GET /state HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("latin1")) in (
            400,
            421,
        )


async def test_changes_that_come_at_once_are_all_answered():
    async with front() as f:
        url = f"http://{f.admin[0]}:{f.admin[1]}"

        async def call(session, i):
            entry = {"name": f"n{i % 7}", "url": "http://127.0.0.1:9"}
            async with session.post(f"{url}/pools", json=entry) as answer:
                codes.add(answer.status)
            async with session.delete(f"{url}/pools/n{i % 7}") as answer:
                codes.add(answer.status)

        codes = set()
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(call(session, i) for i in range(30)))
        assert codes <= {200, 201, 400, 404}
