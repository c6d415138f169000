"""The table of lies that cannot come back names tests that are there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from docs_pages import ROOT

TABLE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Lies that cannot come back")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith(("| the lie ", "| ---"))]


@cache
def names_in(path):
    """Names as pytest has them: `test_x`, `TestY`, `TestY::test_z`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        found.add(getattr(node, "name", ""))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def troubles(row):
    """What is wrong with a row: no test at all, or one that is not there."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::([\w:]+))?`", row)
    if not named:
        return ["no test is named"]
    missing = [path for path, _ in named if not (ROOT / path).is_file()]
    return missing or [f"{path}::{test}" for path, test in named if test and test not in names_in(path)]


def test_the_table_has_its_rows():
    assert len(ROWS) > 100


@pytest.mark.parametrize("row", ROWS)
def test_a_lie_is_caught_by_a_test_that_exists(row):
    assert troubles(row) == []


def test_a_row_whose_test_was_renamed_is_found():
    assert troubles("| a lie | `tests/unit/docs/test_lies.py::test_gone` |") == [
        "tests/unit/docs/test_lies.py::test_gone"
    ]
    assert troubles("| a lie | `tests/unit/test_none.py` |") == ["tests/unit/test_none.py"]
    assert troubles("| a lie | somebody looks at it |") == ["no test is named"]
