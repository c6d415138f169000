"""What Consul has of a real Nomad's services: the load sees each lie that is planted, and says what heals by itself."""

import json
import sys

import pytest

import hashidrill
import places
from hashidrill.lab.sandbox.sandbox import sandbox

pytestmark = [pytest.mark.live, pytest.mark.nomad, pytest.mark.needs("datacenter", "nomad", "consul 1.22.2")]
LONGEST_S = 150


@pytest.fixture(scope="module")
def told(binary, tmp_path_factory):
    """What the script said, by the lie."""
    log = tmp_path_factory.mktemp("services") / "log"
    script = places.SUPPORT / "real_nomad_services.py"
    paths = [str(binary("nomad").path), str(binary("consul", "1.22.2").path)]
    command = [sys.executable, str(script), *paths, "{root}"]
    with sandbox(command, {"PYTHONPATH": f"{hashidrill.__path__[0]}/.."}, log) as box:
        lines = [json.loads(line) for line in box.output]
    assert lines, log.read_text()
    assert "operations" in lines[-1], log.read_text()
    return {line.get("lie", next(iter(line))): line for line in lines}


@pytest.mark.parametrize("lie", ["twice", "of_nobody"])
def test_what_is_registered_with_the_catalog_is_seen_and_does_not_heal(told, lie):
    assert told[lie].get("gone_by_itself_s", "") is None, told[lie]


def test_an_instance_whose_node_is_called_sick_is_seen(told):
    assert told["sick"].get("critical", 0) >= 1, told["sick"]


@pytest.mark.parametrize("lie", ["forgotten_by_the_agent", "forgotten_by_the_catalog"])
def test_what_nomad_registered_is_missed_and_comes_back_by_itself(told, lie):
    assert 0 < told[lie].get("healed_s", 0) < LONGEST_S, told[lie]


def test_each_lie_is_an_operation(told, capsys):
    operations = told["operations"]["operations"]
    with capsys.disabled():
        print("\n  " + "\n  ".join(json.dumps(line) for line in told.values()))
    assert operations["missing"] == 4 + 2, "those at the start, and two that were forgotten"
    assert (operations["stale"], operations["duplicate"]) == (1, 1)
