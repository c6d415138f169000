"""Runs as metrics: what Prometheus reads during a run and after it, and which lies it never reads."""

import json
import math
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import (
    Began,
    Bus,
    End,
    Expected,
    Figures,
    Intent,
    Judged,
    Note,
    Phase,
    Proof,
    Tick,
    Where,
)
from hashidrill.reports.live.metrics import exposed

ROOT = Path(__file__).parents[4]
NAME = "raft/slow-leader-disk"
S = 1_000_000_000
BEFORE = (
    Began(id="one", experiment=NAME),
    Phase(phase="method", t_ns=S),
    Intent(event="fault.intent", fault_id="0-disk", kind="disk.latency", target=Where("consul-1"), t_ns=S),
)
PROVEN = Proof(event="fault.proven", fault_id="0-disk", t_ns=2 * S)
GONE = Proof(event="fault.gone", fault_id="0-disk", t_ns=4 * S)
TICK = Tick(
    phase="method",
    t_ns=3 * S,
    loads={"kv": Figures(20.0, 0.0064, math.inf, 0.25, 3, 2.0), "silent": Figures()},
)
END = (End(outcome="done", t_ns=5 * S),)


def verdict(word, *findings):
    expectations = tuple(Expected(f"{finding} one", "stays_fast", finding) for finding in findings)
    return Judged(verdict=word, expectations=expectations, t_ns=5 * S)


