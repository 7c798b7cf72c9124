"""Runs one replication of a simulated scenario on real processes instead: pools, a dispatcher and open-loop traffic.

All rates are scaled by one factor, and the result is scaled back to the units of the scenario. The dispatcher counts
the regret with the same `RegretMeter` as the simulator. Options of policies that are in seconds (the `decay` of
peak_ewma) are not scaled.
"""

from __future__ import annotations

import json

import numpy as np

from dispatcher.core.regret import Cause
from dispatcher.core.rng import stream
from dispatcher.errors import ConfigError
from loadgen.attack.arrivals import parse
from loadgen.attack.driver import Attack
from loadgen.attack.records import Records
from loadgen.attack.schedule import first_arrivals
from loadgen.experiments.live.backends import BackendError, LivePoolSpec, WorkerOptions, live_system
from loadgen.sim.model import Result, Scenario


async def replicate(scenario: Scenario, rate: float, seed: int) -> Result:
    """Run one replication and return its result in the units of the scenario.

    rate: requests a second on the machine.
    Raises ConfigError for scenarios that are simulated only, BackendError if a process or a request fails.
    """
    if any(scenario.profiles):
        raise ConfigError("rates that change are simulated only")
    scale = rate / scenario.lam
    names = [str(i + 1) for i in range(len(scenario.mu))]
    servers = scenario.servers or (1,) * len(names)
    pools = [
        LivePoolSpec(name, rate=mu * scale, guess=guess * scale, servers=c)
        for name, mu, guess, c in zip(names, scenario.mu, scenario.guess, servers, strict=True)
    ]
    offsets = first_arrivals(parse(scenario.process, scenario.lam, stream(seed, "arrivals")), scenario.arrivals) / scale
    options = scenario.policy_options
    async with live_system(scenario.policy, pools, seed, WorkerOptions(scenario.service), options) as system:
        attack = Attack(system.url, Records(offsets))
        await attack.run()
        await system.dispatcher.stop()  # the dispatcher writes its last rows when it stops
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
        mean_in_system=response * rate,  # by Little's law
        mean_response=response * scale,
        shares=tuple(sum(row["pool"] == name for row in rows) / len(rows) for name in names),
        estimates=tuple(float(estimate) / scale for estimate in rows[-1]["rates"]),
        episodes=rows[-1]["episode"],
        explored_episodes=len(explored),
    )
