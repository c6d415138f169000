"""On a node with pods, what takes longer: experiments beside their brothers on hosts, Vault in pods, killed runners.

`uv run pytest -m nightly -s tests/live/kubernetes` runs all of it: HASHIDRILL_REPEATS (3) times each experiment,
HASHIDRILL_KILLS (20) killed runners, HASHIDRILL_ALONE (1) of them left to the own duration of the fault.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial

import pytest

import drills
from kubernetes import consul, litmus, nomad, vault
from kubernetes.drill import HASHIDRILL, KILLED, PARTITION, SKEWED, Drill, proven, verdict
from kubernetes.node import node
from polled import wait
from real_chaos_runs import of_journal

pytestmark = [
    pytest.mark.live,
    pytest.mark.nightly,
    pytest.mark.needs("kubernetes-node", "consul 1.22.2", "datacenter"),
]
REPEATS = int(os.environ.get("HASHIDRILL_REPEATS", "3"))
KILLS = int(os.environ.get("HASHIDRILL_KILLS", "20"))
ALONE = int(os.environ.get("HASHIDRILL_ALONE", "1"))
SEED = os.environ.get("HASHIDRILL_KILL_SEED") or str(secrets.randbelow(10**6))


def end(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(1500 * REPEATS)
@pytest.mark.needs("datacenter")
@pytest.mark.parametrize(
    ("name", "brother"),
    [(KILLED, "raft/killed-leader"), (PARTITION, "network/partitioned-minority"), (SKEWED, None)],
)
def test_an_experiment_on_pods_has_the_verdict_of_its_brother_on_hosts(drill, tell, name, brother):
    seen = []
    for number in range(1, REPEATS + 1):
        began = time.monotonic()
        seen.append(verdict(proven(drill.run(name, drill.inside, within=drill.within))))
        if brother:
            done = drill.cli("run", brother, "--plain")
            seen.append(verdict(done.stdout + done.stderr))
        tell(f"{name} and {brother}, {number} of {REPEATS}: {seen} ({time.monotonic() - began:.0f} s)")
        drill.settled()
    assert set(seen) == {"PASS"}
    assert drill.left() == []


@pytest.mark.needs("vault")
def test_a_killed_vault_is_unsealed_by_its_seal_and_serves_again(drill, binary, tell):
    """Vault in pods with the chart's labels, Raft and an auto-unseal; the Consul beside it holds the interlocks."""
    node, namespace = drill.node, drill.pods.namespace
    began = time.monotonic()
    token = vault.install(node, binary("vault").path, namespace)
    tell(f"three Vault servers are unsealed after {time.monotonic() - began:.1f} s")
    (drill.folder / "vault-token").write_text(token)
    file = drill.beside("vault", "{token_file: vault-token}", kubeconfig=node.inside)
    name = "kubernetes/vault-active-pod-killed"
    for number in range(REPEATS):
        drill.catalogue("vault", "app.kubernetes.io/name=vault", 8200)
        drill.cli("staging", "arm", name, "--attach", str(file), within=drill.within, check=True)
        told = proven(drill.run("vault-active-pod-killed", file, within=drill.within))
        tell(f"vault-active-pod-killed {number + 1} of {REPEATS}: {verdict(told)}")
    assert drill.left() == []


