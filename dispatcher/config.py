"""The TOML file as typed objects. Everything a user can set is named, typed and bounded here.

Order of precedence: defaults, the file, `LASED_…` environment variables, flags. An error names the key's path, what is
wrong with it, and for an unknown key the nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from dispatcher.core.types import PoolSpec
from dispatcher.errors import ConfigError
from dispatcher.platform.sockets import UNIX, Address, parse_address
from dispatcher.registry import nearest
from dispatcher.settings import Cause, Health, Limits, Reports, Retry, Settings, Timeouts, Waiting

SECRETS = ("admin_token", "state_url")  # are not shown in errors
STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
LARGEST = 1e12
ENV = "LASED_"
AT_LEAST_ONE = {"rise", "fall", "window", "attempts"}
AT_MOST_ONE = {"floor", "error_ratio"}
PATH = r"^(/[!-~]*)?$"


def _section(settings: type) -> type[BaseModel]:
    """A model of a dataclass: same names, same defaults, no number negative."""
    hints = get_type_hints(settings)
    keys: dict[str, Any] = {}
    for f in fields(settings):
        if hints[f.name] is str:
            keys[f.name] = (str, Field(f.default, pattern=PATH))
        elif hints[f.name] is bool:
            keys[f.name] = (bool, f.default)
        elif hints[f.name] in (int, float):
            low, high = int(f.name in AT_LEAST_ONE), 1 if f.name in AT_MOST_ONE else LARGEST
            keys[f.name] = (hints[f.name], Field(f.default, ge=low, le=high))
        else:
            keys[f.name] = (list[Cause], Field(list(Retry().on)))
    return create_model(settings.__name__, __config__=STRICT, **keys)


def _host_and_port(url: str) -> Address:
    parts = urlsplit(url)
    return Address(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))


class PoolConfig(BaseModel):
    """One `[[pools]]` entry. drained: it is given no new request. health_path: in the place of `health.path`.
    ca, verify, server_name: of an https pool: the authorities that are trusted (a PEM file; empty for the system's),
    whether its certificate is checked at all, and the name expected in it."""

    model_config = STRICT

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    url: str
    servers: Annotated[int, Field(ge=1, le=100_000)] = 1
    guess: Annotated[float, Field(gt=0, le=1e9)] = 1.0
    true_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    max_in_flight: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    drained: bool = False
    health_path: Annotated[str, Field(pattern=PATH)] = ""
    ca: str = ""
    verify: bool = True
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]*$")] = ""

    @field_validator("url")
    @classmethod
    def _without_a_path(cls, url: str) -> str:
        if url.startswith(UNIX):
            parse_address(url)
            return url
        parts = urlsplit(url)
        bare = parts.path in ("", "/") and not parts.query and not parts.fragment and parts.username is None
        if parts.scheme not in ("http", "https") or not parts.hostname or not bare:
            raise ValueError(
                f"must be http://HOST:PORT or https://HOST:PORT without a path, or unix:/PATH, not {url!r}"
            )
        _ = parts.port  # raises ValueError out of range
        return url

    @property
    def address(self) -> Address:
        return parse_address(self.url) if self.url.startswith(UNIX) else _host_and_port(self.url)

    @property
    def secure(self) -> bool:
        return self.url.startswith("https:")

    @property
    def spec(self) -> PoolSpec:
        return PoolSpec(self.name, self.servers, self.guess, self.true_rate, self.max_in_flight)


DEFAULT_POLICY = "curve"  # the best one for pools of which nothing is known
DEFAULT_SHARING_POLICY = "lased"  # where dispatchers share what they learn
DEFAULT_POLICY_HINT = "curve is the default for pools of unknown speed; choose LASED with --policy lased"


class PolicyConfig(BaseModel):
    """The `[policy]` section; its options are checked by the policy itself."""

    model_config = STRICT

    name: str = DEFAULT_POLICY
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)


class TlsConfig(BaseModel):
    """The `[tls]` section: PEM files with which clients are served https; empty for http. key: if in another file."""

    model_config = STRICT

    certificate: str = ""
    key: str = ""


class AccessLogConfig(BaseModel):
    """The `[access_log]` section: a line a request. path: a file, "-" for stdout, empty for none."""

    model_config = STRICT

    path: str = ""
    format: Literal["json", "combined"] = "json"


class TracingConfig(BaseModel):
    """The `[tracing]` section: spans for OpenTelemetry (OTLP over HTTP). endpoint: the collector's URL, or empty."""

    model_config = STRICT

    endpoint: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    service: Annotated[str, Field(min_length=1, max_length=100)] = "lased-dispatcher"


class Config(BaseModel):
    """The whole file. rows: a file for one JSON line a decision, empty for none. state_file: where what is learned
    outlives the process, empty for nowhere. state_url: Redis, through which dispatchers in front of the same pools
    share what they learn, empty for none; state_name: of their fleet there. seed: of the policy's dice. shadow:
    policies on trial. trusted_proxies: networks whose word on a request's origin is believed. reuse_port: share the
    port with another process. admin_token: what callers of the admin side must bear, empty for nothing."""

    model_config = STRICT

    listen: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:9090"
    seed: int = 1
    rows: str = ""
    state_file: str = ""
    state_url: Annotated[SecretStr, Field(strict=False)] = SecretStr("")
    state_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")] = "lased"
    shadow: list[str] = Field(default_factory=list)
    trusted_proxies: list[str] = Field(default_factory=list)
    reuse_port: bool = False
    admin_token: Annotated[SecretStr, Field(strict=False)] = SecretStr("")
    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    pools: Annotated[list[PoolConfig], Field(min_length=1)]
    limits: _section(Limits) = Field(default_factory=_section(Limits))  # type: ignore[valid-type]
    timeouts: _section(Timeouts) = Field(default_factory=_section(Timeouts))  # type: ignore[valid-type]
    health: _section(Health) = Field(default_factory=_section(Health))  # type: ignore[valid-type]
    queue: _section(Waiting) = Field(default_factory=_section(Waiting))  # type: ignore[valid-type]
    retry: _section(Retry) = Field(default_factory=_section(Retry))  # type: ignore[valid-type]
    reports: _section(Reports) = Field(default_factory=_section(Reports))  # type: ignore[valid-type]
    tls: TlsConfig = Field(default_factory=TlsConfig)
    access_log: AccessLogConfig = Field(default_factory=AccessLogConfig)
    tracing: TracingConfig = Field(default_factory=TracingConfig)

    @model_validator(mode="before")
    @classmethod
    def _policy_that_shares(cls, data: Any) -> Any:
        """What the default policy learns cannot be shared; with `state_url` the default is another one."""
        if not (isinstance(data, dict) and data.get("state_url") and isinstance(data.get("policy", {}), dict)):
            return data
        return data | {"policy": {"name": DEFAULT_SHARING_POLICY} | data.get("policy", {})}

    @field_validator("listen", "admin")
    @classmethod
    def _address(cls, text: str) -> str:
        parse_address(text)
        return text

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, texts: list[str]) -> list[str]:
        for text in texts:
            ip_network(text)  # raises ValueError, which says what is wrong with it
        return texts

    @field_validator("admin_token")
    @classmethod
    def _strong(cls, token: SecretStr) -> SecretStr:
        text = token.get_secret_value()
        if text and not (len(text) >= 16 and text.isascii() and text.isprintable() and " " not in text):
            raise ValueError("must be 16 or more printable characters without blanks; `openssl rand -hex 32` makes one")
        return token

    @field_validator("shadow")
    @classmethod
    def _once_each(cls, names: list[str]) -> list[str]:
        if len(set(names)) < len(names):
            raise ValueError("a policy stands there twice")
        return names

    @field_validator("pools")
    @classmethod
    def _distinct(cls, pools: list[PoolConfig]) -> list[PoolConfig]:
        names = [pool.name for pool in pools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two pools are named {name!r}; names must differ")
        return pools

    @field_validator("state_url")
    @classmethod
    def _redis(cls, url: SecretStr) -> SecretStr:
        text = url.get_secret_value()
        if text and not text.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return url

    @model_validator(mode="after")
    def _one_memory(self) -> Config:
        if self.state_file and self.shared_at:
            raise ValueError("state_file and state_url: one memory is enough; leave one away")
        return self

    @property
    def policy_is_default(self) -> bool:
        """Whether no policy was named."""
        return "name" not in self.policy.model_fields_set

    @property
    def shared_at(self) -> str:
        return self.state_url.get_secret_value()

    @model_validator(mode="after")
    def _two_ports(self) -> Config:
        address = parse_address(self.listen)
        if self.listen == self.admin and (address.port or address.path):
            raise ValueError(f"listen and admin are both {self.listen}; each needs an address of its own")
        return self

    @property
    def token(self) -> str:
        return self.admin_token.get_secret_value()

    @property
    def settings(self) -> Settings:
        """What the forwarding path needs of it."""
        return Settings(
            limits=Limits(**self.limits.model_dump()),
            timeouts=Timeouts(**self.timeouts.model_dump()),
            health=Health(**self.health.model_dump()),
            queue=Waiting(**self.queue.model_dump()),
            retry=Retry(**self.retry.model_dump() | {"on": tuple(self.retry.on)}),
            reports=Reports(**self.reports.model_dump()),
            trusted=tuple(ip_network(text) for text in self.trusted_proxies),
        )


def load(path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """The configuration in force. flags: top-level keys, and dotted ones (`policy.name`). Raises ConfigError.

    Options in the file belong to the policy in the file: naming another one leaves them behind.
    """
    data = _read(path) if path else {}
    named = data["policy"].get("name") if isinstance(data.get("policy"), dict) else None
    sources: dict[str, str] = {}
    given = [(key, value, name) for name, key, value in _from_environment(environment)]
    for key, value, source in (*given, *((key, value, "the command line") for key, value in flags.items())):
        table = data
        *above, last = key.split(".")
        for name in above:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {name}: must be a table")
        table[last] = value
        sources[key] = source
    if "policy.name" in sources and data["policy"]["name"] != named and "policy.options" not in sources:
        data["policy"].pop("options", None)
    try:
        if not data.get("pools"):
            raise ConfigError("pools: there must be at least one; give [[pools]] or --pool NAME=URL")
        return Config.model_validate(data)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        blamed = [source for key, source in sources.items() if where.startswith(key)]
        source = blamed[0] if blamed else str(path or "the command line")
        raise ConfigError(f"{source}: {describe(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{path or 'the command line'}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """(variable, key, value): `LASED_TIMEOUTS_ANSWER=5` is timeouts.answer. Values are TOML, else taken as text.

    Names that are far from any key are left alone: platforms make variables of their own from a service's name.
    """
    known = {}
    for name, key in Config.model_fields.items():
        kind = key.annotation
        nested = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
        for path in [f"{name}.{sub}" for sub in nested] or [name]:
            known[ENV + path.replace(".", "_").upper()] = path
    found = []
    for name, text in environment.items():
        if name in known:
            found.append((name, known[name], text if known[name] in SECRETS else _toml_value(text)))
        elif name.startswith(ENV):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if near or any(variable.startswith(f"{name}_") for variable in known):
                hint = near or [variable for variable in known if variable.startswith(f"{name}_")]
                raise ConfigError(f"{name}: unknown variable (did you mean {hint[0]}?)")
    return found


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def describe(error: ValidationError) -> str:
    """The first fault in one line, and how many more there are."""
    first, *more = error.errors()
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        text = f"unknown key{nearest(str(first['loc'][-1]), _keys_at(first['loc'][:-1]))}"
    elif first["type"] == "missing":
        text = "is missing"
    elif path in SECRETS and first["type"] != "value_error":
        text = "must be a string"  # what was given stays secret
    elif first["type"] == "value_error":
        text = str(first["ctx"]["error"])
    else:
        text = f"{first['msg'][0].lower()}{first['msg'][1:]}, not {first['input']!r}"
    return (f"{path}: " if path else "") + text + (f" (and {len(more)} more)" if more else "")


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    """The known keys of the table at this place."""
    model: type[BaseModel] = Config
    for part in location:
        if part == "pools":
            model = PoolConfig
        elif isinstance(part, str) and part in model.model_fields:
            kind = model.model_fields[part].annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                model = kind
    return list(model.model_fields)
