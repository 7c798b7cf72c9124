"""The notation in which commands name a thing with options: `lognormal:cv=2` or `lognormal/cv=2`. PURE.

A spec is a name, then options. The first colon or slash ends the name. Behind a colon the options are separated by
commas, and behind a slash by slashes: `mmpp:ratio=5,period=100` and `mmpp/ratio=5/period=100` are the same. Service
laws, arrival processes, profiles, throughput curves, disciplines and policies are all named in this way.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def parse_spec(text: str, what: str, separators: str = ":/") -> tuple[str, dict[str, str]]:
    """Split a spec into its name and its options, by key.

    what: the kind of thing, for error messages, as in "service law".
    separators: the characters that may end the name; "/" alone for names that contain a colon.

    Raises ValueError if an option is not written key=value, or if a key stands there twice.

    >>> parse_spec("lognormal:cv=2", "service law"), parse_spec("lased/n0=3/c=2", "policy")
    (('lognormal', {'cv': '2'}), ('lased', {'n0': '3', 'c': '2'}))
    """
    name, separator, rest = split_spec(text, separators)
    options: dict[str, str] = {}
    for item in filter(None, rest.split("," if separator == ":" else "/")):
        # A component of a context may begin with the slash of its path, so only the first "=" ends a key.
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ValueError(f"{what} {text!r}: options are written key=value, not {item!r}")
        if key in options:
            raise ValueError(f"{what} {text!r} names {key!r} twice")
        options[key] = value
    return name, options


def split_spec(text: str, separators: str = ":/") -> tuple[str, str, str]:
    """Split a spec into its name, the separator and the text of its options; the last two may be empty.

    >>> split_spec("table:10,18,24")
    ('table', ':', '10,18,24')
    """
    match = re.search(f"[{re.escape(separators)}]", text)
    return (text[: match.start()], match[0], text[match.end() :]) if match else (text, "", "")


def make_from_spec(text: str, what: str, makers: Mapping[str, Callable[..., T]], *arguments: object) -> T:
    """Make the thing that a spec describes, by calling `makers[name](*arguments, **options)`.

    what: the kind of thing, for error messages, as in "service law".
    makers: functions or classes by name. The names of their parameters after `arguments` are the valid keys. Each
        option must be a number, and a whole number where the parameter is an int.

    Raises ValueError with one line that quotes the spec and names what is valid.

    >>> make_from_spec("point:y=2", "shape", {"point": lambda x, y=0.0: (x, y)}, 1.0)
    (1.0, 2.0)
    >>> make_from_spec("point:z=2", "shape", {"point": lambda x, y=0.0: (x, y)}, 1.0)
    Traceback (most recent call last):
    ...
    ValueError: shape 'point:z=2': point takes no option z; valid options: y
    """
    name, texts = parse_spec(text, what)
    if name not in makers:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(makers)}")
    try:
        return makers[name](*arguments, **_numbers(name, makers[name], len(arguments), texts))
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: {error}") from None


def _numbers(name: str, maker: Callable[..., object], skip: int, texts: Mapping[str, str]) -> dict[str, float]:
    """Convert the options of a spec to the numbers that the maker takes. Raises ValueError."""
    parameters = [p for p in inspect.signature(maker).parameters.values() if p.kind is not p.POSITIONAL_ONLY][skip:]
    by_name = {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD}
    takes_any = len(by_name) < len(parameters)  # a maker with **options checks the names itself
    numbers: dict[str, float] = {}
    for key, text in texts.items():
        if key not in by_name and not takes_any:
            valid = f"valid options: {', '.join(by_name)}" if by_name else "it takes no options"
            raise ValueError(f"{name} takes no option {key}; {valid}")
        # Annotations are strings in modules that postpone their evaluation.
        is_whole = key in by_name and by_name[key].annotation in (int, "int")
        numbers[key] = _number(key, text, is_whole)
    if missing := [key for key, p in by_name.items() if p.default is p.empty and key not in texts]:
        raise ValueError(f"{name} needs {', '.join(missing)}")
    return numbers


def _number(key: str, text: str, is_whole: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{key!r} must be a number, not {text!r}") from None
    if not is_whole:
        return value
    if not value.is_integer():
        raise ValueError(f"{key} must be a whole number, not {value:g}")
    return int(value)
