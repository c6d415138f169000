"""What faults and marks cannot do beside others, after others, or alone: said with its place before anything starts."""

import pytest

import places
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text
from hashidrill.core.judging.measure import at_in_method_ns
from hashidrill.testing.recordings import RecordingBuilder

S = 1_000_000_000
GOOD = places.GOOD.read_text()
[STEP] = [line for line in GOOD.splitlines() if "fault: disk.latency" in line]


def with_method(*steps):
    return GOOD.replace(STEP, "\n".join(f"  - {step}" for step in steps))


def refused(*steps, text=""):
    with pytest.raises(ExperimentError) as error:
        load_text(text or with_method(*steps), "x.yaml")
    return " ".join(str(error.value).split())


def step(fault, on="host:consul-1", at="0s", lasts="10s", **params):
    with_ = f", with: {{{', '.join(f'{key}: {value}' for key, value in params.items())}}}" if params else ""
    return f'{{fault: {fault}, on: "{on}"{with_}, at: {at}, for: {lasts}}}'


# on links

FAR = {"delay": "1s", "port": 8300}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (step("network.latency", "consul:leader", **FAR), step("network.latency", "host:consul-2", at="9s", **FAR)),
        (step("network.latency", "consul:leader", **FAR), step("network.reset", "host:consul-2", port=8300)),
        (
            step("network.latency", "host:consul-1", **FAR),
            step("network.timeout", "host:consul-2", port=8300, direction="out"),
        ),
        (
            step("network.latency", "host:consul-1", direction="both", **FAR),
            step("network.slicer", "host:consul-2", port=8300),
        ),
        (step("network.latency", "host:consul-1", **FAR), step("network.block", "consul:servers", port=8300)),
        (step("network.latency", "host:consul-1", **FAR), step("network.partition", "host:client-1")),
        (step("network.loss", "host:client-1", percent="5%"), step("network.latency", "host:consul-1", **FAR)),
    ],
)
def test_two_faults_that_meet_on_one_connection_are_refused(one, two):
    message = refused(one, two)
    assert "x.yaml:18:5: method[1]: " in message
    assert "may be on the same connections" in message


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (step("network.latency", "consul:leader", **FAR), step("network.latency", "consul:leader", at="10s", **FAR)),
        (step("network.latency", "consul:leader", **FAR), step("network.reset", "consul:leader", port=8500)),
        (step("network.latency", "host:consul-1", **FAR), step("network.latency", "host:consul-2", **FAR)),
        (
            step("network.latency", "host:consul-1", **FAR),
            step("network.reset", "host:consul-1", port=8300, direction="out"),
        ),
        (step("network.latency", "host:consul-1", **FAR), step("network.block", "host:consul-1", port=8500)),
        (step("network.latency", "host:consul-1", **FAR), step("process.pause", "host:consul-1")),
    ],
)
def test_faults_on_different_connections_are_accepted(one, two):
    load_text(with_method(one, two))


@pytest.mark.parametrize(
    ("on", "params", "message"),
    [
        (
            "consul:servers",
            {**FAR, "direction": "both"},
            "method[0].with.direction: network.latency on consul:s",
        ),
        ("consul:leader", {**FAR, "port": 7007}, "hashidrill uses port 7007 for its own proxies"),
        ("consul:leader", {**FAR, "delay": "10s"}, "at most 3s"),
        ("consul:leader", {**FAR, "delay": "1500us"}, "whole milliseconds"),
        ("consul:leader", {**FAR, "jitter": "2s"}, "jitter (2s) must not be longer than delay (1s)"),
    ],
)
def test_a_link_fault_that_cannot_be_proven_is_refused(on, params, message):
    assert message in refused(step("network.latency", on, **params))


def test_the_other_side_of_any_toxic_is_checked_as_well():
    toxic = {"port": 8300, "type": "latency", "attributes": "{latency: 100}", "from": '"host:consul-9"'}
    assert "there is no host 'consul-9'" in refused(step("toxiproxy.toxic", "consul:leader", **toxic))
    toxic |= {"from": "all", "attributes": "{jitter: 100}"}
    assert "the toxic latency needs the attribute 'latency'" in refused(
        step("toxiproxy.toxic", "consul:leader", **toxic)
    )


# with one instrument

