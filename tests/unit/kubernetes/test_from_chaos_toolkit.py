"""An experiment of Chaos Toolkit becomes ours, and what has no equal is a place that has to be filled in."""

import json
import re

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import load_document
from hashidrill.faces.cli.app import app
from hashidrill.kubernetes.interchange import to_chaos_toolkit
from hashidrill.kubernetes.interchange.document import UnsupportedError
from hashidrill.kubernetes.interchange.reading import imported
from places import ROOT

PAGE = {"type": "http", "url": "http://client-1:8500/v1/status/leader", "timeout": 2}
KILL = {"type": "process", "path": "systemctl", "arguments": "stop consul"}


def probe(provider, tolerance=200, name="page", **more):
    return {"type": "probe", "name": name, "tolerance": tolerance, "provider": provider, **more}


def action(provider=KILL, name="stop", **more):
    return {"type": "action", "name": name, "provider": provider, **more}


def process(line, **more):
    path, _, arguments = line.partition(" ")
    return {"type": "process", "path": path, "arguments": arguments, **more}


def python(whole, **arguments):
    module, _, func = whole.rpartition(".")
    return {"type": "python", "module": module, "func": func, "arguments": arguments}


def theirs(*method, asks=(), **more):
    data = {"title": "A server stops", "description": "Do users notice?", "method": list(method), **more}
    if asks:
        data["steady-state-hypothesis"] = {"title": "All is well", "probes": list(asks)}
    return data


def made(data, on="consul:leader"):
    return imported("theirs.json", json.dumps(data, indent=1), on)


def loaded(data, on="consul:leader"):
    """The experiment as `validate` reads it."""
    return load_document(Document("ours", made(data, on).text))


def steps(*method, on="consul:leader", **more):
    found = loaded(theirs(*method, **more), on)
    return [(step.fault, step.on, step.with_, float(step.at), float(step.for_)) for step in found.method]


TERM, LEADER = {"signal": "TERM"}, "consul:leader"
SECRETS = {"shop": {"token": {"type": "env", "key": "TOKEN"}}}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ([action(pauses={"after": 30})], [("process.kill", LEADER, TERM, 0, 30)]),
        ([action(pauses={"before": 5})], [("process.kill", LEADER, TERM, 5, 10)]),
        (
            [action(), action(process("sleep 20"), "wait"), action(process("sudo systemctl start consul"), "start")],
            [("process.kill", LEADER, TERM, 0, 20)],
        ),
        ([action(process("/bin/systemctl restart consul"))], [("process.restart", LEADER, TERM, 0, 3)]),
        ([action(process("pkill -9 consul"))], [("process.kill", LEADER, {"signal": "KILL"}, 0, 10)]),
        ([action(process("docker pause consul-1"))], [("process.pause", LEADER, {}, 0, 10)]),
        (
            [action(python("chaosk8s.pod.actions.terminate_pods", label_selector="app=shop", qty=2))],
            [("process.restart", LEADER, TERM, 0, 3)],
        ),
        (
            [action(python("chaosk8s.networking.actions.deny_all_ingress"), pauses={"after": 12})],
            [("network.partition", LEADER, {"from": "all", "direction": "in"}, 0, 12)],
        ),
        (
            [
                action(python("time.sleep", secs=4), "wait"),
                action({"type": "process", "path": "pkill", "arguments": ["consul"]}),
            ],
            [("process.kill", LEADER, TERM, 4, 10)],
        ),
        (
            [action(process("docker restart vault"), pauses={"after": 9}), {"ref": "stop"}],
            [("process.restart", LEADER, TERM, 0, 3), ("process.restart", LEADER, TERM, 9, 3)],
        ),
        ([action(), action(process("vegeta attack"), "load")], [("process.kill", LEADER, TERM, 0, 10)]),
    ],
)
def test_actions_become_faults_at_their_times(method, expected):
    assert steps(*method) == expected


def test_an_operators_command_says_itself_whom_it_hits():
    assert steps(action(process("vault operator step-down")), on="")[0][:2] == ("vault.step_down", "vault:active")
    assert steps(action(process("consul operator raft transfer-leader")), on="")[0][1] == "consul:leader"


