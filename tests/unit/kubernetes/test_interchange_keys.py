"""No key of a foreign file is dropped without a word, and no value of a wrong type ends in a traceback.

The samples have, together, every key that is read. Each is changed at every place.
"""

import copy
import datetime as dt
import itertools
import math
import re

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import load_document
from hashidrill.kubernetes.interchange.document import UnsupportedError
from hashidrill.kubernetes.interchange.reading import of_documents

SERVER = {"app": "consul", "component": "server"}
SERVERS = {"mode": "one", "selector": {"namespaces": ["consul"], "labelSelectors": SERVER}}
CLIENTS = {"mode": "all", "selector": {"labelSelectors": {"app": "consul", "component": "client"}}}
VAULT = {
    "app.kubernetes.io/name": "vault",
    "app.kubernetes.io/instance": "eu",
    "component": "server",
    "vault-active": "false",
}
MACHINE = {"mode": "one", "value": "1", "address": ["10.0.0.1:31767"], "duration": "30s", "uid": "x"}
FLOW = [
    {"name": "all", "templateType": "Serial", "deadline": "4m", "children": ["cut", "wait", "slow"]},
    {
        "name": "cut",
        "templateType": "NetworkChaos",
        "deadline": "20s",
        "networkChaos": {"action": "partition", "direction": "both", **SERVERS, "target": CLIENTS},
    },
    {"name": "wait", "templateType": "Parallel", "children": ["still", "check", "again"]},
    {"name": "still", "templateType": "Suspend", "deadline": "10s"},
    {"name": "check", "templateType": "StatusCheck", "deadline": "5s", "statusCheck": {"type": "HTTP"}},
    {
        "name": "again",
        "templateType": "Schedule",
        "deadline": "30s",
        "schedule": {
            "schedule": "@every 5s",
            "type": "PodChaos",
            "historyLimit": 1,
            "concurrencyPolicy": "Forbid",
            "podChaos": {"action": "pod-failure", "duration": "8s", **SERVERS},
        },
    },
    {
        "name": "slow",
        "templateType": "IOChaos",
        "deadline": "9s",
        "ioChaos": {"action": "latency", "delay": "90ms", "methods": ["WRITE"], "percent": 40, **SERVERS},
    },
    {"name": "left", "templateType": "Suspend", "deadline": "3s"},
]


