"""From a name to a policy. Built-ins register as strangers do: by an entry point in the group `dispatcher.policies`.

A name may also be `module:attr`, any importable factory that takes `rng` and options as keywords.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
from importlib.metadata import EntryPoint, entry_points
from random import Random
from typing import Any, get_args, get_origin

from dispatcher.core.policy import BasePolicy, PolicyFactory, as_policy
from dispatcher.errors import ConfigError

GROUP = "dispatcher.policies"


@functools.cache
def registered() -> dict[str, EntryPoint]:
    """Every registered name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def nearest(word: str, known: list[str]) -> str:
    """ " (did you mean 'x'?)" or nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def factory(name: str) -> PolicyFactory:
    """The factory of this name. Raises ConfigError if there is none or it cannot be imported."""
    points = registered()
    if ":" in name and "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the user, as `python -m` would find it
    try:
        if name in points:
            loaded = points[name].load()
        elif ":" in name:
            module, _, attribute = name.partition(":")
            loaded = getattr(importlib.import_module(module), attribute)
        else:
            known = list(points)
            raise ConfigError(
                f"there is no policy {name!r}{nearest(name, known)}; known: {', '.join(known)}, or module:attr"
            )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"policy {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(loaded):
        raise ConfigError(f"policy {name!r} is a {type(loaded).__name__}, not something to be called")
    return loaded  # type: ignore[no-any-return]


def options_of(maker: PolicyFactory) -> dict[str, inspect.Parameter]:
    """The options a factory takes, by name; `rng` is not one."""
    try:
        parameters = inspect.signature(maker, eval_str=True).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"a policy must be made as factory(rng=…, **options); {maker!r} does not tell how") from error
    return {name: p for name, p in parameters.items() if name != "rng" and p.kind is not p.VAR_KEYWORD}


def paper_options(name: str) -> dict[str, Any]:
    """The options with which this policy is what its paper describes; empty where the defaults are."""
    return dict(getattr(factory(name), "paper_options", {}))


def summary_of(maker: PolicyFactory) -> str:
    """The first line of its docstring."""
    return (inspect.getdoc(maker) or "").partition("\n")[0]


def create(name: str, rng: Random, options: dict[str, Any] | None = None) -> BasePolicy:
    """A fresh policy. Raises ConfigError at an unknown name or option, or a value that the policy refuses."""
    maker = factory(name)
    known = options_of(maker)
    given = {}
    for key, value in (options or {}).items():
        if key not in known:
            takes = f"it takes: {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"policy {name!r} has no option {key!r}{nearest(key, list(known))}; {takes}")
        given[key] = _fit(name, key, value, known[key].annotation)
    try:
        return as_policy(maker(rng=rng, **given))
    except ConfigError as error:
        raise ConfigError(f"policy {name!r}: {error}") from error
    except Exception as error:
        raise ConfigError(f"policy {name!r} cannot be made: {type(error).__name__}: {error}") from error


def _fit(name: str, key: str, value: Any, kind: Any) -> Any:
    """The value as the option's declared type; a whole number may stand for a float, a string for what it spells."""
    kinds = get_args(kind) if get_origin(kind) is not None else (kind,)
    for one in kinds:
        if one is inspect.Parameter.empty or (isinstance(value, one) and not (one is not bool and value is True)):
            return value
        if one in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = one(value)
            except (ValueError, OverflowError):
                continue
            if isinstance(value, str) or number == value:
                return number
        if one is bool and value in ("true", "false"):
            return value == "true"
    wanted = " or ".join(getattr(one, "__name__", str(one)) for one in kinds)
    raise ConfigError(f"policy {name!r}: option {key} must be {wanted}, not {value!r}")
