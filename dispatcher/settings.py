"""Every key of the configuration: its type, bounds, default and description.

One model describes one section of the file. The models are frozen and strict: a value of the wrong type is an error,
and so is an unknown key. The running code reads these same objects; `LiveSettings` lets a reload replace them.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from dispatcher.core.types import PoolSpec
from dispatcher.platform.sockets import UNIX, Address, parse_address

MAX_NUMBER = 1e12
MAX_RATE = 1e9  # services per second and server
MIN_TOKEN_CHARS = 16
DEFAULT_POLICY = "curve"  # it needs no knowledge about the pools
DEFAULT_SHARED_POLICY = "lased"  # the default with `state_url`: what `curve` learns cannot be shared
DEFAULT_POLICY_HINT = "curve is the default for pools of unknown speed; choose LASED with --policy lased"

Cause = Literal["connect", "stale", "reset", "timeout", "429", "500", "502", "503", "504", "non_idempotent"]

Count = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
NonNegative = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=MAX_RATE)]
UrlPath = Annotated[str, Field(pattern=r"^(/[!-~]*)?$")]
Secret = Annotated[SecretStr, Field(strict=False)]  # a strict SecretStr would refuse the plain strings of TOML


class Section(BaseModel):
    """The base of all sections."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Limits(Section):
    """Limits on requests and client connections."""

    head_bytes: Count = Field(
        default=16384, description="Largest request line and headers together, in bytes. 0: no limit."
    )
    headers: Count = Field(default=100, description="Largest number of headers in a request. 0: no limit.")
    body_bytes: Count = Field(default=0, description="Largest request body, in bytes. 0: no limit.")
    connections: Count = Field(default=10000, description="Client connections open at the same time. 0: no limit.")


class Timeouts(Section):
    """All timeouts are in seconds, and 0 switches a timeout off."""

    head: NonNegative = Field(default=10.0, description="Time for a client to send all headers of a request.")
    keepalive: NonNegative = Field(
        default=75.0, description="Time that a client connection may stay open without a request."
    )
    connect: NonNegative = Field(default=2.0, description="Time to connect to a pool.")
    answer: NonNegative = Field(
        default=60.0, description="Time from the whole request to the headers of the pool's response."
    )
    idle: NonNegative = Field(
        default=60.0, description="Time between two pieces of a body, from the client, to the client, or from the pool."
    )
    tunnel: NonNegative = Field(
        default=3600.0, description="Time that an upgraded connection, such as a WebSocket, may stay open without data."
    )
    pool_idle: NonNegative = Field(default=50.0, description="Time that an unused connection to a pool is kept.")
    dns: NonNegative = Field(default=30.0, description="Time after which the host name of a pool is resolved again.")
    drain: NonNegative = Field(
        default=10.0,
        description="Time that a shutdown waits for open requests, and that tunnels to a removed pool stay open.",
    )


class Health(Section):
    """Rules that take a pool out of service and bring it back.

    A health check is a request of the dispatcher's own. Ejection judges a pool by the requests of clients.
    """

    path: UrlPath = Field(
        default="", description="Path that health checks request from each pool. Empty: no health checks."
    )
    interval: NonNegative = Field(
        default=5.0, description="Seconds between two health checks of a pool, with a jitter of 10 %. 0: one second."
    )
    timeout: NonNegative = Field(default=2.0, description="Seconds after which a health check has failed. 0: never.")
    rise: PositiveCount = Field(default=2, description="Successful health checks in a row that bring a pool back.")
    fall: PositiveCount = Field(default=3, description="Failed health checks in a row that take a pool out.")
    passive_failures: Count = Field(default=5, description="Failed requests in a row that eject a pool. 0: never.")
    error_ratio: Share = Field(
        default=0.5, description="Share of failures among the last `window` requests that ejects a pool. 0: never."
    )
    window: PositiveCount = Field(default=50, description="Number of requests of a pool that `error_ratio` looks at.")
    latency_factor: NonNegative = Field(
        default=0.0,
        description="A pool is ejected if its response time exceeds its usual one by this factor. 0: never.",
    )
    ejection: NonNegative = Field(default=10.0, description="Seconds of the first ejection; each relapse doubles them.")
    floor: Share = Field(default=0.3, description="Share of the pools that stay in service in any case.")
    slow_start: NonNegative = Field(
        default=0.0,
        description="Seconds in which the traffic of a pool that comes back grows to its share. 0: at once.",
    )


class Retry(Section):
    """Rules for further attempts; all but `stale` go to another pool, of a request that failed.

    No pool has processed a request that failed by `connect` (no byte was sent). `stale` means that a kept-alive
    connection closed without a response. All other causes may repeat work: `reset` (a fresh connection closed without
    a response), `timeout` (no response in time) and the statuses. `non_idempotent` extends them to methods such as
    POST.
    """

    on: list[Cause] = Field(
        default=["connect", "stale"], description="Causes for which a request is tried again. Empty: no retries."
    )
    budget: NonNegative = Field(default=0.2, description="Retries allowed per request, as a share.")
    per_second: NonNegative = Field(default=10.0, description="Retries allowed per second, in addition to `budget`.")
    attempts: PositiveCount = Field(
        default=3, description="Largest number of attempts of one request, with the first one."
    )
    buffer_bytes: Count = Field(
        default=65536, description="Bytes of a request body kept for a retry; a larger body is sent only once."
    )


