"""Experiments of Chaos Mesh and Litmus become ours or a message that names why not, and ours become theirs.

The files here are our own, in the shape of theirs.
"""

import io
import json
import textwrap

import jsonschema
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from fake_kubernetes import SPECS, definition
from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import load_document
from hashidrill.faces.cli.app import app
from hashidrill.kubernetes.interchange import to_chaos_mesh, to_litmus
from hashidrill.kubernetes.interchange.document import UnsupportedError, go_seconds
from hashidrill.kubernetes.interchange.label_selectors import labels_of
from hashidrill.kubernetes.interchange.reading import imported

SERVERS = {"labelSelectors": {"app": "consul", "component": "server"}}
CHAOS = "chaos-mesh.org/v1alpha1"


def as_yaml(data):
    out = io.StringIO()
    YAML().dump(json.loads(json.dumps(data)), out)
    return out.getvalue()


def chaos(kind, name="some-chaos", **spec):
    return as_yaml({"apiVersion": CHAOS, "kind": kind, "metadata": {"name": name}, "spec": spec})


def engine(name, *, selector="app=consul,component=server", spec=None, inner=None, **env):
    listed = [{"name": key, "value": value} for key, value in env.items()]
    one = {"name": name, "spec": {"components": {"env": listed}, **(inner or {})}}
    application = {"appns": "consul", "applabel": selector, "appkind": "statefulset"}
    body = {"engineState": "active", "appinfo": application, "experiments": [one], **(spec or {})}
    whole = {"apiVersion": "litmuschaos.io/v1alpha1", "kind": "ChaosEngine", "metadata": {"name": "e"}, "spec": body}
    return as_yaml(whole)


def loaded(text, on="", side=""):
    """(the experiment as `validate` reads it, what was lost)."""
    made = imported("theirs.yaml", text, on, side)
    return load_document(Document("ours", made.text)), made.lost


def method(text, on="", side=""):
    found, _ = loaded(text, on, side)
    return [(step.fault, step.on, step.with_, float(step.at), float(step.for_)) for step in found.method]