THROTTLE = step("cpu.throttle", cores=0.2)
TOGETHER = {
    "wake the paused agent": (THROTTLE, step("process.pause")),
    "may not answer before its observer gives up": (step("process.kill", "consul:leader"), THROTTLE),
    "the throttle also slows down the observer": (THROTTLE, step("disk.latency", delay="100ms")),
    "slows down the observer, which measures the other": (
        step("network.latency", "host:consul-2", port=8300, delay="100ms"),
        THROTTLE,
    ),
    "both act on every write there": (
        step("disk.latency", op="write", delay="100ms"),
        step("disk.bandwidth", rate="1MB/s", at="5s"),
    ),
    "both act on every fsync there": (step("disk.error", op="all"), step("disk.latency", delay="100ms")),
    "the loss of some cannot be seen": (
        step("network.partition", **{"from": "servers"}),
        step("network.loss", percent="10%", **{"from": "host:consul-2"}),
    ),
    "a stopped agent does not listen on its port": (step("network.block", port=8500), step("process.kill")),
}


@pytest.mark.lie
@pytest.mark.parametrize("why", TOGETHER)
def test_two_faults_with_one_instrument_are_refused(why):
    for one, two in (TOGETHER[why], TOGETHER[why][::-1]):
        message = refused(one, two)
        assert "x.yaml:18:5: method[1]: " in message
        assert why in message


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (THROTTLE, step("process.pause", "host:consul-2")),
        (THROTTLE, step("process.pause", at="10s")),
        (THROTTLE, step("disk.error")),
        (THROTTLE, step("network.partition")),
        (THROTTLE, step("network.latency", "host:consul-2", port=8300, delay="100ms", **{"from": "host:consul-3"})),
        (step("disk.latency", op="write", delay="80ms"), step("disk.latency", op="fsync", delay="2s")),
        (step("disk.latency", op="fsync", delay="2s"), step("disk.bandwidth", rate="1MB/s")),
        (step("network.partition", **{"from": "clients"}), step("network.loss", percent="10%", **{"from": "servers"})),
        (step("network.partition"), step("network.partition", "host:consul-2")),
        (step("network.block", port=8500), step("process.pause")),
    ],
)
def test_what_cannot_spoil_each_other_is_let_be(one, two):
    load_text(with_method(one, two), "x.yaml")


@pytest.mark.parametrize(("for_", "fits"), [("20s", True), ("19s", False)])
def test_a_delay_whose_proofs_do_not_fit_into_its_time_is_refused(for_, fits):
    text = with_method(step("disk.latency", lasts=for_, delay="10s"))
    if fits:
        load_text(text)
    else:
        assert "the two proofs of a delay of 10s take 20s, and the disk is slow" in refused(text=text)


@pytest.mark.parametrize(("leave", "fits"), [("200MB", True), ("255MB", False), ("2GB", False)])
def test_a_full_disk_with_more_left_free_than_it_has_is_refused(leave, fits):
    text = with_method(step("disk.full", leave=leave)).replace("datacenter:\n", "datacenter:\n  disk: {size: 255MB}\n")
    if fits:
        load_text(text)
    else:
        assert "left free is not full; leave at most" in refused(text=text)


# with somebody on the other side


def lonely(kind, on, peers, clients):
    fault = step(kind, on, lasts="2s", port=8500, **{"from": f'"{peers}"'})
    return with_method(fault).replace("clients: 1,", f"clients: {clients},")


@pytest.mark.parametrize("kind", ["network.block", "network.timeout"])
@pytest.mark.parametrize(
    ("on", "peers", "clients"),
    [("host:client-1", "clients", 1), ("consul:leader", "clients", 0), ("host:consul-1", "host:consul-1", 1)],
)
def test_nobody_on_the_other_side_is_refused(kind, on, peers, clients):
    message = refused(text=lonely(kind, on, peers, clients))
    assert "names no other host than" in message or "names no host other than" in message


@pytest.mark.parametrize(
    ("on", "peers", "clients"),
    [("host:client-1", "clients", 2), ("consul:leader", "clients", 1), ("host:client-1", "all", 1)],
)
def test_somebody_on_the_other_side_is_enough(on, peers, clients):
    assert load_text(lonely("network.block", on, peers, clients)).method


# `after`

SLOW = '{name: slow, fault: disk.latency, on: "consul:leader", with: {delay: 200ms}, at: 2s, for: 8s}'


def test_a_fault_or_a_mark_comes_after_faults_that_begin_before_it():
    step = '{fault: process.pause, on: "host:consul-2", at: 12s, for: 2s, after: [slow]}'
    experiment = load_text(with_method(SLOW, step, "{mark: later, at: 12s, for: 1s, after: [slow]}"))
    assert [each.after for each in experiment.method] == [[], ["slow"], ["slow"]]


