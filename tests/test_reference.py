"""docs/reference.md and the schema are what the code says."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_reference_is_in_step_with_the_code():
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "reference.md").read_text() == module.reference(), "run: python docs/reference.py"
    assert (DOCS / "attack.schema.json").read_text() == module.schema(), "run: python docs/reference.py"
