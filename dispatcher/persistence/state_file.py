"""What policies have learned, on disk: the file is written whole or not at all, and checked when it is read.

The file is JSON. What policies remember is of two kinds, and the file keeps both:

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

from dispatcher.core.policy import Remembered
from dispatcher.errors import ConfigError

VERSION = 1
RATES, CURVES = "rates", "curves"  # the kinds, `Remembering.state_kind`
SECTIONS = {RATES: "pools", CURVES: "curves"}
LARGEST = 1e15  # of any number that is learned
RATE_KEYS = ("weight", "total", "observations")

Knowledge = dict[str, Remembered]  # by kind


def save(path: Path, knowledge: Knowledge) -> None:
    """Replace the file atomically. Raises OSError; the old file is then as it was."""
    sections = {section: knowledge.get(kind, {}) for kind, section in SECTIONS.items()}
    text = json.dumps({"version": VERSION, **sections})
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def load(path: Path) -> Knowledge:
    """What was saved, by kind; empty if there is no file. Raises ConfigError if the file cannot be used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {RATES: {}, CURVES: {}}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"state_file {path} cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("pools"), dict):
        raise ConfigError(f"state_file {path} is not of version {VERSION}")
    curves = data.get("curves", {})
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
    return isinstance(number, int | float) and number is not True and 0 <= number < LARGEST