POD = {"mode": "one", "selector": SERVERS}
ONE = "consul:one-follower"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (chaos("PodChaos", action="pod-kill", **POD), [("process.restart", ONE, {"signal": "KILL"}, 0, 3)]),
        (
            chaos("PodChaos", action="pod-failure", duration="1m30s", mode="all", selector=SERVERS),
            [("process.kill", "consul:servers", {"signal": "KILL"}, 0, 90)],
        ),
        (
            chaos("NetworkChaos", action="delay", duration="10s", **POD, delay={"latency": "90ms", "jitter": "10ms"}),
            [("network.latency", ONE, {"port": 8300, "delay": "90ms", "from": "all", "jitter": "10ms"}, 0, 10)],
        ),
        (
            chaos("NetworkChaos", action="loss", duration="10s", **POD, loss={"loss": "25"}),
            [("network.loss", ONE, {"percent": "13.4%", "from": "all"}, 0, 10)],
        ),
        (
            chaos("NetworkChaos", action="bandwidth", duration="10s", **POD, bandwidth={"rate": "100kbps"}),
            [("network.bandwidth", ONE, {"port": 8300, "rate": "100kB/s", "from": "all"}, 0, 10)],
        ),
        (
            chaos("NetworkChaos", action="bandwidth", duration="10s", **POD, bandwidth={"rate": "8mbit"}),
            [("network.bandwidth", ONE, {"port": 8300, "rate": "1MB/s", "from": "all"}, 0, 10)],
        ),
        (
            chaos(
                "NetworkChaos",
                action="partition",
                direction="both",
                duration="10s",
                **POD,
                target={"mode": "all", "selector": {"labelSelectors": {"app": "consul", "component": "client"}}},
            ),
            [("network.partition", ONE, {"from": "consul:clients", "direction": "both"}, 0, 10)],
        ),
        (
            chaos("IOChaos", action="latency", duration="20s", **POD, delay="100ms", percent=50, methods=["FSYNC"]),
            [("disk.latency", ONE, {"op": "fsync", "percent": "50%", "delay": "100ms"}, 0, 20)],
        ),
        (
            chaos("IOChaos", action="fault", duration="20s", **POD, errno=5, volumePath="/consul/data"),
            [("disk.error", ONE, {"op": "all", "errno": "EIO", "percent": "100%"}, 0, 20)],
        ),
        (
            chaos(
                "Schedule",
                schedule="@every 5m",
                type="IOChaos",
                ioChaos={"action": "latency", "duration": "20s", **POD, "delay": "50ms"},
            ),
            [("disk.latency", ONE, {"op": "all", "percent": "100%", "delay": "50ms"}, 0, 20)],
        ),
        (
            engine("pod-delete", TOTAL_CHAOS_DURATION="30", CHAOS_INTERVAL="10"),
            [("process.restart", ONE, {"signal": "KILL"}, at, 3) for at in (0, 10, 20)],
        ),
        (
            engine("pod-network-latency", TOTAL_CHAOS_DURATION="60", NETWORK_LATENCY="2000", JITTER="0"),
            [("network.latency", ONE, {"port": 8300, "from": "all", "delay": "2s"}, 0, 60)],
        ),
        (
            engine("pod-network-loss", NETWORK_PACKET_LOSS_PERCENTAGE="100", PODS_AFFECTED_PERC="100"),
            [("network.partition", "consul:servers", {"from": "all", "direction": "out"}, 0, 60)],
        ),
        (
            engine("pod-network-rate-limit", NETWORK_BANDWIDTH="1mbit"),
            [("network.bandwidth", ONE, {"port": 8300, "from": "all", "rate": "125kB/s"}, 0, 60)],
        ),
        (engine("disk-fill"), [("disk.full", ONE, {"leave": "51200kB"}, 0, 60)]),
    ],
)
def test_theirs_becomes_an_experiment_that_validates(text, steps):
    assert method(text) == steps


def test_labels_of_vaults_chart_say_who_is_active():
    labels = {"app.kubernetes.io/name": "vault", "component": "server", "vault-active": "true"}
    whom = {"mode": "all", "selector": {"labelSelectors": labels}}
    text = chaos("PodChaos", action="container-kill", containerNames=["vault"], **whom)
    found, _ = loaded(text)
    assert found.method[0].on == "vault:active"
    assert "secrets" in found.load


def test_on_and_from_say_whom_where_their_labels_are_of_something_else():
    target = {"mode": "all", "selector": {"labelSelectors": {"app": "shop"}}}
    text = chaos(
        "NetworkChaos",
        action="partition",
        direction="to",
        duration="5s",
        mode="one",
        selector={"labelSelectors": {"app": "shop"}},
        target=target,
    )
    with pytest.raises(UnsupportedError, match=r"spec\.selector: app=shop does not name .* --on consul:leader"):
        imported("theirs.yaml", text)
    with pytest.raises(UnsupportedError, match=r"spec\.target\.selector: app=shop .* --from consul:servers"):
        imported("theirs.yaml", text, "consul:leader")
    assert method(text, "consul:leader", "consul:servers") == [
        ("network.partition", "consul:leader", {"from": "consul:servers", "direction": "out"}, 0, 5)
    ]


WORKFLOW = {
    "entry": "all",
    "templates": [
        {"name": "all", "templateType": "Serial", "deadline": "4m", "children": ["slow", "wait", "both"]},
        {
            "name": "slow",
            "templateType": "IOChaos",
            "deadline": "20s",
            "ioChaos": {"action": "latency", "delay": "50ms", **POD},
        },
        {"name": "wait", "templateType": "Suspend", "deadline": "10s"},
        {"name": "both", "templateType": "Parallel", "children": ["lose", "check", "kill"]},
        {
            "name": "lose",
            "templateType": "NetworkChaos",
            "deadline": "30s",
            "networkChaos": {"action": "loss", "loss": {"loss": "30"}, **POD},
        },
        {"name": "check", "templateType": "StatusCheck"},
        {
            "name": "kill",
            "templateType": "Schedule",
            "deadline": "40s",
            "schedule": {"schedule": "@every 2s", "type": "PodChaos", "podChaos": {"action": "pod-kill", **POD}},
        },
    ],
}


