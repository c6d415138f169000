"""Whole runs on Vault: the library's experiments pass, and no key of it is in anything that a run leaves."""

import json
import os
import threading
from pathlib import Path

import pytest

from drills import Drill, experiment, hashidrill
from hashidrill.lab.provision.products import VAULT_VERSION
from leaks import VARIABLE
from library_runs import LIBRARY, needs_of_experiment
from places import ROOT

pytestmark = [
    pytest.mark.live,
    pytest.mark.vault,
    pytest.mark.needs("datacenter", f"vault {VAULT_VERSION}", "consul 1.22.2"),
]
OURS = sorted(name for name in LIBRARY if name.startswith("vault/"))
EACH_TIME = "vault/killed-active"
"""The one that is run wherever there is a Vault; all others each night."""


class KeysSeen:
    """Reads the keys of every Vault that starts below the sandboxes' folder, while a block goes on."""

    def __enter__(self):
        self.secrets: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _look(self):
        while not self._ended.wait(0.2):
            for file in Path(os.environ[VARIABLE]).glob("*/services/vault/keys.json"):
                try:
                    self.secrets |= set(json.loads(file.read_text()).values())
                except (OSError, ValueError):
                    continue
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
                except OSError:
                    continue
                told = [secret for secret in self.secrets if secret.encode() in said]
                assert not told, f"a key of Vault's is in {process / 'cmdline'}"


def marked(name):
    needs = pytest.mark.needs(*needs_of_experiment(name))
    return pytest.param(name, marks=needs if name == EACH_TIME else [needs, pytest.mark.nightly])


@pytest.mark.parametrize("name", [marked(name) for name in OURS])
def test_an_experiment_passes_its_faults_are_proven_and_it_leaves_no_key(name, tmp_path):
    with KeysSeen() as keys:
        drill = Drill(name, tmp_path, cwd=ROOT)
    drill.passed(LIBRARY[name])
    assert len(keys.secrets) == 3, "its keys were never seen, so nothing was looked for"
    files = [file for file in drill.recording.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files if file.name == "vault.log"} == {"vault-1", "vault-2", "vault-3"}
    leaked = [(file.name, len(s)) for file in files for s in keys.secrets if s.encode() in file.read_bytes()]
    assert leaked == []


@pytest.mark.nightly
def test_vault_keeps_its_data_in_the_consul_of_its_datacenter(tmp_path):
    """Killed in the middle, and nothing that it acknowledged is lost."""
    consul = {"servers": 1, "clients": 0, "config": {"performance": {"raft_multiplier": 1}}}
    path = experiment(
        tmp_path / "vault-on-consul.yaml",
        datacenter={"consul": consul, "vault": {"servers": 3, "storage": "consul"}},
        load={"secrets": {"kind": "vault.kv.write", "rate": "10/s", "via": "vault:standbys"}},
        steady="3s",
        within="30s",
        require=["secrets.errors < 1%", "vault.unsealed >= 3"],
        method=[{"fault": "process.kill", "on": "vault:active", "for": "60s"}],
        recovery="10s",
        expect=[{"vault_serves_within": {"within": "60s"}}, {"no_acknowledged_write_lost": {"load": "secrets"}}],
    )
    drill = Drill(path, tmp_path / "runs", within_s=200)
    assert (drill.exit_code, drill.result["verdict"]) == (0, "PASS"), (drill.said, drill.result)
    run = json.loads((drill.recording / "run.json").read_text())
    assert run["vault"]["config"]["vault-1"]["storage"]["consul"]["address"] == "127.0.0.1:8500"
    assert {host["name"]: host["agents"] for host in run["hosts"]}["vault-1"] == {"vault": "server", "consul": "client"}


def test_the_experiment_of_each_time_is_in_the_library():
    assert EACH_TIME in OURS


def test_without_consul_its_storage_consul_is_refused_in_one_message(tmp_path):
    text = LIBRARY["vault/killed-active"].read_text().replace("storage: raft", "storage: consul")
    path = tmp_path / "alone.yaml"
    path.write_text(text)
    done = hashidrill("validate", path)
    assert done.returncode == 2
    assert done.stderr.count("add datacenter.consul") == 1, done.stderr
