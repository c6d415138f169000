"""The house: a map that is true, rooms that explain themselves, no circles, modules of one sitting.

That imports go down the map is a contract of import-linter (`pyproject.toml`), which `.ci/run` checks.
"""

import ast
import inspect
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from places import ROOT

PACKAGE = ROOT / "runners" / "hashidrill"
LARGEST = 800

Edges = dict[str, frozenset[str]]


def name_of(path: Path) -> str:
    """`core.faults.disk`; a folder's `__init__` is the folder itself, and the package's own is empty."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, str]:
    """Every module and its source."""
    return {name_of(path): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imported(source: str, known: frozenset[str]) -> frozenset[str]:
    """Read once a module: each planted line changes one of them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole.removeprefix("hashidrill.") in known else node.module)
    ours = {name.removeprefix("hashidrill.") for name in found if name.startswith("hashidrill.")}
    return frozenset(ours & known)


def edges(**planted: str) -> Edges:
    """Which module imports which. `planted` adds a line to a module, named with `__` for a dot."""
    sources = dict(modules())
    for name, line in planted.items():
        sources[name.replace("__", ".")] += f"\n{line}\n"
    known = frozenset(sources)
    return {name: imported(source, known) - {name} for name, source in sources.items() if name}


def cycles(found: Edges) -> set[frozenset[str]]:
    """Sets of modules each of which reaches all others of it."""
    reached = {}
    for start in found:
        seen, todo = set(), [start]
        while todo:
            for other in found[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        reached[start] = seen
    return {frozenset(n for n in found if n in reached[m] and m in reached[n]) for m in found if m in reached[m]}


# the map


def map_troubles(page: str) -> list[str]:
    table = page.split("## The ten rooms of")[1].split("\n## ", maxsplit=1)[0]
    said = re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    floors = [name for row in contract["layers"] for name in row.split(" | ")]
    return (
        [f"{room} is not on the map" for room in sorted(there - set(said))]
        + [f"the map names {room}, which is not there" for room in said if room not in there]
        + [f"{room} has no floor in pyproject.toml" for room in sorted(there - set(floors))]
    )


def test_the_map_names_every_room_and_no_other():
    assert map_troubles((ROOT / "CONTRIBUTING.md").read_text()) == []


def test_a_room_that_is_missing_or_not_there_is_seen():
    """Planted."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert map_troubles(page.replace("| `lab/` |", "| `cellar/` |")) == [
        "lab is not on the map",
        "the map names cellar, which is not there",
    ]


def unexplained(sources: dict[str, str]) -> list[str]:
    return [room for room, source in sources.items() if not (ast.get_docstring(ast.parse(source)) or "").strip()]


def test_every_room_says_what_is_in_it():
    inits = {name_of(path): path.read_text() for path in PACKAGE.rglob("__init__.py")}
    assert unexplained(inits) == []
    assert unexplained({"cellar": "import os\n"}) == ["cellar"]  # planted


@pytest.mark.long
def test_no_two_modules_import_each_other():
    assert cycles(edges()) == set()


def test_two_modules_that_import_each_other_are_seen():
    """Planted."""
    found = cycles(edges(core__tap__plans="from hashidrill.core.tap import tap")) - cycles(edges())
    assert any({"core.tap.plans", "core.tap.tap"} <= cycle for cycle in found)


def test_what_the_public_page_names_is_there():
    import hashidrill
    import hashidrill.testing

    for page in (hashidrill, hashidrill.testing):
        things = {name: getattr(page, name) for name in page.__all__}
        assert [name for name, thing in things.items() if not callable(thing) and not inspect.ismodule(thing)] == []
    with pytest.raises(AttributeError, match=r"hashidrill has no disk; public are: .*measure"):
        _ = hashidrill.disk


def private_imports(source: str) -> set[str]:
    """What an example imports of hashidrill that may move."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return {str(node.module) for node in imports if str(node.module).startswith("hashidrill.")} - {"hashidrill.testing"}


def test_the_examples_for_other_packages_import_what_is_public_alone():
    product = (ROOT / "tests/support/noop_service/hashidrill_noop.py").read_text()
    blocks = re.findall(r"```python runnable\n(.*?)```", (ROOT / "playbooks/extend.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    assert set[str]().union(*map(private_imports, [product, *blocks])) == set()
    assert private_imports("from hashidrill.core.util.wait import wait_until") == {
        "hashidrill.core.util.wait"
    }  # planted


# sizes


def too_long(paths: list[Path], most: int = LARGEST) -> list[str]:
    counted = {path: len(path.read_text().splitlines()) for path in paths}
    return [f"{path.relative_to(ROOT)} has {lines} lines" for path, lines in counted.items() if lines > most]


def test_no_module_is_longer_than_one_sitting():
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "hypotheses").rglob("*.py")]
    assert too_long(paths) == []
    longest = max(len(path.read_text().splitlines()) for path in paths)
    assert len(too_long(paths, longest - 1)) > 0  # planted: one line less is too little


def foreign(source: str) -> set[str]:
    """Top-level names that a module imports, inside functions and by `import_module` too, and that are not ours.

    Nor of an extra that it asks for: `with extra("ssh", ...)`.
    """
    found, of_extras = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.With) and (said := re.match(r"extra\('(\w+)'", ast.unparse(node.items[0]))):
            of_extras |= declared(said[1])
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    ours = {"hashidrill", "__main__", ""}
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - ours - of_extras


def canonical(name: str) -> str:
    """The name of a package as an index compares it."""
    return name.lower().replace("_", "-")


@cache
def declared(extra: str = "") -> set[str]:
    """Names that can be imported from the packages that pyproject.toml asks for, always or in that extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    asked = {canonical(re.split(r"[<>=\[ ]", line)[0]) for line in lines}
    asked.add("pydantic-core")  # pydantic's own half: its documentation imports errors and schemas from there
    return {name for name, brought in packages_distributions().items() if asked & {canonical(each) for each in brought}}


@pytest.mark.long
def test_what_ships_imports_only_what_the_wheel_asks_for():
    """carriers by Nomad worked in every checkout, and in no installed wheel: aiohttp was in the dev group."""
    sources = modules() | {path.name: path.read_text() for path in (ROOT / "hypotheses").glob("*.py")}
    found = {name: lacking for name, source in sources.items() if (lacking := foreign(source) - declared())}
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "import jsonschema",
        "def f():\n    from hvac import Client",
        "import msgspec",
        "importlib.import_module('requests.adapters')",
        "import asyncssh",
        "with extra('page', '--serve'):\n    import asyncssh",
    ],
)
def test_an_import_of_the_dev_group_or_of_a_dependencys_dependency_is_found(line):
    assert len(foreign(line) - declared()) == 1