@pytest.mark.needs("nomad")
@pytest.mark.timeout(300 + 300 * REPEATS)
def test_a_killed_leader_of_nomad_is_replaced_and_a_partitioned_follower_does_not_matter(drill, binary, tell):
    """Nomad has no chart: the attach file has the labels. Its servers have no client, so dispatched jobs wait."""
    node, namespace = drill.node, drill.pods.namespace
    began = time.monotonic()
    nomad.install(node, binary("nomad").path, namespace)
    tell(f"three Nomad servers vote after {time.monotonic() - began:.1f} s")
    outside, file = (
        drill.beside("nomad", "{servers: {app: nomad}}", kubeconfig=each) for each in (node.kubeconfig, node.inside)
    )
    told = drill.cli("doctor", "--attach", str(outside), check=True).stdout
    assert "nomad 1.10.5 at http://10.22.0." in told
    assert "nomad: forwarded through the API server" in told
    name = "kubernetes/nomad-leader-pod-killed"
    partition = drills.experiment(
        drill.folder / "nomad-follower.yaml",
        beside={"nomad": {"clients": 0}},
        method=[{"fault": "chaos_mesh.network.partition", "on": "nomad:one-follower", "for": "30s"}],
        load={"batch": {"kind": "nomad.dispatch", "rate": "2/s", "via": "nomad:leader"}},
        require=["batch.latency.p50 < 500ms"],
        expect=[
            {"leadership_stays": {"fault": "chaos_mesh.network.partition"}},
            {"available_during": {"load": "batch", "success": "99%"}},
            {"no_acknowledged_write_lost": {"load": "batch"}},
        ],
    )
    for what, number in [(partition, 1), *((name, each + 1) for each in range(REPEATS))]:
        drill.catalogue("nomad", "app=nomad", 4646)
        drill.cli("staging", "arm", str(what), "--attach", str(file), within=drill.within, check=True)
        told = proven(drill.cli("run", str(what), "--attach", str(file), "--plain", within=drill.within))
        began = time.monotonic()
        nomad.wait_settled(node, namespace, within_s=180)
        tell(f"{what}, {number}: {verdict(told)}; settled {time.monotonic() - began:.0f} s later")
        assert nomad.ask(node, drill.addresses("app=nomad")[0], "jobs?prefix=hashidrill-") == []
    assert drill.left() == []


FAULTS = (
    {"fault": "chaos_mesh.pod_kill"},
    {"fault": "chaos_mesh.pod_failure"},
    {"fault": "chaos_mesh.network.partition"},
    {"fault": "chaos_mesh.stress.memory", "with": {"size": "128MiB"}},
    {"fault": "chaos_mesh.time", "with": {"offset": "10m", "direction": "behind"}},
)
_RUN_S = 16.0
"""How long such a run takes: it is killed at any moment of that time."""
_OWN_S = 120.0
"""An object ends by itself after the longest step of its run, and this much later (engine.in_attached)."""


@pytest.mark.lie
@pytest.mark.timeout(300 + 150 * KILLS)
def test_what_a_runner_left_that_was_killed_at_any_moment_ends_by_heal_or_by_its_own_duration(drill, tell):
    """At the first a partition is in force, and its own duration ends it."""
    chance = random.Random(SEED)
    tell(f"HASHIDRILL_KILL_SEED={SEED}")
    path = drill.folder / "killed.yaml"
    interlock = ("exec", "consul-server-0", "--", "/bin/consul", "kv", "delete", "hashidrill-interlocks/lock")
    hit = 0
    for number in range(KILLS):
        alone = number < ALONE
        fault = FAULTS[2] if alone else chance.choice(FAULTS)
        step = {**fault, "on": "consul:one-follower", "for": "6s"}
        load = {"kv-writes": {"kind": "consul.kv.write", "rate": "20/s", "keys": 50, "value": "128B"}}
        drills.experiment(path, method=[step], servers=3, load=load)
        drill.cli("staging", "arm", str(path), "--attach", str(drill.inside), within=drill.within, check=True)
        runs = drill.folder / f"killed-{number}"
        command = [*drill.within, HASHIDRILL, "run", str(path), "--attach", str(drill.inside), "--runs", str(runs)]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        with subprocess.Popen([*command, "--plain"], cwd=drill.folder, start_new_session=True, **quiet) as process:
            later_s = chance.uniform(0, _RUN_S)
            if alone:
                drills.proven(runs, process)
            else:
                time.sleep(later_s)
            ended = process.poll() is not None
            assert not ended or any(runs.glob("*/journal.jsonl")), process.stdout.read().decode()
            end(of_journal(runs))  # first: an engine whose runner is gone reverts what it can
            end([process.pid])
            end(of_journal(runs))  # one that it started meanwhile
        found = [one["kind"] for one in drill.left()]
        hit += bool(found)
        began = time.monotonic()
        if alone:
            assert not drill.well(), "nothing was in force"
            wait("the partition to end by itself", drill.well, 6 + _OWN_S + 30, 1.0)
            assert time.monotonic() - began > _OWN_S / 2
        own_s = time.monotonic() - began
        drill.cli("heal", "--attach", str(drill.inside), "--runs", str(runs), within=drill.within, check=True)
        assert drill.left() == []
        wait("all servers well", drill.well, 90, 0.5)
        drill.settled()
        tell(
            f"{number + 1} of {KILLS}: {fault['fault']} killed {'when proven' if alone else f'{later_s:.1f} s on'}"
            f"{', ended before' if ended else ''}, found {found}, {f'by itself {own_s:.0f} s, ' if alone else ''}"
            f"well {time.monotonic() - began - own_s:.1f} s after"
        )
        drill.node.kubectl("-n", drill.pods.namespace, *interlock, check=False)
    assert hit >= min(KILLS, 2), "too few of these moments were in the time of a fault"


