"""The configuration in force: defaults, then the file, then `LASED_…` environment variables, then flags.

Every error is a ConfigError that names the key's path, the fault, and for an unknown key the nearest known one.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dispatcher.errors import ConfigError
from dispatcher.registry import nearest
from dispatcher.settings import Config

SECRET_KEYS = ("admin_token", "state_url")  # errors do not show their values
ENV_PREFIX = "LASED_"
COMMAND_LINE = "the command line"
MIN_SIMILARITY = 0.85  # of an unknown environment variable to a known one, from which on it is taken for a mistake


def load(path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """Read and validate the configuration. Raises ConfigError.

    path: the file, or None for no file.
    environment: variables; those that begin with `LASED_` are read.
    flags: values by key; a key of a section is dotted, as in `policy.name`.
    """
    data = _read(path) if path else {}
    file_policy = data["policy"].get("name") if isinstance(data.get("policy"), dict) else None
    sources = {}  # by key: the variable or flag that set it, for error messages
    for key, value, source in (
        *_from_environment(environment),
        *((key, value, COMMAND_LINE) for key, value in flags.items()),
    ):
        _set(data, key, value, path)
        sources[key] = source
    # The options in the file belong to the policy in the file, and another policy would refuse them.
    if "policy.name" in sources and data["policy"]["name"] != file_policy and "policy.options" not in sources:
        data["policy"].pop("options", None)
    try:
        if not data.get("pools"):
            raise ConfigError("pools: there must be at least one; give [[pools]] or --pool NAME=URL")
        return Config.model_validate(data)
    except ValidationError as error:
        fault_path = _dotted(error.errors()[0]["loc"])
        origins = [source for key, source in sources.items() if fault_path.startswith(key)]
        origin = origins[0] if origins else path or COMMAND_LINE
        raise ConfigError(f"{origin}: {describe(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{path or COMMAND_LINE}: {error}") from error


def describe(error: ValidationError) -> str:
    """The first fault in one line, and the number of further ones."""
    first, *others = error.errors()
    path = _dotted(first["loc"])
    if first["type"] == "extra_forbidden":
        text = f"unknown key{nearest(str(first['loc'][-1]), _keys_at(first['loc'][:-1]))}"
    elif first["type"] == "missing":
        text = "is missing"
    elif first["type"] == "value_error":  # raised by our own validators, which never quote a secret
        text = str(first["ctx"]["error"])
    elif path in SECRET_KEYS:
        text = "must be a string"
    else:
        text = f"{first['msg'][0].lower()}{first['msg'][1:]}, not {first['input']!r}"
    return (f"{path}: " if path else "") + text + (f" (and {len(others)} more)" if others else "")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _set(data: dict[str, Any], key: str, value: Any, path: Path | None) -> None:
    """Set a dotted key in nested tables. Raises ConfigError if the file has a plain value in place of a table."""
    *sections, last = key.split(".")
    table = data
    for name in sections:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name}: must be a table")
    table[last] = value


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    """(key, value, variable) of each variable that sets a key: `LASED_TIMEOUTS_ANSWER=5` sets `timeouts.answer`.

    A value is read as TOML, and as plain text if it is no TOML. Raises ConfigError at a name that is nearly a key.
    """
    keys = {ENV_PREFIX + key.replace(".", "_").upper(): key for key in _dotted_keys()}
    settings = []
    for variable, text in environment.items():
        if variable in keys:
            key = keys[variable]
            settings.append((key, text if key in SECRET_KEYS else _toml_value(text), variable))
        elif variable.startswith(ENV_PREFIX):
            # Other names are ignored: Kubernetes sets variables such as LASED_SERVICE_PORT for a service of that name.
            close = difflib.get_close_matches(variable, keys, n=1, cutoff=MIN_SIMILARITY)
            hints = close or [name for name in keys if name.startswith(f"{variable}_")]
            if hints:
                raise ConfigError(f"{variable}: unknown variable (did you mean {hints[0]}?)")
    return settings


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _dotted_keys() -> list[str]:
    """All keys that a variable can set; those of a section are dotted."""
    keys = []
    for name in Config.model_fields:
        section = _section(Config, name)
        keys += [name] if section is None or name == "pools" else [f"{name}.{key}" for key in section.model_fields]
    return keys


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    """The known keys of the table at this place."""
    model: type[BaseModel] = Config
    for part in location:
        model = (_section(model, part) if isinstance(part, str) else None) or model
    return list(model.model_fields)


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The model of the table, or of the list of tables, under a key; None if the key has a plain value."""
    if key not in model.model_fields:
        return None
    annotation = model.model_fields[key].annotation
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
