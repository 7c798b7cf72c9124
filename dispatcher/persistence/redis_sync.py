"""Shares what several dispatchers in front of the same pools have learned, through Redis.

What is learned about a pool is a sum, (N_i, S_i). There is one hash for each pool, with one field for each dispatcher.
Each dispatcher writes its own part of the sum as a whole. Only an increase counts, so writing it twice changes nothing.
The sum of all fields is what the fleet has learned.

Each dispatcher also keeps the fields of the others and restores them if Redis has lost its data. So nothing is lost
while one dispatcher lives. Reading and writing are one script that runs a few times per second, beside the requests.
While Redis cannot be reached, every dispatcher learns alone. It adds what it has learned when Redis is back.

The epoch of a pool is a part of the name of its hash. To reset a pool raises the epoch, and every
dispatcher that reads the new epoch starts anew. The fields of dispatchers that have stopped remain, because their
observations are still true. Beyond MAX_FIELDS fields, those of dispatchers that were silent for long are merged into
one field. A dispatcher that returns after that continues under another name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from dispatcher.core.policy import NO_COUNTS, BasePolicy, LocalCounts
from dispatcher.core.rng import stream
from dispatcher.errors import ConfigError

log = structlog.get_logger()

INTERVAL_SECONDS = 0.25  # between two exchanges
TIMEOUT_SECONDS = 1.0  # of one exchange
MAX_PAUSE_SECONDS = 5.0  # between two exchanges while they fail
MAX_FIELDS = 64  # of the hash of a pool
SILENT_SECONDS = 3600  # after which the field of a dispatcher may be merged
NAME_SECONDS = 30 * 86400  # for which the names of dispatchers are kept

# ARGV: namespace, id, most fields, seconds of silence, {pool: {epoch, fields: {id: "N S count"}}}. An epoch of −1 means
# that it is not known. The result is "folded" if the field of this id was merged, otherwise {pool: {epoch, fields}}.
# The sums are texts, because the JSON library of Lua would round the numbers.
_SCRIPT = """
local space, id, most, silent = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local seen, folded, epochs = space .. ':seen', space .. ':folded', space .. ':epochs'
if redis.call('SISMEMBER', folded, id) == 1 then return 'folded' end
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', seen, now, id)
redis.call('ZREMRANGEBYSCORE', seen, '-inf', now - NAME_SECONDS)
local function parts(value)
  local a, b, c = string.match(value, '^(%S+) (%S+) (%S+)$')
  return tonumber(a), tonumber(b), tonumber(c)