def test_a_workflow_is_a_method_with_the_same_times():
    found, lost = loaded(chaos("Workflow", **WORKFLOW))
    assert [(step.fault, float(step.at), float(step.for_)) for step in found.method] == [
        ("disk.latency", 0, 20),
        ("network.loss", 30, 30),
        ("process.restart", 30, 3),
    ]
    assert any("a StatusCheck" in text for text in lost)
    assert any("it runs once; `hashidrill schedule` repeats it" in text for text in lost)


def changed(**template):
    """The workflow with one template changed."""
    templates = [{**one, **template} if one["name"] == template["name"] else one for one in WORKFLOW["templates"]]
    return chaos("Workflow", **{**WORKFLOW, "templates": templates})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (chaos("StressChaos", **POD, stressors={"cpu": {"load": 5}}), r"like StressChaos; cpu\.throttle"),
        (chaos("StressChaos", **POD, stressors={"memory": {"size": "1G"}}), r"StressChaos; on an existing datacenter"),
        (chaos("TimeChaos", **POD, duration="5s", timeOffset="-1m"), r"with Chaos Mesh, chaos_mesh\.time does it"),
        (chaos("AWSChaos", action="ec2-stop"), r"AWSChaos; it stops machines or volumes of"),
        (chaos("JVMChaos", **POD), r"no agent of Consul, Nomad or Vault runs in a JVM"),
        (chaos("PodChoas", **POD), r"kind: Chaos Mesh has no kind 'PodChoas'; did you mean PodChaos"),
        (chaos("PodNetworkChaos"), r"breaks nothing by itself; controllers of Chaos Mesh write it"),
        (chaos("PodChaos", action="pod-failure", **POD), r"spec\.duration: it has none, and would last for ever"),
        (chaos("PodChaos", action="pod-failure", duration="soon", **POD), r"spec\.duration: 'soon' is not a duration"),
        (chaos("PodChaos", action="pod-kil", **POD), r"spec\.action: 'pod-kil' cannot be translated"),
        (chaos("PodChaos", action="pod-kill", mode="fixed", selector=SERVERS), r"spec\.mode: 'fixed' has no selector"),
        (chaos("PodChaos", action="pod-kill", mode="one", selector={"nodes": ["n"]}), r"spec\.selector\.nodes: no s"),
        (chaos("PodChaos", action="pod-kill", selector=SERVERS), r"spec\.mode: it is missing"),
        (chaos("PodChaos", action="pod-kill", **POD, remoteCluster="x"), r"spec\.remoteCluster"),
        (chaos("NetworkChaos", action="partition", duration="5s", **POD), r"spec\.target: .* without a target"),
        (chaos("NetworkChaos", action="corrupt", duration="5s", **POD, corrupt={"corrupt": "4"}), r"spec\.action"),
        (
            chaos("NetworkChaos", action="netem", duration="5s", **POD, delay={"latency": "9ms"}, loss={"loss": "5"}),
            r"delay and loss at once",
        ),
        (chaos("NetworkChaos", action="delay", duration="5s", **POD, externalTargets=["8.8.8.8"]), r"externalTargets"),
        (chaos("IOChaos", action="attrOverride", duration="5s", **POD), r"like IOChaos attrOverride"),
        (chaos("IOChaos", action="fault", duration="5s", **POD, errno=9999), r"there is no error number 9999"),
        (chaos("IOChaos", action="fault", duration="5s", **POD, errno=[5]), r"spec\.errno: expected a whole number"),
        (chaos("PhysicalMachineChaos", action="process", address=["a"], duration="5s"), r"use --on SELECTOR"),
        (chaos("PhysicalMachine", address="http://a"), r"PhysicalMachine breaks nothing by itself"),
        (changed(name="wait", templateType="Task"), r"spec\.templates\.wait: a Task runs a command"),
        (changed(name="both", children=["all"]), r"spec\.templates\.all: it leads to itself"),
        (changed(name="both", children=["los"]), r"there is no such template; did you mean lose"),
        (changed(name="all", children=["wait"]), r"no template that 'all' leads to breaks anything"),
        (engine("node-drain"), r"no fault on hosts is like node-drain; .*litmus\.node_drain"),
        (engine("pod-delete", spec={"engineState": "stop"}), r"spec\.engineState: 'stop' cannot be"),
        (engine("pod-delete", spec={"experiments": []}), r"there are none"),
        (engine("pod-delete", spec={"expriments": []}), r"spec\.expriments: hashidrill does not read"),
        (engine("pod-delete", spec={"appinfo": "x"}), r"spec\.appinfo: expected keys and values"),
        (engine("pod-delete", inner={"probes": []}), r"\[0\]\.spec\.probes: hashidrill does not read"),
        (engine("pod-delete", CHAOS_INTERVAL="often"), r"CHAOS_INTERVAL: 'often' is not a number"),
        (engine("pod-delete", selector=""), r"an empty selector does not name an agent"),
        ("kind: Pod\napiVersion: v1\n", r"kind: Pod of v1 is not an experiment"),
    ],
)
def test_what_an_experiment_cannot_say_is_named(text, why):
    with pytest.raises(UnsupportedError, match=rf"theirs\.yaml:(\d+:)? .*{why}"):
        imported("theirs.yaml", text)


