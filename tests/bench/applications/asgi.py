"""This is the application for servers with an event loop: uvicorn with starlette.

The environment variable APPLICATION describes it in JSON: name, seed, handler, mean, and connections. The handler
`connections` holds one of so many connections for the time of its work; requests wait for a free one in their order.
"""

import asyncio
import contextlib
import json
import os

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.bench.applications import work

SPEC = json.loads(os.environ["APPLICATION"])
LIMITS = {"sleep": contextlib.nullcontext, "connections": lambda: asyncio.Semaphore(SPEC["connections"])}

limit = LIMITS[SPEC["handler"]]()


async def answer(request):
    """Does the work of the request and answers `ok`."""
    todo = work.amount(SPEC["mean"], SPEC["seed"], request.headers.get(work.NUMBER), request.url.path)
    if todo:
        async with limit:
            await asyncio.sleep(todo)
    return PlainTextResponse("ok\n", headers={"X-Pool": SPEC["name"]})


application = Starlette(routes=[Route("/{path:path}", answer)])
