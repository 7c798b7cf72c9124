"""Prints the part of requirements.lock that some packages need, hashes and all, so that one lock serves everywhere.

    python deploy/locked.py            what the service needs
    python deploy/locked.py otel       and what this extra needs
    python deploy/locked.py --build    only what building the wheel needs

What needs what is read off the lock's own "# via" comments.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==.*\n(?:[ \t]+.*\n?)*", re.MULTILINE)
PARENT = re.compile(r"^ +#(?: via)? +([\w.-]+)", re.MULTILINE)


def canonical(requirement: str) -> str:
    """The package's name, spelled as the lock spells it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def wanted(words: list[str]) -> set[str]:
    """The packages that pyproject.toml names for these words."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if words == ["--build"]:
        named = data["build-system"]["requires"]
    else:
        extras = data["project"]["optional-dependencies"]
        named = [*data["project"]["dependencies"], *(entry for word in words for entry in extras[word])]
    return {canonical(requirement) for requirement in named}


def pick(lock: str, names: set[str]) -> str:
    """The entries of these packages and of all that they need; several of one where the Python decides. Raises KeyError
    if one is not locked."""
    entries = [(canonical(found["name"]), found[0]) for found in ENTRY.finditer(lock)]
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
        sys.exit(f"error: nothing is known of {error}")
