"""The running service: the parts put together and their life from start to drain. No command line here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry, Gauge
from pydantic import ValidationError

from dispatcher import __version__, registry
from dispatcher.admin.server import EXPLAINED, Admin
from dispatcher.config import DEFAULT_POLICY_HINT, Config, PoolConfig, describe
from dispatcher.core.policy import BasePolicy, Recorder
from dispatcher.core.regret import RegretMeter
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import PoolSpec
from dispatcher.errors import ConfigError, DispatcherError, StartError
from dispatcher.long_episodes import LongEpisodes, first_episode_warning, rates_learned
from dispatcher.persistence import state_file as state
from dispatcher.persistence.redis_sync import SharedLearning
from dispatcher.platform.clock import make_clock
from dispatcher.platform.sockets import Address, inherited, parse_address
from dispatcher.platform.systemd import Notifier
from dispatcher.platform.tls import load as load_certificate
from dispatcher.proxy.admission_queue import AdmissionQueue
from dispatcher.proxy.connection_pool import ConnectionPool
from dispatcher.proxy.context import ProxyContext
from dispatcher.proxy.health_checks import HealthChecks
from dispatcher.proxy.listener import Listener
from dispatcher.proxy.outlier_detection import PoolHealth
from dispatcher.reload import Plan
from dispatcher.settings import LiveSettings, Settings
from dispatcher.telemetry.access_log import AccessLog
from dispatcher.telemetry.decisions import Rows
from dispatcher.telemetry.decisions_jsonl import JsonLines
from dispatcher.telemetry.metrics import LearningCollector, PrometheusRecorder
from dispatcher.telemetry.process_metrics import Itself
from dispatcher.telemetry.shadow import Shadows

if TYPE_CHECKING:
    from dispatcher.telemetry.tracing import OpenTelemetry

log = structlog.get_logger()

LAG_EVERY = 0.25  # seconds between two looks at the event loop's lag
FLUSH_EVERY = 0.5  # seconds between two writes of decision rows
SAVE_EVERY = 10.0  # seconds between two writes of what was learned
EPISODES_EVERY = 1.0  # seconds between two looks at the length of the open episode
REMEMBERED = 1024  # pools whose estimates are kept while no policy learns


def _report_failure(job: asyncio.Task[None]) -> None:
    """A background job should end by being cancelled only."""
    if not job.cancelled() and (error := job.exception()) is not None:
        log.error("background_job_failed", job=repr(job.get_coro()), exc_info=error)


class Service:
    """Everything that `serve` runs, made from a configuration inside a running loop. Raises ConfigError, StartError.

    again: reads the configuration once more, for a reload.
    """

    def __init__(self, config: Config, again: Callable[[], Config] | None = None) -> None:
        self.config = config
        self._again = again or (lambda: self.config)
        self.clock = make_clock()
        self.manager = Notifier(os.environ, lambda reason: log.warning("manager_not_told", reason=reason))
        self.registry = CollectorRegistry()
        plan = Plan(config)
        if config.state_file and plan.policy.state_kind is None:
            raise ConfigError(f"state_file: policy {config.policy.name!r} learns nothing that could be kept")
        self._known = self._recall()
        self._begin_with_known(plan.policy)
        self.meter = RegretMeter(plan.policy)
        self.rows = Rows(plan.policy, self.meter, keep=EXPLAINED)
        self.recorder = PrometheusRecorder(self.registry, plan.policy, self._notify)
        self.shadows = Shadows()
        recorders: list[Recorder] = [self.meter, self.rows, self.recorder, self.shadows]
        self.lines: JsonLines | None = None
        if config.rows:
            try:
                self.lines = JsonLines(Path(config.rows), self.rows)
            except OSError as error:
                raise StartError(f"rows: cannot write {config.rows}: {error.strerror}") from error
            recorders.append(self.lines)
        self.settings = settings = LiveSettings(config.settings)
        queue = AdmissionQueue(settings)
        self.router = Router(plan.policy, [*recorders, queue], infer=True)
        self.shadows.replace(plan.shadows, self.router.fleet)
        self.health = health = PoolHealth(self.router, settings, self.recorder, self.clock)
        self.pool_connections: dict[str, ConnectionPool] = {}
        self._paths: dict[str, str] = {}
        for pool in config.pools:
            self._join(pool, plan)
        self.health_checks = HealthChecks(
            health, settings, self.pool_connections, self._paths, stream(secrets.randbits(32), "probes")
        )
        name = f"{secrets.token_hex(4)}.lased-dispatcher".encode()  # two in a row must not look like a loop
        self.context = context = ProxyContext(
            self.router, self.pool_connections, health, self.recorder, self.clock, settings, queue, name
        )
        self.access_log = (
            AccessLog(config.access_log.path, config.access_log.format) if config.access_log.path else None
        )
        if self.access_log is not None:
            context.on_finished = self.access_log.over
            context.on_unreadable = self.access_log.refused
        self._spans = self._tracing()
        if self._spans is not None:
            context.begin_span = self._spans.begin
        self.listener = Listener(context, plan.server_tls)
        collector = LearningCollector(
            lambda: self.router.policy,
            self.router.fleet,
            lambda: health.specs,
            self.meter,
            self.clock,
            self.shadows.all,
        )
        self.registry.register(collector)
        self.admin = Admin(
            self.listener, self.meter, self.rows, self.registry, collector, self.clock, self, config.token
        )
        self.itself = Itself(self.registry, __version__)
        self.itself.policy(config.policy.name, plan.policy)
        self.shared: SharedLearning | None = None
        if config.shared_at:
            self.shared = SharedLearning(
                config.shared_at, config.state_name, lambda: self.router.policy, self.registry, self._forgotten
            )
        Gauge("lased_queue_length", "Requests that wait for room in a pool.", registry=self.registry).set_function(
            lambda: len(queue)
        )

    def _tracing(self) -> OpenTelemetry | None:
        if not self.config.tracing.endpoint:
            return None
        try:
            from dispatcher.telemetry.tracing import OpenTelemetry
        except ImportError as error:
            raise ConfigError("tracing: needs the extra otel: pip install lased-dispatcher[otel]") from error
        return OpenTelemetry(self.config.tracing.endpoint, self.config.tracing.service)

    # -- the configuration in force, and another one in its place

    def _join(self, pool: PoolConfig, plan: Plan) -> None:
        self.health.add(pool.spec, pool.drained)
        self._paths[pool.name] = pool.health_path
        self._connect(pool, plan)

    def _connect(self, pool: PoolConfig, plan: Plan) -> None:
        def failed(reason: str) -> None:
            log.warning("name_not_resolved", pool=pool.name, reason=reason)

        self.pool_connections[pool.name] = ConnectionPool(pool.name, plan.targets[pool.name], self.settings, failed)

    def take_over(self, config: Config, forgive: bool = False) -> None:
        """Go on with another configuration: pools, policy, limits. No request is lost and no count reset; pools are
        known by name. forgive: ejected ones come back. Raises ConfigError, with nothing changed."""
        plan = Plan(config, self.config)
        policy_changes, shadows_change = config.policy != self.config.policy, config.shadow != self.config.shadow
        wanted = {pool.name for pool in config.pools}
        for pool in self.config.pools:
            if pool.name not in wanted:
                self._leave(pool.name)
        before = {pool.name: pool for pool in self.config.pools if pool.name in wanted}
        if policy_changes:
            self._switch(plan.policy, {pool.name: pool.spec for pool in config.pools})
        self.config = config
        self._set(config.settings)
        if plan.server_tls is not None and self.listener.tls is not None:
            load_certificate(self.listener.tls, config.tls.certificate, config.tls.key)
        for pool in config.pools:
            if pool.name not in before:
                self._join(pool, plan)
                continue
            self._paths[pool.name] = pool.health_path
            connections = self.pool_connections[pool.name]
            if plan.targets[pool.name] != connections.target:
                connections.retire()
                self._connect(pool, plan)
            self.health.change(pool.spec, pool.drained, forgive)
        if shadows_change:
            self.shadows.replace(plan.shadows, self.router.fleet)
        if policy_changes:
            self.itself.policy(config.policy.name, plan.policy)
        self.health_checks.pools_changed()

    def _switch(self, policy: BasePolicy, specs: dict[str, PoolSpec]) -> None:
        self._remember()
        self._begin_with_known(policy)
        if self.shared is not None:
            policy.set_local_counts(self.router.policy.local_counts())
        self.router.switch(policy, self.clock(), specs)

    def _leave(self, pool: str) -> None:
        self.health.remove(pool)
        self._paths.pop(pool)
        self.pool_connections.pop(pool).retire()

    def _set(self, settings: Settings) -> None:
        self.settings.replace(settings)
        self.health.settings_changed()

    def reload(self) -> None:
        """Read the configuration again and take it over. Raises ConfigError, StartError, with nothing changed."""
        try:
            with self.manager.reloading():
                config = self._again()
                Plan(config, self.config)  # so that what cannot be carried out leaves the log alone too
                if self.access_log is not None:
                    self.access_log.reopen()
                self.take_over(config, forgive=True)
        except DispatcherError as error:
            log.error("reload_refused", reason=str(error))
            self.itself.reloaded(False)
            raise
        log.info("reloaded", policy=self.config.policy.name, pools=[pool.name for pool in self.config.pools])
        self._warn_about_first_episode()
        self.itself.reloaded(True)

    def _reload(self) -> None:
        with contextlib.suppress(DispatcherError):  # told already; what was goes on
            self.reload()

    def _amend(self, **changes: Any) -> None:
        """Take over the configuration in force with these keys changed, until the next reload. Raises ConfigError."""
        try:
            config = Config.model_validate(self.config.model_dump() | changes)
        except ValidationError as error:
            raise ConfigError(describe(error)) from error
        self.take_over(config)
        log.info("amended", changed=sorted(changes))

    # -- net.control.Control

    def about(self) -> dict[str, Any]:
        policy = self.config.policy
        return {
            "version": __version__,
            "policy": {"name": policy.name, "options": policy.options},
            "shadow": [
                {"policy": each.name, "decisions": each.decisions.total(), "disagreements": each.disagreements,
                 "regret": each.meter.total if each.meter.known else None, "errors": each.faults}
                for each in self.shadows.all()
            ],
        }  # fmt: skip

    def pools(self) -> list[dict[str, Any]]:
        return [pool.model_dump() for pool in self.config.pools]

    def add_pool(self, entry: dict[str, Any]) -> None:
        self._amend(pools=[*self.pools(), entry])

    def remove_pool(self, name: str) -> None:
        self._amend(pools=[pool for pool in self.pools() if pool["name"] != name])

    def drain_pool(self, name: str, drained: bool) -> None:
        self._amend(pools=[pool | {"drained": drained} if pool["name"] == name else pool for pool in self.pools()])

    def forget_pool(self, name: str) -> None:
        policy = self.router.policy
        if policy.state_kind is None:
            raise ConfigError(f"policy {self.config.policy.name!r} learns nothing that could be forgotten")
        policy.reset_pool(name)
        self._forgotten(name)
        if self.shared is not None:
            self.shared.reset_pool(name)
        log.info("pool_forgotten", pool=name)

    def _forgotten(self, pool: str) -> None:
        for remembered in self._known.values():
            remembered.pop(pool, None)

    def set_policy(self, entry: dict[str, Any]) -> None:
        if entry.keys() <= {"options"}:
            raise ConfigError("policy.name: is missing")
        name, known = entry.get("name"), registry.registered()
        # a module:attr would be imported to see what it is
        if isinstance(name, str) and name not in known and name != self._again().policy.name:
            raise ConfigError(f"policy {name!r} is not registered{registry.nearest(name, list(known))}")
        self._amend(policy=entry)

    # -- what was learned

    def _recall(self) -> state.Knowledge:
        """What an earlier process has learned, by kind; empty if its file cannot be used. Raises StartError if the file
        could not be written later."""
        if not self.config.state_file:
            return {}
        path = Path(self.config.state_file)
        if not os.access(path.parent, os.W_OK):
            raise StartError(f"state_file: cannot write {path}: there is no such folder, or no permission")
        try:
            known = state.load(path)
        except ConfigError as error:
            log.warning("state_ignored", reason=str(error))
            return {}
        return known

    def _begin_with_known(self, policy: BasePolicy) -> None:
        """Hand to a policy what is known of its kind, and log what was restored from the file."""
        if policy.state_kind is None:
            return
        known = self._known.get(policy.state_kind, {})
        others = [kind for kind, pools in self._known.items() if pools and kind != policy.state_kind]
        try:
            policy.set_state(known)
        except ConfigError as error:
            log.warning("state_ignored", reason=f"state_file {self.config.state_file}: {error}")
            return
        if not self.config.state_file:
            return
        if known:
            log.info("state_restored", pools=sorted(known))
        elif others:
            log.warning(
                "state_of_another_policy",
                holds=others,
                needed=policy.state_kind,
                consequence="this policy begins without knowledge; what the other has learned is kept",
            )

    def _remember(self) -> None:
        policy = self.router.policy
        if policy.state_kind is not None:
            known = self._known.setdefault(policy.state_kind, {})
            for name, learned in policy.get_state().items():
                known.pop(name, None)  # the latest stand at the end
                known[name] = learned
            for name in list(known)[:-REMEMBERED]:
                del known[name]

    def _save_state(self) -> None:
        if self.config.state_file:
            self._remember()
            try:
                state.save(Path(self.config.state_file), self._known)
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
    async def running(self) -> AsyncIterator[tuple[Address, Address]]:
        """Listen inside this block; yields the bound addresses, service and admin. Leaving it cuts what is open."""
        jobs: list[asyncio.Task[None]] = []
        given = inherited(os.environ)
        share = self.config.reuse_port
        try:
            if self.shared is not None:
                await self.shared.begin()
                jobs.append(asyncio.create_task(self.shared.run()))
            admin = await self.admin.listen(parse_address(self.config.admin), share, given.get("admin"))
            service = await self.listener.listen(parse_address(self.config.listen), share, given.get("listen"))
            jobs += [
                asyncio.create_task(job())
                for job in (
                    self._watch_lag,
                    self._watch_episodes,
                    self._write_files,
                    self._keep_state,
                    self.admin.live.take_pictures,
                )
            ]
            self.health_checks.pools_changed()
            jobs.append(asyncio.create_task(self.manager.watch()))
            for job in jobs:
                job.add_done_callback(_report_failure)
            self.manager.ready()
            self._warn_about_first_episode()
            yield service, admin
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            await self.health_checks.close()
            await self.listener.close()
            await self.admin.close()
            self._save_state()
            if self.shared is not None:
                await self.shared.close()
            for key, file in self._files:
                try:
                    file.close()
                except OSError as error:
                    log.error("not_written", key=key, error=error.strerror)
            if self._spans is not None:
                await asyncio.to_thread(self._spans.close)

    async def run_until_signal(self) -> None:
        """Serve until SIGINT or SIGTERM, then drain; a second signal ends it at once. SIGHUP reloads."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        signals: asyncio.Queue[str] = asyncio.Queue()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signals.put_nowait, number.name)
        async with self.running() as (service, admin):
            print(f"listening on {service}", flush=True)  # noqa: T201 - the command's result
            print(f"admin on {admin}", flush=True)  # noqa: T201
            hint = {"hint": DEFAULT_POLICY_HINT} if self.config.policy_is_default else {}
            log.info("started", policy=self.config.policy.name, pools=[pool.name for pool in self.config.pools], **hint)
            log.info("draining", signal=await signals.get(), deadline=self.config.settings.timeouts.drain)
            self.manager.stopping()
            drained = asyncio.create_task(self.listener.drain())
            second = asyncio.create_task(signals.get())
            await asyncio.wait([drained, second], return_when=asyncio.FIRST_COMPLETED)
            for job in (drained, second):
                job.cancel()
            log.info("stopped", decisions=self.rows.count)

    async def _watch_lag(self) -> None:
        while True:
            before = self.clock()
            await asyncio.sleep(LAG_EVERY)
            self.itself.late(self.clock() - before - LAG_EVERY)

    def _warn_about_first_episode(self) -> None:
        policy = self.router.policy
        if warning := first_episode_warning(self.config, policy, rates_learned(policy)):
            log.warning("first_episode_may_not_end", reason=warning)

    async def _watch_episodes(self) -> None:
        episodes = LongEpisodes()
        while True:
            await asyncio.sleep(EPISODES_EVERY)
            if warning := episodes.look(self.router.policy):
                log.warning("episode_is_long", reason=warning)

    @property
    def _files(self) -> list[tuple[str, JsonLines | AccessLog]]:
        """What is written now and then, by the key that asks for it."""
        both = (("rows", self.lines), ("access_log.path", self.access_log))
        return [(key, file) for key, file in both if file is not None]

    async def _write_files(self) -> None:
        while self._files:
            await asyncio.sleep(FLUSH_EVERY)
            for key, file in self._files:
                try:
                    file.flush()
                except OSError as error:
                    log.error("not_written", key=key, error=error.strerror)
