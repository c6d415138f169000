"""Load generators as a job of a real Nomad: what they offer together, and how they end when somebody is killed."""

import json
import os
import sys

import pytest

import hashidrill
import places
from hashidrill.lab.sandbox.sandbox import sandbox
from ordinary_user import ordinary_user

pytestmark = [
    pytest.mark.live,
    pytest.mark.nomad,
    pytest.mark.needs("datacenter", "nomad", "consul 1.22.2", "setpriv"),
    pytest.mark.may_skip("where Nomad's clients run as nobody, and nobody has no Python with our dependencies"),
]


@pytest.fixture(scope="module")
def python():
    """What a task of Nomad can run: its clients are nobody's where these tests are root's."""
    if os.geteuid() != 0:
        yield sys.executable
        return
    with ordinary_user() as one:
        path = one.home / "python"
        path.write_text(f'#!/bin/sh\nPYTHONPATH={one.environment["PYTHONPATH"]} exec {one.python} "$@"\n')
        path.chmod(0o755)
        yield str(path)


@pytest.fixture(scope="module")
def told(binary, tmp_path_factory, python):
    """What the script said, by its part."""
    log = tmp_path_factory.mktemp("workers") / "log"
    script = places.SUPPORT / "real_nomad_workers.py"
    paths = [str(binary("nomad").path), str(binary("consul", "1.22.2").path)]
    command = [sys.executable, str(script), *paths, "{root}", python]
    with sandbox(command, {"PYTHONPATH": f"{hashidrill.__path__[0]}/.."}, log) as box:
        lines = [json.loads(line) for line in box.output]
    assert lines, log.read_text()
    return {line["part"]: line for line in lines}


def test_where_no_client_says_where_hashidrill_is_no_job_is_submitted(told):
    assert "0 of 3 can" in told["refused"]["error"]
    assert "nomad node meta apply" in told["refused"]["error"]
    assert told["refused"]["jobs"] == []


def test_three_workers_offer_what_one_generator_would(told):
    part = told["together"]
    assert "error" not in part, part
    assert part["nodes"] == 3
    assert (part["whole"], part["once"], part["ordered"]) == (True, True, True), part
    assert part["apart_ms"] < 5
    assert part["uncertain_ms"] < 5
    assert part["written"] > 20
    assert (part["lost"], part["token_in_job"], part["jobs"]) == (0, False, []), part


def test_a_worker_that_nomad_stops_ends_the_run(told):
    part = told["killed_worker"]
    assert "worker w" in part["error"], part
    assert part["jobs"] == []


@pytest.mark.lie
def test_the_workers_of_a_killed_runner_end_by_themselves_and_their_job_is_found(told):
    part = told["killed_runner"]
    assert "error" not in part, part
    assert part["took_s"] < 30
    assert part["jobs"] == ["hashidrill-generators-killed-runner"]
    assert part["purged"] == part["jobs"]


def test_a_whole_run_by_address_has_its_loads_on_nomad(told):
    part = told["attached"]
    assert part.get("verdict") == "PASS", part
    assert part["operations"] > 100
    [total] = part["offered"]
    assert total.startswith(f"{part['operations']} operations offered")
    assert {f"workers.w{n}.offset" for n in (1, 2, 3)} <= set(part["signals"])
    assert part["jobs"] == []


def test_a_run_by_address_that_loses_a_worker_reverts_and_is_invalid(told):
    """Not quietly smaller: what the others wrote would look like a whole run at a lower rate."""
    part = told["lost_in_a_run"]
    assert "error" not in part, part
    assert (part["code"], part["verdict"], part["gone"]) == (3, "INVALID", 1), part
    assert "worker w" in " ".join(part["invalid"])
    assert part["jobs"] == []
