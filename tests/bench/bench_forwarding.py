"""Small GETs and megabytes a second through the dispatcher and its peers, before the same upstreams, in turn."""

import statistics

from rich.table import Table

from tests.bench.peers import MEGABYTE, fronts, missing, wrk

ROUNDS, SECONDS, CLIENTS = 4, 3, 32


def run():
    lacking = missing("nginx", "wrk")
    if lacking:
        return f"forwarding: not measured, {lacking} not installed"
    with fronts() as (ports, _):
        ports.pop("direct")
        small, big = {name: [] for name in ports}, {name: [] for name in ports}
        for port in ports.values():
            wrk(port, seconds=1)
        for _ in range(ROUNDS):
            for name, port in ports.items():
                small[name].append(wrk(port, "/", SECONDS, CLIENTS)[0])
            for name, port in ports.items():
                big[name].append(wrk(port, "/1m", SECONDS, 8)[1])
    table = Table(title=f"Forwarding, wrk -t1, {ROUNDS} rounds of {SECONDS} s in turn, medians")
    for column in ("", "small GETs a second, -c32", "of nginx", "MB a second in bodies of 1 MB, -c8", "of nginx"):
        table.add_column(column, justify="right" if column else "left")
    peer, big_peer = (statistics.median(values["nginx 1 worker, least_conn"]) for values in (small, big))
    for name in ports:
        rate, volume = statistics.median(small[name]), statistics.median(big[name])
        table.add_row(
            name, f"{rate:,.0f}", f"{rate / peer:.2f}", f"{volume / MEGABYTE:,.0f}", f"{volume / big_peer:.2f}"
        )
    return table
