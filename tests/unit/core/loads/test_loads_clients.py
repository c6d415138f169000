"""Clients: what YAML may say of them, what a service reports, and when a run with them counts."""

import asyncio
import json
import textwrap

import pytest

from hashidrill.core.engine.monitor import Monitor
from hashidrill.core.engine.requirements import required_by
from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.core.experiment.conditions import Condition
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.loader import load_experiment, load_text, resolve
from hashidrill.core.experiment.model import ClientSpec
from hashidrill.core.judging.judge import judge
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.clients import ENDED, ClientLoad, Faults, check_commands, reported, to_operation
from hashidrill.core.protocols.abc import Operation, Reason
from hashidrill.core.tap.attempts import Attempt
from hashidrill.core.tap.plans import Moment
from hashidrill.lab.runs.launch import run_experiment
from hashidrill.testing.recordings import RecordingBuilder

GOOD = textwrap.dedent("""\
    apiVersion: hashidrill/v1
    kind: Experiment
    metadata: {name: two-clients, title: Two clients, why: To see what clients do}
    datacenter:
      consul: {servers: 3, clients: 1}
    clients:
      careful: {command: [curl, --retry, "3", "{url}/v1/kv/x"], rate: 4/s, on: "host:client-1"}
      hasty: {command: [daemon, "{url}"], service: true, via: script}
    steady_state:
      for: 5s
      require: ["careful.errors < 1%", "hasty.attempts.rate > 1/s"]
    method:
      - {fault: tap.fail, on: "client:careful", with: {fault: "503", percent: 30%}, for: 20s}
    expect:
      - available_during: {load: careful}
      - present: {client: careful, fault: "503"}
      - contrast: {of: amplification, good: careful, bad: {client: hasty}, params: {fault: tap.fail}}
    """)


def refused(*changes):
    text = GOOD
    for old, new in changes:
        assert old in text, f"{old!r} is not in the example"
        text = text.replace(old, new, 1)
    with pytest.raises(ExperimentError) as error:
        load_text(text, "x.yaml")
    return " ".join(str(error.value).split())


def test_an_experiment_needs_no_load_where_it_has_clients():
    experiment = load_text(GOOD, "x.yaml")
    assert (experiment.load, list(experiment.traffic)) == ({}, ["careful", "hasty"])
    assert experiment.measured == ["careful", "hasty", "careful.attempts", "hasty.attempts"]
    assert experiment.clients["careful"].agents == "consul:clients"
    assert experiment.clients["hasty"].agents is None
    assert required_by(experiment).disk_operations == {"fsync"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # what is measured
        (GOOD[GOOD.index("clients:\n  c") : GOOD.index("steady")], "", "add `load:` or `clients:`"),
        (
            "clients:\n  c",
            "load: {careful: {kind: consul.kv.write, rate: 5/s}}\nclients:\n  c",
            "careful is the name of a load",
        ),
        ("  careful:", "  raft:", "raft is the name of a probe's signals"),
        # a client
        ("rate: 4/s", "rate: 4/s, service: true", "either a rate (`rate: 4/s`: each run is an operation) or `service"),
        ("rate: 4/s, ", "", "give a client either a rate"),
        ("rate: 4/s", "rate: 400/s", "at most 100/s (each run is a process), not 400/s"),
        ("service: true", "service: true, timeout: 3s", "timeout: only a client with a rate"),
        ("service: true", "service: true, timeout: 3s, at_once: 2", "timeout and at_once: only a client with"),
        ("rate: 4/s", "rate: 4/s, timeout: 0s", "the timeout must be longer than 0s"),
        ("rate: 4/s", "rate: 4/s, at_once: 0", "clients.careful.at_once: expected at least 1, got 0"),
        ("command: [daemon", "comand: [daemon", "unknown key 'comand': did you mean command?"),
        ('[curl, --retry, "3", "{url}/v1/kv/x"]', "[]", "clients.careful.command: expected at least 1 entry"),
        ('[curl, --retry, "3", "{url}/v1/kv/x"]', "curl", "clients.careful.command: expected a list"),
        ("host:client-1", "host:client-2", "there is no host 'client-2'"),
        ("host:client-1", "consul:clients", "clients.careful.on: expected text that matches"),
        ("via: script", 'via: "consul:cleints"', "'consul:cleints' is not a selector: did you mean consul:clients"),
        ("via: script", 'via: "client:careful"', "'client:careful' is a client's tap, not a host"),
        ("via: script", "via: scrip", "'scrip' is not a selector"),
        # conditions
        ("careful.errors", "carefull.errors", "there is no load or probe 'carefull': did you mean careful?"),
        ("careful.errors <", "careful.errrors <", "a client has no 'errrors': did you mean errors"),
        ("attempts.rate > 1/s", "attempts.rates > 1/s", "a client has no 'attempts.rates': did you mean attempts.rate"),
        # what is put on a tap, and where
        ("client:careful", "client:carefull", "there is no client 'carefull': did you mean client:careful?"),
        ("client:careful", "consul:clients", "tap.fail targets a client (client:NAME), not 'consul:clients'"),
        (
            'tap.fail, on: "client:careful", with: {fault: "503", percent: 30%}',
            'noop, on: "client:careful"',
            "'client:careful' is a client's tap, which accepts only tap.fail; noop targets a host",
        ),
        ("percent: 30%", "percent: 0%", "0% of the attempts means no fault"),
        ('{fault: "503", p', "{fault: refused, p", "use network.block with action: reject on the agents instead"),
        ('{fault: "503", p', "{fault: dns, p", "dns: a tap sees only connections"),
        ('{fault: "503", p', '{fault: "504-retry-after", p', "the tap has no fault '504-retry-after'"),
        # expectations
        ("{client: careful, f", "{client: carefull, f", "there is no client 'carefull': did you mean careful?"),
        ('fault: "503"}\n  - con', "fault: tap.fial}\n  - con", "no step of the method with the fault 'tap.fial'"),
        ("of: amplification", "of: amplificaton", "expect[2].contrast.of: there is no hypothesis 'amplificaton'"),
        ("bad: {client: hasty}", "bad: {client: hasti}", "expect[2].contrast.bad.client: there is no client 'hasti'"),
        ("bad: {client: hasty}", "bad: {customer: hasty}", "unknown key 'customer'"),
        ("good: careful", "good: carefull", "expect[2].contrast.good.client: there is no client 'carefull'"),
        ("params: {fault: tap.fail}", "params: {fault: noop}", "there is no step of the method with the fault 'noop'"),
        ("params: {fault: tap.fail}", "params: {at_most: many}", "good.at_most: expected a number, got 'many'"),
    ],
)
def test_a_mistake_says_where_it_is_and_what_would_be_right(old, new, said):
    assert said in refused((old, new))


