"""Loops for the tests: the forwarding path runs on uvloop, as in service, and on asyncio's own; all else on asyncio's.

The thousands of cases of tests/proxy meet asyncio's loop in the slow run only.
"""

import asyncio

import pytest
import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_asyncio_loop_factories(config, item):
    return LOOPS if item.nodeid.startswith(("tests/net/", "tests/proxy/")) else {"asyncio": asyncio.new_event_loop}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith("tests/proxy/") and "[asyncio" in item.nodeid:
            item.add_marker(pytest.mark.slow)