JSON_BODY = {"type": "jsonpath", "path": "$.items[0].state", "target": "body", "expect": ["up"]}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("asked", "spec"),
    [
        (probe(PAGE), {"kind": "http", "url": PAGE["url"], "redirects": 5, "status": [200], "timeout": "2s"}),
        (probe({**PAGE, "timeout": [1, 3]}, [200, 503]), {"status": [200, 503], "timeout": "4s"}),
        (probe(PAGE, {"type": "regex", "target": "body", "pattern": "^ok"}), {"regex": "^ok"}),
        (probe(PAGE, JSON_BODY), {"json": "items.0.state", "equals": "up"}),
        (probe(PAGE, {"type": "jsonpath", "path": "$.body.n", "expect": 3}), {"json": "n", "equals": "3"}),
        (probe(PAGE, {"type": "jsonpath", "path": "$['a-b']", "target": "body"}), {"json": "a-b"}),
        (probe({**PAGE, "arguments": {"q": "a b"}}), {"url": PAGE["url"] + "?q=a+b"}),
        (
            probe({**PAGE, "method": "POST", "headers": JSON, "arguments": {"a": 1}}),
            {"method": "POST", "body": '{"a": 1}', "headers": JSON},
        ),
        (probe({**PAGE, "verify_tls": False}), {"tls": {"verify": False}}),
        (
            probe({**PAGE, "headers": {"Authorization": "Bearer ${token}"}}),
            {"headers": {"Authorization": {"env": "TOKEN", "prefix": "Bearer "}}},
        ),
        (probe(process("true -x", timeout=3), 0), {"command": ["sh", "-c", "true -x"], "timeout": "3s"}),
        (
            probe({"type": "process", "path": "true", "arguments": {"-n": 1}}, [2]),
            {"kind": "command", "command": ["true", "-n", "1"], "exit_code": 2},
        ),
    ],
)
def test_a_probe_of_the_hypothesis_has_to_hold_before_and_again_by_the_end(asked, spec):
    data = theirs(action(pauses={"after": 25}), asks=[asked], secrets=SECRETS)
    written = YAML(typ="safe").load(made(data).text)["probes"]["page"]
    assert {key: written[key] for key in spec} == spec
    found = loaded(data)
    assert [str(one) for one in found.steady_state.require][2:] == ["page.ok == 1"]
    assert found.expect[2].params == {"condition": "page.ok == 1", "within": "25s", "since": "start"}


def test_a_hypothesis_that_is_asked_all_the_time_has_to_hold_all_the_time():
    runtime = {"hypothesis": {"strategy": "continuously"}}
    found = loaded(theirs(action(), asks=[probe(PAGE)], runtime=runtime))
    assert found.expect[2].params == {"condition": "page.ok == 1", "during": "run"}


NO_EQUAL = [
    (probe(python("chaosk8s.pod.probes.pods_in_phase"), True), r"chaosk8s\.pod\.probes\.pods_in_phase: .* no cluster"),
    (probe(python("chaosprometheus.probes.query"), True), r"write a `prometheus` probe"),
    (probe(python("chaosaws.ec2.probes.count"), 1), r"cloud provider"),
    (probe(PAGE, True), r"never meets the tolerance True"),
    (probe(PAGE, "200"), r"never meets the tolerance '200'"),
    (probe(PAGE, []), r"never meets the tolerance \[\]"),
    (probe(PAGE, {"type": "jsonpath", "path": "$.a[?(@.b>1)]", "target": "body"}), r"one value in the body"),
    (probe(PAGE, {"type": "jsonpath", "path": "$.error", "target": "body", "count": 0}), r"one value in the body"),
    (probe(PAGE, {"type": "jsonpath", "path": "$.status", "expect": 200}), r"one value in the body"),
    (probe(PAGE, {"type": "jsonpath", "path": "$.a", "target": "headers"}), r"one value in the body"),
    (probe(PAGE, {"type": "probe", "name": "x"}), r"no http probe can express"),
    (probe(PAGE, {"type": "range", "target": "status", "range": [200, 299]}), r"no http probe can express"),
    (probe(PAGE, {"type": "regex", "pattern": "ok"}), r"no http probe can express"),
    (probe({**PAGE, "method": "DELETE"}), r"cannot send DELETE"),
    (probe({**PAGE, "method": "POST", "arguments": {"a": 1}}), r"its arguments are not JSON"),
    (probe({**PAGE, "url": "http://a/?t=${token}"}), r"it holds the secret token"),
    (probe(process("echo up"), {"type": "regex", "target": "stdout", "pattern": "up"}), r"expects an exit code, not"),
    (probe(process("true"), [0, 1]), r"expects an exit code, not \[0, 1\]"),
    (probe(process("true"), True), r"expects an exit code, not True"),
]