def test_two_faults_of_one_tap_do_not_run_at_one_time():
    step = GOOD[GOOD.index("  - {fault: tap") : GOOD.index("expect:")]
    assert "may be on the same host" in refused((step, step + step))
    load_text(GOOD.replace(step, step + step.replace("client:careful", "client:hasty")), "x.yaml")


def test_a_profile_of_a_client_ends_before_the_clients_do():
    long = ("rate: 4/s", "rate: 4/s, profile: {spike: {to: 200%, for: 90s}}")
    said = refused(long, ("expect:", "recovery: {for: 20s}\nexpect:"))
    assert "the profile takes 90s, but the loads stop 40s after the method began" in said


@pytest.mark.parametrize(
    "given", [{"service": True}, {"rate": "3/s", "profile": {"ramp": {"to": "200%", "over": "5s"}}, "via": "script"}]
)
def test_what_the_load_process_is_told_of_a_client_reads_back(given):
    """It gets every field, those that were not written too."""
    spec = ClientSpec.model_validate({"command": ["x"], **given})
    assert ClientSpec.model_validate(json.loads(json.dumps(spec.model_dump(mode="json", by_alias=True)))) == spec


# faults


def arm(faults, fault_id, fault, share=1.0, seed=0):
    faults.answer({"op": "fail", "id": fault_id, "fault": fault, "share": share, "seed": seed})


def test_what_is_switched_on_first_is_given_first_until_it_is_switched_off():
    faults, moment = Faults(), Moment(0)
    assert faults.decide(moment) == ""
    arm(faults, "one", "503")
    arm(faults, "two", "429")
    assert (faults.decide(moment), faults.faults) == ("503", ["503", "429"])
    faults.answer({"op": "pass", "id": "one"})
    assert faults.decide(moment) == "429"
    faults.answer({"op": "pass", "id": "two"})
    faults.answer({"op": "pass", "id": "two"})
    assert (faults.decide(moment), faults.faults) == ("", [])


def test_one_that_does_not_fit_the_attempt_leaves_it_to_the_next():
    faults = Faults()
    arm(faults, "one", "reset-after-reused")
    arm(faults, "two", "503")
    assert [faults.decide(Moment(0, reused=reused)) for reused in (False, True)] == ["503", "reset-after-reused"]


