"""The catalogue of public faults in README.md agrees with the names of the tests."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
ROW = re.compile(r"^\| ([A-Z]\d\d) \| [^|]+ \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def test_each_id_has_one_row_that_names_its_files():
    text = (FOLDER / "README.md").read_text()
    rows = [(row[1], set(re.findall(r"`(test_\w+\.py)`", row[2]))) for row in ROW.finditer(text)]
    files = {}
    for path in FOLDER.glob("test_*.py"):
        for fault in re.findall(r"def test_([A-Z]\d\d)_", path.read_text()):
            files.setdefault(fault, set()).add(path.name)
    assert len(rows) == len(dict(rows)), "an id has two rows"
    assert dict(rows) == files
