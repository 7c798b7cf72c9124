"""Host names of pools: lookups, several addresses, and addresses that change."""

import asyncio
import socket
import time

import pytest

from dispatcher.errors import UpstreamUnreachable
from dispatcher.platform.sockets import Address
from dispatcher.proxy.connection_pool import ConnectionPool, Target
from dispatcher.proxy.resolver import Resolver
from dispatcher.settings import LiveSettings
from tests.proxy.harness import Pool, Recorder, answer_ok, eventually, front, get, pool_connections, status


def changed(f, **pool):
    """The configuration of the first pool, changed."""
    first, *others = f.service.control.pools()
    f.service.reloader.amend(pools=[first | pool, *others])


async def test_a_reload_during_a_lookup_harms_no_request(monkeypatch):
    gate, really = asyncio.Event(), Resolver._look_up

    async def slow(self):
        await gate.wait()
        await really(self)

    pool = Recorder()
    async with front(pool, health={"path": "/h", "interval": 0.02}) as f:
        port = f.pools[0].port
        monkeypatch.setattr(Resolver, "_look_up", slow)
        changed(f, url=f"http://localhost:{port}")
        asked = asyncio.create_task(f.ask(get("/q")))
        await eventually(lambda: f.in_flight == [1])
        await asyncio.sleep(0.05)  # the health check waits for the name too
        changed(f, url=f"http://127.0.0.1:{port}")
        gate.set()
        assert status(await asked) == 200
        checks = pool.targets.count(b"/h")
        await eventually(lambda: pool.targets.count(b"/h") > checks + 1, "the health checks have ended")


async def test_an_address_that_swallows_everything_leaves_time_for_the_others(monkeypatch):
    async def two(self):
        self._addresses, self._fresh_until, self._lookup = ["127.0.0.9", "127.0.0.1"], float("inf"), None

    with socket.socket() as hole, socket.socket() as one, socket.socket() as two_more:
        hole.bind(("127.0.0.9", 0))
        hole.listen(0)
        port = hole.getsockname()[1]
        for filler in (one, two_more):
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.9", port))
        monkeypatch.setattr(Resolver, "_look_up", two)
        async with front(answer_ok, timeouts={"connect": 0.3}) as f:
            good = await Pool(answer_ok, port).open()
            changed(f, url=f"http://localhost:{port}")
            began = time.monotonic()
            for _ in range(4):
                assert status(await f.ask(get("/", "Connection: close"))) == 200
                pool_connections(f).take_idle().close()
            assert time.monotonic() - began < 0.9, "the dead address is skipped after the first time"
            await good.close()


class FakeLookup:
    """A replacement for the loop's getaddrinfo. answers: the addresses, or the error, of each lookup."""

    def __init__(self, monkeypatch, *answers):
        self.answers, self.asked = list(answers), 0
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self, raising=False)

    async def __call__(self, host, port, **_):
        self.asked += 1
        answer = self.answers[min(self.asked, len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]


def new_resolver(ttl=0.0, moved=lambda gone: None, failed=lambda reason: None):
    return Resolver(Address("pool.example", 80), lambda: ttl, moved, failed)


@pytest.fixture
def resolver(monkeypatch):
    """A factory of fake lookups; skips on a loop whose lookup cannot be replaced."""

    def make(*answers):
        try:
            return FakeLookup(monkeypatch, *answers)
        except AttributeError:
            pytest.skip("uvloop's loop takes no other resolver")

    return make


async def test_all_addresses_are_used_in_turn(resolver):
    resolver(["10.0.0.1", "10.0.0.2"])
    there = new_resolver()
    assert [(await there.addresses())[0] for _ in range(4)] == ["10.0.0.2", "10.0.0.1"] * 2


async def test_a_name_is_looked_up_again_when_it_is_old(resolver):
    gone = []
    asked = resolver(["10.0.0.1"], ["10.0.0.2"])
    there = new_resolver(0.01, gone.append)
    assert await there.addresses() == ["10.0.0.1"]
    await asyncio.sleep(0.02)
    there.refresh_if_old()
    await eventually(lambda: gone == [{"10.0.0.1"}])
    assert await there.addresses() == ["10.0.0.2"]
    assert asked.asked >= 2
    there.close()


async def test_a_resolver_that_fails_changes_nothing(resolver):
    failed = []
    asked = resolver(["10.0.0.1"], socket.gaierror(-3, "Temporary failure"))
    there = new_resolver(0.01, failed=failed.append)
    await there.addresses()
    await asyncio.sleep(0.02)
    there.refresh_if_old()
    await eventually(lambda: failed)
    assert await there.addresses() == ["10.0.0.1"]
    assert "Temporary failure" in failed[0]
    assert asked.asked >= 2
    there.close()


async def test_a_name_that_was_never_found_is_an_unreachable_pool(resolver):
    asked = resolver(socket.gaierror(-2, "Name or service not known"))
    there = new_resolver(1.0)
    for _ in range(3):
        with pytest.raises(UpstreamUnreachable):
            await there.addresses()
    assert asked.asked == 1, "not at every request"


async def test_a_new_address_is_used_and_its_old_connections_are_closed(resolver):
    old, new = await Pool(answer_ok).open(), Pool(answer_ok)
    new.server = await asyncio.start_server(new.accept, "127.0.0.2", old.port)
    asked = resolver(["127.0.0.1"], ["127.0.0.2"])
    async with front(timeouts={"dns": 0.03}) as f:
        f.service.control.add_pool({"name": "named", "url": f"http://pool.example:{old.port}"})
        f.service.control.remove_pool("p0")
        client = await f.client()
        await client.send(get())
        assert status(await client.message()) == 200
        assert (len(old.connections), len(new.connections)) == (1, 0)
        await asyncio.sleep(0.05)
        for _ in range(20):
            await client.send(get())
            assert status(await client.message()) == 200
            await asyncio.sleep(0.001)
        assert len(new.connections) == 1
        assert asked.asked >= 2
        await f.wait_idle()
    await old.close()
    await new.close()


async def test_an_address_that_is_dead_is_passed_over(resolver):
    pool = await Pool(answer_ok).open()
    resolver(["127.0.0.1", "127.0.0.9"])
    async with front() as f:
        f.service.control.add_pool({"name": "named", "url": f"http://pool.example:{pool.port}"})
        f.service.control.remove_pool("p0")
        for _ in range(4):
            assert status(await f.ask(get("/", "Connection: close"))) == 200
        assert f.metric("lased_upstream_errors_total", pool="named", reason="connect") == 0
    await pool.close()


async def test_an_invalid_host_name_is_a_502():
    async with front() as f:
        f.service.connection_pools["p0"] = ConnectionPool("p0", Target(Address("a..b", 80)), LiveSettings())
        assert status(await f.ask(get())) == 502
        assert f.metric("lased_internal_errors_total") == 0
