"""Loops for the tests: the forwarding path runs on uvloop, as in service, and on asyncio's own; all else on asyncio's.

What does not depend on the loop, and the thousands of cases of tests/proxy, meet asyncio's in the slow run only.
"""

import asyncio

import pytest
import uvloop

ONE_LOOP = ("tests/proxy/", *(f"tests/net/test_{name}.py" for name in (
    "attacks", "stress", "second_look", "notify", "control", "page", "retries", "telling", "verdicts", "queue",
    "reload", "reports", "limits_and_life", "rfc")))  # fmt: skip
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_asyncio_loop_factories(config, item):
    return LOOPS if item.nodeid.startswith(("tests/net/", "tests/proxy/")) else {"asyncio": asyncio.new_event_loop}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(ONE_LOOP) and "[asyncio" in item.nodeid:
            item.add_marker(pytest.mark.slow)