end
local out = {}
for pool, row in pairs(cjson.decode(ARGV[5])) do
  local epoch = tonumber(redis.call('HGET', epochs, pool) or '0')
  if row.epoch > epoch then
    redis.call('DEL', space .. ':pool:' .. pool .. ':' .. epoch)
    epoch = row.epoch
    redis.call('HSET', epochs, pool, epoch)
  end
  local key = space .. ':pool:' .. pool .. ':' .. epoch
  if row.epoch == epoch then
    for field, value in pairs(row.fields) do
      local old = redis.call('HGET', key, field)
      local _, _, count = parts(value)
      if redis.call('SISMEMBER', folded, field) == 0 and (not old or select(3, parts(old)) < count) then
        redis.call('HSET', key, field, value)
      end
    end
  end
  local all, n, s, c, gone = redis.call('HGETALL', key), 0, 0, 0, {}
  if #all / 2 > most then
    for j = 1, #all, 2 do
      local at = tonumber(redis.call('ZSCORE', seen, all[j]) or '0')
      if all[j] == 'folded' or (all[j] ~= id and at < now - silent) then
        local a, b, d = parts(all[j + 1])
        n, s, c = n + a, s + b, c + d
        if all[j] ~= 'folded' then gone[#gone + 1] = all[j] end
      end
    end
    for _, field in ipairs(gone) do
      redis.call('HDEL', key, field)
      redis.call('SADD', folded, field)
    end
    if #gone > 0 then
      redis.call('HSET', key, 'folded', string.format('%.17g %.17g %.17g', n, s, c))
      redis.call('EXPIRE', folded, NAME_SECONDS)
      all = redis.call('HGETALL', key)
    end
  end
  local fields = {}
  for j = 1, #all, 2 do fields[all[j]] = all[j + 1] end
  out[pool] = {epoch = epoch, fields = fields}
end
return cjson.encode(out)
""".replace("NAME_SECONDS", str(NAME_SECONDS))

Fields = dict[str, LocalCounts]  # by dispatcher


class SharedLearning:
    """One dispatcher's connection to the shared counts.

    url: the URL of Redis.
    space: the name of the fleet, a prefix of all keys.
    policy: a function that returns the policy that decides now.
    forgotten: is called with the name of each pool that another dispatcher has reset.
    Raises ConfigError if the URL is wrong or redis-py is not installed.
    """

    def __init__(
        self,
        url: str,
        space: str,
        policy: Callable[[], BasePolicy],
        registry: CollectorRegistry,
        forgotten: Callable[[str], None] = lambda pool: None,
    ) -> None:
        try:
            from redis import asyncio as redis
        except ImportError as error:
            raise ConfigError("state_url needs the extra redis: pip install 'lased-dispatcher[redis]'") from error
        try:
            self._redis = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
            )
        except (ValueError, TypeError) as error:
            raise ConfigError("state_url is no URL of a Redis, as in redis://127.0.0.1:6379/0") from error
        self._script = self._redis.register_script(_SCRIPT)
        self._space, self._policy, self._forgotten = space, policy, forgotten
        self._rng = stream(secrets.randbits(32), "pauses")
        self._id = secrets.token_hex(8)
        self._base: Fields = {}  # by pool: own counts that were merged into another field, before the id changed
        self._written: Fields = {}  # by pool: own counts at the last exchange
        self._fields: dict[str, Fields] = {}  # by pool: the fields of the others
        self._missing: dict[str, Fields] = {}  # by pool: those that Redis had lost at the last exchange
        self._epochs: dict[str, int] = {}
        self._wanted_epochs: dict[str, int] = {}  # by pool: the epoch to raise to, for pools that were reset here
        self._up: bool | None = None
        text = "1 if what the fleet has learned is being shared."
        self._up_gauge = Gauge("lased_shared_learning_up", text, registry=registry)
        text = "Exchanges with the others."
        self._exchanges = Counter("lased_shared_learning_looks", text, ["outcome"], registry=registry)

    async def begin(self) -> None:
        """Take in what the fleet has learned, before the first request. A failure delays the start only shortly."""
        await self.exchange()

    async def run(self) -> None:
        """Exchange counts until cancelled."""
        pause = INTERVAL_SECONDS
        while True:
            # The random factor keeps several dispatchers from exchanging at the same moments.
            await asyncio.sleep(pause * self._rng.uniform(0.8, 1.2))
            pause = INTERVAL_SECONDS if await self.exchange() else min(2 * pause, MAX_PAUSE_SECONDS)

    async def close(self) -> None:
        """Write the last counts and close the connection."""
        await self.exchange()
        with contextlib.suppress(Exception):
            await self._redis.aclose()

    def reset_pool(self, pool: str) -> None:
        """Let the whole fleet learn this pool anew. A dispatcher that cannot reach Redis now does so later."""
        self._wanted_epochs[pool] = self._epochs.get(pool, -1) + 1
        self._drop(pool)

    async def exchange(self) -> bool:
        """Write own counts and read those of the others. Returns whether it succeeded.

        A failure is counted. It is logged when the first exchange fails, and when the first one succeeds again.
        """
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while await self._exchange_once():
                    pass
        except Exception as error:  # noqa: BLE001 - routing continues whatever fails here, so this must continue too
            self._exchanges.labels("failed").inc()
            self._set_up(False, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return False
        self._exchanges.labels("done").inc()
        self._set_up(True, "")
        return True

    def _set_up(self, up: bool, reason: str) -> None:
        self._up_gauge.set(up)
        if up is not self._up:
            if up:
                log.info("shared_learning", pools=sorted(self._epochs))
            else:
                log.warning("shared_learning_lost", reason=reason, meanwhile="learning alone")
        self._up = up

    async def _exchange_once(self) -> bool:
        """Run the script once. Returns whether it must run again: the counts of new pools need an epoch first."""
        policy = self._policy()
        own = policy.local_counts()
        rows = {pool: self._row(pool, own.get(pool)) for pool in own.keys() | self._wanted_epochs.keys()}
        arguments: list[str | int | float] = [self._space, self._id, MAX_FIELDS, SILENT_SECONDS, json.dumps(rows)]
        result = await self._script(args=arguments)
        if result == b"folded":
            # Own counts are in the merged field now, so only what follows belongs in a field of a new name.
            self._base, self._id = dict(self._written), secrets.token_hex(8)
            return True
        new = [pool for pool in own if pool not in self._epochs and pool not in self._wanted_epochs]
        self._written |= {pool: counts for pool, counts in own.items() if pool not in self._wanted_epochs}
        for pool, row in json.loads(result).items():
            fields = {name: _parse(text) for name, text in row["fields"].items()}
            self._take(policy, pool, row["epoch"], fields)
        return any(own[pool][2] for pool in new)

    def _row(self, pool: str, own: LocalCounts | None) -> dict[str, Any]:
        """Return what the script needs to know about a pool."""
        epoch = self._wanted_epochs.get(pool, self._epochs.get(pool, -1))
        fields = dict(self._missing.get(pool, {}))
        if own is not None and pool not in self._wanted_epochs:
            mine = _difference(own, self._base.get(pool, NO_COUNTS))
            if mine[2] > 0:
                fields[self._id] = mine
        return {"epoch": epoch, "fields": {name: " ".join(map(repr, counts)) for name, counts in fields.items()}}

    def _take(self, policy: BasePolicy, pool: str, epoch: int, fields: Fields) -> None:
        """Take in the epoch and the fields that Redis has for a pool."""
        known, wanted = self._epochs.get(pool), self._wanted_epochs.get(pool)
        self._epochs[pool] = epoch
        if wanted is not None:
            if epoch >= wanted and known is not None:
                del self._wanted_epochs[pool]
            else:  # the epoch to raise to was a guess, because the present one was not known until now
                self._wanted_epochs[pool] = epoch + 1
            return
        if known is not None and epoch != known:
            self._drop(pool)
            policy.reset_pool(pool)
            self._forgotten(pool)
            log.info("pool_forgotten", pool=pool, epoch=epoch)
        fields.pop(self._id, None)
        merged = self._with_missing(pool, fields)
        policy.merge_remote(pool, _difference(_total(merged), self._base.get(pool, NO_COUNTS)))

    def _with_missing(self, pool: str, fields: Fields) -> Fields:
        """Return the fields of the others, with those that Redis has lost.

        Counts only grow. If there are fewer than before, Redis has lost data; the missing fields are then written again
        at the next exchange.
        """
        before = self._fields.get(pool, {})
        if _total(fields)[2] < _total(before)[2]:
            self._missing[pool] = {
                name: counts for name, counts in before.items() if counts[2] > fields.get(name, NO_COUNTS)[2]
            }
            fields = fields | self._missing[pool]
        else:
            self._missing.pop(pool, None)
        self._fields[pool] = fields
        return fields

    def _drop(self, pool: str) -> None:
        """Drop all counts of a pool that is learned anew."""
        for by_pool in (self._base, self._written, self._fields, self._missing):
            by_pool.pop(pool, None)


def _parse(text: str) -> LocalCounts:
    n, s, observations = map(float, text.split(" "))
    return n, s, observations


def _total(fields: Fields) -> LocalCounts:
    n, s, observations = (sum(values) for values in zip(*fields.values(), strict=True)) if fields else NO_COUNTS
    return n, s, observations


def _difference(a: LocalCounts, b: LocalCounts) -> LocalCounts:
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]
