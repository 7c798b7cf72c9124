"""The datagrams that a service manager receives, on a real socket."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from dispatcher.errors import ConfigError
from dispatcher.platform.systemd import Notifier
from tests.proxy.harness import (
    answer_ok,
    front,
)

MAX_WAIT_SECONDS = 10.0


class Manager:
    """The other end: a datagram socket, and the environment that points to it."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + path[1:] if path.startswith("@") else path)
        self.socket.settimeout(MAX_WAIT_SECONDS)
        self.environment = {"NOTIFY_SOCKET": path, "KEPT": "1"}

    def heard(self):
        """The next message as a dictionary."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def until(self, key):
        """The next message with this key; those of the watchdog are passed over."""
        while True:
            message = self.heard()
            if key in message:
                return message
            assert message == {"WATCHDOG": "1"}, message

    def silent(self):
        self.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            self.socket.recv(4096)
        self.socket.settimeout(MAX_WAIT_SECONDS)
        return True


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    path = str(tmp_path / "notify") if request.param == "path" else f"@lased-test-{os.getpid()}"
    manager = Manager(path)
    yield manager
    manager.socket.close()


@pytest.fixture
def failures():
    return []


@pytest.fixture
def notifier(manager, failures):
    return Notifier(manager.environment, failures.append)


def test_ready_and_stopping(manager, notifier, failures):
    notifier.ready()
    assert manager.heard() == {"READY": "1"}
    notifier.stopping()
    assert manager.heard() == {"STOPPING": "1"}
    assert failures == []


def test_children_do_not_inherit_it(manager):
    manager.environment |= {"WATCHDOG_PID": "1", "WATCHDOG_USEC": "1000000"}
    Notifier(manager.environment, pytest.fail)
    assert manager.environment == {"KEPT": "1"}


def test_a_reload_is_reported_with_its_time(manager, notifier):
    notifier.ready()
    manager.heard()
    before = time.monotonic_ns() // 1000
    with notifier.reloading():
        began = manager.heard()
        assert manager.silent()
    assert began.keys() == {"RELOADING", "MONOTONIC_USEC"}
    assert began["RELOADING"] == "1"
    assert before <= int(began["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert manager.heard() == {"READY": "1", "STATUS": ""}


def test_the_reason_of_a_refused_reload_is_one_line(manager, notifier):
    notifier.ready()
    manager.heard()
    with pytest.raises(ConfigError), notifier.reloading():
        raise ConfigError("listen: bad\nWATCHDOG=trigger")
    manager.heard()
    assert manager.heard() == {"READY": "1", "STATUS": "reload refused: listen: bad WATCHDOG=trigger"}


def test_a_reload_while_draining_is_not_reported(manager, notifier):
    with notifier.reloading():
        pass
    notifier.ready()
    notifier.stopping()
    with notifier.reloading():
        pass
    assert [manager.heard(), manager.heard()] == [{"READY": "1"}, {"STOPPING": "1"}]
    assert manager.silent()


async def test_the_watchdog_gets_two_messages_in_its_time(manager, failures):
    manager.environment |= {"WATCHDOG_PID": str(os.getpid()), "WATCHDOG_USEC": "80000"}
    watching = asyncio.create_task(Notifier(manager.environment, failures.append).watch())
    await asyncio.sleep(0.22)
    watching.cancel()
    count = 0
    with contextlib.suppress(BlockingIOError):
        manager.socket.setblocking(False)
        while True:
            assert manager.heard() == {"WATCHDOG": "1"}
            count += 1
    assert 3 <= count <= 6, "one at once, then one every 0.04 s"
    assert failures == []


async def test_a_stalled_loop_sends_nothing(manager, failures):
    manager.environment |= {"WATCHDOG_USEC": "40000"}
    watching = asyncio.create_task(Notifier(manager.environment, failures.append).watch())
    await asyncio.sleep(0)
    assert manager.heard() == {"WATCHDOG": "1"}
    time.sleep(0.12)  # noqa: ASYNC251 - the stall
    assert manager.silent()
    watching.cancel()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-1"},
        {"WATCHDOG_USEC": "²"},
        {"WATCHDOG_PID": "1", "WATCHDOG_USEC": "1000"},
    ],
)
async def test_no_watchdog_runs_without_its_variables(manager, environment):
    await asyncio.wait_for(Notifier(manager.environment | environment, pytest.fail).watch(), MAX_WAIT_SECONDS)
    assert manager.silent()


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
async def test_nothing_is_sent_without_a_socket(environment):
    notifier = Notifier(environment | {"WATCHDOG_USEC": "1000"}, pytest.fail)
    notifier.ready()
    with notifier.reloading():
        pass
    notifier.stopping()
    await asyncio.wait_for(notifier.watch(), MAX_WAIT_SECONDS)


def test_a_missing_manager_is_reported_and_ignored(tmp_path, failures):
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}, failures.append).ready()
    assert failures == ["READY: No such file or directory"]


def test_a_manager_that_does_not_read_blocks_only_briefly(manager, notifier, failures):
    began = time.monotonic()
    while not failures:
        notifier.ready()
    assert time.monotonic() - began < MAX_WAIT_SECONDS
    assert failures[0].startswith("READY: ")


async def test_the_service_notifies_its_manager(manager, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", manager.environment["NOTIFY_SOCKET"])
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    async with front(answer_ok) as f:
        assert manager.until("READY") == {"READY": "1"}
        assert "NOTIFY_SOCKET" not in os.environ
        await asyncio.sleep(0)
        assert manager.heard() == {"WATCHDOG": "1"}
        f.service.reloader.reload()
        assert manager.heard()["RELOADING"] == "1"
        assert manager.heard() == {"READY": "1", "STATUS": ""}

        def refuse():
            raise ConfigError("pools: none")

        f.service.reloader.read_config = refuse
        with pytest.raises(ConfigError):
            f.service.reloader.reload()
        manager.heard()
        assert manager.heard()["STATUS"] == "reload refused: pools: none"
    assert manager.silent()


@pytest.mark.slow
def test_the_life_of_the_command(manager):
    command = [
        sys.executable,
        "-m",
        "dispatcher",
        "serve",
        "--pool",
        "a=http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]
    environment = os.environ | manager.environment | {"WATCHDOG_USEC": "400000"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            assert manager.until("READY") == {"READY": "1"}
            assert [manager.until("WATCHDOG") for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
            process.send_signal(signal.SIGHUP)
            manager.until("RELOADING")
            assert manager.until("READY") == {"READY": "1", "STATUS": ""}
            process.send_signal(signal.SIGTERM)
            assert manager.until("STOPPING") == {"STOPPING": "1"}
            _, errors = process.communicate(timeout=MAX_WAIT_SECONDS)
            assert process.returncode == 0, errors
        finally:
            process.kill()
