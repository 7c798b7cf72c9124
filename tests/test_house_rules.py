"""The rules of dispatcher/DESIGN.md that a program can check: verbs, private vocabulary, packed lines."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = [path for package in ("dispatcher", "workers", "loadgen") for path in sorted((ROOT / package).rglob("*.py"))]
TABLES = {"loadgen/experiments/live/balancers.py"}  # data tables that are easier to read unformatted
FORBIDDEN_NAMES = re.compile(r"_*(settled?|forget|forgotten|over|found|told|begun|said)_*")
PEOPLE = re.compile(r"\b(who|whoever|whom|nobody|somebody|anybody|everybody|he|she|his|her|him)\b", re.IGNORECASE)


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def texts(path):
    """Yield the docstrings and comments of a file."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_has_a_forbidden_name(path):
    names = [node.name for node in functions(ast.parse(path.read_text()))]
    assert [name for name in names if FORBIDDEN_NAMES.fullmatch(name)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_processes_are_not_described_as_people(path):
    assert [text for text in texts(path) if PEOPLE.search(text)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_formatter_is_switched_off_for_data_tables_only(path):
    if str(path.relative_to(ROOT)) not in TABLES:
        assert "fmt: skip" not in path.read_text()
        assert "fmt: off" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_does(path):
    assert ast.get_docstring(ast.parse(path.read_text())) or not path.read_text().strip()
