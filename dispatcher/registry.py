"""Creates policies by name. A policy is registered by an entry point in the group `dispatcher.policies`.

A name may also be `module:attr`: any importable factory that takes `rng` and its options as keyword arguments.
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
    """The entry points of all registered policies, by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def nearest(word: str, candidates: list[str]) -> str:
    """The hint " (did you mean 'x'?)" with the candidate nearest to this word, or an empty string."""
    close = difflib.get_close_matches(word, candidates, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def factory(name: str) -> PolicyFactory:
    """The factory of a policy. Raises ConfigError if there is none of this name or it cannot be imported."""
    points = registered()
    if ":" in name and "" not in sys.path:
        sys.path.insert(0, "")  # modules in the current folder can be imported, as with `python -m`
    try:
        if name in points:
            loaded = points[name].load()
        elif ":" in name:
            module, _, attribute = name.partition(":")
            loaded = getattr(importlib.import_module(module), attribute)
        else:
            names = list(points)
            raise ConfigError(
                f"there is no policy {name!r}{nearest(name, names)}; known: {', '.join(names)}, or module:attr"
            )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"policy {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(loaded):
        raise ConfigError(f"policy {name!r} is a {type(loaded).__name__}, not something to be called")
    return loaded  # type: ignore[no-any-return]


def options_of(maker: PolicyFactory) -> dict[str, inspect.Parameter]:
    """The options of a factory, by name; `rng` is not an option. Raises ConfigError if it has no signature."""
    try:
        parameters = inspect.signature(maker, eval_str=True).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"a policy must be made by factory(rng=…, **options); {maker!r} has no signature") from error
    return {name: p for name, p in parameters.items() if name != "rng" and p.kind is not p.VAR_KEYWORD}


def paper_options(name: str) -> dict[str, Any]:
    """The options that make a policy behave as its paper describes; empty if the defaults do."""
    return dict(getattr(factory(name), "paper_options", {}))


def summary_of(maker: PolicyFactory) -> str:
    """The first line of a factory's docstring."""
    return (inspect.getdoc(maker) or "").partition("\n")[0]


def create(name: str, rng: Random, options: dict[str, Any] | None = None) -> BasePolicy:
    """Create a policy.

    rng: its random generator.
    options: values by option; a string is converted to the type of the option.
    Raises ConfigError at an unknown name or option, and at a value that the policy refuses.
    """
    maker = factory(name)
    parameters = options_of(maker)
    arguments = {}
    for key, value in (options or {}).items():
        if key not in parameters:
            takes = f"it takes: {', '.join(parameters)}" if parameters else "it takes none"
            raise ConfigError(f"policy {name!r} has no option {key!r}{nearest(key, list(parameters))}; {takes}")
        arguments[key] = _convert(name, key, value, parameters[key].annotation)
    try:
        return as_policy(maker(rng=rng, **arguments))
    except ConfigError as error:
        raise ConfigError(f"policy {name!r}: {error}") from error
    except Exception as error:
        raise ConfigError(f"policy {name!r} cannot be made: {type(error).__name__}: {error}") from error


def _convert(name: str, key: str, value: Any, annotation: Any) -> Any:
    """The value as the type that the option declares. Raises ConfigError if it has another type.

    A whole number may stand for a float, and a string for the number or truth value that it spells.
    """
    types = get_args(annotation) if get_origin(annotation) is not None else (annotation,)
    for kind in types:
        # bool is a subclass of int, but `n0 = true` is a mistake.
        if kind is inspect.Parameter.empty or (isinstance(value, kind) and not (kind is not bool and value is True)):
            return value
        if kind in (int, float) and isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = kind(value)
            except (ValueError, OverflowError):
                continue
            if isinstance(value, str) or number == value:
                return number
        if kind is bool and value in ("true", "false"):
            return value == "true"
    expected = " or ".join(getattr(kind, "__name__", str(kind)) for kind in types)
    raise ConfigError(f"policy {name!r}: option {key} must be {expected}, not {value!r}")
