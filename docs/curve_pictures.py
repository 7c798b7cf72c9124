"""Draws docs/curve-learned.png and docs/curve-plane.png from simulated runs. python docs/curve_pictures.py"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dispatcher import registry
from dispatcher.core.types import PoolSpec
from dispatcher.policies.curve import cost
from loadgen.plot import COLOURS
from loadgen.sim.pools import ServicePool, ServiceScenario, simulate

HERE = Path(__file__).parent
POOLS = (
    ("4 servers of 40 ms", "fcfs:servers=4,seconds=0.04"),
    ("16 servers of 80 ms", "fcfs:servers=16,seconds=0.08"),
)
RATE, REQUESTS, SEED = 220.0, 12_000, 1
FEWEST = 0.5  # seconds with a count, below which its throughput is not drawn
SIDE = 24


def learned():
    """The policy after a run in front of both pools."""
    made = []

    def make(_, rng):
        made.append(registry.create("curve", rng))
        return made[0]

    scene = ServiceScenario(tuple(ServicePool(text) for _, text in POOLS), RATE)
    simulate(scene, make, [PoolSpec(str(i)) for i in range(len(POOLS))], REQUESTS, SEED)
    return made[0]


def draw_learned(policy):
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for i, (axes, (name, text)) in enumerate(zip(figure.subplots(1, len(POOLS)), POOLS, strict=True)):
        state, curve = policy._states[str(i)], ServicePool(text).curve
        seconds, departures = np.array(state.seconds_with) / policy._weight, np.array(state.departures_from)
        counts = [n for n in range(1, len(seconds)) if seconds[n] > FEWEST]
        rates = [departures[n] / policy._weight / seconds[n] for n in counts]
        grid = np.arange(1, max(counts) + 3)
        known = np.minimum(grid, state.capacity) / state.service_seconds
        axes.plot(grid, [curve.rate(n) for n in grid], color="grey", linewidth=1.2, label="true")
        axes.plot(counts, rates, "o", color=COLOURS[0], markersize=4, label="departures per second, observed")
        axes.plot(grid, known, color=COLOURS[1], linewidth=2, label="learned")
        axes.axvline(state.capacity, color=COLOURS[1], linestyle=":", linewidth=1)
        axes.set_title(f"{name}: s = {state.service_seconds * 1e3:.1f} ms, c = {state.capacity:.3g}", fontsize=9)
        axes.set_xlabel("requests in flight")
        axes.set_ylim(0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("requests per second")
    figure.axes[0].legend(fontsize=7, loc="lower right")
    figure.savefig(HERE / "curve-learned.png", dpi=130)


def draw_plane():
    """Where the next request goes, in front of the first two pools with 75 requests per second each."""
    rules = {
        "join the shortest queue": lambda q, s, c: q,
        "SED": lambda q, s, c: cost(q, s, c, 0.0),
        "curve": lambda q, s, c: cost(q, s, c, 75.0),
    }
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    for axes, (name, score) in zip(figure.subplots(1, len(rules)), rules.items(), strict=True):
        first = [[score(x, 0.04, 4) <= score(y, 0.08, 16) for x in range(SIDE)] for y in range(SIDE)]
        for y in range(SIDE):
            for x in range(SIDE):
                axes.plot(x, y, "s", color=COLOURS[0] if first[y][x] else COLOURS[1], markersize=6, alpha=0.8)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("in flight at 4 servers of 40 ms")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("in flight at 16 servers of 80 ms")
    for label, colour in (("to the 4 servers", COLOURS[0]), ("to the 16 servers", COLOURS[1])):
        figure.axes[0].plot([], [], "s", color=colour, label=label)
    figure.axes[0].legend(fontsize=8, loc="upper left")
    figure.savefig(HERE / "curve-plane.png", dpi=110)


if __name__ == "__main__":
    draw_learned(learned())
    draw_plane()
