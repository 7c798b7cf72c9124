"""The running service: the parts put together and their life from start to drain. No command line here."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Gauge, Histogram

from dispatcher import __version__, registry, state
from dispatcher.config import Config, PoolConfig, parse_address
from dispatcher.core.interfaces import Learner, Recorder, Remembering
from dispatcher.core.regret import RegretMeter
from dispatcher.core.router import Router
from dispatcher.core.streams import stream
from dispatcher.core.types import Added
from dispatcher.errors import ConfigError, StartError
from dispatcher.net.admin import EXPLAINED, Admin
from dispatcher.net.clock import make_clock
from dispatcher.net.exchange import Forwarder
from dispatcher.net.health import PassiveHealth
from dispatcher.net.queue import Queue
from dispatcher.net.server import Server
from dispatcher.net.upstream import Upstream
from dispatcher.recorders.jsonl import JsonLines
from dispatcher.recorders.memory import Rows
from dispatcher.recorders.prometheus import LearningCollector, PrometheusRecorder

log = structlog.get_logger()

LAG_EVERY = 0.25  # seconds between two looks at the event loop's lag
FLUSH_EVERY = 0.5  # seconds between two writes of decision rows
SAVE_EVERY = 10.0  # seconds between two writes of what was learned
LAGS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)


class Service:
    """Everything that `serve` runs, made from a configuration inside a running loop. Raises ConfigError, StartError."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.clock = make_clock()
        self.registry = CollectorRegistry()
        policy = registry.create(config.policy.name, stream(config.seed, "policy"), config.policy.options)
        if not isinstance(policy, Learner):
            raise ConfigError(
                f"policy {config.policy.name!r} tells no episode, rate and estimates; derive it from BasePolicy"
            )
        self._recall(policy)
        self.meter = RegretMeter(policy)
        self.rows = Rows(policy, self.meter, keep=EXPLAINED)
        self.recorder = PrometheusRecorder(self.registry, policy, self._notify)
        recorders: list[Recorder] = [self.meter, self.rows, self.recorder]
        self.lines: JsonLines | None = None
        if config.rows:
            try:
                self.lines = JsonLines(Path(config.rows), self.rows)
            except OSError as error:
                raise StartError(f"rows: cannot write {config.rows}: {error.strerror}") from error
            recorders.append(self.lines)
        settings = config.settings
        queue = Queue(settings.queue.size, settings.queue.timeout)
        self.router = Router(policy, [*recorders, queue], infer=True)
        self.health = health = PassiveHealth(self.router, settings.health, self.recorder, self.clock)
        self.upstreams: dict[str, Upstream] = {}
        for pool in config.pools:
            self._join(pool)
        name = f"{secrets.token_hex(4)}.lased-dispatcher".encode()  # two in a row must not look like a loop
        forwarder = Forwarder(self.router, self.upstreams, health, self.recorder, self.clock, name, queue)
        self.server = Server(forwarder, settings)
        collector = LearningCollector(policy, self.router.fleet, lambda: health.specs, self.meter, self.clock)
        self.registry.register(collector)
        about = {"version": __version__, "policy": {"name": config.policy.name, "options": config.policy.options}}
        self.admin = Admin(self.server, self.meter, self.rows, self.registry, collector, self.clock, about)
        self._lag = self._tell_about_itself(getattr(policy, "ties", "none"))

    def _tell_about_itself(self, ties: str) -> Histogram:
        def one(name: str, text: str, **labels: str) -> Gauge:
            gauge = Gauge(name, text, list(labels), registry=self.registry)
            (gauge.labels(**labels) if labels else gauge).set(1)
            return gauge

        one("lased_build_info", "1, with the version.", version=__version__)
        one("lased_policy_info", "1, with the policy in force.", policy=self.config.policy.name, ties=ties)
        self._reloaded = one(
            "lased_config_last_reload_success", "1 if the configuration in force is the last one given."
        )
        return Histogram("lased_event_loop_lag_seconds", "How late the event loop calls back.", buckets=LAGS,
                         registry=self.registry)  # fmt: skip

    def _join(self, pool: PoolConfig) -> None:
        self.router.apply(Added(pool.spec), self.clock())
        self.health.watch(pool.spec)
        self.upstreams[pool.name] = Upstream(pool.name, *pool.address, self.config.settings.timeouts)

    def take_over(self, config: Config) -> None:
        """Go on with the pools of another configuration. Known by name, they keep their counts and what was learned;
        requests on one that goes are served to their end. Raises ConfigError, with nothing changed."""
        was, given = self.config.model_dump(exclude={"pools"}), config.model_dump(exclude={"pools"})
        other = [key for key in given if given[key] != was[key]]
        if other:
            raise ConfigError(f"{', '.join(other)}: a reload changes the pools only; restart for the rest")
        trial = Router(registry.create(config.policy.name, stream(config.seed, "policy"), config.policy.options))
        for pool in config.pools:
            trial.apply(Added(pool.spec), 0.0)
        before = {pool.name: pool for pool in self.config.pools}
        self.config = config
        for pool in config.pools:
            old = before.pop(pool.name, None)
            if old is None:
                self._join(pool)
                continue
            if pool.address != old.address:
                self.upstreams[pool.name].retire()
                self.upstreams[pool.name] = Upstream(pool.name, *pool.address, config.settings.timeouts)
            self.health.change(pool.spec)
        for name in before:
            self.health.forget(name)
            self.upstreams.pop(name).retire()

    def _reload(self, again: Callable[[], Config]) -> None:
        try:
            self.take_over(again())
        except ConfigError as error:
            log.error("reload_refused", reason=str(error))
            self._reloaded.set(0)
        else:
            log.info("reloaded", pools=[pool.name for pool in self.config.pools])
            self._reloaded.set(1)

    def _recall(self, policy: Learner) -> None:
        """Begin with what an earlier life has learned, if it left something that can be believed."""
        if not self.config.state_file:
            return
        if not isinstance(policy, Remembering):
            raise ConfigError(f"state_file: policy {self.config.policy.name!r} learns nothing that could be kept")
        try:
            known = state.load(Path(self.config.state_file))
        except ConfigError as error:
            log.warning("state_ignored", reason=str(error))
            return
        policy.recall(known)
        log.info("state_restored", pools=sorted(known))

    def _save_state(self) -> None:
        policy = self.router.policy
        if self.config.state_file and isinstance(policy, Remembering):
            try:
                state.save(Path(self.config.state_file), policy.remember())
            except OSError as error:
                log.error("state_not_saved", path=self.config.state_file, error=error.strerror)

    async def _keep_state(self) -> None:
        while self.config.state_file:
            await asyncio.sleep(SAVE_EVERY)
            self._save_state()

    def _notify(self, event: str, **details: Any) -> None:
        level = "info" if event == "pool_tried_again" else "error" if event == "internal_error" else "warning"
        getattr(log, level)(event, **details)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[tuple[str, int], tuple[str, int]]]:
        """Listen inside this block; yields the bound addresses, service and admin. Leaving it cuts what is open."""
        jobs: list[asyncio.Task[None]] = []
        try:
            admin = await self.admin.listen(*parse_address(self.config.admin))
            service = await self.server.listen(*parse_address(self.config.listen))
            jobs = [asyncio.create_task(job()) for job in (self._watch_lag, self._write_rows, self._keep_state)]
            yield service, admin
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            await self.server.cut()
            await self.admin.close()
            self._save_state()
            if self.lines is not None:
                try:
                    self.lines.close()
                except OSError as error:
                    log.error("rows_not_written", path=self.config.rows, error=error.strerror)

    async def run_until_signal(self, again: Callable[[], Config]) -> None:
        """Serve until SIGINT or SIGTERM, then drain; a second signal ends it at once. SIGHUP reads the configuration
        `again`."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload, again)
        signals: asyncio.Queue[str] = asyncio.Queue()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signals.put_nowait, number.name)
        async with self.running() as ((host, port), (admin_host, admin_port)):
            print(f"listening on {host}:{port}", flush=True)  # noqa: T201 - the command's result
            print(f"admin on {admin_host}:{admin_port}", flush=True)  # noqa: T201
            log.info("started", policy=self.config.policy.name, pools=[pool.name for pool in self.config.pools])
            log.info("draining", signal=await signals.get(), deadline=self.config.settings.timeouts.drain)
            drained = asyncio.create_task(self.server.drain())
            second = asyncio.create_task(signals.get())
            await asyncio.wait([drained, second], return_when=asyncio.FIRST_COMPLETED)
            for job in (drained, second):
                job.cancel()
            log.info("stopped", decisions=self.rows.count)

    async def _watch_lag(self) -> None:
        while True:
            before = self.clock()
            await asyncio.sleep(LAG_EVERY)
            self._lag.observe(max(0.0, self.clock() - before - LAG_EVERY))

    async def _write_rows(self) -> None:
        while self.lines is not None:
            await asyncio.sleep(FLUSH_EVERY)
            try:
                self.lines.flush()
            except OSError as error:
                log.error("rows_not_written", path=self.config.rows, error=error.strerror)