def chaos(kind, /, **spec):
    metadata = {"name": "some", "namespace": "x", "labels": {"a": "b"}, "annotations": {"c": "d"}, "generation": 3}
    whole = {"apiVersion": "chaos-mesh.org/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    return [{**whole, "status": {"experiment": {"desiredPhase": "Run"}}}]


def machine(action, **parameters):
    return chaos("PhysicalMachineChaos", action=action, **MACHINE, **{action: parameters})


def engine(name, *, inner=None, spec=None, **env):
    listed = [{"name": key, "value": value} for key, value in env.items()]
    one = {"name": name, "spec": {"rank": 1, "components": {"env": listed, "resources": {"x": 1}}, **(inner or {})}}
    application = {"appns": "consul", "applabel": "app=consul,component=server", "appkind": "statefulset"}
    body = {
        "engineState": "active",
        "chaosServiceAccount": "a",
        "appinfo": application,
        "experiments": [one],
        **(spec or {}),
    }
    return [{"apiVersion": "litmuschaos.io/v1alpha1", "kind": "ChaosEngine", "metadata": {"name": "e"}, "spec": body}]


NETWORK = {**SERVERS, "duration": "10s", "device": "eth1", "targetDevice": "eth2"}
WORKLOADS = {"workloads": [{"kind": "statefulset", "namespace": "x", "labels": "app=consul,component=server"}]}
ALONE = {
    "pod-kill": chaos("PodChaos", action="pod-kill", gracePeriod=5, duration="9s", containerNames=["x"], **SERVERS),
    "container-kill": chaos("PodChaos", action="container-kill", containerNames=["consul"], value="1", **SERVERS),
    "loss": chaos(
        "NetworkChaos",
        action="loss",
        direction="both",
        target={**CLIENTS, "value": "1"},
        loss={"loss": "25", "correlation": "10"},
        **NETWORK,
    ),
    "delay": chaos(
        "NetworkChaos",
        action="netem",
        direction="both",
        target=CLIENTS,
        delay={"latency": "90ms", "jitter": "10ms", "correlation": "5"},
        **NETWORK,
    ),
    "bandwidth": chaos(
        "NetworkChaos",
        action="bandwidth",
        **NETWORK,
        scheduler={"cron": "@every 9m"},
        bandwidth={"rate": "1mbps", "limit": 100, "buffer": 10, "peakrate": 5, "minburst": 6},
    ),
    "io": chaos(
        "IOChaos",
        action="fault",
        errno=5,
        percent=50,
        volumePath="/consul/data",
        path="/consul/data/*",
        containerNames=["consul"],
        methods=["READ", "fsync"],
        duration="20s",
        **SERVERS,
    ),
    "vault": chaos("PodChaos", action="pod-failure", mode="all", duration="1m", selector={"labelSelectors": VAULT}),
    "schedule": chaos(
        "Schedule",
        schedule="0 3 * * *",
        type="Workflow",
        concurrencyPolicy="Forbid",
        historyLimit=2,
        startingDeadlineSeconds=3,
        workflow={"entry": "all", "templates": FLOW},
    ),
    "list": [
        {
            "apiVersion": "v1",
            "kind": "List",
            "metadata": {"resourceVersion": ""},
            "items": [*chaos("Workflow", entry="all", templates=FLOW), {"apiVersion": "v1", "kind": "Service"}],
        }
    ],
    "pod-delete": [
        {
            "apiVersion": "litmuschaos.io/v1alpha1",
            "kind": "ChaosExperiment",
            "metadata": {"name": "pod-delete"},
            "spec": {"definition": {"env": [{"name": "RAMP_TIME", "value": "4"}], "image": "x"}},
        },
        *engine(
            "pod-delete",
            TOTAL_CHAOS_DURATION="30",
            CHAOS_INTERVAL="10",
            FORCE="false",
            RANDOMNESS="false",
            PODS_AFFECTED_PERC="100",
            SEQUENCE="parallel",
            TARGET_CONTAINER="x",
            LIB="litmus",
        ),
    ],
    "litmus-kill": engine(
        "container-kill",
        SIGNAL="SIGTERM",
        RAMP_TIME="5",
        CHAOS_INTERVAL="2",
        TARGET_CONTAINER="consul",
        spec={"selectors": WORKLOADS},
        inner={"probe": [{"name": "p"}]},
    ),
    "litmus-fill": engine("disk-fill", FILL_PERCENTAGE="75", DATA_BLOCK_SIZE="256"),
    "litmus-latency": engine("pod-network-latency", NETWORK_LATENCY="200", JITTER="20", NETWORK_INTERFACE="eth0"),
}
WITH_HELP = {
    "litmus-partition": engine("pod-network-partition", POLICY_TYPES="all", TOTAL_CHAOS_DURATION="20"),
    "pod-failure": chaos(
        "PodChaos",
        action="pod-failure",
        containerNames=["x"],
        mode="fixed",
        value="2",
        selector={"nodes": ["n"]},
        duration="9s",
    ),
    "process": machine("process", process="consul", signal=9, recoverCmd="true"),
    "fill": machine("disk-fill", size="1G", path="/x"),
}
WITH_SIDE = {
    "machine-delay": machine(
        "network-delay",
        device="eth0",
        latency="90ms",
        jitter="5ms",
        correlation="5",
        **{"ip-address": "10.0.0.2", "source-port": "8300", "ip-protocol": "tcp"},
    ),
    "machine-loss": machine("network-loss", device="eth0", percent="30", hostname="x", correlation="2"),
    "machine-cut": machine("network-partition", direction="from", **{"ip-address": "10.0.0.2", "ip-protocol": "all"}),
    "machine-rate": machine("network-bandwidth", rate="8mbit", limit=2, buffer=3, peakrate=4, minburst=5),
    "litmus-loss": engine(
        "pod-network-loss",
        NETWORK_PACKET_LOSS_PERCENTAGE="40",
        DESTINATION_IPS="10.0.0.9",
        DESTINATION_HOSTS="x",
        TARGET_PODS="consul-0",
        NODE_LABEL="a=b",
        PODS_AFFECTED_PERC="50",
    ),
    "litmus-rate": engine(
        "pod-network-rate-limit", NETWORK_BANDWIDTH="8mbit", BURST="1kb", LIMIT="2mb", PEAK_RATE="x", MIN_BURST="1"
    ),
}
ON, SIDE = ("consul:leader",), ("consul:leader", "consul:servers")
SAMPLES = [
    pytest.param(documents, help_, id=name)
    for all_of, help_ in ((ALONE, ()), (WITH_HELP, ON), (WITH_SIDE, SIDE))
    for name, documents in all_of.items()
]
OTHER_TYPES = [None, "x", -1, 1.5, math.nan, 10**30, True, [[1]], {1: {}}, dt.date(2026, 1, 1)]


def places(value, above=()):
    """Every place in it, with what is there."""
    yield above, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*above, key))


