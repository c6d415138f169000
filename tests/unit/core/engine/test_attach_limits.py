"""What of the library can be had in an attached datacenter, and why the rest cannot."""

import pytest

from attached_estates import FakeEstate, attach_file, consul_target, of_nomad, of_vault
from folded import unfolded
from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.library import find_experiment, read_experiment
from hashidrill.core.hypothesis import get
from hashidrill.faces.cli.doctor_attach import as_data, examined, lines
from hashidrill.staging.attach.discovery import unanswered
from hashidrill.staging.attach.target import read_target
from hashidrill.staging.runs import attach_limits
from hashidrill.staging.runs.attach_limits import check_possible, lacking, unseen_signals, unselected
from hashidrill.testing.fakes import FakeDatacenter
from virtual_time import run

STACK = """\
  consul: {address: "http://10.73.0.11:8500", token_file: token}
  nomad: {address: "https://10.73.0.21:4646"}
  vault: {address: "https://10.73.0.51:8200", token_file: token}
"""


BUSY = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: busy, title: Busy, why: because}
load: {kv-writes: {kind: consul.kv.write, rate: 5/s}}
steady_state: {require: ["process.cpu < 2"]}
method: [{fault: consul.leader.transfer, on: "consul:leader", for: 5s}]
expect: [writes_recover: {load: kv-writes, p50_below: 300ms, within: 10s}]
"""


@pytest.fixture
def staging(tmp_path):
    """(target, estate) of three servers of Consul and a client."""
    target = consul_target(tmp_path)
    return target, run(FakeEstate().found(target))


@pytest.fixture
def stack(tmp_path):
    fake = FakeEstate(FakeDatacenter(servers=3, clients=1))
    fake.answers = {**of_nomad(), **of_vault()}
    target = read_target(attach_file(tmp_path, STACK), {})
    return target, run(fake.found(target))


def reasons(name, there):
    path = find_experiment(name)
    return lacking(read_experiment(path), *there, path=path)


def test_an_experiment_of_the_products_own_apis_can_run(staging):
    assert reasons("state/snapshot-reset", staging) == []
    path = find_experiment("state/snapshot-reset")
    assert unselected(read_experiment(path), *staging, path=path) == ""
    check_possible(read_experiment(path), *staging, path=path)


def test_what_its_hosts_lack_is_said_for_each_step(staging):
    assert reasons("raft/slow-leader-disk", staging) == [
        "step 1, disk.latency on consul:leader: its host lacks DiskCanary, DiskControl"
    ]


def test_a_load_that_agents_would_have_to_call_back_cannot_be_had(staging):
    assert "load checks (consul.health_checks): the agents would send their checks to this machine" in reasons(
        "checks/health-check-explosion", staging
    )


@pytest.mark.lie
def test_jobs_that_have_to_run_need_a_nomad_with_clients_and_dispatches_do_not(tmp_path):
    """Nomad's servers in pods have none: `doctor` said that a cold start of 40 replicas can run there."""
    fake = FakeEstate(FakeDatacenter(servers=3, clients=1))
    fake.answers = {**of_nomad(3), **of_vault(), ("nomad", "/v1/nodes"): []}
    target = read_target(attach_file(tmp_path, STACK), {})
    there = target, run(fake.found(target))
    why = "there is no client of nomad, so its jobs would wait"
    assert f"load web (nomad.replicas): {why}" in reasons("nomad/cold-start", there)
    assert why not in " ".join(reasons("kubernetes/nomad-leader-pod-killed", there))
    told = examined(*there, {})
    assert {kind for kind, said in told.loads.items() if said == why} == {"nomad.replicas", "nomad.services"}


def test_clients_behind_taps_cannot_be_had(staging):
    assert reasons("retry/watch-after-reset", staging) == [
        "client begins-again: an attached datacenter has no taps",
        "client keeps-its-index: an attached datacenter has no taps",
    ]


def test_a_condition_on_what_nobody_samples_there_cannot_be_had(staging, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(BUSY)
    assert "steady_state: process.cpu < 2: an attached datacenter has no figures of processes" in lacking(
        read_experiment(path), *staging, path=path
    )


def test_an_experiment_that_cannot_run_is_refused_with_every_reason(staging):
    path = find_experiment("raft/slow-leader-disk")
    with pytest.raises(AttachError) as caught:
        check_possible(read_experiment(path), *staging, path=path)
    assert "cannot run on staging, which is reached by the addresses of its APIs alone:" in str(caught.value)
    assert "its host lacks DiskCanary, DiskControl" in str(caught.value)


def test_a_product_that_is_not_there_is_said(staging):
    path = find_experiment("nomad/drain-under-load")
    assert "the datacenter has no nomad" in unfolded(unselected(read_experiment(path), *staging, path=path))


def test_a_hypothesis_on_signals_that_nobody_samples_there_is_found_also_through_its_helpers():
    assert unseen_signals(get("write_amplification_below")) == ["process.wchar_rate"]
    assert unseen_signals(get("starved_while_idle")) == ["process.cpu"]
    assert unseen_signals(get("writes_recover")) == []


@pytest.mark.long
def test_doctor_says_all_of_it_in_words_and_as_data(stack):
    looked = examined(*stack, {"client-1/nomad": "https://10.73.0.31:4646: GET /v1/agent/health: refused"})
    text = "\n".join(lines(looked))
    assert "  consul 1.22.2 at http://10.73.0.11:8500, 1 client, 3 servers" in text
    assert "  does not answer: client-1/nomad: https://10.73.0.31:4646" in text
    assert "  state/snapshot-reset\n" in text
    assert (
        "raft/slow-leader-disk: step 1, disk.latency on consul:leader: its host lacks DiskCanary, DiskControl" in text
    )
    assert "vault.seal: no host has ProcessControl, VaultKeys" in text
    assert "VaultKeys (unseal the host's Vault server, and keep it sealed)" in text
    data = as_data(looked)
    runs = {one["name"] for one in data["experiments"] if one["runs"]}
    assert {"state/snapshot-reset", "nomad/drain-under-load", "vault/snapshot-reset"} <= runs
    assert {one["kind"] for one in data["faults"] if one["possible"]} >= {
        "consul.leader.transfer",
        "consul.session.expire",
        "nomad.node.drain",
        "vault.step_down",
    }
    assert stack[0].secrets()[0] not in text + str(data)


def test_a_vault_without_a_token_has_nobody_who_may_ask_it(tmp_path):
    fake = FakeEstate()
    fake.answers = of_vault()
    body = '  vault: {address: "https://10.73.0.51:8200"}\n'
    target = read_target(attach_file(tmp_path, body), {"HOME": "/nonexistent"})
    kinds = attach_limits.possible_kinds(target, run(fake.found(target)))
    assert kinds["vault.step_down"] == "no host has VaultOperator"


def test_agents_that_do_not_answer_are_found_one_by_one(staging):
    target, estate = staging
    fake = FakeEstate()
    fake.silent = {"10.73.0.12"}
    silent = run(unanswered(estate, fake.wires(target)))
    assert list(silent) == ["consul-2/consul"]
    assert "http://10.73.0.12:8500: GET /v1/status/leader: connection refused" in silent["consul-2/consul"]
