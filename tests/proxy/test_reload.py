"""Changes of the configuration in a running service.

No request is lost, no count is reset, and a configuration that cannot be applied changes nothing.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from dispatcher import registry
from dispatcher.config import Config
from dispatcher.errors import ConfigError
from tests.proxy.harness import (
    Gated,
    Pool,
    answer_ok,
    eventually,
    front,
    get,
    pool_connections,
    pools_with_metrics,
    status,
    with_pools,
)


async def test_a_pool_joins_and_one_leaves_with_requests_in_flight():
    held = Gated(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold")
    async with front(held) as f:
        clients = [await f.client() for _ in range(3)]
        for client in clients:
            await client.send(get())
        await eventually(lambda: len(held.heads) == 3)
        fresh = await Pool(answer_ok).open()
        f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {}), ("new", fresh.port, {})))
        assert (await f.ask(get("/there")))[1] == b"/there", "the emptier one is the new one"
        assert f.service.router.fleet.count("p0") == 3
        f.service.take_over(with_pools(f.service, ("new", fresh.port, {})))
        assert (await f.ask(get("/again")))[1] == b"/again"
        assert f.service.router.fleet.count("p0") == 3, "they are still there"
        held.gate.set()
        assert [(await client.message())[1] for client in clients] == [b"old"] * 3
        await f.wait_idle()
        assert f.metric("lased_requests_total", pool="p0", code="2xx") == 3
        assert f.metric("lased_pool_up", pool="p0") == 0
        await fresh.close()


async def test_another_address_and_other_numbers_for_a_pool_of_the_same_name():
    async with front(policy="greedy") as f:
        await f.ask(get())
        await f.wait_idle()
        observations = f.service.router.policy.means["p0"].observations
        moved = await Pool(answer_ok).open()
        f.service.take_over(with_pools(f.service, ("p0", moved.port, {"servers": 3, "max_in_flight": 5})))
        assert status(await f.ask(get())) == 200
        await f.wait_idle()
        assert len(moved.connections) == 1
        assert f.service.router.fleet["p0"].servers == 3
        assert f.service.router.policy.means["p0"].observations == observations + 1, "what was learned stays"
        await moved.close()


async def test_a_pool_that_was_taken_out_is_tried_again_at_once():
    async with front(answer_ok, None, policy="round_robin", health={"passive_failures": 1}) as f:
        f.pools[1].port = f.service.connection_pools["p1"].target.address.port
        for _ in range(4):
            assert status(await f.ask(get())) == 200
        await eventually(lambda: not f.service.health.is_up("p1"))
        mended = Pool(answer_ok, f.pools[1].port)
        await mended.open()
        f.service.take_over(f.service.config, reset_ejections=True)
        assert f.service.health.is_up("p1")
        assert [pool.id for pool in f.service.router.fleet.pools] == ["p0", "p1"]
        await mended.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "seed: cannot change while it runs"),
        ({"policy": {"name": "jsq"}, "listen": "127.0.0.1:1", "rows": "x"}, "listen, rows: cannot change"),
        ({"policy": {"name": "greedy", "options": {"c": 1}}}, "greedy"),
        ({"shadow": ["sed"]}, "needs true_rate"),
        ({"tls": {"certificate": "/nowhere"}}, "tls: cannot change"),
    ],
)
async def test_what_a_reload_cannot_do_is_refused_and_changes_nothing(change, message):
    async with front() as f:
        with pytest.raises(ConfigError, match=message):
            f.service.take_over(with_pools(f.service, ("other", 9, {}), **change))
        assert status(await f.ask(get())) == 200


async def test_a_pool_with_unusable_authorities_changes_nothing(tmp_path):
    bad = {"name": "bad", "url": "https://127.0.0.1:9", "ca": str(tmp_path / "nowhere.pem")}
    async with front() as f:
        before, policy, upstream = f.service.config, f.service.router.policy, pool_connections(f)
        data = before.model_dump() | {"pools": [bad], "policy": {"name": "jsq"}, "limits": {"connections": 1}}
        with pytest.raises(ConfigError, match="pool 'bad': ca: cannot use"):
            f.service.take_over(Config.model_validate(data))
        assert f.service.config is before
        assert f.service.router.policy is policy
        assert f.service.connection_pools == {"p0": upstream}
        assert f.service.settings.limits == before.limits
        assert status(await f.ask(get())) == 200


async def test_a_reload_makes_a_policy_once_and_a_second_one_only_to_use_it(monkeypatch):
    created = []
    create = registry.create

    def counting(name, *arguments):
        created.append(name)
        return create(name, *arguments)

    async with front(policy="lased", shadow=["jsq"]) as f:
        monkeypatch.setattr(registry, "create", counting)
        f.service.reloader.reload()
        assert created == ["lased", "jsq"], "the trial with the new pools"
        created.clear()
        f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {}), policy={"name": "greedy"}))
        assert created == ["greedy", "greedy", "jsq"]
        assert status(await f.ask(get())) == 200


async def test_pools_that_the_policy_refuses_change_nothing():
    async with front(policy="sed") as f:
        with pytest.raises(ConfigError, match="needs true_rate"):
            f.service.take_over(with_pools(f.service, ("p0", f.pools[0].port, {}), ("new", 9, {})))
        assert [pool.id for pool in f.service.router.fleet.pools] == ["p0"]
        assert status(await f.ask(get())) == 200


def test_sighup_reads_the_file_again(tmp_path):
    path = tmp_path / "dispatcher.toml"
    text = 'listen = "127.0.0.1:0"\nadmin = "127.0.0.1:0"\n[[pools]]\nname = "a"\nurl = "http://127.0.0.1:9"\n'
    path.write_text(text)
    with subprocess.Popen(
        [sys.executable, "-m", "dispatcher", "serve", "--config", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline().startswith("listening on")
            admin = process.stdout.readline().split()[-1]

            def pools():
                with urllib.request.urlopen(f"http://{admin}/state", timeout=10) as answer:
                    return [pool["name"] for pool in json.load(answer)["pools"]]

            def metric():
                with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as answer:
                    lines = answer.read().decode().splitlines()
                return [line for line in lines if line.startswith("lased_config_last_reload_success")]

            def reloaded(event):
                os.kill(process.pid, signal.SIGHUP)
                while event not in (line := process.stderr.readline()):
                    assert line, "it ended"

            assert pools() == ["a"]
            path.write_text(text + '[[pools]]\nname = "b"\nurl = "http://127.0.0.1:9"\n')
            reloaded("reloaded")
            assert pools() == ["a", "b"]
            path.write_text("listen = 3")
            reloaded("reload_refused")
            assert pools() == ["a", "b"]
            assert metric() == ["lased_config_last_reload_success 0.0"]
        finally:
            process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


async def test_limits_change_for_connections_that_are_there():
    async with front() as f:
        client = await f.client()
        await client.send(get())
        await client.message()
        data = f.service.config.model_dump()
        data["limits"]["body_bytes"] = 3
        f.service.take_over(type(f.service.config).model_validate(data))
        await client.send(get("/x", "Content-Length: 4", method="PUT") + b"four")
        assert status(await client.message()) == 413


async def test_a_policy_and_what_it_needs_may_come_in_one_change():
    async with front(policy="jsq") as f:
        (pool,) = f.service.control.pools()
        f.service.reloader.amend(pools=[pool | {"true_rate": None}])
        f.service.reloader.amend(pools=[pool | {"true_rate": 5.0}], policy={"name": "sed"})
        assert f.service.config.policy.name == "sed"
        f.service.reloader.amend(pools=[pool | {"true_rate": None}], policy={"name": "jsq"})
        assert status(await f.ask(get())) == 200


async def test_names_that_come_and_go_do_not_fill_the_memory():
    async with front() as f:
        for i in range(100):
            f.service.control.add_pool({"name": f"n{i}", "url": "http://127.0.0.1:9"})
            f.service.control.remove_pool(f"n{i}")
        series = [s.labels.get("pool") for family in f.service.registry.collect() for s in family.samples]
        assert "n0" not in series
        assert "n99" in series
        assert len({name for name in series if name}) <= 66
        assert len(pools_with_metrics(f)) <= 66