def changed(documents, place, value):
    whole = copy.deepcopy(documents)
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return whole


def result(documents, options):
    """(what is imported, what of it is lost), or the message that refuses it and nothing."""
    try:
        made = of_documents("theirs.yaml", documents, *options)
    except UsageError as error:
        return str(error), ()
    return made, made.lost


@pytest.mark.parametrize(("documents", "options"), SAMPLES)
def test_each_sample_is_imported_whole_and_validates(documents, options):
    made = of_documents("theirs.yaml", documents, *options)
    load_document(Document("ours", made.text))


@pytest.mark.parametrize(("documents", "options"), SAMPLES)
def test_a_value_of_another_type_is_told_with_its_place_and_never_a_traceback(documents, options):
    for (place, _), value in itertools.product(places(documents), OTHER_TYPES):
        if len(place) > 1:
            made, lost = result(changed(documents, place, value), options)
            key = next(key for key in reversed(place) if isinstance(key, str))
            assert lost or made.startswith("theirs.yaml: "), (place, value)
            assert lost or ": expected " not in made or key in made, (place, value, made)


def told(made, lost):
    """The keys that are refused or lost."""
    if not lost:
        return set(re.split(r"[^\w/-]+", made))
    heads = [
        line.partition(": ")[0]
        for line in lost
        if not re.search(r": it (delays|limits|loses|takes|hits|leaves) ", line)
    ]
    return {key.rpartition(".")[2] for head in heads for key in head.partition(" (")[0].split(", ")}


def keys_of(documents, place):
    """What messages call the places above and at this one."""
    keys, inside = {str(place[-1])}, documents
    for above, key in zip(("documents", *place), place, strict=False):
        keys |= {key, str(inside.get("name"))} if isinstance(inside, dict) else {f"{above}[{key}]"}
        inside = inside[key]
    return keys | {str(inside.get("name")) if isinstance(inside, dict) else ""} - {"spec", "None"}


@pytest.mark.parametrize(("documents", "options"), SAMPLES)
def test_an_unknown_key_is_refused_or_said_to_be_lost_wherever_it_is(documents, options):
    for place, value in places(documents):
        if isinstance(value, dict):
            words = told(*result(changed(documents, (*place, "surprise"), "x"), options))
            assert words & {"surprise", *keys_of(documents, place)} - {"spec"}, place