def read(text):
    """{(name, other labels): value} of every sample."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name.removeprefix("hashidrill_"), *sorted(sample.labels.items()))
            assert key not in found, "a series twice is refused by Prometheus as a whole"
            found[key] = sample.value
    return found


def value(text, name, **labels):
    asked = sorted(({"experiment": NAME} | labels).items())
    return read(text).get((name, *asked))


@pytest.fixture
def told(tmp_path):
    """`told(*events)`: the file after these events."""
    file = tmp_path / "runs.prom"

    def tell(*events):
        with exposed(str(file)) as subscriber:
            bus = Bus(subscriber)
            for event in events:
                bus.publish(event)
            assert not bus.failures
        return file.read_text()

    return tell


def test_a_load_is_read_in_seconds_and_ratios_and_what_there_is_no_figure_of_has_no_sample(told):
    text = told(*BEFORE, TICK)
    assert value(text, "load_latency_seconds", load="kv", quantile="0.5") == 0.0064
    assert value(text, "load_latency_seconds", load="kv", quantile="0.99") == math.inf
    assert value(text, "load_operations_per_second", load="kv") == 20.0
    assert value(text, "load_error_ratio", load="kv") == 0.25
    assert value(text, "load_waiting", load="kv") == 3
    assert {key[0] for key in read(text) if ("load", "silent") in key} == {"load_waiting"}
    assert value(text, "run_phase", phase="method") == 1


FAULT = {"fault": "0-disk", "kind": "disk.latency", "host": "consul-1"}


@pytest.mark.lie
@pytest.mark.parametrize(
    ("proofs", "in_force"),
    [
        ((), 0),  # asked for is not in force
        ((Proof(event="fault.unproven", fault_id="0-disk"),), 0),
        ((PROVEN,), 1),
        ((PROVEN, Proof(event="fault.faded", fault_id="0-disk")), 0),
        ((PROVEN, Proof(event="fault.unproven", fault_id="0-disk")), 1),
        ((PROVEN, GONE), 0),
        ((PROVEN, Proof(event="fault.gone", fault_id="1-other")), 1),
    ],
)
def test_a_fault_is_in_force_from_its_proof_until_it_is_seen_gone(told, proofs, in_force):
    assert value(told(*BEFORE, *proofs, TICK), "fault_in_force", **FAULT) == in_force


@pytest.mark.parametrize("word", ["PASS", "FAIL", "INVALID"])
def test_one_verdict_is_1_and_an_expectation_that_could_not_be_judged_is_neither_held_nor_broken(told, word):
    text = told(*BEFORE, PROVEN, TICK, *END, verdict(word, "held", "broken", "invalid", "known", "fixed"))
    verdicts = {each: value(text, "run_verdict", verdict=each) for each in ("PASS", "FAIL", "INVALID")}
    assert verdicts == {each: float(each == word) for each in verdicts}
    held = {each: value(text, "expectation_held", expectation=f"{each} one") for each in ("held", "fixed", "broken")}
    assert held == {"held": 1, "fixed": 1, "broken": 0}
    assert value(text, "expectation_held", expectation="known one") == 0
    assert math.isnan(value(text, "expectation_held", expectation="invalid one"))


def test_the_reference_names_every_metric_with_its_labels(told):
    # a run that goes on, after one that was judged
    text = told(*BEFORE, *END, verdict("FAIL", "broken"), *BEFORE, PROVEN, TICK)
    page = (ROOT / "playbooks" / "reference-events.md").read_text()
    rows = re.findall(r"^\| `hashidrill_(\w+)` \| (.*?) \|", page, re.MULTILINE)
    assert {name: set(re.findall(r"\w+", labels)) for name, labels in rows} == {
        key[0]: {name for name, _ in key[1:]} for key in read(text)
    }


def test_the_dashboard_of_grafana_asks_for_metrics_and_labels_that_there_are(told):
    text = told(*BEFORE, *END, verdict("FAIL", "broken"), *BEFORE, PROVEN, TICK)
    known = {f"hashidrill_{key[0]}": {name for name, _ in key[1:]} for key in read(text)}
    board = json.loads((ROOT / "playbooks" / "grafana-dashboard.json").read_text())
    asked = [(each["expr"], each["legendFormat"]) for panel in board["panels"] for each in panel["targets"]]
    asked += [(each["expr"], each["titleFormat"] + each["textFormat"]) for each in board["annotations"]["list"]]
    assert {re.search(r"hashidrill_\w+", query)[0] for query, _ in asked} == {*known} - {"hashidrill_run_phase"}
    for query, legend in asked:
        labels = re.findall(r"[{,]\s*(\w+)=", query) + re.findall(r"{{(\w+)}}", legend)
        assert {*labels} <= known[re.search(r"hashidrill_\w+", query)[0]], query
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.lie
def test_what_a_run_measured_ends_with_it_and_an_older_verdict_stands_until_the_next(told):
    text = told(*BEFORE, PROVEN, TICK, *END, verdict("FAIL"))
    assert {key[0] for key in read(text)} == {"run_verdict", "run_judged_timestamp_seconds"}
    text = told(*BEFORE, TICK, *END, verdict("FAIL"), *BEFORE, TICK)
    assert value(text, "run_verdict", verdict="FAIL") == 1
    assert value(text, "load_waiting", load="kv") == 3
    assert value(text, "fault_in_force", **FAULT) == 0


def test_before_a_run_began_there_is_nothing_and_a_file_is_there_all_the_same(told):
    assert read(told(Note(text="waits"), TICK)) == {}


def test_a_port_serves_the_run_on_the_loopback_alone_for_as_long_as_the_command_lasts():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with exposed(str(port)) as subscriber:
        for event in (*BEFORE, TICK):
            subscriber(event)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert value(answer.read().decode(), "load_waiting", load="kv") == 3
        with pytest.raises(UsageError, match=rf"127.0.0.1:{port} cannot be used: Address already in use"):
            exposed(str(port)).__enter__()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("0", "a port is a number from 1 to 65535"),
        ("65536", "a port is a number from 1 to 65535"),
        ("metrics.txt", "a file that ends in .prom"),
        ("127.0.0.1:9100", "name a port of the loopback"),
        ("/no/such/folder/runs.prom", "there is no folder /no/such/folder"),
        ("/proc/runs.prom", "the file cannot be written"),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_runs(where, message):
    with pytest.raises(UsageError, match=message):
        exposed(where).__enter__()


def test_a_file_that_can_no_longer_be_written_ends_the_metrics_and_not_the_run(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    with exposed(str(folder / "runs.prom")) as subscriber:
        bus = Bus(subscriber)
        (folder / "runs.prom").unlink()
        folder.rmdir()
        for event in (*BEFORE, TICK, *END):
            bus.publish(event)
    assert len(bus.failures) == 1
    assert "gets no more events: it failed with FileNotFoundError" in bus.failures[0]
