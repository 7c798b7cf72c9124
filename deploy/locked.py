"""Prints the part of requirements.lock that some packages need, with hashes, so that one lock file is enough.

    python deploy/locked.py            the packages of the service
    python deploy/locked.py otel       and those of this extra
    python deploy/locked.py --build    only the packages that build the wheel

The dependencies are read from the "# via" comments in the lock file.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==.*\n(?:[ \t]+.*\n?)*", re.MULTILINE)
PARENT = re.compile(r"^ +#(?: via)? +([\w.-]+)", re.MULTILINE)


def canonical(requirement: str) -> str:
    """Return the package's name as the lock file spells it."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def wanted(words: list[str]) -> set[str]:
    """Return the packages that pyproject.toml names for these arguments."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if words == ["--build"]:
        named = data["build-system"]["requires"]
    else:
        extras = data["project"]["optional-dependencies"]
        named = [*data["project"]["dependencies"], *(entry for word in words for entry in extras[word])]
    return {canonical(requirement) for requirement in named}


def pick(lock: str, names: set[str]) -> str:
    """Return the entries of these packages and of their dependencies. Raises KeyError if one is not locked.

    A package has several entries if its version depends on the version of Python.
    """
    entries = [(canonical(entry["name"]), entry[0]) for entry in ENTRY.finditer(lock)]
    if missing := names - {name for name, _ in entries}:
        raise KeyError(*sorted(missing))
    picked = set(names)
    while more := {name for name, text in entries if name not in picked and picked & set(PARENT.findall(text))}:
        picked |= more
    return "".join(text for name, text in entries if name in picked)


if __name__ == "__main__":
    try:
        sys.stdout.write(pick((ROOT / "requirements.lock").read_text(encoding="utf-8"), wanted(sys.argv[1:])))
    except KeyError as error:
        sys.exit(f"error: unknown name: {error}")
