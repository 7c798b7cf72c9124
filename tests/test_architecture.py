"""The arrows of dispatcher/DESIGN.md, read off the imports; and what must never be imported or called where."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("dispatcher", "workers", "loadgen")

CORE = ["dispatcher.core", "dispatcher.errors"]
# What the modules below a prefix may import; the longest prefix counts, and modules below it may import each other.
ALLOWED = {
    "dispatcher": [],
    "dispatcher.errors": [],
    "dispatcher.settings": ["dispatcher.core.types", "dispatcher.platform.sockets"],
    "dispatcher.core": ["dispatcher.errors"],
    "dispatcher.estimators": CORE,
    "dispatcher.policies": [*CORE, "dispatcher.estimators"],
    "dispatcher.registry": ["dispatcher.core.policy", "dispatcher.errors"],
    "dispatcher.testing": CORE,
    "dispatcher.http": CORE,
    "dispatcher.platform": ["dispatcher.errors"],
    "dispatcher.proxy": [*CORE, "dispatcher.http", "dispatcher.platform", "dispatcher.settings"],
    "dispatcher.telemetry": [*CORE, "dispatcher.http", "dispatcher.platform", "dispatcher.proxy"],
    "dispatcher.admin": [*CORE, "dispatcher.platform", "dispatcher.proxy", "dispatcher.telemetry"],
    "dispatcher.persistence": CORE,
    "dispatcher.config": ["dispatcher.errors", "dispatcher.registry", "dispatcher.settings"],
    "dispatcher.long_episodes": ["dispatcher.settings", "dispatcher.core.episode", "dispatcher.policies.lased"],
    "dispatcher.reload": [
        *CORE,
        "dispatcher.config",
        "dispatcher.long_episodes",
        "dispatcher.persistence",
        "dispatcher.platform",
        "dispatcher.proxy",
        "dispatcher.registry",
        "dispatcher.settings",
        "dispatcher.telemetry",
    ],
    "dispatcher.background": [
        "dispatcher.core",
        "dispatcher.long_episodes",
        "dispatcher.persistence",
        "dispatcher.telemetry",
    ],
    "dispatcher.control": [*CORE, "dispatcher.registry", "dispatcher.reload"],
    "dispatcher.top": ["dispatcher.errors"],
    "dispatcher.service": ["dispatcher"],
    "dispatcher.cli": ["dispatcher"],
    "dispatcher.__main__": ["dispatcher.cli"],
    "workers": [],
    "loadgen.plot": [],
    "loadgen.attack": [
        "loadgen.plot",
        "dispatcher.core.rng",
        "dispatcher.errors",
        "workers.distributions",
        "workers.spec",
    ],
    "loadgen.sim": [
        "loadgen.attack.arrivals",
        *CORE,
        "dispatcher.policies.partial_information",
        "dispatcher.registry",
        "dispatcher.telemetry.decisions",
        "workers",
    ],
    "loadgen.experiments": [
        "loadgen.attack",
        "loadgen.plot",
        "loadgen.sim",
        *CORE,
        "dispatcher.policies.partial_information",
        "dispatcher.registry",
        "workers.curves",
        "workers.distributions",
        "workers.scheduling",
    ],
    "loadgen.cli": [
        "loadgen.attack",
        "loadgen.experiments",
        "loadgen.plot",
        "loadgen.sim",
        "dispatcher.errors",
        "dispatcher.platform.sockets",
    ],
    "loadgen": ["loadgen.cli"],
}
PURE = (
    "dispatcher.core",
    "dispatcher.policies",
    "dispatcher.estimators",
    "dispatcher.http.framing",
    "dispatcher.http.forwarded",
    "dispatcher.http.load_report",
    "dispatcher.http.request",
    "dispatcher.proxy.retry_budget",
    "workers.distributions",
    "workers.station",
    "workers.curves",
    "workers.processor_sharing",
    "workers.pool",
    "workers.profiles",
    "workers.spec",
    "workers.scheduling",
    "loadgen.attack.arrivals",
    "loadgen.attack.arrival_fit",
    "loadgen.attack.measure",
    "loadgen.attack.thresholds",
    "loadgen.attack.validity",
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
            for alias in node.names:
                path = ROOT / Path(*node.module.split("."), alias.name)
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module


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
        bases = (
            "dispatcher.policies.base",
            "dispatcher.policies.bandit",
            "dispatcher.policies.bandit_weights",
            "dispatcher.policies.partial_information",
        )
        others = [
            m for m in imports(path) if within(m, "dispatcher.policies") and not any(within(m, base) for base in bases)
        ]
        assert others == [] or others == ["dispatcher.policies"]


@pytest.mark.parametrize(("name", "path"), list(modules()))
def test_time_is_read_in_one_place_and_dice_are_given(name, path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            called = f"{node.value.id}.{node.attr}"
            assert node.value.id != "time" or name == "dispatcher.platform.clock", f"{name} reads {called}"
            assert node.value.id != "random" or called == "random.Random" or name == "dispatcher.platform.clock", (
                f"{name}: {called}"
            )