@pytest.mark.lie
@pytest.mark.parametrize(("documents", "options"), SAMPLES)
def test_a_value_that_changes_changes_what_is_printed_or_said(documents, options):
    """A key that is read and then ignored is no better than one that nothing reads."""
    before = result(documents, options)
    for place, value in places(documents):
        if not isinstance(value, (dict, list)):
            other = value + 1 if isinstance(value, int) else "7" if str(value).isdecimal() else f"{value}x"
            after = result(changed(documents, place, other), options)
            assert after != before or keys_of(documents, place) & told(*before) - {"spec"}, place


def flow(chaos_of, its, **parents):
    top = {"name": "all", "templateType": "Serial", "children": ["it"], **parents}
    it = {"name": "it", "templateType": "NetworkChaos", "networkChaos": chaos_of, **its}
    return chaos("Workflow", entry="all", templates=[top, it])


LOSS = {"action": "loss", "loss": {"loss": "50"}, **SERVERS}
OF_SERVERS = {"mode": "all", "selector": {"labelSelectors": SERVER}}
BOTH = {"action": "delay", "delay": {"latency": "9ms"}, "direction": "both", "target": OF_SERVERS, "duration": "9s"}
PM_DELAY = {"device": "eth0", "latency": "9ms"}
FOLLOWER = "consul:one-follower"


def steps_of(documents, *options):
    made = of_documents("theirs.yaml", documents, *options)
    return [(step.fault, step.on, step.with_, step.at_s, step.for_s) for step in made.reading.steps], " | ".join(
        made.lost
    )


LENGTHS = [
    (flow({**LOSS, "duration": "2m"}, {"deadline": "20s"}), 20, "duration (2m): the deadline of its workflow ends it"),
    (flow({**LOSS, "duration": "9s"}, {"deadline": "20s"}), 9, ""),
    (flow(LOSS, {"deadline": "5m"}, deadline="30s"), 30, ""),
    (flow(LOSS, {}, deadline="30s"), 30, ""),
    (
        chaos("Schedule", schedule="@every 9m", type="NetworkChaos", networkChaos={**LOSS, "duration": "9s"}),
        9,
        "@every 9m",
    ),
]


@pytest.mark.parametrize(("documents", "seconds", "lost"), LENGTHS)
def test_deadlines_bound_a_fault_and_a_cron_is_said(documents, seconds, lost):
    steps, said = steps_of(documents)
    assert [step[4] for step in steps] == [seconds]
    assert lost in said


def test_a_template_after_its_parents_deadline_never_begins():
    templates = [
        {"name": "all", "templateType": "Serial", "deadline": "30s", "children": ["first", "second"]},
        {"name": "first", "templateType": "NetworkChaos", "deadline": "30s", "networkChaos": LOSS},
        {"name": "second", "templateType": "NetworkChaos", "deadline": "30s", "networkChaos": LOSS},
    ]
    steps, said = steps_of(chaos("Workflow", entry="all", templates=templates))
    assert len(steps) == 1
    assert "spec.templates.second: it never begins: a parent's deadline ends after 30s" in said


