"""Three real dispatchers before two real pools, with a real Redis that is killed and started again under load."""

import asyncio
import shutil

import aiohttp
import numpy as np
import pytest

from dispatcher.core.rng import stream
from loadgen.attack.arrivals import Poisson
from loadgen.attack.driver import Attack
from loadgen.attack.records import Records
from loadgen.attack.schedule import choose_targets, schedule
from loadgen.attack.targets import Request
from loadgen.experiments.live.backends import LivePoolSpec, WorkerOptions, live_fleet
from tests.persistence.redis_server import Redis

POOLS = (LivePoolSpec("a", 200.0, 50.0), LivePoolSpec("b", 400.0, 50.0))


def spread(lam, seconds, fleet):
    records = Records(schedule(Poisson(lam, stream(1, "arrivals")), seconds))
    choose_targets(records, (1.0,) * len(fleet), stream(1, "dispatchers"))
    return records, Request(tuple(one.url for one in fleet))


@pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
@pytest.mark.slow
async def test_every_observation_is_known_to_all_once_though_redis_died_meanwhile(tmp_path):
    redis = Redis(tmp_path)
    redis.start()
    try:
        extra = f'state_url = "{redis.url}"'
        async with live_fleet("lased", POOLS, 3, extra=extra) as fleet, aiohttp.ClientSession() as session:
            records, request = spread(150.0, 4.0, fleet)
            run = asyncio.create_task(Attack(request, records).run())
            await asyncio.sleep(1.5)
            redis.kill()
            await asyncio.sleep(1.0)
            redis.start()
            await run
            assert records.completed.all(), "nobody noticed"
            for _ in range(100):
                await asyncio.sleep(0.1)
                states = [await one.state(session) for one in fleet]
                seen = [[pool["observations"] for pool in state["pools"]] for state in states]
                if all(sum(each) == len(records) for each in seen):
                    break
        assert [sum(each) for each in seen] == [len(records)] * 3, seen
        assert seen[0] == seen[1] == seen[2]
        assert max(state["decisions"] for state in states) < 0.45 * len(records), "a third of the requests each"
        for state in states:
            for pool, spec in zip(state["pools"], POOLS, strict=True):
                error = 4 / pool["observations"] ** 0.5
                assert abs(pool["estimate"] / spec.rate - 1) < error, "with the accuracy of them all"
    finally:
        redis.kill()


@pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
@pytest.mark.slow
async def test_a_pool_forgotten_at_one_dispatcher_stays_forgotten_at_another_that_changes_its_policy(tmp_path):
    redis = Redis(tmp_path)
    redis.start()
    try:
        extra = f'state_url = "{redis.url}"'
        async with live_fleet("lased", POOLS, 2, extra=extra) as fleet, aiohttp.ClientSession() as session:
            records, request = spread(200.0, 0.7, fleet)
            await Attack(request, records).run()

            async def seen(k, wanted):
                for _ in range(60):
                    state = await fleet[k].state(session)
                    found = {pool["name"]: pool["observations"] for pool in state["pools"]}
                    if wanted(found):
                        return found
                    await asyncio.sleep(0.1)
                raise AssertionError(found)

            for k in (0, 1):
                await seen(k, lambda found: sum(found.values()) == len(records))
            async with session.post(f"{fleet[0].admin}/pools/a/forget") as answer:
                assert answer.status == 200
            before = await seen(1, lambda found: found["a"] == 0)
            async with session.post(f"{fleet[1].admin}/policy", json={"name": "greedy"}) as answer:
                assert answer.status == 200
            await asyncio.sleep(1.0)
            for k in (0, 1):
                assert await seen(k, lambda found: True) == before, "neither forgotten ones back nor others twice"
    finally:
        redis.kill()


@pytest.mark.slow
async def test_on_reports_three_dispatchers_are_nearly_one(tmp_path):
    """Mean response at load 0.6, own-count SED and partial_sed behind three, SED behind one: on the same traffic."""
    means = {}
    for name, policy, n, options in (
        ("one", "sed", 1, {}),
        ("own", "sed", 3, {}),
        ("partial", "partial_sed", 3, {"replicas": 3}),
    ):
        pools = (LivePoolSpec("a", 40.0, 100.0), LivePoolSpec("b", 200.0, 100.0))
        async with live_fleet(policy, pools, n, common=WorkerOptions(load_report="json"), options=options) as fleet:
            records, request = spread(144.0, 15.0, fleet)
            await Attack(request, records).run()
            assert records.completed.all()
        means[name] = float(np.mean(records.response[500:]))
    assert means["partial"] < 1.3 * means["one"], means
