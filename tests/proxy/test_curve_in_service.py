"""The policy `curve` in the running service."""

import asyncio

import pytest

from tests.proxy.harness import (
    answer_ok,
    front,
    get,
    status,
)


async def slow_ok(wire):
    """Answer after 10 ms."""
    while True:
        await wire.message()
        await asyncio.sleep(0.01)
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def failing(wire):
    while True:
        await wire.message()
        await wire.send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")


async def test_it_is_the_default_and_shows_service_time_capacity_and_throughput():
    async with front(answer_ok, slow_ok, policy=None) as f:
        for _ in range(30):
            assert status(await f.ask(get())) == 200
        await f.wait_idle()
        state = f.service.admin.state()
        assert state["policy"]["name"] == "curve"
        curves = {pool["name"]: pool["curve"] for pool in state["pools"]}
        assert 2 * curves["p0"]["service_seconds"]["value"] < curves["p1"]["service_seconds"]["value"]
        for curve in curves.values():
            for name in ("service_seconds", "capacity", "throughput"):
                low, high = curve[name]["interval"]
                assert low <= curve[name]["value"]
                assert high is None or curve[name]["value"] <= high
        f.service.admin.refresh_metrics()
        for pool, curve in curves.items():
            for name in ("service_seconds", "capacity", "throughput"):
                assert f.metric(f"lased_pool_{name}", pool=pool) == pytest.approx(curve[name]["value"])
                low, high = (f.metric(f"lased_pool_{name}_{bound}", pool=pool) for bound in ("low", "high"))
                assert low <= curve[name]["value"] <= high
            assert f.metric("lased_service_rate_estimate", pool=pool) == pytest.approx(
                1 / curve["service_seconds"]["value"]
            )


async def test_the_plane_is_that_of_the_policy_in_force():
    async with front(answer_ok, slow_ok, policy="jsq") as f:
        plane = f.service.admin.state()["plane"]
        assert plane["pools"] == ["p0", "p1"]
        assert plane["scores"][0][:3] == [0.0, 1.0, 2.0]
        assert plane["oracle"][0][:3] == [1.0, 2.0, 3.0], "the harness sets every true rate to 1"
    async with front(answer_ok, slow_ok, policy="random") as f:
        assert f.service.admin.state()["plane"] is None
    async with front(answer_ok, policy="jsq") as f:
        assert f.service.admin.state()["plane"] is None


async def test_a_pool_can_be_forgotten():
    async with front(answer_ok, answer_ok, policy=None) as f:
        for _ in range(10):
            await f.ask(get())
        await f.wait_idle()
        f.service.control.forget_pool("p0")
        assert f.service.router.policy.estimates()["p0"].observations == 0
        assert f.service.router.policy.estimates()["p1"].observations > 0


async def test_as_a_shadow_it_learns_from_the_requests_that_another_policy_sends():
    async with front(slow_ok, answer_ok, policy="round_robin", shadow=["curve"]) as f:
        for _ in range(40):
            await f.ask(get())
        await f.wait_idle()
        (shadow,) = f.service.shadows.all()
        estimates = shadow.policy.estimates()
        assert shadow.faults == 0
        assert estimates["p0"].service_seconds.value > 2 * estimates["p1"].service_seconds.value
        assert estimates["p0"].observations == pytest.approx(20, rel=0.05)
        assert shadow.disagreements > 10


async def test_a_pool_that_fails_at_once_loses_its_traffic():
    async with front(failing, slow_ok, policy="curve", health={"passive_failures": 0}, retry={"attempts": 1}) as f:
        answers = [status(await f.ask(get())) for _ in range(60)]
        await f.wait_idle()
        assert answers.count(500) <= 6


async def test_regret_names_its_oracle():
    async with front(answer_ok, slow_ok, policy="curve") as f:
        for _ in range(10):
            await f.ask(get())
        await f.wait_idle()
        regret = f.service.admin.state()["regret"]
        assert "curve" in regret["oracle"]
        assert regret["excess"] >= 0
        f.service.admin.refresh_metrics()
        assert f.metric("lased_regret_excess_total") == pytest.approx(regret["excess"])
