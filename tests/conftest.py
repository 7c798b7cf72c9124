"""Event loops for the tests.

The dispatcher runs on uvloop in service and on asyncio's loop where uvloop is missing. The folders below therefore run
on both. The fast suite uses uvloop alone, except for the files in BOTH_LOOPS; the slow suite adds asyncio's loop.
"""

import asyncio
import functools

import pytest
import uvloop

FOLDERS = tuple(f"tests/{name}/" for name in ("admin", "http", "platform", "proxy", "telemetry"))
BOTH_LOOPS = tuple(
    f"tests/proxy/test_{name}.py" for name in ("addresses", "request_bodies", "resolver", "streaming", "tls", "tunnels")
)
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_asyncio_loop_factories(config, item):
    return LOOPS if item.nodeid.startswith(FOLDERS) else {"asyncio": asyncio.new_event_loop}


def pytest_collection_modifyitems(items):
    for item in items:
        is_asyncio = item.nodeid.startswith(FOLDERS) and "[asyncio" in item.nodeid
        if is_asyncio and not item.nodeid.startswith(BOTH_LOOPS):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def run_here(capsys):
    """Run a command in this process: `run_here("dispatcher", "check", ...)`."""
    from tests.commands import run_here  # not at the top: it imports every command

    return functools.partial(run_here, capsys)
