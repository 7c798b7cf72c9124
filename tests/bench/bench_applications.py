"""This compares load balancers in front of real application servers: ours, nginx, HAProxy, Envoy, Traefik, Caddy."""

import argparse
import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Group
from rich.table import Table

from dispatcher.errors import ConfigError
from loadgen.experiments.checkpoint import Checkpoint
from loadgen.experiments.live.backends import BackendError
from tests.bench.applications import entrants, rows, servers, tables, turns

OUT = Path("out/bench-applications")
FULL = {"rounds": 3, "seconds": 7.0, "rows": [row.name for row in rows.ROWS]}
QUICK = {"rounds": 2, "seconds": 4.0, "rows": rows.QUICK}


def run(arguments=()):
    """Returns the tables to print. A wrong option ends the process with one line."""
    given = _parser().parse_args(arguments)
    try:
        plan = _plan(given)
        given.out.mkdir(parents=True, exist_ok=True)
        store = Checkpoint(given.out / "turns.jsonl")
        asyncio.run(turns.run(plan, store, _told))
        findings = tables.Findings(plan, store)
        if given.markdown:
            given.markdown.write_text(tables.markdown(findings), encoding="utf-8")
    except (ConfigError, BackendError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(f"interrupted; finished turns are in {given.out}; run the same command again to continue")
    return _shown(findings)


def _parser():
    parser = argparse.ArgumentParser(
        "python -m tests.bench applications",
        description=f"{__doc__} A full run takes about 45 minutes, so `make bench` leaves it out. An interrupted run "
        "goes on where it ended.",
    )
    known = ", ".join(row.name for row in rows.ROWS)
    for flag, kind, metavar, what in (
        ("--rows", str, "NAME,…", f"only these rows, of: {known}"),
        ("--entrants", str, "NAME,…", "only these balancers; the first is compared with the others"),
        ("--rounds", int, "N", "each entrant has one turn a round and row (default 3)"),
        ("--seconds", float, "S", "of one turn (default 7)"),
        ("--warmup", float, "S", "of a turn whose requests are not counted (default 0)"),
        ("--seed", int, "N", "of arrivals and work (default 1)"),
        ("--markdown", Path, "FILE", "also write the full tables to FILE"),
        ("--out", Path, "DIR", f"where turns are kept (default {OUT})"),
    ):
        parser.add_argument(flag, type=kind, metavar=metavar, help=what)
    parser.add_argument("--quick", action="store_true", help="2 rounds of 4 s on a few rows, about 5 minutes")
    parser.add_argument("--install", action="store_true", help="first install the servers' packages into this Python")
    parser.set_defaults(warmup=0.0, seed=1, out=OUT)
    return parser


def _plan(given):
    """Returns what the options ask for. Raises ConfigError."""
    usual = QUICK if given.quick else FULL
    rounds = usual["rounds"] if given.rounds is None else given.rounds
    seconds = usual["seconds"] if given.seconds is None else given.seconds
    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {rounds}")
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--seconds must be positive, not {seconds:g}")
    if not 0 <= given.warmup < seconds:
        raise ConfigError(f"--warmup must be from 0 to less than --seconds, not {given.warmup:g}")
    named = rows.select(given.rows or ",".join(usual["rows"]))
    chosen = entrants.select(given.entrants) if given.entrants else entrants.ENTRANTS
    _require_packages(named, given.install)
    return turns.Plan(
        _possible(named, servers.lacking, "row"),
        _possible(chosen, entrants.Entrant.lacking, "entrant"),
        rounds,
        seconds,
        given.warmup,
        given.seed,
    )


def _require_packages(named, install):
    """Installs what the optional requirements file lists, if asked to, and checks that the rows have what they need.

    Raises ConfigError.
    """
    file = os.path.relpath(servers.REQUIREMENTS)
    if install:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "-r", file]
        if subprocess.run(command, check=False).returncode:
            raise ConfigError(f"pip could not install the packages of {file}; its own message is above")
        importlib.invalidate_caches()
    if missing := servers.packages_missing(named):
        raise ConfigError(f"not installed: {', '.join(missing)}; add --install, or run: pip install -r {file}")


def _possible(wanted, lacking, kind):
    """Returns those that can be run here and prints why others cannot. Raises ConfigError if none is left."""
    found = []
    for one in wanted:
        if reason := lacking(one):
            print(f"{kind} {one.name} is left out: {reason}", file=sys.stderr)
        else:
            found.append(one)
    if not found:
        raise ConfigError(f"no {kind} can be run here")
    return tuple(found)


def _told(done, total, what):
    print(f"[{done}/{total}] {what}" if what else f"[{done}/{total}] done", file=sys.stderr, flush=True)


def _shown(findings):
    made = [_table("Rows", *tables.setup_table(findings))]
    for metric, label in tables.METRICS.items():
        made.append(_table(f"{label} response, ms (ratio to the best ± 95 %)", *tables.row_table(findings, metric)))
    made.append(_table("All rows, geometric means", *tables.summary_table(findings)))
    return Group(*made, *findings.doubts())


def _table(title, header, lines):
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if i else "left")
    for line in lines:
        table.add_row(*(cell.replace("**", "") for cell in line))
    return table
