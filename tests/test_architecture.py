"""The arrows of dispatcher/DESIGN.md, read off the imports; and what must never be imported or called where."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("dispatcher", "workers", "loadgen")

ALLOWED = {  # the longest prefix of a module's name counts; itself is always allowed
    "dispatcher.errors": [],
    "dispatcher.core": ["dispatcher.errors"],
    "dispatcher.estimators": ["dispatcher.core", "dispatcher.errors"],
    "dispatcher.policies": ["dispatcher.core", "dispatcher.estimators", "dispatcher.errors"],
    "dispatcher.registry": ["dispatcher.core.interfaces", "dispatcher.errors"],
    "dispatcher.recorders": ["dispatcher.core", "dispatcher.errors"],
    "dispatcher.testing": ["dispatcher.core", "dispatcher.errors"],
    "dispatcher.net": ["dispatcher.core", "dispatcher.errors"],
    "dispatcher.net.admin": ["dispatcher.core", "dispatcher.errors", "dispatcher.net", "dispatcher.recorders"],
    "dispatcher.config": ["dispatcher.core", "dispatcher.errors", "dispatcher.net.settings", "dispatcher.net.addresses",
                          "dispatcher.registry"],
    "dispatcher.state": ["dispatcher.core.interfaces", "dispatcher.errors"],
    "dispatcher.plan": ["dispatcher.config", "dispatcher.core", "dispatcher.errors", "dispatcher.net",
                        "dispatcher.registry"],
    "dispatcher.long_episodes": ["dispatcher.config", "dispatcher.core.episodes", "dispatcher.policies.lased"],
    "dispatcher.shared": ["dispatcher.core", "dispatcher.errors"],
    "dispatcher.spans": ["dispatcher.net"],
    "dispatcher.access_log": ["dispatcher.errors", "dispatcher.net", "dispatcher.recorders.writer"],
    "dispatcher.top": ["dispatcher.errors"],
    "dispatcher.service": ["dispatcher"],
    "dispatcher.app": ["dispatcher"],
    "dispatcher.__main__": ["dispatcher.app"],
    "dispatcher": [],
    "workers": [],
    "loadgen": ["workers.distributions", "dispatcher.core.regret", "dispatcher.core.streams", "dispatcher.errors"],
    "loadgen.sim": ["loadgen", "workers.distributions", "workers.station", "dispatcher.core", "dispatcher.registry",
                    "dispatcher.recorders", "dispatcher.errors", "workers.profiles", "workers.disciplines",
                    "workers.lcp", "workers.logistic", "workers.planner", "workers.curves",
                    "workers.sharing"],
    "loadgen.experiments": ["loadgen", "dispatcher.core", "dispatcher.registry", "dispatcher.errors",
                            "workers.planner", "workers.curves"],
}  # fmt: skip
PURE = (
    "dispatcher.core",
    "dispatcher.policies",
    "dispatcher.estimators",
    "dispatcher.net.heads",
    "dispatcher.net.framing",
    "dispatcher.net.peer",
    "dispatcher.net.retries",
    "dispatcher.net.orca",
    "workers.distributions",
    "workers.station",
    "workers.curves",
    "workers.sharing",
    "workers.pool",
    "workers.profiles",
    "workers.disciplines",
    "workers.lcp",
    "workers.logistic",
    "workers.planner",
    "workers.contexts",
    "loadgen.arrivals",
    "loadgen.gaps",
    "loadgen.metrics",
    "loadgen.thresholds",
    "loadgen.verdict",
    "loadgen.sim.model",
)
IMPURE_MODULES = {"asyncio", "time", "socket", "logging", "datetime", "threading", "structlog"}


def modules():
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield pytest.param(name, path, id=name)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield node.module
            yield from (
                f"{node.module}.{alias.name}"
                for alias in node.names
                if (ROOT / Path(*node.module.split("."), alias.name)).with_suffix(".py").exists()
            )


def within(name, prefix):
    return name == prefix or name.startswith(prefix + ".")


def rule_of(name):
    return max((prefix for prefix in ALLOWED if within(name, prefix)), key=len)


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_imports_follow_the_arrows(name, path):
    rule = rule_of(name)
    for imported in imports(path):
        if imported.split(".")[0] in OURS and imported != "dispatcher":
            assert any(within(imported, prefix) for prefix in (rule, *ALLOWED[rule])), (
                f"{name} must not import {imported}"
            )


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_pure_modules_know_no_clock_and_no_io(name, path):
    if any(within(name, pure) for pure in PURE):
        found = {imported.split(".")[0] for imported in imports(path)} & IMPURE_MODULES
        assert not found, f"{name} is pure and must not import {found}"


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_no_policy_imports_another(name, path):
    if name.startswith("dispatcher.policies."):
        bases = ("dispatcher.policies.base", "dispatcher.policies.feedback")
        others = [m for m in imports(path) if within(m, "dispatcher.policies") and m not in bases]
        assert others == [] or others == ["dispatcher.policies"]


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_time_is_read_in_one_place_and_dice_are_given(name, path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            called = f"{node.value.id}.{node.attr}"
            assert node.value.id != "time" or name == "dispatcher.net.clock", f"{name} reads {called}"
            assert node.value.id != "random" or called == "random.Random" or name == "dispatcher.net.clock", (
                f"{name}: {called}"
            )
