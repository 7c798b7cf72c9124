"""Writes docs/reference.md (configuration, policies, metrics, commands) and docs/attack.schema.json from the code.

Run it by `python docs/reference.py`. A test checks that the files are up to date.
"""

import asyncio
import contextlib
import inspect
import io
import json
import os
import re
from pathlib import Path
from unittest.mock import patch

from pydantic import BaseModel, SecretStr

from dispatcher import registry
from dispatcher.cli import app as dispatcher_app
from dispatcher.core.types import Job, Outcome
from dispatcher.policies.base import BasePolicy
from dispatcher.service import Service
from dispatcher.settings import Config, PoolConfig
from loadgen.attack.summary import Summary
from loadgen.cli import main as _registers_all_commands  # noqa: F401
from loadgen.cli.app import app as loadgen_app
from workers.__main__ import app as workers_app

HERE = Path(__file__).parent
COMMANDS = (
    ("dispatcher", ("serve", "check", "policies", "top", "version")),
    ("workers", ("",)),
    (
        "loadgen",
        (
            "attack",
            "simulate",
            "compare",
            "reproduce",
            "theory",
            "theory hamacher",
            "theory whittle_finite",
            "theory whittle_blocking",
            "demo",
        ),
    ),
)
APPS = {"dispatcher": dispatcher_app, "workers": workers_app, "loadgen": loadgen_app}


def shown(value):
    if isinstance(value, SecretStr):
        return '""'
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value).replace("'", '"')


def kind(annotation):
    """The plain name of a type."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    names = {"str": "text", "SecretStr": "text", "int": "whole number", "float": "number", "bool": "true or false"}
    if text.startswith("typing.Optional[typing.Annotated[float"):
        return "number"
    return names.get(text) or re.sub(r"\bstr\b", "text", re.sub(r"typing\.|dispatcher\.\w+\.", "", text))


def rows(fields):
    for name, field in fields.items():
        default = field.get_default(call_default_factory=True)
        default = "needed" if field.is_required() else f"`{shown(default)}`"
        type_name = kind(field.annotation).replace("|", "or")
        yield f"| `{name}` | {type_name} | {default} | {field.description.replace('|', 'or')} |"


def table(fields):
    return ["| key | type | default | description |", "|---|---|---|---|", *rows(fields), ""]


def one_line(text):
    return " ".join((text or "").split())


def section_of(field):
    """The model of a section; None for a key of the top level."""
    model = field.annotation
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def configuration():
    fields = Config.model_fields
    sections = {name: section_of(field) for name, field in fields.items() if section_of(field)}
    plain = {name: field for name, field in fields.items() if name not in sections and name != "pools"}
    lines = [
        "## Configuration",
        "",
        "The configuration is a TOML file, `serve --config F`. Environment variables such as `LASED_TIMEOUTS_ANSWER=5`",
        "override it, and flags override both. [deploy/dispatcher.toml](../deploy/dispatcher.toml) has every key.",
        "",
    ]
    lines += ["### Top level", "", *table(plain)]
    for title, model in (("[[pools]]", PoolConfig), *((f"[{name}]", model) for name, model in sections.items())):
        lines += [f"### `{title}`", "", one_line(model.__doc__), "", *table(model.model_fields)]
    return lines


async def families():
    """(name, type, labels, help) of every metric that a service can have."""
    pools = [{"name": name, "url": "http://127.0.0.1:9", "true_rate": 1.0} for name in ("a", "b")]
    metrics = set()
    for policy in ("curve", "lased", "exp3_ix"):  # it learns capacities; it learns rates; it draws pools at random
        service = Service(Config.model_validate({"pools": pools, "shadow": ["jsq"], "policy": {"name": policy}}))
        service.router.complete(service.router.route(Job(1), 0.0), 0.0, Outcome.CANCELLED)
        service.admin.refresh_metrics()
        declared = {
            metric._name: metric._labelnames
            for metric in service.registry._collector_to_names
            if hasattr(metric, "_name")
        }
        for family in service.registry.collect():
            used = {label for sample in family.samples for label in sample.labels} - {"le"}
            labels = sorted(declared.get(family.name) or used)
            name = family.name + ("_total" if family.type == "counter" else "")
            metrics.add((name, family.type, ", ".join(labels), family.documentation))
    return sorted(metrics)


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
        lines += [f"### `{name}`", "", one_line(inspect.getdoc(factory)), ""]
        inherited = [c for c in inspect.getmro(factory)[1:] if issubclass(c, BasePolicy) and c is not BasePolicy]
        texts = [one_line(inspect.getdoc(c)) for c in inherited if set(own_options(c)) & set(options)]
        lines += [line for text in texts for line in (text, "")]
        if options:
            lines += ["| option | default |", "|---|---|"]
            lines += [f"| `{key}` | `{shown(option.default)}` |" for key, option in options.items()]
            lines.append("")
    return lines


def own_options(factory):
    """The options that the class itself declares."""
    return registry.options_of(factory) if "__init__" in vars(factory) else {}


def help_text(module, name):
    """Return the help of a command, as a terminal of 100 columns without colours shows it."""
    plain = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    output = io.StringIO()
    with patch.dict(os.environ, plain), contextlib.redirect_stdout(output):
        APPS[module]([*name.split(), "--help"], standalone_mode=False, prog_name=f"lased-{module}")
    return "\n".join(line.rstrip() for line in output.getvalue().strip("\n").splitlines()).strip()


def commands():
    names = "`lased-dispatcher`, `lased-workers`, `lased-loadgen`"
    lines = ["## Commands", "", f"{names}, the same as `python -m dispatcher` and so on.", ""]
    for module, subcommands in COMMANDS:
        for name in subcommands:
            title = f"lased-{module} {name}".strip()
            lines += [f"### `{title}`", "", "```text", help_text(module, name), "```", ""]
    return lines


def reference():
    head = ["# Reference", "", "Written by `python docs/reference.py` from the code.", ""]
    return "\n".join([*head, *configuration(), *policies(), *metrics(), *commands()]).rstrip() + "\n"


def schema():
    """The JSON schema of what `lased-loadgen attack --json` prints."""
    return json.dumps(Summary.model_json_schema(mode="serialization"), indent=1) + "\n"


if __name__ == "__main__":
    (HERE / "reference.md").write_text(reference(), encoding="utf-8")
    (HERE / "attack.schema.json").write_text(schema(), encoding="utf-8")
