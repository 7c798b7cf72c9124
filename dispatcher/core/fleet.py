"""Pools and their counts. This is the only place where an in-flight count changes.

A pool that leaves while requests are in flight keeps its object until they end (`draining`). If it comes back before
that, the same object is opened again, so its count still includes those requests.
"""

from __future__ import annotations

from dispatcher.core.slow_start import SlowStart
from dispatcher.core.types import PoolSpec
from dispatcher.errors import ConfigError, InternalError

MAX_REMEMBERED_POOLS = 1024  # names whose place in the order is kept


class Pool:
    """One destination and its q_i, the number of requests that were sent to it and have not ended."""

    __slots__ = ("id", "in_flight", "servers", "slow_start", "spec")

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.id = spec.id
        self.servers = spec.servers
        self.in_flight = 0
        self.slow_start: SlowStart | None = None  # while its share of the traffic grows

    @property
    def is_full(self) -> bool:
        return 0 < self.spec.max_in_flight <= self.in_flight

    def __repr__(self) -> str:
        return f"<Pool {self.id}: {self.in_flight} in flight, {self.servers} server{'s' * (self.servers > 1)}>"


class View:
    """The open pools without some of them. A retry sees no pool that has failed."""

    __slots__ = ("_by_id", "in_flight", "pools")

    def __init__(self, pools: tuple[Pool, ...]) -> None:
        self.pools = pools
        self.in_flight = sum(pool.in_flight for pool in pools)
        self._by_id = {pool.id: pool for pool in pools}

    def __getitem__(self, pool: str) -> Pool:
        return self._by_id[pool]


class Fleet:
    """The set of pools.

    >>> fleet = Fleet()
    >>> fleet.add(PoolSpec("a")); fleet.add(PoolSpec("b", servers=4))
    >>> fleet.open_one(fleet["a"])
    >>> fleet
    <Fleet a:1 b:0>
    """

    __slots__ = ("_draining", "_open", "_places", "in_flight", "limited", "pools")

    def __init__(self) -> None:
        self._open: dict[str, Pool] = {}
        self._draining: dict[str, Pool] = {}
        self._places: dict[str, int] = {}  # the order of the pools, also after an absence
        self.pools: tuple[Pool, ...] = ()
        self.in_flight = 0  # of all open pools
        self.limited = False  # some pool has a limit or a slow start

    def __getitem__(self, pool: str) -> Pool:
        return self._open[pool]

    def __contains__(self, pool: str) -> bool:
        return pool in self._open

    def __repr__(self) -> str:
        return f"<Fleet {' '.join(f'{pool.id}:{pool.in_flight}' for pool in self.pools) or 'empty'}>"

    @property
    def draining(self) -> tuple[Pool, ...]:
        """The pools that left with requests in flight."""
        return tuple(self._draining.values())

    def knows(self, pool: str) -> bool:
        """Return whether a pool of this name is open or has requests in flight."""
        return pool in self._open or pool in self._draining

    def count(self, pool: str) -> int:
        """Return the requests in flight on a pool of this name, open or not; 0 if there is no such pool."""
        named = self._open.get(pool) or self._draining.get(pool)
        return named.in_flight if named else 0

    def has_room_outside(self, excluded: frozenset[str]) -> bool:
        """Return whether some open pool that is not excluded may take a request."""
        return any(pool.id not in excluded and not pool.is_full for pool in self.pools)

    def without(self, excluded: frozenset[str]) -> View:
        return View(tuple(pool for pool in self.pools if pool.id not in excluded))

    def with_room(self, excluded: frozenset[str], now: float) -> Fleet | View:
        """Return the pools that may get a request now.

        A full pool may not. A pool in slow start may when it is its turn, or if there is no other pool.
        """
        full, waiting = set(excluded), set()
        for pool in self.pools:
            if pool.is_full:
                full.add(pool.id)
            elif pool.slow_start is not None and not pool.slow_start.admits(now):
                waiting.add(pool.id)
        if any(pool.slow_start is not None and pool.slow_start.is_over(now) for pool in self.pools):
            self._end_slow_starts(now)
        if not full and not waiting:
            return self
        view = self.without(frozenset(full | waiting))
        return view if view.pools or not waiting else self.without(frozenset(full))

    def _end_slow_starts(self, now: float) -> None:
        for pool in self.pools:
            if pool.slow_start is not None and pool.slow_start.is_over(now):
                pool.slow_start = None
        self._changed()

    def add(self, spec: PoolSpec, slow_start: SlowStart | None = None) -> None:
        """Open a pool. Raises ConfigError if one of this name is open."""
        if spec.id in self._open:
            raise ConfigError(f"pool {spec.id!r} is there already; names must differ")
        pool = self._draining.pop(spec.id, None) or Pool(spec)
        pool.spec = spec
        pool.servers = spec.servers
        pool.slow_start = slow_start
        self._open[spec.id] = pool
        if len(self._places) > MAX_REMEMBERED_POOLS:
            self._places = {name: place for name, place in self._places.items() if self.knows(name)}
        self._places.setdefault(spec.id, max(self._places.values(), default=0) + 1)
        self._changed()

    def remove(self, pool_id: str) -> None:
        """Close a pool to new requests. Raises ConfigError if it is not open."""
        pool = self._open.pop(pool_id, None)
        if pool is None:
            raise ConfigError(f"there is no pool {pool_id!r} to remove; there are: {', '.join(self._open) or 'none'}")
        if pool.in_flight:
            self._draining[pool_id] = pool
        self._changed()

    def open_one(self, pool: Pool) -> None:
        """Count a request in at an open pool."""
        pool.in_flight += 1
        self.in_flight += 1

    def close_one(self, pool: Pool) -> None:
        """Count a request out of its pool, which may have left the fleet in the meantime."""
        if pool.in_flight < 1:
            raise InternalError(f"{pool!r} would fall below zero")
        pool.in_flight -= 1
        if self._open.get(pool.id) is pool:
            self.in_flight -= 1
        elif not pool.in_flight:
            self._draining.pop(pool.id, None)

    def _changed(self) -> None:
        self.pools = tuple(sorted(self._open.values(), key=lambda pool: self._places[pool.id]))
        self.in_flight = sum(pool.in_flight for pool in self.pools)
        self.limited = any(pool.spec.max_in_flight or pool.slow_start for pool in self.pools)
