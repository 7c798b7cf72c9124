"""Writes docs/reference.md (configuration, metrics, commands) and docs/attack.schema.json, as the code tells them.

A test holds them in step. python docs/reference.py
"""

import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, SecretStr

from dispatcher import registry, settings
from dispatcher.config import Config, PoolConfig
from dispatcher.core.types import Job, Outcome
from dispatcher.policies.base import BasePolicy
from dispatcher.service import Service
from loadgen.attack.summary import Summary

HERE = Path(__file__).parent
COMMANDS = (
    ("dispatcher", ("serve", "check", "policies", "top", "version")),
    ("workers", ("",)),
    ("loadgen", ("attack", "simulate", "compare", "reproduce", "theory", "demo")),
)
DESCRIBED = {  # sections whose keys a dataclass explains
    "limits": settings.Limits,
    "timeouts": settings.Timeouts,
    "health": settings.Health,
    "retry": settings.Retry,
    "queue": settings.Waiting,
    "reports": settings.Reports,
}


def shown(value):
    if isinstance(value, SecretStr):
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value).replace("'", '"')


def kind(annotation):
    """A type as a person would write it."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    names = {"str": "text", "SecretStr": "text", "int": "whole number", "float": "number", "bool": "true or false"}
    if text.startswith("typing.Optional[typing.Annotated[float"):
        return "number"
    return names.get(text) or re.sub(r"\bstr\b", "text", re.sub(r"typing\.|dispatcher\.\w+\.", "", text))


def keys(model):
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        needed = "needed" if field.is_required() else f"`{shown(default)}`"
        yield f"| `{name}` | {kind(field.annotation).replace('|', 'or')} | {needed} |"


def table(model):
    return ["| key | type | default |", "|---|---|---|", *keys(model), ""]


def described(text):
    return " ".join((text or "").split())


def configuration():
    plain, sections = {}, {}
    for name, field in Config.model_fields.items():
        nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        (sections if nested else plain)[name] = field
    lines = ["## Configuration", "", "A TOML file, `serve --config F`. `LASED_TIMEOUTS_ANSWER=5` and the like override",
             "it, flags override both. [deploy/dispatcher.toml](../deploy/dispatcher.toml) has",
             "every key.", ""]  # fmt: skip
    lines += ["### Top level", "", described(Config.__doc__), ""]
    top = type("Top", (BaseModel,), {"__annotations__": {}})
    top.model_fields = {name: field for name, field in plain.items() if name != "pools"}
    lines += table(top)
    lines += ["### `[[pools]]`", "", described(PoolConfig.__doc__), "", *table(PoolConfig)]
    for name, field in sections.items():
        lines += [f"### `[{name}]`", "", described((DESCRIBED.get(name) or field.annotation).__doc__), ""]
        lines += table(field.annotation)
    return lines


async def families():
    """Of services with everything on: (name, type, labels, help)."""
    pools = [{"name": name, "url": "http://127.0.0.1:9", "true_rate": 1.0} for name in ("a", "b")]
    found = set()
    for policy in ("curve", "lased", "exp3_ix"):  # one that learns capacities, one that learns rates, one that draws
        service = Service(Config.model_validate({"pools": pools, "shadow": ["jsq"], "policy": {"name": policy}}))
        service.router.complete(service.router.route(Job(1), 0.0), 0.0, Outcome.CANCELLED)
        service.admin.refresh_metrics()
        declared = {
            each._name: each._labelnames for each in service.registry._collector_to_names if hasattr(each, "_name")
        }
        for family in service.registry.collect():
            used = {label for sample in family.samples for label in sample.labels} - {"le"}
            labels = sorted(declared.get(family.name) or used)
            name = family.name + ("_total" if family.type == "counter" else "")
            found.add((name, family.type, ", ".join(labels), family.documentation))
    return sorted(found)


def metrics():
    lines = ["## Metrics", "", "On the admin side, `GET /metrics`, for Prometheus.", ""]
    lines += ["| name | type | labels | |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in asyncio.run(families())]
    return [*lines, ""]


def policies():
    """Every registered policy with its docstrings; a policy inherits the options of its base class."""
    lines = ["## Policies", "", "Options go into `[policy]`, as `options = { memory = 2000 }`.", ""]
    for name in registry.registered():
        factory = registry.factory(name)
        options = registry.options_of(factory)
        lines += [f"### `{name}`", "", described(inspect.getdoc(factory)), ""]
        inherited = [c for c in inspect.getmro(factory)[1:] if issubclass(c, BasePolicy) and c is not BasePolicy]
        texts = [described(inspect.getdoc(c)) for c in inherited if set(own_options(c)) & set(options)]
        lines += [line for text in texts for line in (text, "")]
        if options:
            lines += ["| option | default |", "|---|---|"]
            lines += [f"| `{key}` | `{shown(option.default)}` |" for key, option in options.items()]
            lines.append("")
    return lines


def own_options(factory):
    """The options that the class itself declares."""
    return registry.options_of(factory) if "__init__" in vars(factory) else {}


def helped(command):
    plain = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines()).strip()


def commands():
    names = "`lased-dispatcher`, `lased-workers`, `lased-loadgen`"
    lines = ["## Commands", "", f"{names}, the same as `python -m dispatcher` and so on.", ""]
    each = [(module, name) for module, names in COMMANDS for name in names]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        texts = pool.map(helped, ([sys.executable, "-m", module, *name.split(), "--help"] for module, name in each))
    for (module, name), text in zip(each, texts, strict=True):
        lines += [f"### `{f'lased-{module} {name}'.strip()}`", "", "```text", text, "```", ""]
    return lines


def reference():
    head = ["# Reference", "", "Written by `python docs/reference.py` from the code.", ""]
    return "\n".join([*head, *configuration(), *policies(), *metrics(), *commands()]).rstrip() + "\n"


def schema():
    """Of what `lased-loadgen attack --json` prints."""
    return json.dumps(Summary.model_json_schema(mode="serialization"), indent=1) + "\n"


if __name__ == "__main__":
    (HERE / "reference.md").write_text(reference(), encoding="utf-8")
    (HERE / "attack.schema.json").write_text(schema(), encoding="utf-8")