@pytest.mark.parametrize(("op", "fault"), [("fail", "refused"), ("fail", "whatever"), ("explode", "503")])
def test_what_a_tap_cannot_do_is_refused_and_changes_nothing(op, fault):
    faults = Faults()
    with pytest.raises(UsageError):
        faults.answer({"op": op, "id": "one", "fault": fault, "share": 0.5, "seed": 0})
    assert (faults.decide(Moment(0)), list(faults.faults)) == ("", [])


# commands


@pytest.mark.parametrize("command", ["no-such-command-here", "/no/such/file", "{pyhton}"])
def test_a_command_that_does_not_exist_is_said_before_anything_is_offered(command):
    client = ClientLoad("careful", ClientSpec.model_validate({"command": [command], "rate": "1/s"}), LoadContext([]))
    with pytest.raises(
        UsageError, match=r"client careful: \S+: there is no such command; is it installed, and on PATH"
    ):
        asyncio.run(client.prepare())


def test_commands_that_cannot_be_run_are_named_with_their_places_before_anything_is_started(tmp_path):
    """`run` refuses them; `validate` does not, since it may be another machine that runs the experiment."""
    script = tmp_path / "hasty.sh"
    script.write_text("#!/bin/sh\n")
    experiment = tmp_path / "x.yaml"
    experiment.write_text(GOOD.replace("[curl,", "[crul,").replace("[daemon,", f"[{script},"))
    load_experiment(experiment)
    started = lambda *_, **__: pytest.fail("something was started")  # noqa: E731 - what both would be
    runs = tmp_path / "runs"
    with pytest.raises(ExperimentError) as error:
        run_experiment(resolve(experiment), runs_dir=runs, ensure_binary=started, start_sandbox=started)
    assert not runs.exists()
    said = " ".join(str(error.value).split())
    assert error.value.exit_code == 2
    assert f"{experiment}:7:23: clients.careful.command[0]: crul: there is no such command; is it installed" in said
    assert f"{experiment}:8:21: clients.hasty.command[0]: {script}: it is not executable; `chmod" in said


