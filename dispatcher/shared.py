"""Shared learning: several dispatchers in front of the same pools tell each other what they have seen, through Redis.

What is learned of a pool is a sum, (N_i, S_i). Each dispatcher keeps its own part of it in a field of its own, in a
hash a pool, and writes the whole part each time: writing it twice changes nothing, and a Redis that has lost its
memory gets it back. The sum of all fields is what the fleet knows. Writing and reading are one script, a few times a
second, in no request's way. While Redis cannot be reached, everybody goes on learning alone, and adds what came since
when it can.

A pool's epoch is part of its hash's name: an operator who forgets a pool raises it, and every dispatcher that reads
the new one begins anew. Fields of dispatchers that have gone stay, for what they saw is still true; beyond MOST_FIELDS
the oldest are folded into one, and one of those that comes back goes on under another name with what it saw since.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from dispatcher.core.interfaces import Sums
from dispatcher.errors import ConfigError

log = structlog.get_logger()

EVERY = 0.25  # seconds between two looks
PATIENCE = 1.0  # seconds for one
LONGEST_PAUSE = 5.0  # seconds, while it fails
MOST_FIELDS = 64  # of a pool's hash
NOBODY: Sums = (0.0, 0.0, 0.0)
SILENT = 3600  # seconds after which a dispatcher may be folded

# ARGV: namespace, id, most fields, seconds of silence; for each pool: name, epoch (-1: not known), raise, N, S, count.
# Answers "folded", or for each pool: epoch and the sums of all others.
_SCRIPT = """
local space, id, most, silent = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('SISMEMBER', space .. ':folded', id) == 1 then return 'folded' end
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', space .. ':seen', now, id)
local out = {}
for i = 5, #ARGV, 6 do
  local pool, known, up = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if up == '1' then redis.call('HINCRBY', space .. ':epochs', pool, 1) end
  local epoch = tonumber(redis.call('HGET', space .. ':epochs', pool) or '0')
  if epoch < known then
    epoch = known
    redis.call('HSET', space .. ':epochs', pool, epoch)
  end
  local key = space .. ':pool:' .. pool .. ':' .. epoch
  if up ~= '1' and (epoch == known or known == -1) and tonumber(ARGV[i + 5]) > 0 then
    redis.call('HSET', key, id, ARGV[i + 3] .. ' ' .. ARGV[i + 4] .. ' ' .. ARGV[i + 5])
  end
  local n, s, seen, fields = 0, 0, 0, redis.call('HGETALL', key)
  for j = 1, #fields, 2 do
    if fields[j] ~= id then
      local a, b, c = string.match(fields[j + 1], '^(%S+) (%S+) (%S+)$')
      n, s, seen = n + tonumber(a), s + tonumber(b), seen + tonumber(c)
    end
  end
  if #fields / 2 > most then
    local fn, fs, fc = 0, 0, 0
    for j = 1, #fields, 2 do
      local at = tonumber(redis.call('ZSCORE', space .. ':seen', fields[j]) or '0')
      if fields[j] == 'folded' or (fields[j] ~= id and at < now - silent) then
        local a, b, c = string.match(fields[j + 1], '^(%S+) (%S+) (%S+)$')
        fn, fs, fc = fn + tonumber(a), fs + tonumber(b), fc + tonumber(c)
        if fields[j] ~= 'folded' then
          redis.call('HDEL', key, fields[j])
          redis.call('SADD', space .. ':folded', fields[j])
        end
      end
    end
    if fc > 0 then redis.call('HSET', key, 'folded', string.format('%.17g %.17g %.17g', fn, fs, fc)) end
  end
  out[#out + 1] = epoch
  out[#out + 1] = string.format('%.17g', n)
  out[#out + 1] = string.format('%.17g', s)
  out[#out + 1] = string.format('%.17g', seen)
end
return out
"""


@runtime_checkable
class Sharing(Protocol):
    """A policy whose knowledge is a sum, and may be added to from outside."""

    def own(self) -> dict[str, Sums]:
        """What it has seen itself of each pool: services, seconds, observations."""
        ...

    def absorb(self, pool: str, others: Sums) -> None:
        """What others have seen in all, in place of what they had at the last call."""
        ...

    def forget(self, pool: str) -> None:
        """Begin anew with this pool, from its guess."""
        ...


def check_sharing(name: str, policy: object) -> None:
    """Raises ConfigError if what this policy learns is no sum."""
    if not isinstance(policy, Sharing):
        raise ConfigError(f"state_url: policy {name!r} learns nothing that could be shared")
    if getattr(policy, "estimator", "mean") != "mean":
        raise ConfigError("state_url: only plain means are sums; leave policy.options.estimator away")


class SharedLearning:
    """url: of Redis. space: the fleet's name in it. policy: the one in force now. Raises ConfigError without
    redis-py."""

    def __init__(self, url: str, space: str, policy: Callable[[], Any], registry: CollectorRegistry) -> None:
        try:
            from redis import asyncio as redis
            from redis.exceptions import RedisError
        except ImportError as error:
            raise ConfigError("state_url needs the extra redis: pip install 'lased-dispatcher[redis]'") from error
        try:
            self._redis = redis.Redis.from_url(url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
        except ValueError as error:
            raise ConfigError("state_url must begin with redis://, rediss:// or unix://") from error
        self._script = self._redis.register_script(_SCRIPT)
        self._failures = (RedisError, OSError, TimeoutError)
        self._space, self._policy = space, policy
        self._id = secrets.token_hex(8)
        self._base: dict[str, Sums] = {}  # what is in the sums of others already, since we changed our name
        self._told: dict[str, Sums] = {}  # of our own, when it was last written
        self._epochs: dict[str, int] = {}
        self._raised: set[str] = set()
        self._up: bool | None = None
        self._told_up = Gauge("lased_shared_learning_up", "1 if what the fleet has learned is being shared.",
                              registry=registry)  # fmt: skip
        self._looks = Counter("lased_shared_learning_looks", "Exchanges with the others.", ["outcome"],
                              registry=registry)  # fmt: skip

    async def begin(self) -> None:
        """Take in what the fleet knows, before the first request; without, if that takes too long."""
        await self._look_safely()

    async def run(self) -> None:
        """Share, until cancelled."""
        pause = EVERY
        while True:
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = EVERY if await self._look_safely() else min(2 * pause, LONGEST_PAUSE)

    async def close(self) -> None:
        """Tell the last of it."""
        await self._look_safely()
        with contextlib.suppress(*self._failures):
            await self._redis.aclose()

    def forget(self, pool: str) -> None:
        """The whole fleet begins anew with this pool; those that cannot be reached, when they can be again."""
        self._raised.add(pool)

    async def _look_safely(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._look()
        except self._failures as error:
            self._looks.labels("failed").inc()
            self._tell(False, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return False
        self._looks.labels("done").inc()
        self._tell(True, "")
        return True

    def _tell(self, up: bool, why: str) -> None:
        self._told_up.set(up)
        if up is not self._up:
            if up:
                log.info("shared_learning", pools=sorted(self._epochs))
            else:
                log.warning("shared_learning_lost", reason=why, meanwhile="learning alone")
        self._up = up

    async def _look(self) -> None:
        policy: Sharing = self._policy()
        own, raised = policy.own(), set(self._raised)
        arguments: list[Any] = [self._space, self._id, MOST_FIELDS, SILENT]
        for pool, sums in own.items():
            mine = [total - known for total, known in zip(sums, self._base.get(pool, NOBODY), strict=True)]
            arguments += [pool, self._epochs.get(pool, -1), int(pool in raised), *(f"{value:.17g}" for value in mine)]
        found = await self._script(args=arguments)
        if found == b"folded":
            self._base, self._id = dict(self._told), secrets.token_hex(8)  # our part is nobody's now: go on beside it
            return
        self._raised -= raised
        self._told = dict(own)
        for k, pool in enumerate(own):
            epoch, *others = found[4 * k : 4 * k + 4]
            self._take(policy, pool, int(epoch), tuple(float(value) for value in others))

    def _take(self, policy: Sharing, pool: str, epoch: int, others: tuple[float, ...]) -> None:
        known = self._epochs.get(pool)
        self._epochs[pool] = epoch
        if known is not None and epoch != known:
            self._base.pop(pool, None)
            self._told.pop(pool, None)
            policy.forget(pool)
            log.info("pool_forgotten", pool=pool, epoch=epoch)
        base = self._base.get(pool, NOBODY)
        policy.absorb(pool, (others[0] - base[0], others[1] - base[1], others[2] - base[2]))
