"""The measurements that the README quotes: `make bench`, or `python -m tests.bench NAME …` for some of them.

Machines are shared and noisy: what is compared is run in turn, A B A B, and ratios are what counts.
"""

import importlib
import sys

from rich.console import Console

NAMES = (
    "simulator",
    "workers",
    "estimates",
    "demo",
    "delay",
    "decision",
    "forwarding",
    "latency",
    "idle",
    "scrape",
    "pacing",
    "crosscheck",
    "feedback",
    "rejections",
    "discipline",
)


def main():
    wanted = sys.argv[1:] or NAMES
    console = Console(width=110)
    for name in wanted:
        if name not in NAMES:
            sys.exit(f"error: no benchmark {name!r}; there are: {', '.join(NAMES)}")
        console.print(importlib.import_module(f"tests.bench.bench_{name}").run(), "")


main()
