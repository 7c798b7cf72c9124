"""prequal: each request joins a pool by Google's Prequal, from probes of requests in flight (RIF) and latency.

A probe of a pool returns its RIF and its latency: the median of recent response times that found the present RIF, or
the nearest one with data. At most `pool_size` (m) probes are kept, one for each pool. A probe is hot if its RIF exceeds
the `q_rif` quantile of the RIFs of recent probes; otherwise it is cold.

Rule: the request joins the cold pool of the least latency. If all probes are hot, it joins the pool of the least RIF.
With fewer than two probes a pool is drawn at random. After each choice three things happen, in this order:
1. The RIF of the probe that was used rises by one, and its use is counted.
2. `remove` (r_remove) probes are removed, in turn the oldest and the worst. The worst is the hot probe of the largest
   RIF; if none is hot, it is the probe of the largest latency.
3. `probes` (r_probe) pools are drawn without replacement and probed.
A probe ends after `max_age` seconds and after b uses. With n pools
b = max(1, (1 + delta)/((1 − m/n) r_probe − r_remove)), rounded at random to a whole number with that mean. The paper
assumes that n is larger than m; where the denominator is not positive, the uses are not limited here.

Source: Wydrowski, Kleinberg, Rumble, Archer, *Load is not what you should balance: Introducing Prequal*, NSDI 2024:
section 4, asynchronous mode, and the baseline parameters of section 5. `window` and the order of equals are our choice.

Differences from the source:
- In the paper the servers answer probes. Pools here have no endpoint for probes. This policy answers each one at once,
  from its own requests in flight and the response times that it measured. A server without other clients would return
  the same, except for the network's part of the time.
- Where a pool reports its queue (`Report.queue_depth`), the requests of other clients are added to its RIF for
  `max_age` seconds.
- An idle client of the paper sends probes by a timer. Here the first request after `max_age` seconds without any
  makes new probes before the choice.

Limits: among cold pools only the latency decides, so the rule is less fine than a comparison of counts. Responses that
arrive after a probe do not change it, so with rare requests it shows more in flight than there is. A pool without
responses has latency 0 and is preferred while it is cold. A pool that fails quickly stays cold; the health checks must
remove it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import itemgetter
from random import Random

from dispatcher.core.policy import BasePolicy, FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, Report
from dispatcher.errors import ConfigError
from dispatcher.estimators.latency import Latencies
from dispatcher.estimators.quantile import RecentQuantile
from dispatcher.policies.base import drop_oldest_departed

MAX_PROBES = 1000  # that are kept, made or removed for each request, and in the window
MIN_PROBES = 2  # that a choice needs
NO_REPORT = (-math.inf, 0)  # time, requests of other clients


@dataclass(slots=True)
class Probe:
    """The result of a probe.

    at: the time of the probe, seconds.
    rif: the requests in flight; each use adds one.
    latency: seconds.
    uses: how often it may still be used.
    """

    pool: str
    at: float
    rif: int
    latency: float
    uses: float


class Prequal(BasePolicy):
    """Least latency among pools with few requests in flight, as in Prequal (NSDI 2024).

    probes, remove: how many probes are made and removed for each request; fractions are allowed.
    pool_size: how many probes are kept.
    max_age: the seconds after which a probe is dropped.
    delta: how far uses may exceed the supply of probes.
    q_rif: from 0 (requests in flight decide) to 1 (latency decides).
    window: the number of probes that the quantile is taken over.
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
        if not 0 < probes <= MAX_PROBES:
            raise ConfigError(f"probes must be above 0 and at most {MAX_PROBES}, not {probes:g}")
        if not 0 <= remove <= MAX_PROBES:
            raise ConfigError(f"remove must be from 0 to {MAX_PROBES}, not {remove:g}")
        if not MIN_PROBES <= pool_size <= MAX_PROBES:
            raise ConfigError(f"pool_size must be from {MIN_PROBES} to {MAX_PROBES}, not {pool_size}")
        if not 0 < max_age < math.inf:
            raise ConfigError(f"max_age must be a positive number of seconds, not {max_age:g}")
        if not 0 <= delta < math.inf:
            raise ConfigError(f"delta must be 0 or more, not {delta:g}")
        if not 0 <= q_rif <= 1:
            raise ConfigError(f"q_rif must be from 0 to 1, not {q_rif:g}")
        if not 1 <= window <= MAX_PROBES:
            raise ConfigError(f"window must be from 1 to {MAX_PROBES}, not {window}")
        self.probes, self.remove, self.pool_size = probes, remove, pool_size
        self.max_age, self.delta = max_age, delta
        self._pooled: dict[str, Probe] = {}  # by pool, the oldest first
        self._rifs = RecentQuantile(q_rif, window)
        self._hot_above = self._rifs.value
        self._latencies: dict[str, Latencies] = {}  # includes pools that left
        self._others: dict[str, tuple[float, int]] = {}  # by pool: time of the report, requests of others
        self._to_probe = self._to_remove = 0.0  # probes that are due; the fraction is kept for the next request
        self._oldest_next = True
        self._probed_at = -math.inf

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        if now - self._probed_at > self.max_age:
            self._make_probes(fleet, now)
        self._expire(now)
        pool = self._select(fleet)
        in_flight = self.rif(pool, now)  # the present RIF, under which the response time will be kept
        self._remove_some()
        self._make_probes(fleet, now, joined=pool.id)
        return Decision(pool.id, memo=in_flight)

    def rif(self, pool: PoolView, now: float) -> int:
        """Return the requests in flight that a probe of this pool would return now."""
        at, others = self._others.get(pool.id, NO_REPORT)
        return pool.in_flight + (others if now - at <= self.max_age else 0)

    def uses(self, pools: int) -> float:
        """Return b before rounding: how often a probe may be used if there are this many pools."""
        gain = (1 - self.pool_size / pools) * self.probes - self.remove
        return max(1.0, (1 + self.delta) / gain) if gain > 0 else math.inf

    def _order(self, probe: Probe) -> tuple[bool, float, float]:
        """Return the hot/cold rule as a sort key: the best probe has the least key, the worst has the largest."""
        if probe.rif > self._hot_above:
            return True, probe.rif, probe.latency
        return False, probe.latency, probe.rif

    def _select(self, fleet: FleetView) -> PoolView:
        """Return the pool of the best probe and count the use. With too few probes, draw a pool."""
        usable = []
        for probe in self._pooled.values():
            try:
                usable.append((self._order(probe), fleet[probe.pool], probe))
            except KeyError:
                continue  # this request must not go to that pool
        pools = fleet.pools
        # A single pool needs no choice, so one probe is enough for it.
        if len(usable) < min(MIN_PROBES, len(pools)):
            return pools[int(self.rng.random() * len(pools))]
        _, pool, best = min(usable, key=itemgetter(0))
        best.rif += 1
        best.uses -= 1
        if best.uses <= 0:
            del self._pooled[best.pool]
        return pool

    def _expire(self, now: float) -> None:
        """Remove the probes that are too old."""
        while self._pooled:
            oldest = next(iter(self._pooled.values()))
            if now - oldest.at <= self.max_age:
                break
            del self._pooled[oldest.pool]

    def _remove_some(self) -> None:
        """Remove the oldest probe and the worst one in turn, at the rate `remove`."""
        self._to_remove += self.remove
        while self._to_remove >= 1:
            self._to_remove -= 1
            if self._pooled:
                probes = self._pooled.values()
                probe = next(iter(probes)) if self._oldest_next else max(probes, key=self._order)
                self._oldest_next = not self._oldest_next
                del self._pooled[probe.pool]

    def _make_probes(self, fleet: FleetView, now: float, joined: str = "") -> None:
        """Probe pools at the rate `probes`.

        joined: the pool whose new request the fleet does not count yet.
        """
        self._probed_at = now
        self._to_probe += self.probes
        due = int(self._to_probe)
        self._to_probe -= due
        pooled, uses = self._pooled, self.uses(len(fleet.pools))
        for pool in self.draw(fleet.pools, due):
            name, rif = pool.id, self.rif(pool, now)
            if name == joined:  # a server that was asked now would count this request
                rif += 1
            self._rifs.add(rif)
            pooled.pop(name, None)  # so that the new probe comes last in the order of age
            pooled[name] = Probe(name, now, rif, self._latencies[name].near(rif), self._rounded(uses))
            if len(pooled) > self.pool_size:
                del pooled[next(iter(pooled))]
        self._hot_above = self._rifs.value

    def _rounded(self, uses: float) -> float:
        """Return a random whole number with this mean."""
        return uses if uses == math.inf else math.floor(uses + self.rng.random())

    def learn(self, done: Completion, fleet: FleetView) -> None:
        ticket = done.ticket
        pool = ticket.decision.pool
        latencies = self._latencies.get(pool)
        if latencies is not None and done.outcome is Outcome.OK:
            # The memo is missing if another policy made the decision; then there is only our own count.
            memo = ticket.decision.memo
            in_flight = memo if isinstance(memo, int) else ticket.in_flight_before
            latencies.add(in_flight, done.finished_at - ticket.routed_at)
        if done.report is not None and pool in self.specs:
            self._reported(done.report, fleet[pool])
        super().learn(done, fleet)

    def _reported(self, report: Report, pool: PoolView) -> None:
        """Keep the number of requests of other clients, unless a later report is known."""
        if report.queue_depth is not None and report.at >= self._others.get(pool.id, NO_REPORT)[0]:
            self._others[pool.id] = report.at, max(0, round(report.queue_depth) - pool.in_flight)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        if isinstance(change, Added):
            self._latencies.setdefault(change.spec.id, Latencies())
            drop_oldest_departed(self._latencies, self.specs)
        else:
            self._pooled.pop(change.pool, None)
            self._others.pop(change.pool, None)
