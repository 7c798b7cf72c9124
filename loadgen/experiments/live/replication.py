"""A cell of an experiment on real processes: the dispatcher, its pools and open-loop traffic, all rates scaled alike.

The regret is the dispatcher's own, read off its rows: the same `RegretMeter` as in the simulator. Times are given back
in the units of the scenario. What policies take in seconds (the `decay` of peak_ewma) is not scaled.
"""

from __future__ import annotations

import json

import numpy as np

from dispatcher.core.regret import Cause
from dispatcher.core.rng import stream
from dispatcher.errors import ConfigError
from loadgen.attack import arrivals as processes
from loadgen.attack.driver import Attack
from loadgen.attack.records import Records
from loadgen.experiments.live.backends import BackendError, LivePoolSpec, live_system
from loadgen.sim.model import Result, Scenario


async def measure(scenario: Scenario, rate: float, seed: int) -> Result:
    """One replication, at `rate` requests a second. Raises ConfigError, BackendError."""
    if any(scenario.profiles):
        raise ConfigError("rates that change are simulated only")
    scale = rate / scenario.lam
    names = [str(i + 1) for i in range(len(scenario.mu))]
    servers = scenario.servers or (1,) * len(names)
    pools = [
        LivePoolSpec(name, rate=mu * scale, guess=guess * scale, servers=c)
        for name, mu, guess, c in zip(names, scenario.mu, scenario.guess, servers, strict=True)
    ]
    process, offsets, now = processes.parse(scenario.process, scenario.lam, stream(seed, "arrivals")), [], 0.0
    for _ in range(scenario.arrivals):
        arrival = process.next_arrival(now)
        assert arrival is not None, "the processes of loadgen.attack.arrivals do not end"
        now = arrival
        offsets.append(now / scale)
    options = scenario.policy_options
    async with live_system(scenario.policy, pools, seed, service=scenario.service, options=options) as system:
        attack = Attack(system.url, Records(np.array(offsets)))
        await attack.run()
        await system.dispatcher.stop()  # so that it writes its last rows
        rows = [json.loads(line) for line in system.rows.read_text().splitlines()]
    if len(rows) < scenario.arrivals or not attack.records.completed.all():
        raise BackendError(f"of {scenario.arrivals} requests {len(rows)} were routed; the run does not count")
    wrong = np.cumsum([row["cause"] is not None for row in rows])
    response = float(attack.records.response[scenario.warmup :].mean())
    marks = scenario.marks
    explored = {row["episode"] for row in rows if row["phase"] == "explore"}
    return Result(
        seed=seed,
        regret=int(wrong[-1]),
        regret_curve=tuple(int(wrong[mark - 1]) for mark in marks),
        joined_curve=tuple(tuple(sum(row["pool"] == name for row in rows[:mark]) for name in names) for mark in marks),
        by_cause={cause: sum(row["cause"] == cause for row in rows) for cause in Cause},
        mean_in_system=response * rate,
        mean_response=response * scale,
        shares=tuple(sum(row["pool"] == name for row in rows) / len(rows) for name in names),
        estimates=tuple(float(rate) / scale for rate in rows[-1]["rates"]),
        episodes=rows[-1]["episode"],
        explored_episodes=len(explored),
    )
