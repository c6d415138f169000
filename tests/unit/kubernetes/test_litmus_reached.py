"""What Litmus adds to hosts that are pods, what heal finds of it by labels alone, and the role that it takes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from attached_estates import FakeEstate, attach_file
from fake_litmus import FakeLitmus
from hashidrill.core.protocols.capabilities import LitmusPod
from hashidrill.faces.cli.app import app
from hashidrill.kubernetes.litmus.vocabulary import one
from hashidrill.kubernetes.reached import held, look
from hashidrill.staging.attach.discovery import discover
from hashidrill.staging.attach.target import read_target
from hashidrill.staging.runs.attachable import possible_kinds
from hashidrill.staging.runs.heal_attached import heal_attached
from litmus_cases import OWNED, litmus_world
from virtual_time import run

BODY = '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n'


class There:
    """An estate of Consul whose first server is a pod, in a cluster with Litmus."""

    def __init__(self, folder, more=""):
        self.fake = FakeEstate()
        self.kubernetes = FakeLitmus(self.fake.world, pods=["consul-1"])
        services = f"services: {{kubernetes: {{kubeconfig: kube{more}}}}}\n"
        self.target = read_target(attach_file(folder, BODY + services), {})
        self.wires = self.fake.wires(self.target)

    def estate(self):
        return run(discover(self.target, self.wires))

    def heal(self):
        async def found(_target, _stack):
            return await discover(self.target, self.wires), self.wires

        return run(heal_attached(self.target, (), [].append, look=found, connect=self.kubernetes.cluster))

    def left(self):
        """An engine that a run of ours left, whose recording is nowhere."""
        world, _ = litmus_world(self.fake.world)
        part = world.hosts["consul-1"].use(LitmusPod)
        object.__setattr__(part, "cluster", self.kubernetes.cluster())

        async def made():
            spec = {"experiments": [one("pod-cpu-hog", {"CPU_CORES": "1"})]}
            await part.create(part.object_of("ChaosEngine", "0-x"), spec, once=False)

        run(made())


@pytest.fixture
def there(tmp_path):
    return There(tmp_path)


def test_a_host_that_is_a_pod_can_be_broken_by_litmus_and_others_cannot(there):
    offers = run(look(there.target, there.estate(), there.kubernetes.cluster))
    assert LitmusPod in offers["consul-1"].capabilities
    assert LitmusPod not in offers["consul-2"].capabilities
    assert "no pod there has the name consul-2" in offers["consul-2"].lacks[LitmusPod]
    kinds = possible_kinds(there.target, there.estate(), offers)
    assert {why for kind, why in kinds.items() if kind.startswith("litmus.")} == {""}


def test_experiments_run_as_the_account_that_the_attach_file_names(tmp_path):
    async def account(there):
        async with held(
            there.target,
            await discover(there.target, there.wires),
            there.wires,
            deadline_s=60.0,
            tell=[].append,
            who="me",
            run="run-7",
            connect=there.kubernetes.cluster,
        ) as found:
            return found["consul-1"][LitmusPod].account

    assert run(account(There(tmp_path))) == "litmus-admin"
    assert run(account(There(tmp_path, ", litmus_account: chaos"))) == "chaos"


def test_an_engine_that_nobody_has_the_recording_of_is_removed_by_heal_with_all_that_runs_for_it(there):
    there.left()
    by_others = {"metadata": {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "helm"}}, "spec": {}}
    there.kubernetes.objects["chaosengines", "theirs"] = by_others
    [done] = there.heal()
    assert done.cleaned == [f"ChaosEngine {OWNED.named('0-x')}"]
    assert there.kubernetes.left() == [("chaosengines", "theirs")]
    assert there.heal() == []


def test_one_whose_finalizer_is_stuck_is_left_with_the_command_that_helps(there):
    there.left()
    there.kubernetes.controller = "stuck"
    [done] = there.heal()
    assert done.cleaned == []
    assert '"finalizers":null' in done.left[0]


def test_a_role_for_one_injector_heals_what_it_left_and_says_what_it_cannot_see(there):
    there.left()
    for kind in there.kubernetes.definitions:
        if kind.endswith("chaos"):
            there.kubernetes.refuses["GET", kind] = 403
    [done] = there.heal()
    assert done.cleaned == [f"ChaosEngine {OWNED.named('0-x')}"]
    there.kubernetes.refuses["GET", "chaosengines"] = 403
    [done] = there.heal()
    assert "is forbidden" in done.left[0]


def test_the_role_has_a_rule_for_each_thing_that_litmus_is_asked_for(tmp_path):
    path = tmp_path / "pods.yaml"
    path.write_text(
        "apiVersion: hashidrill/v1\nkind: Experiment\nmetadata: {name: pods, title: Pods, why: because}\n"
        "datacenter: {consul: {servers: 3}}\n"
        "load: {kv-writes: {kind: consul.kv.write, rate: 5/s}}\nsteady_state: {require: ['raft.leader >= 0']}\n"
        "method: [{fault: litmus.pod_http_reset_peer, on: 'consul:leader', for: 5s}]\n"
        "expect: [{no_acknowledged_write_lost: {load: kv-writes}}]\n"
    )
    said = CliRunner().invoke(app, ["acl", "kubernetes", str(path)]).stdout
    assert "resources: [chaosengines]\n    verbs: [create, delete, get, list, patch]" in said
    assert "resources: [chaosexperiments]\n    verbs: [get]" in said
    assert "resources: [chaosresults]\n    verbs: [delete, list]" in said
    assert "resources: [pods]\n    verbs: [list]" in said
    assert "resourceNames: [chaosengines.litmuschaos.io]\n    verbs: [get]" in said
    assert "nodes" not in said, "only where a node is drained"
    path.write_text(path.read_text().replace("pod_http_reset_peer", "node_drain"))
    drains = CliRunner().invoke(app, ["acl", "kubernetes", str(path)]).stdout
    assert 'apiGroups: [""]\n    resources: [nodes]\n    verbs: [get]' in drains.partition("kind: ClusterRole")[2]
    assert "*" not in said
    assert json.dumps("") not in said.replace('apiGroups: [""]', "")
