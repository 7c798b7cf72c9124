"""What a policy has learned, on disk: written whole or not at all, read with suspicion.

The file is JSON, {"version": 1, "pools": {name: {"weight", "total", "observations"}}}. A file that is damaged, of
another version or with numbers that cannot be is ignored, and said to be; it is then overwritten. Nothing here decides
when.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from dispatcher.core.interfaces import Remembered
from dispatcher.errors import ConfigError

VERSION = 1
KEYS = ("weight", "total", "observations")


def save(path: Path, pools: Remembered) -> None:
    """Replace the file atomically. Raises OSError; the old file is then as it was."""
    text = json.dumps({"version": VERSION, "pools": pools})
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


def load(path: Path) -> Remembered:
    """What was saved; nothing if there is no file. Raises ConfigError if it cannot be believed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"state_file {path} cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("pools"), dict):
        raise ConfigError(f"state_file {path} is not of version {VERSION}")
    for name, pool in data["pools"].items():
        if not isinstance(pool, dict) or not all(_can_be(pool.get(key)) for key in KEYS):
            raise ConfigError(f"state_file {path}: pool {name!r} has numbers that cannot be: {pool}")
    return {name: {key: pool[key] for key in KEYS} for name, pool in data["pools"].items()}


def _can_be(number: object) -> bool:
    return isinstance(number, int | float) and number is not True and math.isfinite(number) and number > 0
