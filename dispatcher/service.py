"""Builds the running service from a configuration, and takes it from its start to its drain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry

from dispatcher import __version__, background
from dispatcher.admin.api import Operations
from dispatcher.admin.server import EXPLAINED_DECISIONS, Admin
from dispatcher.admin.snapshot import Observer
from dispatcher.admin.state import about
from dispatcher.control import Control
from dispatcher.core.policy import BasePolicy, Recorder
from dispatcher.core.regret import RegretMeter
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.errors import ConfigError, DispatcherError, StartError
from dispatcher.long_episodes import log_first_episode_warning
from dispatcher.persistence.learned_state import LearnedState
from dispatcher.persistence.redis_sync import SharedLearning
from dispatcher.platform.clock import make_clock
from dispatcher.platform.sockets import Address, inherited, parse_address
from dispatcher.platform.systemd import Notifier
from dispatcher.proxy.admission_queue import AdmissionQueue
from dispatcher.proxy.context import ProxyContext
from dispatcher.proxy.health_checks import HealthChecks
from dispatcher.proxy.listener import Listener
from dispatcher.proxy.outlier_detection import PoolHealth
from dispatcher.reload import PreparedConfig, Reloader, RunningPools, prepare
from dispatcher.settings import DEFAULT_POLICY_HINT, Config, LiveSettings
from dispatcher.telemetry.access_log import AccessLog
from dispatcher.telemetry.decisions import DecisionFile, DecisionLog
from dispatcher.telemetry.metrics import PrometheusRecorder
from dispatcher.telemetry.process_metrics import ProcessMetrics
from dispatcher.telemetry.shadow import Shadows

if TYPE_CHECKING:
    from dispatcher.telemetry.tracing import OpenTelemetry

log = structlog.get_logger()

LOG_LEVELS = {
    "pool_tried_again": "info",
    "internal_error": "error",
}  # of the recorder's events; the others are warnings


class Service:
    """Everything that `serve` runs. It is built inside a running event loop.

    read_config: reads the configuration again, for a reload; by default a reload repeats the present one.
    Raises ConfigError or StartError.
    """

    def __init__(self, config: Config, read_config: Callable[[], Config] | None = None) -> None:
        self.clock = make_clock()
        self.manager = Notifier(os.environ, lambda reason: log.warning("manager_not_told", reason=reason))
        self.registry = CollectorRegistry()
        self.settings = LiveSettings(config)
        prepared = prepare(config)
        policy = prepared.policy
        assert policy is not None, "without a configuration in force, a policy is always made"
        if config.state_file and policy.state_kind is None:
            raise ConfigError(f"state_file: policy {config.policy.name!r} learns nothing that could be kept")
        self.learned = LearnedState(config.state_file)
        self.learned.restore(policy)
        self.queue = AdmissionQueue(self.settings)
        self.router = Router(policy, [*self._make_recorders(config, policy), self.queue], infer=True)
        self.shadows.replace(prepared.shadows or {}, self.router.fleet)
        self._make_proxy(config, prepared)
        self._make_admin(config, read_config or (lambda: self.config))

    def _make_recorders(self, config: Config, policy: BasePolicy) -> list[Recorder]:
        self.meter = RegretMeter(policy)
        self.decision_log = DecisionLog(policy, self.meter, keep=EXPLAINED_DECISIONS)
        self.recorder = PrometheusRecorder(self.registry, policy, _log_event)
        self.shadows = Shadows()
        recorders: list[Recorder] = [self.meter, self.decision_log, self.recorder, self.shadows]
        self.decision_file: DecisionFile | None = None
        if config.rows:
            try:
                self.decision_file = DecisionFile(Path(config.rows), self.decision_log)
            except OSError as error:
                raise StartError(f"rows: cannot write {config.rows}: {error.strerror}") from error
            recorders.append(self.decision_file)
        return recorders

    def _make_proxy(self, config: Config, prepared: PreparedConfig) -> None:
        self.health = PoolHealth(self.router, self.settings, self.recorder, self.clock)
        self.pools = RunningPools(self.health, self.settings)
        for pool in config.pools:
            self.pools.add(pool, prepared.targets[pool.name])
        self.connection_pools = self.pools.connection_pools
        jitter = stream(secrets.randbits(32), "probes")  # unlike that of other dispatchers with the same seed
        self.health_checks = HealthChecks(
            self.health, self.settings, self.connection_pools, self.pools.health_paths, jitter
        )
        # The header Via names the dispatcher: by a name of its own it detects loops, and two in a row are no loop.
        via_name = f"{secrets.token_hex(4)}.lased-dispatcher".encode()
        self.context = ProxyContext(
            self.router,
            self.connection_pools,
            self.health,
            self.recorder,
            self.clock,
            self.settings,
            self.queue,
            via_name,
        )
        log_section = config.access_log
        self.access_log = AccessLog(log_section.path, log_section.format) if log_section.path else None
        if self.access_log is not None:
            self.context.on_finished = self.access_log.log_request
            self.context.on_unreadable = self.access_log.log_unreadable
        self._spans = _make_spans(config)
        if self._spans is not None:
            self.context.begin_span = self._spans.begin
        self.listener = Listener(self.context, prepared.listener_tls)
        files = {"rows": self.decision_file, "access_log.path": self.access_log}
        self._files = {key: file.writer for key, file in files.items() if file is not None}

    def _make_admin(self, config: Config, read_config: Callable[[], Config]) -> None:
        self.process_metrics = ProcessMetrics(self.registry, __version__)
        self.process_metrics.set_policy(config.policy.name, self.router.policy)
        self.shared: SharedLearning | None = None
        if config.shared_at:
            self.shared = SharedLearning(
                config.shared_at, config.state_name, lambda: self.router.policy, self.registry, self.learned.discard
            )
        self.reloader = Reloader(
            config=config,
            read_config=read_config,
            settings=self.settings,
            router=self.router,
            health=self.health,
            pools=self.pools,
            health_checks=self.health_checks,
            listener=self.listener,
            shadows=self.shadows,
            learned=self.learned,
            shared=self.shared,
            access_log=self.access_log,
            metrics=self.process_metrics,
            manager=self.manager,
            clock=self.clock,
        )
        self.control = Control(self.reloader)
        observer = Observer(
            listener=self.listener,
            router=self.router,
            health=self.health,
            queue=self.queue,
            meter=self.meter,
            decision_log=self.decision_log,
            shadows=self.shadows,
            clock=self.clock,
            configured_policy=lambda: (self.config.policy.name, self.config.policy.options),
        )
        operations = Operations(
            about=lambda: about(observer.snapshot()),
            pools=self.control.pools,
            add_pool=self.control.add_pool,
            remove_pool=self.control.remove_pool,
            drain_pool=self.control.drain_pool,
            forget_pool=self.control.forget_pool,
            set_policy=self.control.set_policy,
            reload=self.control.reload,
        )
        self.admin = Admin(observer, self.registry, operations, config.token)

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.reloader.config

    def take_over(self, config: Config, reset_ejections: bool = False) -> None:
        """Put another configuration into force. Raises ConfigError; nothing has changed then."""
        self.reloader.apply(prepare(config, self.config), reset_ejections)

    # -- the life of the service

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Address, Address]]:
        """Listen inside this block, and yield the addresses for clients and for the admin side.

        At the end of the block everything that is still open is closed at once.
        """
        jobs: list[asyncio.Task[None]] = []
        try:
            if self.shared is not None:
                await self.shared.begin()
            addresses = await self._listen()
            jobs = [asyncio.create_task(job) for job in self._jobs()]
            for job in jobs:
                job.add_done_callback(background.log_failure)
            self.health_checks.pools_changed()
            self.manager.ready()
            log_first_episode_warning(self.config, self.router.policy)
            yield addresses
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            await self._close()

    async def run_until_signal(self) -> None:
        """Serve until SIGINT or SIGTERM, then drain. A second signal ends the drain; SIGHUP reloads."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.on_sighup)
        signals: asyncio.Queue[str] = asyncio.Queue()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signals.put_nowait, number.name)
        async with self.running() as (service, admin):
            print(f"listening on {service}", flush=True)  # noqa: T201 - the command's result
            print(f"admin on {admin}", flush=True)  # noqa: T201
            hint = {"hint": DEFAULT_POLICY_HINT} if self.config.policy_is_default else {}
            log.info("started", policy=self.config.policy.name, pools=[pool.name for pool in self.config.pools], **hint)
            log.info("draining", signal=await signals.get(), deadline=self.settings.timeouts.drain)
            self.manager.stopping()
            drain = asyncio.create_task(self.listener.drain())
            second_signal = asyncio.create_task(signals.get())
            await asyncio.wait([drain, second_signal], return_when=asyncio.FIRST_COMPLETED)
            for task in (drain, second_signal):
                task.cancel()
            log.info("stopped", decisions=self.decision_log.count)

    def on_sighup(self) -> None:
        """Reload; a refused configuration is logged and counted, and the service goes on with the present one."""
        with contextlib.suppress(DispatcherError):
            self.reloader.reload()

    async def _listen(self) -> tuple[Address, Address]:
        sockets = inherited(os.environ)
        config = self.config
        admin = await self.admin.listen(parse_address(config.admin), config.reuse_port, sockets.get("admin"))
        service = await self.listener.listen(parse_address(config.listen), config.reuse_port, sockets.get("listen"))
        return service, admin

    def _jobs(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield background.measure_lag(self.clock, self.process_metrics)
        yield background.check_episodes(self.router)
        if self._files:
            yield background.write_files(self._files)
        if self.config.state_file:
            yield background.save_state(self.learned, self.router)
        if self.shared is not None:
            yield self.shared.run()
        yield self.admin.dashboard.sample_forever()
        yield self.manager.watch()

    async def _close(self) -> None:
        await self.health_checks.close()
        await self.listener.close()
        await self.admin.close()
        self.learned.save(self.router.policy)
        if self.shared is not None:
            await self.shared.close()
        background.close_files(self._files)
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)  # it sends the last spans and blocks meanwhile


def _make_spans(config: Config) -> OpenTelemetry | None:
    if not config.tracing.endpoint:
        return None
    try:
        from dispatcher.telemetry.tracing import OpenTelemetry
    except ImportError as error:
        raise ConfigError("tracing: needs the extra otel: pip install lased-dispatcher[otel]") from error
    return OpenTelemetry(config.tracing.endpoint, config.tracing.service)


def _log_event(event: str, **details: Any) -> None:
    """Log an event of the recorder. A log that cannot be written must not end a request."""
    with contextlib.suppress(OSError, ValueError):  # a full disk, a broken pipe or a closed stream
        getattr(log, LOG_LEVELS.get(event, "warning"))(event, **details)
