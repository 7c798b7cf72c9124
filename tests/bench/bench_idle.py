"""Idle clients: what each costs, and whether 10,000 of them are held, and served."""

import asyncio
import resource

import psutil
from rich.table import Table

from tests.bench.peers import fronts, missing, wrk

STEPS = (0, 1000, 5000, 9900)
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def connect(port, n):
    """n connections that have had a request answered and are idle now; from several addresses, for ports are scarce."""
    found = []
    for i in range(n):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{2 + i % 4}", 0))
        writer.write(REQUEST)
        await reader.readuntil(b"world\n")
        found.append((reader, writer))
    return found


async def measure(port, process):
    rows, held = [], []
    for n in STEPS:
        held += await connect(port, n - len(held))
        await asyncio.sleep(1.0)
        rows.append((n, process.memory_info().rss, (await asyncio.to_thread(wrk, port, "/", 2))[0]))
    for reader, writer in held[::100]:
        writer.write(REQUEST)
        assert (await reader.readuntil(b"world\n")).startswith(b"HTTP/1.1 200")
    for _, writer in held:
        writer.transport.abort()
    return rows


def run():
    lacking = missing("nginx", "wrk")
    if lacking:
        return f"idle: not measured, {lacking} not installed"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with fronts() as (ports, process):
        rows = asyncio.run(measure(ports["lased-dispatcher, policy lased"], psutil.Process(process.pid)))
    table = Table(title="Idle client connections held by the dispatcher")
    for column in ("idle clients", "memory, MB", "kB for each", "GETs a second beside them"):
        table.add_column(column, justify="right")
    least = rows[0][1]
    for n, memory, rate in rows:
        each = f"{(memory - least) / n / 1e3:.1f}" if n else ""
        table.add_row(f"{n:,}", f"{memory / 1e6:.1f}", each, f"{rate:,.0f}")
    return table