def test_commands_that_are_there_are_no_problem(tmp_path):
    script = tmp_path / "hasty.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    text = GOOD.replace("[curl,", "['{python}',").replace("[daemon,", f"[{script},")
    check_commands(Document("x.yaml", text), load_text(text, "x.yaml").clients)


# what a service reports

ORIGIN_NS, NOW_NS = 5_000, 90_000
REPORT = {"intended_ns": 10_000, "start_ns": 11_000, "end_ns": 20_000, "ok": True, "key": "orders/7"}


def told(**changes):
    said = {name: value for name, value in {**REPORT, **changes}.items() if value != "left out"}
    return reported("hasty", json.dumps(said).encode(), origin_ns=ORIGIN_NS, now_ns=NOW_NS)


def test_a_report_is_an_operation_on_the_clock_of_the_run():
    assert told() == Operation("hasty", 5_000, 6_000, 15_000, "ok", key="orders/7")


@pytest.mark.parametrize(("ok", "outcome"), [(True, "ok"), (False, "fail"), (None, "unknown")])
def test_a_report_says_how_it_ended(ok, outcome):
    assert told(ok=ok, error="why").outcome == outcome
    assert told(ok=ok, error="why").error == "why"


def test_when_it_was_due_may_be_left_out():
    assert told(intended_ns="left out", key="left out") == Operation("hasty", 6_000, 6_000, 15_000, "ok")


@pytest.mark.parametrize(
    "line", [b"", b"started", b"{not json", b"[1, 2]", b'{"level": "info"}', b'{"ok": true}', b"\xff"]
)
def test_other_lines_are_the_services_own_business(line):
    assert reported("hasty", line, origin_ns=ORIGIN_NS, now_ns=NOW_NS) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ok": "yes"}, "ok is true, false or null"),
        ({"ok": 1}, "ok is true, false or null"),
        ({"start_ns": 11_000.5}, "the times are whole numbers"),
        ({"start_ns": "11000"}, "the times are whole numbers"),
        ({"end_ns": 10_500}, "in this order"),
        ({"intended_ns": 12_000}, "in this order"),
        ({"end_ns": 1_760_000_000_000_000_000}, "nanoseconds of CLOCK_MONOTONIC"),
        ({"intended_ns": 10, "start_ns": 11, "end_ns": 12}, "nanoseconds of CLOCK_MONOTONIC"),
    ],
)
def test_a_report_that_is_wrong_is_not_dropped_in_silence(changes, said):
    with pytest.raises(UsageError, match="client hasty: its report of an operation is wrong") as error:
        told(**changes)
    assert said in str(error.value)


# live conditions


def test_conditions_compare_operations_and_attempts_of_a_client():
    monitor = Monitor(["hasty", "hasty.attempts"])
    for n in range(40):
        monitor.operation(Operation("hasty.attempts", n, n, n + 1_000_000, "fail"))
    monitor.operation(Operation("hasty", 0, 0, 1_000_000, "ok"))
    rates = [
        monitor.reading(Condition.parse(f"hasty.{what} > 1/s"), 10**9, 1).figure for what in ("rate", "attempts.rate")
    ]
    assert rates == [1, 40]
    assert monitor.reading(Condition.parse("hasty.attempts.errors < 1%"), 10**9, 1).figure == 1


# whether a run counts


class Runs:
    """A good run with one client; each test plants one defect."""

    def __init__(self, path):
        self.builder = RecordingBuilder(path).fault("tap.fail", at=10, until=30)

    def attempts(self, client, *, fault=""):
        for second in range(4, 50):
            start_ns = second * 10**9
            attempt = Attempt(
                start_ns, start_ns + 10**6, 1, method="GET", path="/", fault=fault, status=0 if fault else 200
            )
            self.operation(to_operation(client, attempt))
        return self

    def operation(self, op):
        self.builder.write(
            op.load,
            op.key,
            op.value,
            start=op.start_ns / 1e9,
            end=op.end_ns / 1e9,
            outcome=op.outcome,
            error=op.error,
            reason=op.reason,
            detail=op.detail,
        )
        return self

    def reasons(self, service):
        kind = "service: true" if service else "rate: 4/s"
        start, end = GOOD.index("clients:\n  c"), GOOD.index("steady")
        one = f'clients:\n  careful: {{command: [curl, "{{url}}"], {kind}}}\n'
        text = GOOD[:start] + one + GOOD[end:].replace(', "hasty.attempts.rate > 1/s"', "")
        text = text[: text.index("  - present")]
        verdict = judge(self.builder.build(), load_text(text, "x.yaml"))
        return [*verdict.invalid, *verdict.doubts]


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "run")


def test_a_client_with_operations_and_attempts_counts(runs):
    runs.builder.load("careful", rate=4)
    assert runs.attempts("careful").reasons(service=False) == []


def test_a_client_that_never_asked_its_tap_was_not_measured(runs):
    runs.builder.load("careful", rate=4)
    (reason,) = runs.reasons(service=False)
    assert reason.startswith(
        "client careful sent no request to its tap: write {url} where its command takes the address"
    )


def test_a_client_without_any_success_was_not_measured(runs):
    runs.builder.load("careful", rate=4, outcome="fail")
    (reason,) = runs.attempts("careful").reasons(service=False)
    assert reason.startswith("load careful had no successful operation")


def test_a_generator_that_could_not_start_runs_is_no_verdict_on_the_client(runs):
    runs.builder.load("careful", rate=4)
    runs.operation(Operation("careful", 20 * 10**9, 20 * 10**9, 20 * 10**9, "fail", reason=Reason.OVERLOADED))
    (reason,) = runs.attempts("careful").reasons(service=False)
    assert "1 of 185 operations could not be started: generator overloaded" in reason


def test_a_service_need_not_report_anything(runs):
    assert runs.attempts("careful").reasons(service=True) == []


def test_a_service_may_be_late_with_its_own_operations(runs):
    runs.builder.load("careful", rate=4, lag=2.0)
    assert runs.attempts("careful").reasons(service=True) == []


def test_a_service_whose_attempts_all_failed_was_not_measured(runs):
    (reason,) = runs.attempts("careful", fault="503").reasons(service=True)
    assert reason == "no attempt of client careful succeeded out of 46"


def test_a_service_that_ended_is_a_finding_and_not_a_reason(runs):
    ended = {"error": f"{ENDED}: exit status 1", "reason": Reason.SERVICE_ENDED}
    runs.operation(Operation("careful", 10**10, 10**10, 2 * 10**10, "fail", **ended))
    assert runs.attempts("careful").reasons(service=True) == []


def test_a_service_that_reports_failures_alone_was_not_measured(runs):
    runs.builder.load("careful", rate=4, outcome="fail")
    (reason,) = runs.attempts("careful").reasons(service=True)
    assert reason == "client careful reported no successful operation out of 184"
