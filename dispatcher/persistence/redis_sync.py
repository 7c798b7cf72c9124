"""Shared learning: several dispatchers in front of the same pools tell each other what they have seen, through Redis.

What is learned of a pool is a sum, (N_i, S_i). Each dispatcher keeps its own part of it in a field of its own, in a
hash a pool, and writes the whole part each time: what counts is the larger of two, so writing it twice changes
nothing. The sum of all fields is what the fleet knows. Each also remembers the fields of the others, and gives them
back to a Redis that has lost its memory: nothing is gone while one dispatcher lives. Writing and reading are one
script, a few times a second, in no request's way. While Redis cannot be reached, everybody goes on learning alone, and
adds what came since when it can.

A pool's epoch is part of its hash's name: an operator who forgets a pool raises it, and every dispatcher that reads
the new one begins anew. Fields of dispatchers that have gone stay, for what they saw is still true; beyond MOST_FIELDS
those that were silent for long are folded into one, and one of them that comes back goes on under another name.
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

from dispatcher.core.policy import NOTHING_SEEN, Sharing, Sums
from dispatcher.core.rng import stream
from dispatcher.errors import ConfigError

log = structlog.get_logger()

EVERY = 0.25  # seconds between two looks
PATIENCE = 1.0  # seconds for one
LONGEST_PAUSE = 5.0  # seconds, while it fails
MOST_FIELDS = 64  # of a pool's hash
SILENT = 3600  # seconds after which a dispatcher may be folded
FOLDED = "folded"

# ARGV: namespace, id, most fields, seconds of silence, {pool: {epoch, fields: {id: "N S count"}}}; epoch −1: not known.
# Answers "folded", or {pool: {epoch, fields}}. Values are texts: Lua's JSON would cut numbers short.
_SCRIPT = """
local space, id, most, silent = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local seen, folded, epochs = space .. ':seen', space .. ':folded', space .. ':epochs'
if redis.call('SISMEMBER', folded, id) == 1 then return 'folded' end
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', seen, now, id)
redis.call('ZREMRANGEBYSCORE', seen, '-inf', now - REMEMBERED)
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
      redis.call('EXPIRE', folded, REMEMBERED)
      all = redis.call('HGETALL', key)
    end
  end
  local fields = {}
  for j = 1, #all, 2 do fields[all[j]] = all[j + 1] end
  out[pool] = {epoch = epoch, fields = fields}