class QueueSettings(Section):
    """The queue in which requests wait while every pool has `max_in_flight` requests."""

    size: Count = Field(default=1000, description="Requests that may wait. 0: none; they get status 503 at once.")
    timeout: NonNegative = Field(
        default=5.0, description="Seconds that a request may wait, then it gets 503. 0: no limit."
    )


class Reports(Section):
    """Load reports of the pools: the response header `endpoint-load-metrics` (ORCA)."""

    read: bool = Field(default=True, description="Whether policies get the load reports.")
    forward: bool = Field(default=False, description="Whether the header is passed on to clients.")


class Settings(Section):
    """The sections that the proxy reads while it runs."""

    limits: Limits = Field(default=Limits(), description="Limits on requests and client connections.")
    timeouts: Timeouts = Field(default=Timeouts(), description="Timeouts, in seconds.")
    health: Health = Field(default=Health(), description="Health checks and ejection of pools.")
    queue: QueueSettings = Field(default=QueueSettings(), description="The queue for times when pools are full.")
    retry: Retry = Field(default=Retry(), description="Further attempts of a request.")
    reports: Reports = Field(default=Reports(), description="Load reports of pools.")
    trusted_proxies: list[str] = Field(
        default_factory=list, description="Networks whose X-Forwarded-* and Forwarded headers are trusted."
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            ip_network(network)  # its ValueError names the fault
        return networks

    @property
    def trusted(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`trusted_proxies` as networks."""
        return tuple(ip_network(network) for network in self.trusted_proxies)


class LiveSettings:
    """The settings in force. Everything in the proxy holds this one object and reads it at each use.

    So a reload is one call of `replace`, and it holds at once for open connections too.

    >>> live = LiveSettings()
    >>> live.replace(Settings(timeouts=Timeouts(idle=5.0)))
    >>> live.timeouts.idle
    5.0
    """

    __slots__ = ("health", "limits", "queue", "reports", "retry", "timeouts", "trusted")

    def __init__(self, settings: Settings | None = None) -> None:
        self.replace(settings or Settings())

    def replace(self, settings: Settings) -> None:
        """Put all sections of other settings into force."""
        self.limits = settings.limits
        self.timeouts = settings.timeouts
        self.health = settings.health
        self.retry = settings.retry
        self.queue = settings.queue
        self.reports = settings.reports
        self.trusted = settings.trusted


class PoolConfig(Section):
    """One pool: a server, or several servers behind one URL."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = Field(
        description="Name of the pool in logs, metrics and the admin API; it must be unique."
    )
    url: str = Field(description="http://HOST:PORT or https://HOST:PORT without a path, or unix:/PATH.")
    servers: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1, description="Parallel servers behind the URL. The policy `curve` does not need it."
    )
    guess: Rate = Field(default=1.0, description="Initial estimate of the service rate, per second and server.")
    true_rate: Rate | None = Field(
        default=None,
        description="Real service rate, per second and server, where it is known. It serves to measure regret.",
    )
    max_in_flight: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=0, description="Largest number of requests in flight at the pool. 0: no limit."
    )
    drained: bool = Field(default=False, description="Whether the pool gets no new requests.")
    health_path: UrlPath = Field(default="", description="Path of this pool's health checks. Empty: `health.path`.")
    ca: str = Field(
        default="", description="For https: a PEM file of trusted authorities. Empty: the authorities of the system."
    )
    verify: bool = Field(default=True, description="For https: whether the certificate of the pool is verified.")
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]*$")] = Field(
        default="", description="For https: the name in the certificate. Empty: the host of the URL."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url.startswith(UNIX):
            parse_address(url)
            return url
        parts = urlsplit(url)
        bare = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
        if parts.scheme not in ("http", "https") or not parts.hostname or not bare:
            raise ValueError(
                f"must be http://HOST:PORT or https://HOST:PORT without a path, or unix:/PATH, not {url!r}"
            )
        _ = parts.port  # urlsplit checks the range of a port only here, and raises ValueError
        return url

    @property
    def address(self) -> Address:
        """Where the pool listens."""
        if self.url.startswith(UNIX):
            return parse_address(self.url)
        parts = urlsplit(self.url)
        return Address(parts.hostname or "", parts.port or (443 if self.secure else 80))

    @property
    def secure(self) -> bool:
        """Whether connections to the pool use TLS."""
        return self.url.startswith("https:")

    @property
    def spec(self) -> PoolSpec:
        """What the router and its policy need of it."""
        return PoolSpec(self.name, self.servers, self.guess, self.true_rate, self.max_in_flight)


class PolicyConfig(Section):
    """The routing policy. The policy itself checks its options."""

    name: str = Field(default=DEFAULT_POLICY, description="A registered policy, or module:attr of a factory.")
    options: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="Options of the policy; `lased-dispatcher policies` lists them."
    )


