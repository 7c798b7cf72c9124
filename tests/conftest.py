"""Loops for the tests: the forwarding path runs on asyncio's own and on uvloop, everything else on asyncio's."""

import asyncio

import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_asyncio_loop_factories(config, item):
    return LOOPS if item.nodeid.startswith(("tests/net/", "tests/proxy/")) else {"asyncio": asyncio.new_event_loop}