end
return cjson.encode(out)
""".replace("REMEMBERED", str(30 * 86400))  # seconds for which names are known

Fields = dict[str, Sums]  # by dispatcher


class SharedLearning:
    """url: of Redis. space: the fleet's name in it. policy: the one in force now. forgotten: told of a pool that the
    fleet begins anew with. Raises ConfigError without redis-py."""

    def __init__(
        self, url: str, space: str, policy: Callable[[], Any], registry: CollectorRegistry,
        forgotten: Callable[[str], None] = lambda pool: None,
    ) -> None:  # fmt: skip
        try:
            from redis import asyncio as redis
        except ImportError as error:
            raise ConfigError("state_url needs the extra redis: pip install 'lased-dispatcher[redis]'") from error
        try:
            self._redis = redis.Redis.from_url(url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
        except (ValueError, TypeError) as error:
            raise ConfigError("state_url is no URL of a Redis, as in redis://127.0.0.1:6379/0") from error
        self._script = self._redis.register_script(_SCRIPT)
        self._space, self._policy, self._forgotten = space, policy, forgotten
        self._dice = stream(secrets.randbits(32), "pauses")
        self._id = secrets.token_hex(8)
        self._base: Fields = {}  # by pool: what of ours is in others' fields already, since we changed our name
        self._told: Fields = {}  # by pool: of our own, when it was last written
        self._fields: dict[str, Fields] = {}  # by pool: those of the others
        self._missing: dict[str, Fields] = {}  # of them, what Redis had not when we looked
        self._epochs: dict[str, int] = {}
        self._raised: dict[str, int] = {}  # pools that we let the fleet forget, and the epoch that is wanted
        self._up: bool | None = None
        self._told_up = Gauge("lased_shared_learning_up", "1 if what the fleet has learned is being shared.",
                              registry=registry)  # fmt: skip
        self._looks = Counter("lased_shared_learning_looks", "Exchanges with the others.", ["outcome"],
                              registry=registry)  # fmt: skip

    async def begin(self) -> None:
        """Take in what the fleet knows, before the first request; without, if that takes too long."""
        await self.look()

    async def run(self) -> None:
        """Share, until cancelled."""
        pause = EVERY
        while True:
            await asyncio.sleep(pause * self._dice.uniform(0.8, 1.2))
            pause = EVERY if await self.look() else min(2 * pause, LONGEST_PAUSE)

    async def close(self) -> None:
        """Tell the last of it."""
        await self.look()
        with contextlib.suppress(Exception):
            await self._redis.aclose()

    def forget(self, pool: str) -> None:
        """The whole fleet begins anew with this pool; those that cannot be reached, when they can be again."""
        self._raised[pool] = self._epochs.get(pool, -1) + 1
        for kept in (self._base, self._told, self._fields, self._missing):
            kept.pop(pool, None)

    async def look(self) -> bool:
        """One exchange; whether it came to an end. What fails is counted, and told when it begins and ends."""
        try:
            async with asyncio.timeout(PATIENCE):
                while await self._exchange():
                    pass
        except Exception as error:  # noqa: BLE001 - whatever it is, routing goes on and so must this
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

    async def _exchange(self) -> bool:
        """Whether there is more to tell: the epochs of pools that are new to us are known only now."""
        policy: Sharing = self._policy()
        own = policy.own()
        asked: dict[str, Any] = {pool: self._row(pool, own.get(pool)) for pool in own.keys() | self._raised.keys()}
        arguments: list[str | int | float] = [self._space, self._id, MOST_FIELDS, SILENT, json.dumps(asked)]
        found = await self._script(args=arguments)
        if found == b"folded":  # our part is nobody's now: go on beside it
            self._base, self._id = dict(self._told), secrets.token_hex(8)
            return True
        new = [pool for pool in own if pool not in self._epochs and pool not in self._raised]
        self._told |= {pool: sums for pool, sums in own.items() if pool not in self._raised}
        for pool, row in json.loads(found).items():
            self._take(policy, pool, row["epoch"], {name: _read(text) for name, text in row["fields"].items()})
        return any(own[pool][2] for pool in new)

    def _row(self, pool: str, own: Sums | None) -> dict[str, Any]:
        epoch = self._raised.get(pool, self._epochs.get(pool, -1))
        fields = dict(self._missing.get(pool, {}))
        if own is not None and pool not in self._raised:
            mine = _less(own, self._base.get(pool, NOTHING_SEEN))
            if mine[2] > 0:
                fields[self._id] = mine
        return {"epoch": epoch, "fields": {name: " ".join(map(repr, sums)) for name, sums in fields.items()}}

    def _take(self, policy: Sharing, pool: str, epoch: int, fields: Fields) -> None:
        known, wanted = self._epochs.get(pool), self._raised.get(pool)
        self._epochs[pool] = epoch
        if wanted is not None:
            if epoch >= wanted and known is not None:
                del self._raised[pool]
            else:  # its epoch was not known; now it is
                self._raised[pool] = epoch + 1
            return
        if known is not None and epoch != known:
            for kept in (self._base, self._told, self._fields, self._missing):
                kept.pop(pool, None)
            policy.forget(pool)
            self._forgotten(pool)
            log.info("pool_forgotten", pool=pool, epoch=epoch)
        fields.pop(self._id, None)
        policy.absorb(pool, _less(_sum(self._merged(pool, fields)), self._base.get(pool, NOTHING_SEEN)))

    def _merged(self, pool: str, found: Fields) -> Fields:
        """What the others have seen. Sums only grow: where there is less than before, Redis has lost something."""
        before = self._fields.get(pool, {})
        if _sum(found)[2] < _sum(before)[2]:
            self._missing[pool] = {
                name: sums for name, sums in before.items() if sums[2] > found.get(name, NOTHING_SEEN)[2]
            }
            found = found | self._missing[pool]
        else:
            self._missing.pop(pool, None)
        self._fields[pool] = found
        return found


def _read(text: str) -> Sums:
    n, s, seen = map(float, text.split(" "))
    return n, s, seen


def _sum(fields: Fields) -> Sums:
    n, s, seen = (sum(values) for values in zip(*fields.values(), strict=True)) if fields else NOTHING_SEEN
    return n, s, seen


def _less(one: Sums, other: Sums) -> Sums:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]
