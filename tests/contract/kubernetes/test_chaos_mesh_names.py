"""The names that `convert import` reads and `export` writes are those of Chaos Mesh's own definitions, as pinned."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.kubernetes.interchange.document import UnsupportedError
from hashidrill.kubernetes.interchange.from_chaos_mesh import BREAK_NOTHING
from hashidrill.kubernetes.interchange.to_chaos_mesh import workflow
from hashidrill.kubernetes.objects import problems
from hashidrill.kubernetes.vocabulary import FIELDS

pytestmark = [pytest.mark.live, pytest.mark.kubernetes, pytest.mark.needs("go")]


@pytest.fixture(scope="module")
def schemas(definitions):
    """kind -> the schema of its spec, of all definitions in the module that Chaos Mesh is built from."""
    found = {}
    for path in definitions.glob("*.yaml"):
        made = YAML(typ="safe", pure=True).load(path.read_text())["spec"]
        [version] = made["versions"]
        found[made["names"]["kind"]] = version["schema"]["openAPIV3Schema"]["properties"].get("spec", {})
    return found


def test_the_key_of_each_kind_is_the_one_of_the_definitions(schemas):
    lowered = {kind.lower(): kind for kind in schemas}
    for holder in (schemas["Schedule"], schemas["Workflow"]["properties"]["templates"]["items"]):
        keys = {lowered[key.lower()]: key for key in holder["properties"] if key.lower().endswith("chaos")}
        assert keys == FIELDS


def test_every_kind_is_one_that_injects_or_one_that_breaks_nothing(schemas):
    assert set(schemas) == {*FIELDS, *BREAK_NOTHING, "Schedule", "Workflow"}


def test_what_is_exported_of_the_library_is_what_the_definitions_take(schemas):
    written = set()
    for path in list_experiments():
        try:
            made, _ = workflow("x", load_experiment(path).method, "0 3 * * *")
        except UnsupportedError:
            continue
        assert not list(problems(made["spec"], schemas["Schedule"])), path
        written |= {one["templateType"] for one in made["spec"]["workflow"]["templates"]}
    assert written >= {"Parallel", "PodChaos", "NetworkChaos", "IOChaos"}
