"""Nomad and Vault of somebody else, by address alone: TLS, ACLs, gossip encryption, and the least tokens.

What their own operators list afterwards is as it was. No token is in any artefact, process, job, key or log.
"""

import json
from pathlib import Path

import pytest

from attached_consul import Staging
from attached_products import Nomad, Vault
from drills import environment, experiment, hashidrill
from estate_drills import Drills
from hashidrill.core.recording.reader import Recording

pytestmark = [pytest.mark.live, pytest.mark.nightly]

LOAD = {"kv-writes": {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:servers"}}
NOTHING_LOST = [{"no_acknowledged_write_lost": {"load": "kv-writes"}}]
SERVERS, CLIENTS = 5, 10
OF_NOMAD = [
    {"fault": "nomad.node.eligibility", "on": "nomad:one-client", "for": "3s"},
    {"fault": "nomad.node.drain", "on": "nomad:one-client", "with": {"deadline": "5s"}, "at": "5s", "for": "4s"},
    {"fault": "consul.leader.transfer", "on": "consul:leader", "at": "11s", "for": "2s"},
]
OF_VAULT = [{"fault": "vault.step_down", "on": "vault:active", "for": "3s"}]


@pytest.fixture(scope="module")
def estate(consul, tmp_path_factory):
    with Staging(
        consul.path, tmp_path_factory.mktemp("estate"), network=81, servers=SERVERS, clients=1
    ).running() as there:
        yield there


@pytest.fixture
def drills(estate, tmp_path):
    (tmp_path / "home").mkdir()
    return Drills(estate, tmp_path, environment(HOME=tmp_path / "home", XDG_STATE_HOME=tmp_path / "state"))


def written(path, method, **products):
    """An experiment with these products in its own datacenter too: `staging acl` asks for that."""
    experiment(path, method=method, load=LOAD, expect=NOTHING_LOST, servers=3, clients=1)
    document = json.loads(path.read_text())
    document["datacenter"] |= products
    path.write_text(json.dumps(document))
    return path


def checked(run, faults):
    assert run.done.returncode == 0, f"{run.done.stderr}\n{run.done.stdout}"
    assert run.said["verdict"] == "PASS"
    assert [entry.event for entry in run.journal].count("fault.gone") == faults
    assert run.changed == {}
    assert run.audited.count("apply") == run.audited.count("gone") == faults
    assert run.hunt.found == set()
    for kind in ("process", "artefact", "key", "log", "output", "product"):
        assert run.hunt.looked[kind], f"no {kind} was looked at"


@pytest.fixture(scope="module")
def nomad(binary):
    with Nomad(binary("nomad").path, network=81, servers=3, clients=CLIENTS).running() as there:
        yield there


@pytest.mark.nomad
@pytest.mark.needs("nomad", "setpriv")
def test_nodes_of_somebody_elses_nomad_are_drained_and_take_work_again(nomad, drills):
    """Five servers of Consul, three of Nomad, and ten clients."""
    path = written(drills.folder / "drained.yaml", OF_NOMAD, nomad={"servers": 3, "clients": 3})
    run = drills.run(path, also={"nomad": nomad})
    checked(run, faults=len(OF_NOMAD))
    assert len(Recording(Path(run.said["recording"])).run["hosts"]) == SERVERS + 1 + 3 + CLIENTS


@pytest.mark.nomad
@pytest.mark.needs("nomad", "setpriv")
def test_nomads_leader_is_not_moved_by_less_than_a_management_token(nomad, drills):
    """No policy allows it: `staging acl` says so, and the run is refused before anything happens."""
    moved = [{"fault": "nomad.leader.transfer", "on": "nomad:leader", "for": "2s"}]
    path = written(drills.folder / "moved.yaml", moved, nomad={"servers": 3, "clients": 3})
    assert "the token is too weak for moved; it lacks nomad: management" in refused(drills, nomad, path)


@pytest.mark.nomad
@pytest.mark.needs("nomad", "setpriv")
def test_more_clients_than_the_blast_radius_allows_are_not_drained(nomad, drills):
    """Two of ten are allowed; nothing is drained."""
    wide = [{"fault": "nomad.node.drain", "on": "nomad:clients", "with": {"deadline": "5s"}, "for": "3s"}]
    path = written(drills.folder / "wide.yaml", wide, nomad={"servers": 3, "clients": 3})
    before = nomad.dump()
    said = refused(drills, nomad, path)
    assert "the blast radius is too wide: the method may disturb 10 of 10 nomad clients" in said
    after = nomad.dump()
    assert {name: said for name, said in after.items() if name.startswith("node ")} == {
        name: said for name, said in before.items() if name.startswith("node ")
    }


def refused(drills, nomad, path):
    """What a run says that is armed and refused, before there is a recording."""
    with drills.beside({"nomad": nomad}, path) as (file, _):
        armed = hashidrill(
            "staging", "arm", path, "--attach", drills.file("management"), "--for", "10m", env=drills.env
        )
        assert armed.returncode == 0, armed.stderr
        done = hashidrill("run", path, "--attach", file, "--runs", drills.folder / "runs", env=drills.env)
    assert done.returncode == 2, done.stdout
    assert not (drills.folder / "runs").exists()
    return " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def vault(binary):
    with Vault(binary("vault").path, network=81).running() as there:
        yield there


@pytest.mark.vault
@pytest.mark.needs("vault", "setpriv")
def test_the_active_server_of_somebody_elses_vault_steps_down(vault, drills):
    path = written(drills.folder / "stepped-down.yaml", OF_VAULT, vault={"servers": 3})
    active = vault.active()
    checked(drills.run(path, also={"vault": vault}), faults=1)
    assert vault.active() != active


@pytest.mark.vault
@pytest.mark.needs("vault", "setpriv")
def test_a_vault_whose_keys_nobody_has_is_not_sealed(vault, drills):
    """Nobody could unseal it: it is refused before anything happens, and doctor says the same."""
    path = written(
        drills.folder / "sealed.yaml",
        [{"fault": "vault.seal", "on": "vault:one-standby", "for": "3s"}],
        vault={"servers": 3},
    )
    with drills.beside({"vault": vault}, path) as (file, _):
        done = hashidrill("run", path, "--attach", file, "--runs", drills.folder / "runs", env=drills.env)
        told = hashidrill("doctor", "--attach", file, "--json", env=drills.env)
    assert done.returncode == 2
    assert "vault.seal on vault:one-standby: its host lacks" in " ".join(done.stderr.split())
    assert not (drills.folder / "runs").exists()
    [seal] = [one for one in json.loads(told.stdout)["faults"] if one["kind"] == "vault.seal"]
    assert not seal["possible"]
    assert not any(vault.dump()["sealed"])
