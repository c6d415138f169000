"""Two faults that share an instrument are refused at once: one would spoil the other's proof, or undo it."""

import pytest

import places
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_text

GOOD = places.GOOD.read_text()
[STEP] = [line for line in GOOD.splitlines() if "fault: disk.latency" in line]


def with_method(*steps):
    return GOOD.replace(STEP, "\n".join(f"  - {step}" for step in steps))


def step(fault, on="host:consul-1", at="0s", **params):
    with_ = f", with: {{{', '.join(f'{key}: {value}' for key, value in params.items())}}}" if params else ""
    return f'{{fault: {fault}, on: "{on}"{with_}, at: {at}, for: 10s}}'


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
    "nobody can see some of them being lost": (
        step("network.partition", **{"from": "servers"}),
        step("network.loss", percent="10%", **{"from": "host:consul-2"}),
    ),
    "nobody listens on the port": (step("network.block", port=8500), step("process.kill")),
}


@pytest.mark.lie
@pytest.mark.parametrize("why", TOGETHER)
def test_two_faults_with_one_instrument_are_refused(why):
    for one, two in (TOGETHER[why], TOGETHER[why][::-1]):
        with pytest.raises(ExperimentError) as error:
            load_text(with_method(one, two), "x.yaml")
        assert "x.yaml:18:5: method[1]: " in str(error.value)
        assert why in " ".join(str(error.value).split())


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
    text = with_method(step("disk.latency", delay="10s").replace("for: 10s", f"for: {for_}"))
    if fits:
        load_text(text, "x.yaml")
        return
    with pytest.raises(ExperimentError, match="the two proofs of a delay of 10s take 20s, and the disk is slow"):
        load_text(text, "x.yaml")


@pytest.mark.parametrize(("leave", "fits"), [("200MB", True), ("255MB", False), ("2GB", False)])
def test_a_full_disk_with_more_left_free_than_it_has_is_refused(leave, fits):
    text = with_method(step("disk.full", leave=leave)).replace("datacenter:\n", "datacenter:\n  disk: {size: 255MB}\n")
    if fits:
        load_text(text, "x.yaml")
        return
    with pytest.raises(ExperimentError, match="left free is not full; leave at most"):
        load_text(text, "x.yaml")