class TlsConfig(Section):
    """Files for serving https to clients. Without a certificate, clients are served http."""

    certificate: str = Field(default="", description="PEM file with the certificate and its chain. Empty: plain http.")
    key: str = Field(
        default="", description="PEM file with the private key. Empty: it is in the file of the certificate."
    )


class AccessLogConfig(Section):
    """The access log has one line for each request."""

    path: str = Field(default="", description='File that the log is written to; "-" means stdout. Empty: no log.')
    format: Literal["json", "combined"] = Field(default="json", description="Format of a line.")


class TracingConfig(Section):
    """Spans for OpenTelemetry, sent by OTLP over HTTP. They need the extra `otel`."""

    endpoint: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = Field(
        default="", description="URL of the collector. Empty: no spans."
    )
    service: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        default="lased-dispatcher", description="Name of this service in the spans."
    )


class Config(Settings):
    """The whole configuration."""

    listen: str = Field(
        default="127.0.0.1:8080", description="Address for clients: HOST:PORT or unix:/PATH; port 0: any."
    )
    admin: str = Field(
        default="127.0.0.1:9090", description="Address of metrics, state and control. Keep it on loopback."
    )
    admin_token: Secret = Field(
        default=SecretStr(""), description="Bearer token that the admin API requires. Empty: no authentication."
    )
    seed: int = Field(default=1, description="Seed of the random generator of the policy.")
    rows: str = Field(default="", description="File that gets one JSON line for each decision. Empty: none.")
    state_file: str = Field(
        default="", description="File that keeps what the policy has learned across restarts. Empty: nothing is kept."
    )
    state_url: Secret = Field(
        default=SecretStr(""),
        description="URL of a Redis in which dispatchers with the same pools share what they learn. It needs the "
        "extra `redis`. Empty: nothing is shared.",
    )
    state_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")] = Field(
        default="lased", description="Name in Redis of the group of dispatchers that share."
    )
    shadow: list[str] = Field(
        default_factory=list, description="Policies that are evaluated on live traffic without routing it."
    )
    reuse_port: bool = Field(
        default=False, description="Whether another process may listen on the same port, to hand over without a gap."
    )
    policy: PolicyConfig = Field(default=PolicyConfig(), description="The routing policy.")
    pools: Annotated[list[PoolConfig], Field(min_length=1)] = Field(description="The pools; at least one.")
    tls: TlsConfig = Field(default=TlsConfig(), description="https for clients.")
    access_log: AccessLogConfig = Field(default=AccessLogConfig(), description="The access log.")
    tracing: TracingConfig = Field(default=TracingConfig(), description="Spans for OpenTelemetry.")

    @model_validator(mode="before")
    @classmethod
    def _choose_shared_policy(cls, data: Any) -> Any:
        """With `state_url`, make a policy that can share the default one."""
        if not (isinstance(data, dict) and data.get("state_url") and isinstance(data.get("policy", {}), dict)):
            return data
        return data | {"policy": {"name": DEFAULT_SHARED_POLICY} | data.get("policy", {})}

    @field_validator("listen", "admin")
    @classmethod
    def _check_address(cls, address: str) -> str:
        parse_address(address)
        return address

    @field_validator("admin_token")
    @classmethod
    def _check_token(cls, token: SecretStr) -> SecretStr:
        text = token.get_secret_value()
        strong = len(text) >= MIN_TOKEN_CHARS and text.isascii() and text.isprintable() and " " not in text
        if text and not strong:
            raise ValueError(
                f"must be {MIN_TOKEN_CHARS} or more printable characters without blanks; "
                "`openssl rand -hex 32` makes one"
            )
        return token

    @field_validator("shadow")
    @classmethod
    def _check_shadow(cls, names: list[str]) -> list[str]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"duplicate policy {name!r}")
        return names

    @field_validator("pools")
    @classmethod
    def _check_pool_names(cls, pools: list[PoolConfig]) -> list[PoolConfig]:
        names = [pool.name for pool in pools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two pools are named {name!r}; names must differ")
        return pools

    @field_validator("state_url")
    @classmethod
    def _check_redis_url(cls, url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        if text and not text.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return url

    @model_validator(mode="after")
    def _check_one_store(self) -> Config:
        if self.state_file and self.shared_at:
            raise ValueError("state_file and state_url are mutually exclusive")
        return self

    @model_validator(mode="after")
    def _check_two_addresses(self) -> Config:
        address = parse_address(self.listen)
        if self.listen == self.admin and (address.port or address.path):
            raise ValueError(f"listen and admin are both {self.listen}; each needs an address of its own")
        return self

    @property
    def policy_is_default(self) -> bool:
        """Whether the configuration names no policy."""
        return "name" not in self.policy.model_fields_set

    @property
    def shared_at(self) -> str:
        """`state_url` in plain text."""
        return self.state_url.get_secret_value()

    @property
    def token(self) -> str:
        """`admin_token` in plain text."""
        return self.admin_token.get_secret_value()
