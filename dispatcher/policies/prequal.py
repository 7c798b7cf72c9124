"""prequal: Prequal, from Google; probes of pools, and a rule on requests in flight (RIF) and latency.

Rule. A probe of a pool returns its RIF and its latency, the median of recent response times that found a RIF at or
near the present one. The policy keeps at most `pool_size` (m) probes, one a pool. A probe is hot if its RIF exceeds
the `q_rif` quantile of the RIFs that recent probes returned; otherwise it is cold. The request joins the cold pool of
the least latency; if all probes are hot, it joins the pool of the least RIF. With fewer than two probes the pool is
drawn at random. After each choice, in this order:
  1. the RIF of the probe used rises by one, and its use is counted;
  2. `remove` (r_remove) probes are removed, in turn the oldest and the worst. The worst is the hot one of the largest
     RIF; if none is hot, it is the one of the largest latency;
  3. `probes` (r_probe) pools are drawn without replacement and probed; a new probe replaces the one of the same pool.
A probe ends when it is `max_age` seconds old, and after b uses. With n pools b = max(1, (1 + delta)/((1 − m/n) r_probe
− r_remove)), rounded at random so that its mean is right; if the denominator is not positive, uses are not limited.

Source: Wydrowski, Kleinberg, Rumble, Archer, *Load is not what you should balance: Introducing Prequal*, NSDI 2024,
section 4 and the defaults of section 5 (the asynchronous mode). The size of the window of RIFs is not in the paper.

Differences from the source. In the paper the servers answer the probes. This dispatcher has no probe endpoint, so it
answers a probe at once from what it knows: its own requests in flight at the pool, and the response times that it has
measured. A single client of the paper would learn the same. Where a pool reports its queue (`Report.queue_depth`), the
reported requests of other clients are added for `max_age` seconds. Idle clients of the paper probe by a timer; here a
request that comes more than `max_age` after the last probes first has new ones made.

Limits: the median and the RIF rule balance response times, not work; with few pools the exact count is known and the
rule uses it only as hot or cold. A pool without responses has latency 0 and is preferred while it is cold. A pool that
fails quickly stays cold; the health checks must remove it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from dispatcher.core.interfaces import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, Report
from dispatcher.errors import ConfigError
from dispatcher.estimators.latency import Latencies
from dispatcher.estimators.quantile import RecentQuantile
from dispatcher.policies.base import BasePolicy, forget_oldest

MOST = 1000  # probes: kept, for each request, and in the window
ENOUGH = 2  # probes that a choice needs
NO_REPORT = (-math.inf, 0)


@dataclass(slots=True)
class Probe:
    """What a probe returned. at: when. rif: counts up with use. latency: seconds. uses: how many are left."""

    pool: str
    at: float
    rif: int
    latency: float
    uses: float


class Prequal(BasePolicy):
    """Least latency among pools with few requests in flight, by probes, as in Prequal (NSDI 2024).

    probes, remove: probes made and removed for each request, fractions allowed. pool_size: probes kept. max_age:
    seconds. delta: of the limit of uses. q_rif: from 0 (requests in flight decide) to 1 (latency decides). window:
    probes in the quantile.
    """

    def __init__(
        self,
        *,
        rng: Random,
        probes: float = 3.0,
        remove: float = 1.0,
        pool_size: int = 16,
        max_age: float = 1.0,
        delta: float = 1.0,
        q_rif: float = 0.84,
        window: int = 128,
    ) -> None:
        super().__init__(rng=rng)
        if not 0 < probes <= MOST:
            raise ConfigError(f"probes must be above 0 and at most {MOST}, not {probes:g}")
        if not 0 <= remove <= MOST:
            raise ConfigError(f"remove must be from 0 to {MOST}, not {remove:g}")
        if not ENOUGH <= pool_size <= MOST:
            raise ConfigError(f"pool_size must be from {ENOUGH} to {MOST}, not {pool_size}")
        if not 0 < max_age < math.inf:
            raise ConfigError(f"max_age must be a positive number of seconds, not {max_age:g}")
        if not 0 <= delta < math.inf:
            raise ConfigError(f"delta must be 0 or more, not {delta:g}")
        if not 0 <= q_rif <= 1:
            raise ConfigError(f"q_rif must be from 0 to 1, not {q_rif:g}")
        if not 1 <= window <= MOST:
            raise ConfigError(f"window must be from 1 to {MOST}, not {window}")
        self.probes, self.remove, self.pool_size = probes, remove, pool_size
        self.max_age, self.delta = max_age, delta
        self._pooled: dict[str, Probe] = {}  # by pool, the oldest first
        self._rifs = RecentQuantile(q_rif, window)
        self._latencies: dict[str, Latencies] = {}  # also of pools that left and may come back
        self._others: dict[str, tuple[float, int]] = {}  # when a pool reported, and the requests there of other clients
        self._to_probe = self._to_remove = 0.0  # what fractional rates have left over
        self._oldest_next = True
        self._probed_at = -math.inf

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        if now - self._probed_at > self.max_age:
            self._make_probes(fleet, now)
        self._expire(now)
        pool = self._select(fleet)
        found = self.rif(pool, now)
        self._remove_some()
        self._make_probes(fleet, now, joined=pool.id)
        return Decision(pool.id, memo=found)

    def rif(self, pool: PoolView, now: float) -> int:
        """The requests in flight that a probe returns."""
        at, others = self._others.get(pool.id, NO_REPORT)
        return pool.in_flight + (others if now - at <= self.max_age else 0)

    def is_hot(self, probe: Probe) -> bool:
        limit = self._rifs.value
        return limit is not None and probe.rif > limit

    def uses(self, pools: int) -> float:
        """b: how often a probe may be used where there are this many pools, before rounding."""
        gain = (1 - self.pool_size / pools) * self.probes - self.remove
        return max(1.0, (1 + self.delta) / gain) if gain > 0 else math.inf

    def _select(self, fleet: FleetView) -> PoolView:
        """Apply the hot/cold rule to the probes of these pools, and use the probe; or draw a pool."""
        pools = fleet.pools
        usable = self._usable(fleet)
        if len(usable) < min(ENOUGH, len(pools)):
            return pools[int(self.rng.random() * len(pools))]
        cold = [probe for probe in usable if not self.is_hot(probe)]
        if cold:
            best = min(cold, key=lambda probe: (probe.latency, probe.rif))
        else:
            best = min(usable, key=lambda probe: (probe.rif, probe.latency))
        best.rif += 1
        best.uses -= 1
        if best.uses <= 0:
            del self._pooled[best.pool]
        return fleet[best.pool]

    def _usable(self, fleet: FleetView) -> list[Probe]:
        """The probes of pools that may be chosen."""
        usable = []
        for pool, probe in self._pooled.items():
            try:
                fleet[pool]
            except KeyError:
                continue
            usable.append(probe)
        return usable

    def _expire(self, now: float) -> None:
        for probe in list(self._pooled.values()):
            if now - probe.at <= self.max_age:
                return
            del self._pooled[probe.pool]

    def _remove_some(self) -> None:
        """Remove the oldest probe and the worst one in turn, at the rate `remove`."""
        self._to_remove += self.remove
        while self._to_remove >= 1:
            self._to_remove -= 1
            if not self._pooled:
                continue
            pool = next(iter(self._pooled)) if self._oldest_next else self._worst()
            self._oldest_next = not self._oldest_next
            del self._pooled[pool]

    def _worst(self) -> str:
        probes = self._pooled.values()
        hot = [probe for probe in probes if self.is_hot(probe)]
        if hot:
            return max(hot, key=lambda probe: probe.rif).pool
        return max(probes, key=lambda probe: probe.latency).pool

    def _make_probes(self, fleet: FleetView, now: float, joined: str = "") -> None:
        """Probe pools at the rate `probes`. joined: the pool that gets a request now, which the fleet does not show."""
        self._probed_at = now
        self._to_probe += self.probes
        wanted = int(self._to_probe)
        self._to_probe -= wanted
        uses = self.uses(len(fleet.pools))
        for pool in self.draw(fleet.pools, wanted):
            rif = self.rif(pool, now) + (pool.id == joined)
            self._rifs.add(rif)
            self._pooled.pop(pool.id, None)
            self._pooled[pool.id] = Probe(pool.id, now, rif, self._latencies[pool.id].near(rif), self._rounded(uses))
            if len(self._pooled) > self.pool_size:
                del self._pooled[next(iter(self._pooled))]

    def _rounded(self, uses: float) -> float:
        """A whole number whose mean is `uses`."""
        return uses if math.isinf(uses) else math.floor(uses + self.rng.random())

    def learn(self, done: Completion, fleet: FleetView) -> None:
        ticket = done.ticket
        pool = ticket.decision.pool
        latencies = self._latencies.get(pool)
        if latencies is not None and done.outcome is Outcome.OK:
            memo = ticket.decision.memo
            found = memo if isinstance(memo, int) else ticket.found
            latencies.add(found, done.finished_at - ticket.routed_at)
        if done.report is not None and pool in self.specs:
            self._reported(done.report, fleet[pool])
        super().learn(done, fleet)

    def _reported(self, report: Report, pool: PoolView) -> None:
        """Note the requests of other clients, unless a later report is known."""
        if report.queue_depth is not None and report.at >= self._others.get(pool.id, NO_REPORT)[0]:
            self._others[pool.id] = report.at, max(0, round(report.queue_depth) - pool.in_flight)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        if isinstance(change, Added):
            self._latencies.setdefault(change.spec.id, Latencies())
            forget_oldest(self._latencies, self.specs)
        else:
            self._pooled.pop(change.pool, None)
            self._others.pop(change.pool, None)
