"""Runs scenarios in the compiled kernel, with the same random streams as `model.simulate`.

numba is imported only when a scenario is run, because it is an extra and slow to import.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import workers.distributions as laws
from dispatcher import registry
from dispatcher.core.argmin import TIE_RULES
from dispatcher.core.memory import FOREVER
from dispatcher.core.regret import Cause
from dispatcher.core.rng import stream
from dispatcher.core.types import Phase
from dispatcher.errors import ConfigError
from dispatcher.telemetry.decisions import DecisionRecord
from loadgen.attack import arrivals as processes
from loadgen.sim.model import MIN_SECONDS, Result, Scenario

if TYPE_CHECKING:
    from loadgen.sim import kernel

# Policies and causes of regret stand in the order of the kernel's constants, which are their indices.
KINDS = ("random", "round_robin", "jsq", "esed", "sed", "greedy", "nq", "lased", "optimistic")
CAUSES = (Cause.EXPLORATION, Cause.ESTIMATION, Cause.OVERFLOW)


def obstacle(scenario: Scenario) -> str | None:
    """Return why the kernel cannot run this scenario, None if it can.

    Raises ConfigError if no engine can run it.
    """
    policy = registry.create(scenario.policy, Random(0), scenario.policy_options)
    # A policy of another package may be registered under one of these names.
    if scenario.policy not in KINDS or type(policy).__module__ != f"dispatcher.policies.{scenario.policy}":
        return f"policy {scenario.policy!r} is not compiled; compiled are: {', '.join(KINDS)}"
    if getattr(policy, "estimator", "mean") != "mean":
        return "of the estimators only the mean is compiled"
    if getattr(policy, "memory", FOREVER) != FOREVER:
        return "estimates that fade are not compiled; set memory=-1"
    if any(scenario.profiles):
        return "rates that change are not compiled"
    if find_spec("numba") is None:
        return "numba is not installed: pip install 'lased-dispatcher[compiled]'"
    try:
        import loadgen.sim.kernel  # noqa: F401
    except ImportError as error:
        return f"numba cannot be used: {error}"
    return None


class Compiled:
    """Prepares one scenario for many seeds. Raises ConfigError if there is an `obstacle`.

    The first object in a process loads the kernel. The first one on a machine compiles it, which takes ten seconds.
    """

    def __init__(self, scenario: Scenario) -> None:
        if reason := obstacle(scenario):
            raise ConfigError(f"--engine compiled cannot run this: {reason}")
        from loadgen.sim import kernel, rng

        self._kernel, self._rng = kernel, rng
        self.scenario = scenario
        self._marks = np.array(scenario.marks)
        law, self._pools = self._make_pools()
        self._rule = self._make_rule(law)

    def simulate(self, seed: int, keep_rows: bool = False) -> Result:
        """Run one replication, as `model.simulate` does."""
        scenario, pools, n, size = self.scenario, self._pools.copy(), len(self._pools), self.scenario.arrivals
        rows = size if keep_rows else 0  # without rows the kernel records no decision
        trace = self._kernel.Trace(np.zeros((rows, 4), np.int64), np.zeros((rows, n), np.int64), np.zeros((rows, n)))
        streams = self._rng.records_of(stream(seed, "policy"), *(stream(seed, f"work/{i}") for i in range(n)))
        instants, lives = self._instants(seed), np.zeros(1, self._kernel.LIFE_FIELDS)
        curve, joined, causes, sojourns = self._kernel.simulate(
            instants, self._rule, pools, lives, streams, scenario.warmup, self._marks, trace
        )
        warm_at = float(instants[scenario.warmup - 1]) if scenario.warmup else 0.0
        learns = self._rule.kind >= self._kernel.GREEDY  # the kinds before it keep their guesses
        return Result(
            seed=seed,
            regret=int(causes.sum()),
            regret_curve=tuple(curve.tolist()),
            joined_curve=tuple(map(tuple, joined.tolist())),
            by_cause=dict(zip(CAUSES, causes.tolist(), strict=True)),
            mean_in_system=sojourns / max(float(instants[-1]) - warm_at, MIN_SECONDS),
            mean_response=sojourns / (size - scenario.warmup),
            shares=tuple((pools["joined"] / size).tolist()),
            estimates=tuple(float(p["N"] / p["S"]) if learns and p["S"] > 0 else float(p["guess"]) for p in pools),
            episodes=int(lives[0]["episode"]),
            explored_episodes=int(lives[0]["explored_in_all"]),
            rows=_rows(instants, trace) if keep_rows else (),
        )

    def _instants(self, seed: int) -> NDArray[np.float64]:
        """Return the instants of the arrivals, in seconds."""
        scenario, gaps = self.scenario, stream(seed, "arrivals")
        instants = np.empty(scenario.arrivals)
        if scenario.process == "poisson":  # the usual process is compiled; the others are drawn by Python
            self._rng.poisson_instants(self._rng.records_of(gaps)[0], scenario.lam, instants)
            return instants
        process, now = processes.parse(scenario.process, scenario.lam, gaps), 0.0
        for i in range(scenario.arrivals):
            arrival = process.next_arrival(now)
            assert arrival is not None, "the processes of loadgen.attack.arrivals do not end"
            instants[i] = now = arrival
        return instants

    def _make_rule(self, law: int) -> kernel.Rule:
        """Return the policy with its options as numbers; options that it does not have are 0."""
        policy = registry.create(self.scenario.policy, Random(0), self.scenario.policy_options)

        def option(name: str, default: Any) -> Any:
            return getattr(policy, name, default)

        return self._kernel.Rule(
            kind=KINDS.index(self.scenario.policy),
            ties=TIE_RULES.index(option("ties", "first")),
            exponent=float(option("exponent", 1.0)),
            prior_weight=float(option("prior_weight", 0.0)),
            n0=option("n0", 0),
            c=float(option("c", 0.0)),
            alpha=float(option("alpha", 0.0)),
            bonus=float(option("bonus", 0.0)),
            by_pool=option("by_pool", False),
            max_episode_arrivals=option("max_episode_arrivals", 0),
            law=law,
        )

    def _make_pools(self) -> tuple[int, NDArray[Any]]:
        """Return the kernel's number of the law of service times, and the pools with its parameters."""
        scenario, rng = self.scenario, self._rng
        pools = np.zeros(len(scenario.mu), self._kernel.POOL_FIELDS)
        pools["mu"], pools["guess"], pools["servers"] = scenario.mu, scenario.guess, scenario.servers or 1
        # The parameters a and b are those of `rng.service`. They are computed here once, and not at each draw.
        match laws.parse(scenario.service, 1.0, Random(0)):
            case laws.Fixed():
                return rng.FIXED, pools
            case laws.Lognormal(cv=cv):
                variance = math.log(1 + cv**2)
                pools["a"] = [-variance / 2 - math.log(rate) for rate in scenario.mu]
                pools["b"] = math.sqrt(variance)
                return rng.LOGNORMAL, pools
            case laws.Hyperexponential(cv=cv):
                pools["a"] = (1 + math.sqrt((cv**2 - 1) / (cv**2 + 1))) / 2
                return rng.HYPEREXP, pools
            case laws.Pareto(shape=shape):
                pools["a"], pools["b"] = -1.0 / shape, [(shape - 1) / (shape * rate) for rate in scenario.mu]
                return rng.PARETO, pools
        return rng.EXP, pools


def _rows(instants: NDArray[np.float64], trace: kernel.Trace) -> tuple[DecisionRecord, ...]:
    """Return the trace in the form in which `model.simulate` returns it."""
    pools = tuple(str(i + 1) for i in range(trace.q.shape[1]))
    chosen, forced, cause, episode = trace.decided.T.tolist()
    regret = np.cumsum(trace.decided[:, 2] >= 0).tolist()
    return tuple(
        DecisionRecord(
            n=j + 1,
            time=float(instants[j]),
            pools=pools,
            in_flight=tuple(trace.q[j].tolist()),
            pool=pools[chosen[j]],
            phase=Phase.EXPLORE if forced[j] else Phase.EXPLOIT,
            cause=CAUSES[cause[j]] if cause[j] >= 0 else None,
            regret=regret[j],
            episode=episode[j],
            rates=tuple(trace.rates[j].tolist()),
            scores=(),
        )
        for j in range(len(instants))
    )
