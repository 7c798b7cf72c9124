"""The simulator as compiled functions, for sweeps of millions of arrivals: `model.simulate` without objects.

It repeats the Router, the policies and the regret operation by operation, in the same floating-point arithmetic and
with the same order of events. The tests hold it equal to `model.simulate`, decision by decision. It is a copy made for
speed; where the two differ, this one is wrong. Importing this module needs numba (the extra `compiled`).

Symbols: q requests in flight; N and S observations and their total time; mu the true rate; rate the estimate in use.
Pools are records and not objects: numba counts references to every array that it passes on, and records have none.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadgen.sim.rng import Stream, compiled, service, uniform

TOLERANCE = 1e-9  # of `core.argmin`
# Policies as in `compiled.KINDS`; those from GREEDY on learn rates. Tie rules as in `argmin.TIE_RULES`. Causes as in
# `compiled.CAUSES`.
RANDOM, ROUND_ROBIN, JSQ, ESED, SED, GREEDY, NQ, LASED, OPTIMISTIC = range(9)
FIRST, RANDOMLY, SLOWEST, FASTEST = range(4)
EXPLORATION, ESTIMATION, OVERFLOW = range(3)
OVERFLOW_FACTOR, MIN_OVERFLOW_THRESHOLD = 3.0, 7  # of `core.regret`
AT, NUMBER, SECONDS, POOL = range(4)  # columns of the heap of departures; each departure is a row
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# The fields of a pool:
# mu, guess: the true rate and the guessed one. servers: their number. q: requests in flight. joined: requests so far.
# a, b: parameters of its law of service times, see `rng.service`.
# N, S: observations and their total time. rate: the estimate in use. speed: the rate that breaks ties.
# power: `speed` to the power of the exponent. score: at the present decision.
# left: trials that it still gets. awaited: with episodes by pool, 1 if the pool was busy when the episode began and has
# not been empty since.
FLOATS = ("mu", "guess", "a", "b", "N", "S", "rate", "speed", "power", "score")
INTEGERS = ("servers", "q", "left", "joined", "awaited")
POOL_FIELDS = np.dtype([*((name, np.float64) for name in FLOATS), *((name, np.int64) for name in INTEGERS)])
Pools = NDArray[Any]  # of POOL_FIELDS
# The state of the policy beside its pools:
# episode, arrivals, explored: the number of the open episode, its arrivals, and whether it explored.
# explored_in_all: the number of episodes that explored. to_try: the trials that are left over all pools.
# awaited: the number of pools that are awaited. turn: the pool whose turn it was last.
LIFE = ("episode", "arrivals", "explored", "explored_in_all", "to_try", "awaited", "turn")
LIFE_FIELDS = np.dtype([(name, np.int64) for name in LIFE])
Life = Any  # a record of LIFE_FIELDS


class Rule(NamedTuple):
    """A policy and its options, as numbers.

    by_pool: whether episodes end by pool.
    law: the law of service times, as `rng.service` reads it.
    """

    kind: int
    ties: int
    exponent: float
    prior_weight: float
    n0: int
    c: float
    alpha: float
    bonus: float
    by_pool: bool
    max_episode_arrivals: int
    law: int


class Trace(NamedTuple):
    """The record of all decisions, one row each; without rows none is recorded.

    decided: pool, whether it was a forced trial, cause of regret (−1 for a right decision), episode.
    q, rates: by pool, as they were at the decision.
    """

    decided: Ints
    q: Ints
    rates: Floats


@compiled
def work_ahead(q: int, c: int) -> float:
    """Repeat `core.expected_delay.work_ahead`."""
    return q + 1.0 if c == 1 else max(0, q + 1 - c) / c + 1.0


@compiled
def rate_to_power(rate: float, exponent: float) -> float:
    return rate if exponent == 1.0 else math.pow(rate, exponent)


@compiled
def update_rate(pools: Pools, i: int, rule: Rule) -> None:
    """Take the latest estimate of pool i as the rate in use."""
    pool = pools[i]
    pool.rate = pool.speed = (pool.N + rule.bonus) / pool.S if pool.S > 0 else pool.guess
    pool.power = rate_to_power(pool.rate, rule.exponent)


@compiled
def initialise(pools: Pools, life: Life, rule: Rule) -> None:
    """Set the state before the first arrival."""
    life.episode, life.turn = 1, -1
    for i in range(pools.size):
        pool = pools[i]
        pool.N, pool.S = rule.prior_weight, rule.prior_weight / pool.guess
        pool.rate, pool.speed = pool.guess, pool.mu if rule.kind == SED else pool.guess
        pool.power = rate_to_power(pool.speed, rule.exponent)
        if rule.kind >= GREEDY:  # a prior, or the bonus of `optimistic`, may make the first rate differ from the guess
            update_rate(pools, i, rule)


@compiled
def end_episode(pools: Pools, life: Life, rule: Rule) -> None:
    life.episode += 1
    life.arrivals = life.explored = 0
    if rule.kind == LASED:  # the others take each estimate at once, in `depart`
        for i in range(pools.size):
            update_rate(pools, i, rule)


@compiled
def depart(pools: Pools, life: Life, rule: Rule, i: int, seconds: float, empty: bool) -> None:
    """Complete a request of pool i after so many seconds of service. empty: whether the system is empty now."""
    pool = pools[i]
    pool.q -= 1
    if rule.kind >= GREEDY:
        pool.N += 1
        pool.S += seconds
        if rule.kind != LASED:
            update_rate(pools, i, rule)
    if rule.by_pool and pool.q == 0:
        life.awaited -= pool.awaited
        pool.awaited = 0
        empty = life.awaited == 0  # an empty system implies it, as then no pool is awaited
    if empty and life.arrivals and not life.to_try:
        end_episode(pools, life, rule)


@compiled
def await_busy(pools: Pools, life: Life) -> None:
    """Mark the pools that are busy as an episode begins: `policies.lased` with episodes by pool."""
    life.awaited = 0
    for i in range(pools.size):
        pools[i].awaited = 1 if pools[i].q else 0
        life.awaited += pools[i].awaited


@compiled
def prepare_episode(pools: Pools, life: Life, rule: Rule) -> None:
    """Before an arrival, end an episode that is too long, and start the trials of a new one: `policies.lased`."""
    if rule.max_episode_arrivals and life.arrivals >= rule.max_episode_arrivals and not life.to_try:
        end_episode(pools, life, rule)
    if life.arrivals == 0:
        if rule.by_pool:
            await_busy(pools, life)
        needed = max(float(rule.n0), rule.c * math.pow(math.log(life.episode), rule.alpha))
        fewest = pools[0].N
        for i in range(pools.size):
            fewest = min(fewest, pools[i].N)
        if fewest < needed:
            for i in range(pools.size):
                pools[i].left = rule.n0
            life.to_try, life.explored = pools.size * rule.n0, 1
            life.explored_in_all += 1


@compiled
def score_pools(pools: Pools, rule: Rule) -> None:
    """Compute the scores of an index policy. Under `nq` busy pools score infinity while some pool is idle."""
    idle = False
    for i in range(pools.size):
        pool = pools[i]
        pool.score = float(pool.q) if rule.kind == JSQ else work_ahead(pool.q, pool.servers) / pool.power
        idle = idle or pool.q < pool.servers
    if rule.kind == NQ and idle:
        for i in range(pools.size):
            if pools[i].q >= pools[i].servers:
                pools[i].score = np.inf


@compiled
def least_score(pools: Pools, ties: int, rng: Stream) -> int:
    """Repeat `core.argmin.argmin`: return the pool of the least score, and break ties by the rule."""
    low = pools[0].score
    for i in range(1, pools.size):
        low = min(low, pools[i].score)
    limit, best, tied = low + 2 * TOLERANCE * abs(low), -1, 0
    for i in range(pools.size):
        if pools[i].score <= limit:
            tied += 1
            slower = ties == SLOWEST and pools[i].speed < pools[best].speed
            if best < 0 or slower or (ties == FASTEST and pools[i].speed > pools[best].speed):
                best = i
    if ties == RANDOMLY and tied > 1:
        # `argmin` draws only if several pools tie, so nothing is drawn for a single one.
        left = int(uniform(rng) * tied)
        for i in range(pools.size):
            if pools[i].score <= limit:
                if left == 0:
                    return i
                left -= 1
    return best


@compiled
def has_other_room(pools: Pools, best: int) -> bool:
    for i in range(pools.size):  # noqa: SIM110 - generators are not compiled
        if pools[i].q < pools[i].servers and i != best:
            return True
    return False


@compiled
def pool_to_try(pools: Pools, rule: Rule, best: int, n: int) -> int:
    """Return the pool to try at the n-th arrival, −1 for none: `policies.optimistic`."""
    if not has_other_room(pools, best):
        return -1
    log = math.log(n + 1.0)
    enough, z = rule.c * math.pow(log, rule.alpha), math.sqrt(2 * log) / 2
    lowest, chosen = pools[best].score, -1
    for i in range(pools.size):
        pool = pools[i]
        if i != best and pool.q < pool.servers and enough > pool.N:
            delay = 0.0  # a pool without observations may be as fast as one likes
            if pool.N > 0:
                root = 1 - 1 / (9 * pool.N) + z / (3 * math.sqrt(pool.N))
                bound = max(pool.N * math.pow(max(0.0, root), 3.0), pool.N) / pool.S
                delay = work_ahead(pool.q, pool.servers) / rate_to_power(bound, rule.exponent)
            if delay < lowest:
                lowest, chosen = delay, i
    return chosen


@compiled
def next_trial(pools: Pools) -> int:
    """Return the pool with the most trials left and count one down: `policies.lased`."""
    most = 0
    for i in range(pools.size):
        if pools[i].left > pools[most].left:
            most = i
    pools[most].left -= 1
    return most


@compiled
def choose(pools: Pools, life: Life, rule: Rule, n: int, rng: Stream) -> tuple[int, bool]:
    """Return the pool of the n-th arrival, and whether it is a forced trial."""
    if rule.kind == LASED:
        prepare_episode(pools, life, rule)
    life.arrivals += 1
    if rule.kind == RANDOM:
        return int(uniform(rng) * pools.size), False
    if rule.kind == ROUND_ROBIN:
        life.turn = (life.turn + 1) % pools.size
        return life.turn, False
    if life.to_try:
        life.to_try -= 1
        return next_trial(pools), True
    score_pools(pools, rule)
    chosen = least_score(pools, rule.ties, rng)
    if rule.kind == OPTIMISTIC:
        tried = pool_to_try(pools, rule, chosen, n)
        if tried >= 0:
            life.explored_in_all += 1 - life.explored  # an episode counts once, however many trials it has
            life.explored = 1
            return tried, True
    return chosen, False


@compiled
def regret_cause(pools: Pools, chosen: int, forced: bool, episode: int) -> int:
    """Return the cause of a wrong decision, −1 if it was right, as `core.regret` does."""
    mine = pools[chosen]
    # Products are compared instead of quotients, as in `core.regret.is_wrong`.
    w, wrong, longest = work_ahead(mine.q, mine.servers), False, 0
    for i in range(pools.size):
        pool = pools[i]
        a, b = w * pool.mu, work_ahead(pool.q, pool.servers) * mine.mu
        wrong = wrong or a - b > TOLERANCE * (a + b)
        longest = max(longest, pool.q)
    if not wrong:
        return -1
    if forced:
        return EXPLORATION
    threshold = max(float(MIN_OVERFLOW_THRESHOLD), OVERFLOW_FACTOR * math.log(episode))
    return OVERFLOW if longest > threshold else ESTIMATION


@compiled
def record_decision(trace: Trace, j: int, pools: Pools, chosen: int, forced: bool, cause: int, episode: int) -> None:
    """Write the row of decision j."""
    decided = trace.decided
    decided[j, 0], decided[j, 1], decided[j, 2], decided[j, 3] = chosen, forced, cause, episode
    for i in range(pools.size):
        trace.q[j, i], trace.rates[j, i] = pools[i].q, pools[i].rate


@compiled
def copy_row(heap: Floats, source: int, target: int) -> None:
    for column in range(4):
        heap[target, column] = heap[source, column]


@compiled
def is_before(heap: Floats, i: int, j: int) -> bool:
    """Return whether departure i comes before j: by instant, then by number of arrival."""
    first, second = heap[i, AT], heap[j, AT]
    return bool(first < second or (first == second and heap[i, NUMBER] < heap[j, NUMBER]))


@compiled
def push(heap: Floats, size: int, at: float, number: int, seconds: float, pool: int) -> None:
    """Add a departure to a heap of `size` rows. There must be room for two more; the last row is scratch space."""
    hole, new = size, heap.shape[0] - 1
    heap[new, AT], heap[new, NUMBER], heap[new, SECONDS], heap[new, POOL] = at, number, seconds, pool
    # Later departures move down, and the new one is copied last. So it needs one copy and not one for each level.
    while hole and is_before(heap, new, (hole - 1) // 2):
        copy_row(heap, (hole - 1) // 2, hole)
        hole = (hole - 1) // 2
    copy_row(heap, new, hole)


@compiled
def pop(heap: Floats, size: int) -> None:
    """Remove the first departure of a heap of `size` rows."""
    last, hole, child = size - 1, 0, 1
    while child < last:
        if child + 1 < last and is_before(heap, child + 1, child):
            child += 1
        if is_before(heap, last, child):
            break
        copy_row(heap, child, hole)
        hole, child = child, 2 * child + 1
    copy_row(heap, last, hole)


@compiled
def admit(free_at: Floats, pool: int, servers: int, now: float, seconds: float) -> float:
    """Start a job at its pool and return its end, as `workers.station` does."""
    server = 0
    for other in range(1, servers):
        if free_at[pool, other] < free_at[pool, server]:
            server = other
    finish = max(float(free_at[pool, server]), now) + seconds
    free_at[pool, server] = finish
    return finish


@compiled
def simulate(
    instants: Floats,
    rule: Rule,
    pools: Pools,
    lives: Any,
    streams: NDArray[Any],
    warmup: int,
    marks: Ints,
    trace: Trace,
) -> tuple[Ints, Ints, Ints, float]:
    """Simulate one replication. Return regret and requests by pool at the marks, regret by cause, and sojourn times.

    The sojourn times are their sum after the warm-up, in seconds.

    instants: of the arrivals, in seconds.
    pools, lives: records of shapes (n,) and (1,); the final state is left in them.
    streams: random numbers of the policy first, then of each pool's services.
    warmup: number of arrivals that the sojourn times leave out.
    marks: numbers of arrivals after which the regret is recorded, increasing.
    """
    life, size, servers = lives[0], instants.size, 1
    for i in range(pools.size):
        servers = max(servers, pools[i].servers)
    # The heap of `workers.station` is a table here: by pool and server, the instant from which on the server is free.
    free_at = np.full((pools.size, servers), -np.inf)
    heap, in_flight = np.empty((64, 4)), 0  # it doubles when it is full
    curve, joined = np.zeros(marks.size, np.int64), np.zeros((marks.size, pools.size), np.int64)
    causes, mark, sojourns = np.zeros(3, np.int64), 0, 0.0
    traced = trace.decided.size > 0
    initialise(pools, life, rule)
    for j in range(size + 1):  # the last step has no arrival, and all requests that are left end in it
        now = instants[j] if j < size else np.inf
        while in_flight and heap[0, AT] <= now:
            i, seconds = int(heap[0, POOL]), heap[0, SECONDS]
            pop(heap, in_flight)
            in_flight -= 1
            depart(pools, life, rule, i, seconds, in_flight == 0)
        if j == size:
            break
        i, forced = choose(pools, life, rule, j + 1, streams[0])
        cause = regret_cause(pools, i, forced, life.episode)
        if cause >= 0:
            causes[cause] += 1
        if traced:
            record_decision(trace, j, pools, i, forced, cause, life.episode)
        pool = pools[i]
        seconds = service(streams[i + 1], rule.law, pool.mu, pool.a, pool.b)
        finish = admit(free_at, i, pool.servers, now, seconds)
        if in_flight + 2 > heap.shape[0]:
            heap = np.concatenate((heap, np.empty_like(heap)))
        push(heap, in_flight, finish, j, seconds, i)
        in_flight += 1
        pool.q += 1
        pool.joined += 1
        if j >= warmup:
            sojourns += finish - now
        while mark < marks.size and j + 1 == marks[mark]:
            curve[mark] = causes.sum()
            for other in range(pools.size):
                joined[mark, other] = pools[other].joined
            mark += 1
    return curve, joined, causes, sojourns
