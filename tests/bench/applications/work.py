"""This module defines the work of a request, which is the same for every balancer.

The load generator sends each request's number in the header NUMBER. A hash of the seed and the number is the draw, so
servers with several processes, threads or languages agree on it without shared state.
"""

import hashlib
import math
import sqlite3
import time
from contextlib import closing

NUMBER = "X-Request-Number"
COSTLY = "/costly"
COST = 50.0  # times the work of another path
BYTES = 6  # of the hash are used for a draw
SIDE = 1000  # rows of the table; the join of the table with itself has SIDE² rows

_SCAN = "SELECT sum(length(text)) FROM (SELECT a.text FROM items a, items b LIMIT ?)"


def draw(seed, number):
    """Returns the draw of request `number` from the exponential law of mean 1.

    >>> [round(draw("1", number), 3) for number in range(3)]
    [0.102, 0.157, 1.887]
    """
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return -math.log1p(-int.from_bytes(digest[:BYTES], "big") / 2 ** (8 * BYTES))


def amount(mean, seed, number, path):
    """Returns the work of a request in the unit of `mean`. A request without number has none."""
    if not number:
        return 0.0
    return mean * draw(seed, number) * (COST if path.startswith(COSTLY) else 1.0)


def sleep(seconds):
    """Occupies the thread and leaves the processor to others."""
    time.sleep(seconds)


def burn(seconds):
    """Uses this many seconds of the processor. A thread that has to wait for the processor takes longer."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def create_database(path):
    """Makes a file with one table to read and one counter to write."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE items (text TEXT)")
        database.execute("CREATE TABLE counter (n INTEGER)")
        database.executemany("INSERT INTO items VALUES (?)", (("x" * 100,) for _ in range(SIDE)))
        database.execute("INSERT INTO counter VALUES (0)")


def query(path, rows):
    """Reads half of the rows beside other readers, and half inside a transaction that excludes other writers."""
    half = max(1, min(SIDE * SIDE, round(rows / 2)))
    with closing(sqlite3.connect(path, timeout=60.0, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute(_SCAN, (half,)).fetchone()
        database.execute("BEGIN IMMEDIATE")
        database.execute(_SCAN, (half,)).fetchone()
        database.execute("UPDATE counter SET n = n + 1")
        database.execute("COMMIT")
