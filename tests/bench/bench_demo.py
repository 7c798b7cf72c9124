"""The figures of the demo, over some seeds."""

import asyncio

from rich.table import Table

from loadgen.experiments.live.demo import Scene, run_demo

SEEDS, SECONDS = (1, 2, 3), 30.0


def run():
    table = Table(title=f"Demo: pools of 50 and 100/s, guesses 50 and 1, 30 requests a second, {SECONDS:g} s")
    for column in (
        "seed",
        "policy",
        "requests",
        "wrong",
        "wrong, 2nd half",
        "rate ratio",
        "off by, in SE",
        "mean",
        "p99",
    ):
        table.add_column(column, justify="right")
    for seed in SEEDS:
        scene = Scene(duration=SECONDS, seed=seed)
        for made in asyncio.run(run_demo(scene, lambda *_: None, asyncio.Event())):
            s = made.summary()
            ratio, error = s["rate_ratio_estimate"], s["rate_ratio_standard_error"]
            off = f"{(ratio - scene.true_ratio) / error:+.1f}" if error else "-"
            interval = f" ± {1.96 * error:.2f}" if error else ""
            counted = (str(s["requests"]), f"{s['regret'] / s['requests']:.1%}", str(s["regret_second_half"]))
            times = (f"{s['mean_response'] * 1e3:.1f} ms", f"{s['p99_response'] * 1e3:.0f} ms")
            table.add_row(str(seed), made.policy, *counted, f"{ratio:.2f}{interval}", off, *times)
    return table
