"""Keeps what policies have learned in a file.

The file is written completely or not at all, and it is checked when it is read. It is JSON. The state of a policy is of
one of two kinds, and the file keeps both:

    {"version": 1,
     "pools": {NAME: {"weight", "total", "observations"}},      of policies that learn service rates
     "curves": {NAME: {"capacity": […], "seconds_with": […], …}}}   of the policy curve

A file that is damaged, of another version, or with numbers that are impossible raises ConfigError.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dispatcher.core.policy import PolicyState
from dispatcher.errors import ConfigError

VERSION = 1
RATES, CURVES = "rates", "curves"  # the kinds of state, `BasePolicy.state_kind`
SECTIONS = {RATES: "pools", CURVES: "curves"}  # the key of each kind in the file
MAX_NUMBER = 1e15  # no learned number reaches it
RATE_KEYS = ("weight", "total", "observations")

Knowledge = dict[str, PolicyState]  # by kind


def save(path: Path, knowledge: Knowledge) -> None:
    """Replace the file atomically. Raises OSError; the old file is then unchanged."""
    sections = {section: knowledge.get(kind, {}) for kind, section in SECTIONS.items()}
    text = json.dumps({"version": VERSION, **sections})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash could leave an empty file under the final name
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def load(path: Path) -> Knowledge:
    """Return what was saved, by kind; empty states if there is no file. Raises ConfigError if it cannot be used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {RATES: {}, CURVES: {}}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"state_file {path} cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("pools"), dict):
        raise ConfigError(f"state_file {path} is not of version {VERSION}")
    curves = data.get("curves", {})  # a file of an earlier release has none
    if not isinstance(curves, dict):
        raise ConfigError(f"state_file {path}: curves must be an object, one entry per pool")
    for section, check in ((data["pools"], _are_rates), (curves, _are_sums)):
        for name, pool in section.items():
            if not isinstance(pool, dict) or not check(pool):
                raise ConfigError(f"state_file {path}: pool {name!r} has impossible numbers: {str(pool)[:200]}")
    rates = {name: {key: pool[key] for key in RATE_KEYS} for name, pool in data["pools"].items()}
    return {RATES: rates, CURVES: curves}


def _are_rates(pool: dict[str, Any]) -> bool:
    return all(_is_amount(pool.get(key)) and pool[key] > 0 for key in RATE_KEYS)


def _are_sums(pool: dict[str, Any]) -> bool:
    return all(isinstance(values, list) and all(map(_is_amount, values)) for values in pool.values())


def _is_amount(number: object) -> bool:
    return isinstance(number, int | float) and number is not True and 0 <= number < MAX_NUMBER