@pytest.mark.parametrize(
    "text",
    ["", "a: [", "- 1\n", "a: 1\n---\nb: 2\n", "just words", "a: " + "[" * 3000, "a: &a [*a]\n", "kind: &a {b: *a}\n"],
)
def test_what_is_no_such_file_is_told_and_no_traceback(text):
    with pytest.raises(UsageError, match=r"theirs\.yaml"):
        imported("theirs.yaml", text)


def test_an_engine_without_a_probe_is_said_to_pass_whatever_happens():
    _, lost = loaded(engine("pod-delete"))
    assert any("it has no probe, so Litmus says Pass whatever happens" in text for text in lost)
    _, lost = loaded(engine("pod-delete", inner={"probe": [{"name": "x"}]}))
    assert not any("no probe" in text for text in lost)


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1m30s", 90), ("1.5h", 5400), ("100ms", 0.1)])
def test_durations_are_read_as_go_does(text, seconds):
    assert go_seconds(text, "x") == pytest.approx(seconds)


# export

OURS = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: all-of-them, title: All, why: because}
datacenter: {consul: {servers: 3, clients: 1}}
load: {kv-writes: {kind: consul.kv.write, rate: 5/s}}
steady_state: {require: ['raft.leader >= 0']}
method:
%s
expect: [{no_acknowledged_write_lost: {load: kv-writes}}]
"""
STEPS = """\
- {fault: process.kill, on: "consul:leader", for: 10s}
- {fault: network.partition, on: "consul:one-follower", with: {from: clients, direction: in}, at: 90s, for: 10s}
- {fault: network.loss, on: "consul:servers", with: {percent: 30%}, at: 180s, for: 20s}
- {fault: network.latency, on: "consul:servers", with: {port: 8300, delay: 90ms}, at: 270s, for: 20s}
- {fault: disk.latency, on: "consul:servers", with: {op: fsync, delay: 50ms, percent: 50%}, at: 360s, for: 20s}
- {fault: process.pause, on: "consul:leader", at: 450s, for: 5s}
"""


def ours(steps=STEPS):
    return load_document(Document("ours", OURS % textwrap.indent(steps, "  ")))


def test_a_workflow_is_what_the_method_says_and_what_is_lost_is_said():
    made, lost = to_chaos_mesh.workflow("all", ours().faults)
    templates = {one["name"]: one for one in made["spec"]["templates"]}
    assert templates["step-1"]["podChaos"] == {
        "action": "pod-failure",
        "mode": "one",
        "selector": SERVERS,
    }
    assert templates["step-2"]["networkChaos"]["direction"] == "from"
    assert templates["step-2"]["networkChaos"]["target"]["selector"]["labelSelectors"]["component"] == "client"
    assert templates["step-5"]["ioChaos"]["methods"] == ["FSYNC"]
    assert (templates["step-1"]["deadline"], templates["wait-2"]["deadline"]) == ("10s", "90s")
    assert "step-6" not in templates
    assert any("step 6, process.pause on consul:leader: left out" in text for text in lost)
    assert any("no label says who leads" in text for text in lost)
    assert any("AllRecovered is true before injection too" in text for text in lost)
    assert any("the verdict" in text for text in lost)


@pytest.mark.parametrize("kind", ["PodChaos", "NetworkChaos"])
def test_what_is_written_fits_the_definitions_of_the_cluster(kind):
    schema = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    made, _ = to_chaos_mesh.workflow("all", ours().faults)
    of_kind = [one for one in made["spec"]["templates"] if one["templateType"] == kind]
    assert of_kind
    assert set(SPECS) >= {kind}
    for one in of_kind:
        jsonschema.validate(one[kind[0].lower() + kind[1:]], schema)


def test_what_was_written_reads_back_as_the_same_faults_at_the_same_times():
    made, _ = to_chaos_mesh.workflow("all", ours().faults)
    back = method(as_yaml(made))
    assert [(fault, at, length) for fault, _, _, at, length in back] == [
        ("process.kill", 0, 10),
        ("network.partition", 90, 10),
        ("network.loss", 180, 20),
        ("network.latency", 270, 20),
        ("disk.latency", 360, 20),
    ]


def test_a_schedule_holds_the_workflow():
    made, _ = to_chaos_mesh.workflow("all", ours().faults, "0 3 * * *")
    assert (made["kind"], made["spec"]["type"], made["spec"]["schedule"]) == ("Schedule", "Workflow", "0 3 * * *")
    assert method(as_yaml(made))[0][0] == "process.kill"


def test_an_engine_has_texts_alone_in_its_environment_and_says_what_it_loses():
    made, lost = to_litmus.engine("all", ours(STEPS.splitlines(keepends=True)[2]).faults, "consul")
    [one] = made["spec"]["experiments"]
    env = {each["name"]: each["value"] for each in one["spec"]["components"]["env"]}
    assert one["name"] == "pod-network-loss"
    assert env == {
        "TOTAL_CHAOS_DURATION": "20",
        "PODS_AFFECTED_PERC": "100",
        "NETWORK_PACKET_LOSS_PERCENTAGE": "51",
    }
    assert made["spec"]["appinfo"]["applabel"] == "app=consul,component=server"
    assert any("Pass and 100 % without a probe" in text for text in lost)
    assert method(as_yaml(made))[0][:3] == ("network.loss", "consul:servers", {"percent": "30%", "from": "all"})


@pytest.mark.lie
@pytest.mark.parametrize(
    ("way", "said"),
    [("out", ""), ("in", "direction in: it loses what the pod sends"), ("both", "direction both: what others send")],
)
def test_a_partition_for_litmus_is_a_loss_of_everything_and_no_policy_that_hits_nothing(way, said):
    """pod-network-partition reads one label. With the two of the charts it selects no pod, and ends in Pass."""
    step = f'- {{fault: network.partition, on: "consul:servers", with: {{from: all, direction: {way}}}, for: 20s}}\n'
    made, lost = to_litmus.engine("all", ours(step).faults, "consul")
    [one] = made["spec"]["experiments"]
    assert one["name"] == "pod-network-loss"
    assert {"name": "NETWORK_PACKET_LOSS_PERCENTAGE", "value": "100"} in one["spec"]["components"]["env"]
    assert said in " | ".join(lost)
    back = {"from": "all", "direction": "out"}
    assert method(as_yaml(made))[0][:3] == ("network.partition", "consul:servers", back)


def test_what_repeats_is_written_out_without_anchors():
    made = imported("theirs.yaml", engine("pod-delete"))
    assert "&id" not in made.text
    assert made.text.count("signal: KILL") == 3


def test_a_chaos_experiment_whose_values_come_from_a_secret_is_not_read_for_another_engine():
    env = [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}}, {"name": "A", "value": "1"}]
    other = {"kind": "ChaosExperiment", "apiVersion": "litmuschaos.io/v1alpha1", "metadata": {"name": "vm-poweroff"}}
    text = as_yaml({**other, "spec": {"definition": {"env": [*env, env[1]]}}})
    found, lost = loaded(f"{text}---\n{engine('pod-delete')}")
    assert len(found.method) == 3
    said = " ".join(lost)
    assert "documents[0].spec.definition.env: no ChaosEngine of this file names this experiment" in said
    assert "into the same file" not in said


def test_faults_of_litmus_are_written_as_they_are_asked_for_and_no_others():
    steps = (
        '- {fault: litmus.pod_http_status_code, on: "consul:servers", with: {code: 503}, for: 20s}\n'
        '- {fault: litmus.pod_delete, on: "consul:servers", at: 60s, for: 20s}\n'
        '- {fault: litmus.node_drain, on: "consul:servers", at: 120s, for: 20s}\n'
    )
    made, lost = to_litmus.engine("all", ours(steps).faults, "consul")
    said = {
        one["name"]: {each["name"]: each["value"] for each in one["spec"]["components"]["env"]}
        for one in made["spec"]["experiments"]
    }
    assert set(said) == {"pod-http-status-code", "pod-delete"}
    assert said["pod-http-status-code"]["STATUS_CODE"] == "503"
    assert said["pod-http-status-code"]["TARGET_SERVICE_PORT"] == "8500"
    assert said["pod-delete"]["CHAOS_INTERVAL"] == "3600", "once"
    assert any("litmus.node_drain on consul:servers: left out" in text for text in lost)


def test_a_method_of_which_nothing_is_left_is_an_error():
    only = ours('- {fault: process.pause, on: "consul:leader", for: 5s}\n').faults
    with pytest.raises(UnsupportedError, match=r"Chaos Mesh can express none of its steps: step 1, process\.pause"):
        to_chaos_mesh.workflow("x", only)
    with pytest.raises(UnsupportedError, match="Litmus can express none of its steps"):
        to_litmus.engine("x", only, "default")


def test_what_a_step_says_and_the_other_system_cannot_is_lost_by_its_name():
    steps = (
        '- {fault: process.kill, on: "consul:leader", with: {signal: TERM}, for: 10s, name: first}\n'
        '- {fault: network.latency, on: "consul:leader", with: {port: 8300, delay: 9ms, direction: out},'
        " at: 90s, for: 9s, after: [first]}\n"
        "- {mark: later, at: 200s, for: 5s}\n"
    )
    for made, lost in (to_chaos_mesh.workflow("x", ours(steps).method), to_litmus.engine("x", ours(steps).method, "c")):
        said = " | ".join(lost)
        assert "step 1, process.kill on consul:leader: with.signal: TERM: not written" in said
        assert "step 2, network.latency on consul:leader: with.direction: out: not written" in said
        assert "after first: it begins at its own time" in said
        assert "step 3, mark later: left out: it breaks nothing" in said
        assert made["spec"]


def test_a_method_without_faults_is_refused_with_a_reason():
    with pytest.raises(UnsupportedError, match=r"none of its steps: step 1, mark later: left out"):
        to_litmus.engine("x", ours(f"{STEPS}- {{mark: later, for: 5s}}\n").method[-1:], "c")
    with pytest.raises(UnsupportedError, match=r"none of its steps: it has none"):
        to_chaos_mesh.workflow("x", [])


def test_selectors_without_a_label_are_lost():
    assert labels_of("host:consul-1") == ({}, "", "host:consul-1: the charts have no label for it")
    assert labels_of("nomad:leader")[0] == {}


# the commands


def called(*words):
    return CliRunner().invoke(app, list(words))


def test_the_commands_print_and_say_on_standard_error_what_is_lost(tmp_path):
    theirs, there = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    theirs.write_text(chaos("PodChaos", action="pod-kill", **POD))
    said = called("convert", "import", str(theirs), "-o", str(there))
    assert said.exit_code == 0, said.output
    assert "lost: spec.action: after pod-kill, only volumes outlive the pod" in said.stderr
    again = called("convert", "import", str(theirs), "-o", str(there))
    assert isinstance(again.exception, UsageError)
    assert "already exists" in str(again.exception)
    back = called("convert", "export", "chaos-mesh", str(there))
    assert YAML(typ="safe").load(back.stdout)["kind"] == "Workflow"
    assert "lost: the proof" in back.stderr
    assert YAML(typ="safe").load(called("convert", "export", "litmus", str(there)).stdout)["kind"] == "ChaosEngine"


def test_a_file_comes_from_standard_input_too(tmp_path):
    theirs = chaos("PodChaos", action="pod-kill", **POD)
    said = CliRunner().invoke(app, ["convert", "import", "-"], input=theirs)
    assert YAML(typ="safe").load(said.stdout)["kind"] == "Experiment"
    assert "lost: spec.action: after pod-kill, only volumes outlive the pod" in said.stderr
    error = CliRunner().invoke(app, ["convert", "import", "-"], input=b"\xff\xfe").exception
    assert "standard input: cannot be read: it is not text" in str(error)


def test_what_a_foreign_file_says_is_printed_without_its_control_characters():
    said = CliRunner().invoke(
        app, ["convert", "import", "-"], input=chaos("PodChaos", action="pod-kill", duration="\x1b[2J5s", **POD)
    )
    assert "\x1b" not in said.stderr + str(said.exception)
    assert "'\\x1b[2J5s' is not a duration" in str(said.exception)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("convert", "export", "chaosmesh", "raft/slow-leader-disk"),
            "there is no format 'chaosmesh': did you mean chaos-mesh?",
        ),
        (("convert", "export", "litmus", "raft/slow-leader-disk", "--cron", "0 3 * * *"), "--cron is for chaos-mesh"),
        (
            ("convert", "export", "chaos-mesh", "raft/slow-leader-disk", "--cron", "@daily"),
            "--cron '@daily': names like @daily",
        ),
        (
            ("convert", "export", "chaos-mesh", "raft/slow-leader-disk", "--cron", "61 * * * *"),
            "'61' is not from 0 to 59",
        ),
        (("convert", "export", "chaos-mesh", "raft/slow-leader-disk", "--namespace", "x"), "--namespace is for litmus"),
        (
            ("convert", "export", "litmus", "raft/slow-leader-disk", "--namespace", "a b"),
            "--namespace 'a b': lower case",
        ),
        (("convert", "import", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file"),
    ],
)
def test_what_cannot_be_is_told(words, why):
    error = called(*words).exception
    assert isinstance(error, UsageError)
    assert why in str(error)


def test_what_validate_refuses_is_not_printed(tmp_path):
    """A delay that no link of ours proves."""
    path = tmp_path / "theirs.yaml"
    path.write_text(chaos("NetworkChaos", action="delay", duration="10s", **POD, delay={"latency": "90s"}))
    said = called("convert", "import", str(path))
    assert isinstance(said.exception, UsageError)
    assert "the result is not a valid experiment" in str(said.exception)
    assert said.stdout == ""
    with pytest.raises(UsageError, match="--on 'nomad:leader': an imported experiment has consul or vault"):
        imported("x", path.read_text(), "nomad:leader")
