"""The house: a map that is true, rooms that explain themselves, imports that go one way, modules of one sitting.

Imports are read from the source, those for type checking and those inside functions too: an edge is an edge. What the
registry imports by name (`registry._ROOMS`) is not one: it is how a leaf may find what is built on it.
"""

from __future__ import annotations

import ast
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
OPEN_EDGES: dict[tuple[str, str], str] = {}
"""(module, module) that goes up the map all the same, and why it may for now. This only ever gets shorter."""
OPEN_CYCLES: dict[frozenset[str], str] = {}
"""Modules that import each other, and why they may for now. This only ever gets shorter."""
OF_THE_CORE = {
    "retry": {"errors", "registry", "sandbox", "util", "verdict"},
    "audit": set(),
}
"""The tools beside `run` import this much of the rest, so that each can be used, and read, by itself."""

Edges = dict[str, frozenset[str]]


def name_of(path: Path) -> str:
    """`faults.disk`; a room's `__init__` is the room itself, and the package's own is empty."""
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
    return {name: imported(source, known) - {name} for name, source in sources.items()}


def room_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "services" and len(parts) > 1 else parts[0]


def map_rows(page: str) -> list[list[str]]:
    """The rooms of each row of the map, the highest row first; those of one row may import each other."""
    table = page.split("## The rooms of")[1].split("\n## ", maxsplit=1)[0]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [re.findall(r"`([^`]+)`", first) for first in firsts]
    return [[name.removesuffix("/").removesuffix(".py").replace("/", ".") for name in row] for row in names]


def rooms_on_map(page: str) -> list[str]:
    return [room for row in map_rows(page) for room in row]


def heights(page: str) -> dict[str, int]:
    return {room: -number for number, row in enumerate(map_rows(page)) for room in row}


def upwards(found: Edges) -> set[tuple[str, str]]:
    """The edges that go up the map, or from one of the tools to more of the core than it may use."""
    height = heights(contributing())
    wrong = set()
    for module, others in found.items():
        for other in others:
            here, there = room_of(module), room_of(other)
            if not module or not other or here == there:
                continue
            too_much = here in OF_THE_CORE and there not in OF_THE_CORE[here]
            if too_much or height[there] > height[here]:
                wrong.add((module, other))
    return wrong


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


def contributing() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text()


def folders() -> set[str]:
    """What the map has to name: rooms, the rooms of a datacenter and of the products, and the modules beside them."""
    inner = [f for name in ("datacenter", "services") for f in (PACKAGE / name).iterdir()]
    rooms = {f for f in [*PACKAGE.iterdir(), *inner] if (f / "__init__.py").is_file()}
    beside = {f for f in PACKAGE.glob("*.py") if f.stem != "__init__"}
    return {f.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".") for f in rooms | beside}


def map_troubles(page: str) -> list[str]:
    said, there = rooms_on_map(page), folders()
    missing = [f"{room} is not on the map in CONTRIBUTING.md" for room in sorted(there - set(said))]
    return missing + [
        f"the map in CONTRIBUTING.md names {room}, which is not there" for room in said if room not in there
    ]


# the map


def test_the_map_names_every_room_and_no_other():
    assert map_troubles(contributing()) == []
    assert len(rooms_on_map(contributing())) == len(set(rooms_on_map(contributing())))


def test_a_room_that_is_missing_or_not_there_is_seen():
    """Planted."""
    page = contributing()
    line = next(line for line in page.splitlines() if line.startswith("| `sandbox/`"))
    assert map_troubles(page.replace(line + "\n", "")) == ["sandbox is not on the map in CONTRIBUTING.md"]
    assert map_troubles(page.replace("| `sandbox/`", "| `cellar/` `sandbox/`")) == [
        "the map in CONTRIBUTING.md names cellar, which is not there"
    ]


def test_the_map_is_one_screen():
    assert len(contributing().split("## The rooms of")[1].split("\n## ")[0].splitlines()) <= 45


def unexplained(sources: dict[str, str]) -> list[str]:
    return [room for room, source in sources.items() if not (ast.get_docstring(ast.parse(source)) or "").strip()]


def test_every_room_says_what_is_in_it():
    inits = {name_of(path): path.read_text() for path in PACKAGE.rglob("__init__.py")}
    assert unexplained(inits) == []
    assert unexplained({"cellar": "import os\n"}) == ["cellar"]  # planted


# the direction of imports


def test_imports_go_down_the_map():
    wrong = upwards(edges()) - OPEN_EDGES.keys()
    assert not wrong, "\n".join(
        f"{module} imports {other}, which is higher on the map" for module, other in sorted(wrong)
    )


def test_no_two_modules_import_each_other():
    assert cycles(edges()) - OPEN_CYCLES.keys() == set()


def test_an_exception_that_nobody_needs_any_more_is_taken_out():
    assert OPEN_EDGES.keys() - upwards(edges()) == set()
    assert OPEN_CYCLES.keys() - cycles(edges()) == set()


@pytest.mark.parametrize(
    ("module", "line", "edge"),
    [
        ("util__wait", "from hashidrill.engine import run", ("util.wait", "engine.run")),
        ("recording__journal", "from hashidrill.judging.judge import judge", ("recording.journal", "judging.judge")),
        ("retry__tap", "from hashidrill.experiment.model import Strict", ("retry.tap", "experiment.model")),
        ("retry__tap", "from hashidrill.units import Duration", ("retry.tap", "units")),  # down, and yet too much
        ("audit__run", "from hashidrill import registry", ("audit.run", "registry")),
        (
            "experiment__model",
            "if TYPE_CHECKING:\n    from hashidrill.engine.run import Run",
            ("experiment.model", "engine.run"),
        ),
        (
            "faults__noop",
            "def late():\n    import hashidrill.services.consul.api",
            ("faults.noop", "services.consul.api"),
        ),
    ],
)
def test_an_edge_that_goes_up_is_seen(module, line, edge):
    """Planted: at the top of a module, for types alone, and inside a function."""
    assert upwards(edges(**{module: line})) - upwards(edges()) == {edge}


def test_two_modules_that_import_each_other_are_seen():
    """Planted."""
    found = cycles(edges(retry__plans="from hashidrill.retry import tap")) - cycles(edges())
    assert any({"retry.plans", "retry.tap"} <= cycle for cycle in found)


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
    """Top-level names that a module imports, inside functions and by `import_module` too, and that are not ours."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"hashidrill", "__main__", ""}


@cache
def declared() -> set[str]:
    """Names that can be imported from the packages that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {re.split(r"[<>=\[ ]", line)[0].lower() for line in project["dependencies"]}
    asked.add("pydantic_core")  # pydantic's own half: its documentation imports errors and schemas from there
    return {name for name, brought in packages_distributions().items() if asked & {each.lower() for each in brought}}


def test_what_ships_imports_only_what_the_wheel_asks_for():
    """carriers by Nomad worked in every checkout, and in no installed wheel: aiohttp was in the dev group."""
    sources = modules() | {path.name: path.read_text() for path in (ROOT / "hypotheses").glob("*.py")}
    found = {name: lacking for name, source in sources.items() if (lacking := foreign(source) - declared())}
    assert found == {}


@pytest.mark.parametrize("line", ["import jsonschema", "def f():\n    from hvac import Client", "import msgspec",
                                  "importlib.import_module('requests.adapters')"])  # fmt: skip
def test_an_import_of_the_dev_group_or_of_a_dependencys_dependency_is_found(line):
    assert len(foreign(line) - declared()) == 1