class TestThreeNodes:
    """As in the clusters that the chart is for: each server is on a node of its own, and Litmus is there."""

    @pytest.fixture(scope="class")
    @classmethod
    def drill(cls, binary, tmp_path_factory, tell):
        with node(kubelets=3) as three:
            injector = partial(litmus.install, three, "consul")
            began = time.monotonic()
            pods = consul.install(three, binary("consul", "1.22.2").path, meanwhile=injector)
            tell(f"ready in {three.ready_s:.1f} s, and with Consul and Litmus {time.monotonic() - began:.1f} s later")
            yield Drill(three, pods, tmp_path_factory.mktemp("three"))

    @pytest.mark.needs("toxiproxy-server", "toxiproxy-cli")
    @pytest.mark.timeout(200 + 200 * REPEATS)
    def test_a_drained_node_has_its_server_back_once_it_is_uncordoned(self, drill, tell):
        """The chart's affinity keeps the server from the other nodes: until then it is Pending."""
        of, more = ("-n", drill.pods.namespace), f"drain: true, litmus_account: {litmus.ACCOUNT}, "
        file = drill.file("drain.yaml", drill.node.inside, more=more)
        for number in range(1, REPEATS + 1):
            before, began = placed(drill), time.monotonic()
            told = proven(drill.run("node-drain-with-quorum", file, within=drill.within))
            run_s = time.monotonic() - began
            drill.settled()
            after = placed(drill)
            [name] = [each for each in after if after[each] != before[each]]
            (uid, at), (old, was) = after[name], before[name]
            tell(
                f"{number} of {REPEATS}: {verdict(told)} in {run_s:.0f} s: {name} ({old}) left {was}, {uid} is on {at}"
            )
            tell("\n".join(line for line in told.splitlines() if ": proven " in line))
            said = drill.node.get(
                *of, "events", "--field-selector", f"reason=FailedScheduling,involvedObject.uid={uid}"
            )
            [kept, *_] = [one["message"] for one in said["items"]]
            assert "1 node(s) were unschedulable, 2 node(s) didn't match pod anti-affinity rules" in kept
            assert at == was
            assert drill.node.get(*of, "chaosengines,chaosresults,jobs")["items"] == []
            assert [one["spec"].get("unschedulable") for one in drill.node.get("nodes")["items"]] == [None] * 3


def placed(drill):
    """The uid of each server's pod, and its node."""
    items = drill.node.get("-n", drill.pods.namespace, "pods", "-l", "app=consul")["items"]
    return {one["metadata"]["name"]: (one["metadata"]["uid"], one["spec"]["nodeName"]) for one in items}