MEANINGS = [
    (
        chaos("NetworkChaos", **LOSS, direction="from", target=OF_SERVERS, device="eth1", duration="9s"),
        (),
        ("network.loss", {"percent": "29.3%", "from": "consul:servers"}),
        "direction from: it loses 50 % one way",
    ),
    (
        chaos("NetworkChaos", **{**LOSS, "loss": {"loss": "100"}}, direction="from", target=OF_SERVERS, duration="9s"),
        (),
        ("network.partition", {"from": "consul:servers", "direction": "in"}),
        "",
    ),
    (
        chaos("NetworkChaos", **SERVERS, **BOTH),
        (),
        ("network.latency", {"port": 8300, "from": "consul:servers", "delay": "18ms"}),
        "for twice as long",
    ),
    (
        chaos("NetworkChaos", **LOSS, duration="9s"),
        ("consul:leader", "consul:clients"),
        ("network.loss", {"percent": "29.3%", "from": "consul:clients"}),
        "--from says consul:clients",
    ),
    (
        chaos("NetworkChaos", **CLIENTS, action="netem", rate={"rate": "1mbps"}, duration="9s"),
        (),
        ("network.bandwidth", {"port": 8300, "direction": "out", "from": "all", "rate": "1MB/s"}),
        "spec.rate",
    ),
    (
        chaos("PodChaos", action="pod-kill", gracePeriod=9, **SERVERS),
        (),
        ("process.restart", {"signal": "TERM"}),
        "spec.gracePeriod (9): ",
    ),
    (
        machine("network-delay", **PM_DELAY, **{"egress-port": "8500"}),
        ON,
        ("network.latency", {"port": 8500, "direction": "out", "from": "all", "delay": "9ms"}),
        "port 8500",
    ),
    (engine("pod-delete", FORCE="false"), (), ("process.restart", {"signal": "TERM"}), "env.FORCE (false)"),
    (engine("container-kill", SIGNAL="SIGINT"), (), ("process.restart", {"signal": "INT"}), ""),
    (engine("disk-fill", FILL_PERCENTAGE="100"), (), ("disk.full", {}), ""),
    (
        engine("pod-network-loss", NETWORK_PACKET_LOSS_PERCENTAGE="75", DESTINATION_HOSTS="x"),
        SIDE,
        ("network.loss", {"percent": "50%", "from": "consul:servers"}),
        "env.DESTINATION_HOSTS (x): --from says",
    ),
]


@pytest.mark.parametrize(("documents", "options", "fault", "lost"), MEANINGS)
def test_what_a_key_means_is_translated_and_what_differs_is_said(documents, options, fault, lost):
    steps, said = steps_of(documents, *options)
    assert {(kind, str(parameters)) for kind, _, parameters, _, _ in steps} == {(fault[0], str(fault[1]))}
    assert lost in said


TIMES = [
    (engine("pod-delete"), [0, 5, 10], 3),
    (engine("container-kill"), [0, 10], 3),
    (engine("pod-delete", TOTAL_CHAOS_DURATION="25", CHAOS_INTERVAL="10"), [0, 10, 20], 3),
    (engine("pod-network-loss", RAMP_TIME="30"), [30], 60),
    ([*ALONE["pod-delete"][:1], *engine("pod-delete", CHAOS_INTERVAL="9")], [4, 13], 3),
]


@pytest.mark.parametrize(("documents", "begins", "lasts"), TIMES)
def test_an_engine_has_the_times_of_its_chart_of_a_chaos_experiment_and_of_its_ramp(documents, begins, lasts):
    steps, _ = steps_of(documents)
    assert [step[3] for step in steps] == begins
    assert {step[4] for step in steps} == {lasts}


def paused():
    documents = chaos("PodChaos", action="pod-kill", **SERVERS)
    documents[0]["metadata"]["annotations"] = {"experiment.chaos-mesh.org/pause": "true"}
    return documents


