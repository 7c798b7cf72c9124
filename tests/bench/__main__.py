"""The measurements that the README quotes: `make bench`, or `python -m tests.bench NAME …` for some of them.

Options behind the name of one benchmark are for it: `python -m tests.bench applications --help`. Benchmarks in LONG
run only if they are named.

Machines are shared and noisy: what is compared is run in turn, A B A B, and ratios are what counts.
"""

import importlib
import sys
from itertools import takewhile

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
LONG = ("applications", "path")  # they take options


def main():
    given = sys.argv[1:]
    wanted = list(takewhile(lambda word: not word.startswith("-"), given))
    options = given[len(wanted) :]
    if not wanted and options:
        sys.exit(__doc__.strip() if options == ["--help"] else "error: name one benchmark before its options")
    for name in wanted:
        if name not in NAMES + LONG:
            sys.exit(f"error: no benchmark {name!r}; there are: {', '.join(NAMES + LONG)}")
    if options and (len(wanted) > 1 or wanted[0] not in LONG):
        sys.exit(f"error: options are for one of {', '.join(LONG)} alone, not for {', '.join(wanted)}")
    console = Console(width=110)
    for name in wanted or NAMES:
        found = importlib.import_module(f"tests.bench.bench_{name}")
        console.print(found.run(options) if options else found.run(), "")


main()