@pytest.mark.lie
@pytest.mark.parametrize(("asked", "why"), NO_EQUAL)
def test_a_probe_without_an_equal_does_not_just_fall_away(asked, why):
    """A hypothesis that judges less would pass where theirs fails: the place is there, and `validate` refuses it."""
    found = made(theirs(action(), asks=[asked], secrets=SECRETS))
    [text] = found.to_fill
    assert text.startswith("steady-state-hypothesis.probes.page: ")
    assert f"# FILL IN: {text}" in found.text
    with pytest.raises(ExperimentError, match=r"probes\.page\.kind: there is no probe 'fill-in'"):
        load_document(Document("ours", found.text))
    assert load_document(Document("ours", found.filled)).expect[2].params["condition"] == "page.ok == 1"
    assert re.search(why, text)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("method", "why"),
    [
        ([action(process("vegeta attack"))], r"method: no action in it breaks anything"),
        ([action(python("load.single"))], r"method: no action in it breaks anything"),
        ([], r"method: no action in it breaks anything"),
        ([action(process("systemctl start consul"))], r"method: no action in it breaks anything"),
        ([action(process("systemctl stop shop"))], r"method\.stop: systemctl stop shop: name the fault"),
        (
            [action(process("tc qdisc add dev eth0 root netem delay 1s"))],
            r"method\.stop: tc qdisc add .*name the fault",
        ),
        ([action(python("os.rename", src="a"))], r"method\.stop: os\.rename: hashidrill calls no function"),
        ([action(python("chaosk8s.node.actions.drain_nodes"))], r"drain_nodes: hashidrill calls no cluster"),
        ([action(python("chaosaws.ec2.actions.stop_instance"))], r"stop_instance: it stops machines"),
        ([action(PAGE)], r"method\.stop: GET http://client-1:8500/v1/status/leader: name the fault"),
    ],
)
def test_an_experiment_that_breaks_nothing_does_not_pass(method, why):
    found = made(theirs(*method, asks=[probe(PAGE)]), on="")
    [text] = found.to_fill
    assert re.search(why, text)
    with pytest.raises(ExperimentError, match=r"method\[0\]\.fault: there is no fault 'fill-in'"):
        load_document(Document("ours", found.text))
    assert load_document(Document("ours", found.filled)).method


