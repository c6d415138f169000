"""Vault's faults keep their contract on a real one, with each storage; what a start and a takeover take is printed."""

import json
import sys
from types import SimpleNamespace

import pytest

import places
from hashidrill.core.protocols import registry
from hashidrill.core.util.processes import python_path
from hashidrill.lab.provision.products import VAULT_VERSION
from hashidrill.lab.sandbox.sandbox import sandbox
from vault_fault_cases import CASES, DISARMED, RAFT_ONLY

pytestmark = [
    pytest.mark.live,
    pytest.mark.vault,
    pytest.mark.needs("datacenter", f"vault {VAULT_VERSION}", "consul 1.22.2"),
]
SCRIPT = places.SUPPORT / "real_vault_faults.py"
ON_CONSUL = pytest.mark.nightly  # sessions and lock-delays of Consul are waited for: minutes
STORAGES = {"raft": (), "consul": ON_CONSUL}


def on_each_storage(cases):
    return [
        pytest.param(storage, *case, marks=marks)
        for storage, marks in STORAGES.items()
        for case in cases
        if storage == "raft" or case[0] not in RAFT_ONLY
    ]


@pytest.fixture(scope="module")
def reports(binary, tmp_path_factory, tell):
    """{storage: what the script said}; each is run once, when it is first asked for."""
    made = {}

    def of(storage):
        if storage not in made:
            log = tmp_path_factory.mktemp(storage) / "log"
            consul = [str(binary("consul", "1.22.2").path)] if storage == "consul" else []
            command = [sys.executable, str(SCRIPT), str(binary("vault").path), "{root}", storage, *consul]
            with sandbox(command, {"PYTHONPATH": python_path()}, log) as box:
                lines = [json.loads(line) for line in box.output]
                box.process.wait()
            tell(f"\nVault with storage {storage}:\n" + "\n".join(json.dumps(line) for line in lines))
            said = log.read_text()
            assert lines, said[-4000:]
            made[storage] = SimpleNamespace(lines=lines, log=said)
        return made[storage]

    return of


def result(reports, storage, case):
    report = reports(storage)
    [line] = [line for line in report.lines if line.get("case") == case] or [None]
    assert line is not None, f"the sandbox ended before it came to {case}:\n{report.log[-4000:]}"
    assert "error" not in line, line["error"]
    return line["result"]


@pytest.mark.parametrize(("storage", "kind", "on"), on_each_storage(CASES))
def test_a_fault_keeps_its_contract_on_the_real_thing(reports, storage, kind, on):
    assert result(reports, storage, f"{kind} on {on}")["measured"]


@pytest.mark.parametrize(("storage", "kind", "on", "by"), on_each_storage(DISARMED))
def test_the_proof_fails_when_the_fault_is_disarmed_behind_its_back(reports, storage, kind, on, by):
    found = result(reports, storage, f"{kind} on {on} disarmed by {by}")
    assert found["armed"], "it was not in force to begin with"
    assert not found["disarmed"], found["measured"]


@pytest.mark.parametrize(("storage", "within_s"), [("raft", 15), pytest.param("consul", 75, marks=ON_CONSUL)])
def test_a_standby_takes_over_and_the_killed_server_is_unsealed_when_it_is_back(reports, storage, within_s):
    """With Consul, the session of the dead server runs out first (up to 30 s), and then its lock-delay (15 s)."""
    found = result(reports, storage, "takeover")
    assert found["active"] != found["killed"]
    assert found["took_s"] < within_s
    [told] = [line["told"] for line in reports(storage).lines if line.get("told")]
    assert any(text.startswith(f"{found['killed']}: its vault came up sealed") for text in told)


@pytest.mark.lie
@pytest.mark.parametrize("storage", STORAGES)
def test_each_server_waits_for_leadership_once(reports, storage):
    """One that was given its key twice while it joined waits twice, and answers a step-down without stepping down."""
    [waits] = [line["standbys"] for line in reports(storage).lines if "standbys" in line]
    assert len(waits) == 3
    assert all(max(times) == 1 for times in waits.values()), waits


def test_each_fault_of_vault_is_a_case():
    assert {kind for kind, _ in CASES} == {kind for kind in registry.fault_kinds() if kind.startswith("vault.")}
