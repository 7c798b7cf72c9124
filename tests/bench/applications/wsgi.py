"""This is the application for servers that give each request a thread or a process: gunicorn, waitress, granian.

The environment variable APPLICATION describes it in JSON: name, seed, handler, mean, and file for SQLite.
"""

import functools
import json
import os

from tests.bench.applications import work

SPEC = json.loads(os.environ["APPLICATION"])
NUMBER = "HTTP_" + work.NUMBER.upper().replace("-", "_")
HANDLERS = {"sleep": work.sleep, "burn": work.burn, "sqlite": functools.partial(work.query, SPEC["file"])}
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", "3"), ("X-Pool", SPEC["name"])]

handle = HANDLERS[SPEC["handler"]]


def application(environ, start_response):
    """Does the work of the request and answers `ok`."""
    todo = work.amount(SPEC["mean"], SPEC["seed"], environ.get(NUMBER), environ["PATH_INFO"])
    if todo:
        handle(todo)
    start_response("200 OK", HEADERS)
    return [b"ok\n"]