def test_what_it_cannot_come_after_is_said_with_its_place():
    mark = "{mark: later, at: 12s, for: 1s, after: %s}"
    assert "method[1].after: 'slwo' names no fault of this method: did you mean slow?" in refused(SLOW, mark % "[slwo]")
    assert "'first' is a mark, which follows the clock" in refused(
        SLOW, "{mark: first, at: 0s, for: 1s}", mark % "[first]"
    )
    assert "'slow' begins 2s into the method, not before this step (1s)" in refused(
        SLOW, "{mark: later, at: 1s, for: 1s, after: [slow]}"
    )
    assert "method[0].after" in refused(SLOW.replace("for: 8s", "for: 8s, after: [slow]"))
    assert "after" in refused(SLOW, mark % "slow")


def test_what_was_planned_after_a_stop_came_later_in_the_recording(tmp_path):
    run = RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-1", at=10, until=30)
    run.event("clock.goes", at=40, at_s=12.0, stood_ns=5 * S)
    run.event("clock.goes", at=60, at_s=20.0, stood_ns=2 * S)
    recording = run.build()
    begin_ns = recording.phases["method"][0]
    assert [(at_in_method_ns(recording, at_s) - begin_ns) / S for at_s in (3, 12, 13, 20, 25)] == [3, 12, 18, 25, 32]


# `when`


def waits(when, more="", at="12s"):
    return f"{{mark: later, at: {at}, for: 1s, when: {when}{more}}}"


@pytest.mark.parametrize(
    "when",
    [
        "leader elected",
        "leader elected in consul",
        "snapshot begins",
        "snapshot installed",
        "a server is 100 entries behind",
        "fault slow proven",
        "fault slow gone",
        "load kv-writes errors",
    ],
)
def test_a_step_waits_for_a_moment_that_the_datacenter_shows(when):
    experiment = load_text(with_method(SLOW, waits(when, ", within: 20s")))
    assert (str(experiment.method[1].when), experiment.method[1].waits_s) == (when, 20)
    assert experiment.method[0].waits_s == 0
    again = type(experiment).model_validate(experiment.model_dump(mode="json", by_alias=True))
    assert again.method == experiment.method


@pytest.mark.lie
@pytest.mark.parametrize(
    ("when", "more", "said"),
    [
        ("leader electd", "", "'leader electd' is not a moment; write one of: leader elected, snapshot begins"),
        ("a server is 0 entries behind", "", "is not a moment"),
        ("12", "", "is not a moment"),
        ("leader elected in nomad", "", "cannot show 'leader elected' in nomad: only consul shows it"),
        ("fault slwo gone", "", "'slwo' names no fault of this method: did you mean slow?"),
        ("load kv-write errors", "", "there is no load 'kv-write'"),
        ("leader elected", ", within: 0s", "expected more than 0, got '0s'"),
        ("leader elected", ", within: 2h", "2h is too long: a step waits at most 1h"),
    ],
)
def test_a_moment_that_cannot_come_is_refused(when, more, said):
    assert said in refused(SLOW, waits(when, more))


@pytest.mark.lie
def test_a_moment_of_a_fault_comes_by_the_plan_before_the_step_or_never():
    assert "'slow' ends 10s into the method, after this step (9s)" in refused(SLOW, waits("fault slow gone", at="9s"))
    assert "'slow' begins 2s into the method, after this step (1s)" in refused(
        SLOW, waits("fault slow proven", at="1s")
    )
    assert "waits for itself" in refused(SLOW.replace("for: 8s", "for: 8s, when: fault slow proven"))
    assert "within: bounds the wait" in refused(SLOW.replace("for: 8s", "for: 8s, within: 3s"))


@pytest.mark.lie
def test_a_datacenter_without_such_a_product_shows_no_election():
    text = "datacenter: {sample: {}}\nload: {gets: {kind: sample.get, rate: 5/s, via: 'sample:stores'}}"
    head, _, _ = GOOD.partition("datacenter:")
    whole = f"""{head}{text}
steady_state: {{for: 2s, require: ["gets.errors < 1%"]}}
method: [{{fault: process.pause, on: "sample:stores", for: 2s, when: leader elected}}]
expect: [{{available_during: {{load: gets, success: 10%}}}}]
"""
    assert "the datacenter cannot show 'leader elected': sample cannot show it" in refused(text=whole)