DEFAULTS = ALONE["pod-delete"][:1]
OTHERWISE = [
    {
        **DEFAULTS[0],
        "spec": {"definition": {"env": [{"name": "FORCE", "value": "true"}, {"name": "FORCE", "value": "false"}]}},
    }
]
PARTITION = {"action": "partition", "duration": "9s", **SERVERS}
OTHER_FAULTS = [
    (
        chaos("PodChaos", action="container-kill", containerNames=["envoy"], **SERVERS),
        (),
        "spec.containerNames: 'envoy' is",
    ),
    (
        chaos("PodChaos", action="container-kill", containerNames=["consul", "envoy"], **SERVERS),
        ON,
        "spec.containerNames: 'e",
    ),
    (
        chaos("IOChaos", action="fault", errno=5, containerNames=["envoy"], duration="9s", **SERVERS),
        ON,
        "containerNames",
    ),
    (
        chaos("IOChaos", action="fault", errno=5, volumePath="/var/log", duration="9s", **SERVERS),
        (),
        "spec.volumePath: ",
    ),
    (chaos("IOChaos", action="fault", errno=5, methods=["FLUSH"], duration="9s", **SERVERS), (), "spec.methods: "),
    (chaos("NetworkChaos", **PARTITION, target={**OF_SERVERS, "mode": "one"}), (), "spec.target.mode: 'one'"),
    (chaos("NetworkChaos", **LOSS, direction="from", duration="9s"), (), "spec.direction: from needs a target"),
    (chaos("NetworkChaos", **LOSS, delay={"latency": "1s"}, duration="9s"), (), "spec.delay: hashidrill does not read"),
    (chaos("NetworkChaos", **{**LOSS, "mode": "fixed-percent", "value": "50"}, duration="9s"), (), "spec.mode: "),
    (
        chaos("Schedule", schedule="@daily", type="PodChaos", physicalMachineChaos={}),
        (),
        "spec.podChaos: it is missing",
    ),
    (flow(LOSS, {"deadline": "9s", "schedule": {}}), (), "spec.templates.it.schedule: hashidrill does not read"),
    (chaos("Workflow", entry="a", templates=[{"name": "a"}, {"name": "a"}]), (), "is the name of two templates"),
    (paused(), (), "metadata.annotations.experiment.chaos-mesh.org/pause: it is paused"),
    (machine("process", process="envoy", signal=9), ON, "spec.process.process: 'envoy' is not consul"),
    (machine("network-loss", percent="9", **{"egress-port": "8300"}), ON, "spec.network-loss.egress-port: "),
    (machine("network-delay", **PM_DELAY, **{"source-port": "80,443"}), ON, "spec.network-delay.source-port: "),
    (machine("network-delay", **PM_DELAY, **{"ip-protocol": "udp"}), ON, "spec.network-delay.ip-protocol: 'udp'"),
    (machine("network-delay", **PM_DELAY, **{"ip-address": "10.0.0.2"}), ON, "this address; use --from"),
    (machine("network-delay", **PM_DELAY, **{"accept-tcp-flags": "SYN"}), ON, "accept-tcp-flags: 'SYN'"),
    (
        machine("network-partition", direction="to", **{"ip-protocol": "tcp"}),
        ON,
        "spec.network-partition.ip-protocol: ",
    ),
    (
        machine("network-partition", device="e"),
        ON,
        "spec.network-partition.direction: '' cannot be translated",
    ),
    (engine("pod-network-loss", DESTINATION_IPS="10.0.0.9"), (), "env.DESTINATION_IPS: '10.0.0.9'"),
    (engine("pod-network-partition"), (), "it reads appinfo only if that has one label, which names no role"),
    (engine("pod-network-partition", POLICY_TYPES="ingress"), ON, "env.POLICY_TYPES: 'ingress'"),
    (engine("pod-network-partition", PORTS="8300"), ON, "env.PORTS: '8300'"),
    (engine("pod-network-partition", POD_SELECTOR="app=x"), ON, "POD_SELECTOR: 'app=x': its NetworkPolicy spares"),
    (engine("container-kill", SIGNAL="SIGSTOP"), (), "env.SIGNAL: 'SIGSTOP'"),
    (engine("container-kill", TARGET_CONTAINER="envoy"), (), "env.TARGET_CONTAINER: 'envoy' is not consul"),
    (engine("pod-delete", SIGNAL="SIGTERM"), (), "env.SIGNAL: hashidrill does not read this here"),
    (engine("pod-delete", PODS_AFFECTED_PERC="50"), (), "env.PODS_AFFECTED_PERC: "),
    (engine("pod-delete", PODS_AFFECTED_PERC="100", SEQUENCE="serial"), (), "env.SEQUENCE: "),
    (engine("pod-delete", TARGET_PODS="consul-0"), (), "env.TARGET_PODS: 'consul-0'"),
    (engine("pod-delete", RANDOMNESS="true"), (), "env.RANDOMNESS: "),
    (engine("pod-delete", spec={"appinfo": {"applabel": "app!=consul"}}), (), "spec.appinfo.applabel: 'app!=consul'"),
    (engine("pod-delete", spec={"selectors": {"pods": [{"names": "a"}]}}), (), "spec.selectors.pods: "),
    (engine("pod-cpu-hog"), (), "like pod-cpu-hog; cpu.throttle is the nearest; .*litmus.pod_cpu_hog runs it"),
    (engine("pod-dns-error"), (), "litmus.experiment runs it"),
    (engine("pod-autoscaler"), (), "it hits every workload with the engine's label, but a fault hits one agent"),
    (engine("node-taint"), (), "it hits a node and everything on it"),
    (engine("spring-boot-latency"), (), "no agent of Consul, Nomad or Vault runs in a JVM"),
    (engine("ec2-stop-by-id"), (), "it stops machines or volumes of a cloud provider"),
    (engine("k6-loadgen"), (), "hashidrill has no fault like k6-loadgen"),
    (chaos("HTTPChaos", patch={}, replace={"code": 404}, **SERVERS), (), "like HTTPChaos; .* chaos_mesh.resource"),
    (chaos("HTTPChaos", abort=True, **SERVERS), (), "like HTTPChaos; .* chaos_mesh.http.abort and"),
    (chaos("PodChaos", action="container-kill", **SERVERS), ON, "spec.containerNames: it is missing"),
    (DEFAULTS, (), "ChaosExperiment .*: it has defaults; put the ChaosEngine that names it into the same file"),
    ([{"apiVersion": "argoproj.io/v1alpha1", "kind": "CronWorkflow"}], (), "import each ChaosEngine of its templates"),
    ([*OTHERWISE, *engine("pod-delete")], (), "definition.env[1].name: 'FORCE' appears twice, with two values"),
    (
        chaos(
            "PodChaos",
            action="pod-failure",
            mode="all",
            duration="9s",
            selector={"labelSelectors": {**SERVER, "apps.kubernetes.io/pod-index": "0"}},
        ),
        (),
        "pod-index: no selector",
    ),
    (
        chaos(
            "PodChaos", action="pod-kill", mode="all", selector={"labelSelectors": {**VAULT, "vault-active": "maybe"}}
        ),
        (),
        "vault-active=maybe does not name an agent",
    ),
    (chaos("PodChaos", action="pod-kill", **SERVERS), SIDE, "--from 'consul:servers': none of its faults has"),
    ([{"apiVersion": "v1", "kind": "List", "items": []}], (), "it has no objects"),
    (chaos("NetworkChaos", **SERVERS, duration="9s"), (), "spec.action: it is missing"),
    (
        [{**engine("pod-delete")[0], "kind": "ChaosSchedule"}, *engine("pod-delete")],
        (),
        "a ChaosSchedule repeats a ChaosE",
    ),
    ([{**engine("pod-delete")[0], "apiVersion": "litmuschaos.io/v2"}], (), "apiVersion: 'v2': only v1alpha1"),
]


@pytest.mark.parametrize(("documents", "options", "why"), OTHER_FAULTS)
def test_what_would_become_another_fault_is_refused_by_its_place(documents, options, why):
    with pytest.raises(UnsupportedError, match=why.replace("[", r"\[").replace("(", r"\(")):
        of_documents("theirs.yaml", documents, *options)


def test_a_file_of_several_objects_begins_all_at_once_and_says_what_breaks_nothing():
    other = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x"}}
    machines = chaos("PhysicalMachine", address="http://x")
    steps, said = steps_of([*ALONE["pod-kill"], other, *ALONE["vault"], *machines])
    assert [(step[0], step[1], step[3]) for step in steps] == [
        ("process.restart", FOLLOWER, 0),
        ("process.kill", "vault:standbys", 0),
    ]
    assert "documents[1]: kind: ServiceAccount of v1 is not an experiment" in said
    assert "documents[3]: kind: PhysicalMachine of chaos-mesh.org" in said