SHOP = {"shop": {"type": "env", "key": "HASHIDRILL_TEST_SHOP"}}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"method": []}, r"title: it is missing"),
        ({"title": "t", "method": []}, r"description: it is missing"),
        ({**theirs(), "method": None}, r"method: it is missing"),
        ({**theirs(), "method": "stop"}, r"4: method: expected a list"),
        (theirs("stop"), r"method\[0\]: expected keys and values"),
        (theirs(action(name="")), r"method\[0\]\.name: it is missing"),
        (theirs({**action(), "type": "acton"}), r"6: method\.stop\.type: 'acton' cannot be translated"),
        (theirs(action({"type": "rpc"})), r"method\.stop\.provider\.type: 'rpc' cannot"),
        (theirs(action({"type": "process"})), r"method\.stop\.provider\.path: it is missing"),
        (theirs(action(process("sh 'open"))), r"is not a command line: No closing quotation"),
        (theirs(action({**KILL, "arguments": 5})), r"provider\.arguments: expected text, a list"),
        (theirs(action(pauses={"after": "long"})), r"pauses\.after: 'long' is not a number of seconds"),
        (theirs(action(pauses={"after": 10**400})), r"pauses\.after: .* is not a number of seconds"),
        (theirs(action(pauses={"after": -1})), r"pauses\.after: -1 is not a number of seconds"),
        (theirs({"ref": "other"}), r"method\[0\]\.ref: there is no activity 'other'"),
        (theirs(asks=[{"type": "probe", "name": "p", "provider": PAGE}]), r"probes\.p\.tolerance: it is missing"),
        (theirs(asks=[{"ref": "q", "tolerance": 200}]), r"probes\[0\]\.ref: 'q' is not a probe with this tolerance"),
        (theirs(asks=[probe({**PAGE, "timeout": "x"})]), r"timeout: 'x' is not a number of seconds"),
        (theirs(asks=[probe({**PAGE, "url": "${shop}/"})]), r"url: neither configuration nor .* has \$\{shop\}"),
        (
            theirs(asks=[probe({**PAGE, "url": "${shop}/"})], configuration=SHOP),
            r"\d+: configuration\.shop: the variable HASHIDRILL_TEST_SHOP is not set",
        ),
        (
            theirs(asks=[probe({**PAGE, "url": "${shop}/"})], configuration={"shop": {"type": "probe"}}),
            r"configuration\.shop: only a value or an environment variable",
        ),
        (
            theirs(asks=[probe({**PAGE, "headers": {"A": "${t}"}})], secrets={"g": {"t": {"type": "vault"}}}),
            r"secrets\.g\.t: a secret must be in a variable",
        ),
        (
            theirs(asks=[probe({**PAGE, "headers": {"A": "${t}"}})], secrets={"t": "hunter2"}),
            r"secrets\.t: a secret must be in a variable",
        ),
        (theirs(action(process("hashidrill run a")), action()), r"method: it runs hashidrill and has"),
        (theirs(action(process("hashidrill gate a b"))), r"arguments: only `run EXPERIMENT` can be read"),
        (theirs(*[action()] * 21), r"it has more than 20 steps"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(data, why):
    with pytest.raises(UnsupportedError, match=rf"^theirs\.json:(\d+:)? ?.*{why}") as refused:
        made(data)
    assert "hunter2" not in str(refused.value)


def test_whom_an_action_hits_has_to_be_said():
    with pytest.raises(UnsupportedError, match=r"\d+: method\.stop: process\.kill does the same; name the target with"):
        made(theirs(action()), on="")


def test_values_are_those_of_this_moment_and_said_to_be(monkeypatch):
    monkeypatch.setenv("HASHIDRILL_TEST_SHOP", "http://client-1:8500")
    configuration = {**SHOP, "unused": {"type": "env", "key": "NOT_SET"}, "wait": 7}
    asked = probe({**PAGE, "url": "${shop}/v1"})
    found = made(theirs(action(pauses={"after": "${wait}"}), asks=[asked], configuration=configuration))
    assert "url: http://client-1:8500/v1" in found.text
    assert (
        "configuration.shop: here the value of HASHIDRILL_TEST_SHOP at this import, 'http://client-1:8500'"
        in found.lost
    )


def test_all_that_falls_away_is_named():
    data = theirs(
        action(pauses={"after": 5}, background=True, controls=[]),
        probe(python("chaosk8s.pod.probes.read_pod_logs"), name="logs"),
        probe(PAGE, name="again"),
        asks=[probe({"type": "http", "url": PAGE["url"], "max_retries": 3}), {"ref": "page", "tolerance": 200}],
        tags=["Tag One", "imported"],
        version="1.0.0",
        contributions={"safety": "high"},
        extensions=[{"name": "x"}],
        controls=[{"name": "slack", "provider": python("chaosslack.control.x")}],
        rollbacks=[action(process("systemctl start consul"), "start")],
        dry="x",
    )
    found = made(data)
    said = " | ".join(found.lost)
    for part in (
        "method.stop.background (True): here no step waits",
        "method.logs: chaosk8s.pod.probes.read_pod_logs: ",
        "its answer decided nothing",
        "probes.page.timeout: it waits as long as it takes; here 10s",
        "probes.page.provider.max_retries (3): each measurement is one request",
        "probes[1]: it repeats page",
        "contributions: it weighs",
        "extensions: hashidrill reads no extensions",
        "controls.slack: hashidrill has no controls",
        "rollbacks.start: hashidrill reverts every fault by itself",
        "dry (x): hashidrill reads no such key here",
        "method.stop: nothing there says how long it lasts; here 10s",
    ):
        assert part in said
    ours = YAML(typ="safe").load(found.text)
    assert ours["metadata"]["tags"] == ["imported", "tag-one"]
    assert list(ours["probes"]) == ["page", "again"]
    assert not found.to_fill


def test_names_of_loads_and_products_are_left_to_them():
    asks = [probe(PAGE, name=name) for name in ("consul", "kv-writes", "A page!", "a page", "8 pages")]
    written = YAML(typ="safe").load(made(theirs(action(), asks=asks)).text)["probes"]
    assert list(written) == ["consul-2", "kv-writes-2", "a-page", "a-page-2", "imported-8-pages"]


def test_json_may_be_indented_with_tabs_and_yaml_reads_too():
    data = theirs(action(), asks=[probe(PAGE)])
    tabs = imported("t.json", json.dumps(data, indent="\t"), LEADER)
    assert tabs.text == made(data).text
    assert imported("t.yaml", "title: a\ndescription: b\nmethod: []\n").to_fill
    with pytest.raises(UsageError, match=r"t\.json: not YAML or JSON: .*line 1"):
        imported("t.json", '{"title": "a", "method": [}')


# round trip, and the commands

OURS = "raft/slow-leader-disk"


def called(*words, **more):
    return CliRunner().invoke(app, ["convert", *words], **more)


def test_an_experiment_that_is_exported_comes_back_as_it_was(tmp_path):
    exported = called("export", "chaos-toolkit", OURS, "--json")
    assert "needed: hashidrill in the Python environment of Chaos Toolkit" in exported.stderr
    (tmp_path / "theirs.json").write_text(exported.stdout)
    back = called("import", str(tmp_path / "theirs.json"))
    assert back.stdout == (ROOT / f"experiments/{OURS}.yaml").read_text()
    note = f"needed: ../bases/three-servers.yaml, the file that it extends, next to {ROOT}/experiments/{OURS}.yaml\n"
    assert back.stderr == note
    by_hand = theirs(action({"type": "process", "path": "/opt/hashidrill", "arguments": ["run", "--no-faults", OURS]}))
    again = called("import", "-", input=json.dumps(by_hand))
    assert again.stdout == back.stdout
    assert again.stderr == f"{note}lost: method.stop.provider.arguments: an experiment has no --no-faults\n"
    nowhere = called("import", "-", input=json.dumps(theirs(action(process("hashidrill run raft/slow-leder")))))
    assert re.search(r"standard input: it runs raft/slow-leder:\n.*slow-leader", str(nowhere.exception))


def test_what_is_exported_ends_with_success_for_a_pass_alone():
    metadata = loaded(theirs(action())).metadata
    found = to_chaos_toolkit.experiment(metadata, "mine.yaml")
    [verdict], [run] = found["steady-state-hypothesis"]["probes"], found["method"]
    assert verdict["tolerance"] == "PASS"
    assert found["runtime"]["hypothesis"]["strategy"] == "after-method-only"
    assert {one["provider"]["module"] for one in (verdict, run, *found["controls"])} == {
        "hashidrill.faces.chaos_toolkit"
    }
    assert verdict["provider"]["arguments"] == run["provider"]["arguments"] == {"experiment": "mine.yaml"}


def test_the_command_says_what_is_lost_and_what_to_fill_in(tmp_path):
    data = theirs(action(process("tc qdisc add")), asks=[probe(PAGE)])
    there = tmp_path / "ours.yaml"
    said = called("import", "-", "-o", str(there), input=json.dumps(data))
    assert said.exit_code == 0
    assert "to fill in: method.stop: tc qdisc add: name the fault that does this" in said.stderr
    checked = CliRunner().invoke(app, ["validate", str(there)])
    assert "there is no fault 'fill-in'" in checked.output + checked.stderr
    assert json.loads(called("import", "-", "--json", input=json.dumps(data)).stdout)["method"][0]["fault"] == "fill-in"


def test_what_no_probe_can_be_is_told():
    data = theirs(action(), asks=[probe({**PAGE, "url": "ftp://x/"})])
    error = called("import", "-", "--on", LEADER, input=json.dumps(data)).exception
    assert isinstance(error, UsageError)
    assert "the result is not a valid experiment" in str(error)
    assert "'ftp://x/' is not a URL" in str(error)
