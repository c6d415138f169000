"""What the lead sees of a run, what those who watch do not, and that two hours of it stay small."""

import json

import pytest

import simulated_run
from hashidrill.core.protocols.events import Audience, Change, Guardrail, Intent, Marked, Note, Phase, Tick, Where
from hashidrill.gamedays.warroom.room import Room

MARKUP = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


def trees(room):
    """What a page of each kind gets: of the lead, and of who watches."""
    return [json.loads(room.since(audience, None).data) for audience in (Audience.OPERATOR, Audience.TRAINEE)]


def shown(*events, title="raft/slow-leader-disk: The disk slows down"):
    room = Room()
    room.begins(title)
    for event in events:
        room.tell(event)
    return trees(room)


@pytest.fixture(scope="module")
def run():
    return shown(*simulated_run.events(), simulated_run.end(), simulated_run.judged())


def test_the_lead_sees_faults_leaders_figures_and_the_verdict(run):
    lead, _ = run
    assert lead["run"]["faults"] == [
        {
            "label": "disk.latency on consul-1",
            "params": "delay=500ms, op=fsync",
            "state": "gone",
            "at": 36.0,
            "proven": 37.2,
            "end": 63.0,
            "evidence": "fsync took 0.4 ms",
        }
    ]
    assert [each["name"] for each in lead["run"]["leaders"]["leader"]] == ["consul-1", "", "consul-2"]
    assert [each["name"] for each in lead["run"]["phases"]] == [
        "start",
        "load",
        "steady",
        "method",
        "recovery",
        "quiesce",
    ]
    assert lead["run"]["phases"][-1]["end"] == 90.0
    writes = lead["run"]["loads"]["kv-writes"]
    assert writes["p50"][20] == pytest.approx(0.004, rel=0.5)
    assert writes["p99"][50] == pytest.approx(1.4, rel=0.5)
    assert writes["p99"][42] == "never"
    assert writes["errors"][42] == 1.0
    fsync = lead["run"]["probes"]["disk.fsync"]
    assert (fsync["title"], fsync["unit"]) == ("Canary fsync next to the data", "s")
    assert (fsync["values"][20], fsync["values"][50]) == (0.0004, 0.512)
    assert lead["run"]["verdict"]["verdict"] == "FAIL"
    assert lead["runs"] == [
        {"title": "raft/slow-leader-disk: The disk slows down", "state": "is over", "verdict": "FAIL"}
    ]


@pytest.mark.lie
def test_who_watches_sees_the_same_figures_and_no_word_of_the_fault(run):
    lead, watch = run
    assert watch["run"]["loads"] == lead["run"]["loads"]
    assert watch["run"]["verdict"]["verdict"] == "FAIL"
    text = json.dumps(watch)
    assert [word for word in simulated_run.SECRET if word in text] == []
    assert watch["run"]["faults"] == []
    assert watch["run"]["leaders"] == {}
    assert watch["run"]["probes"] == {}


def test_the_words_that_are_looked_for_are_there_for_the_lead(run):
    """Or the test above would prove nothing."""
    text = json.dumps(run[0])
    assert [word for word in simulated_run.SECRET if word not in text] == []


def test_a_title_with_the_fault_in_it_is_for_the_lead_alone():
    room = Room()
    room.plans("Disks that lie", ["disk.latency twice"], goals=["know what disk.latency does"], people=["Ada (lead)"])
    room.begins("disk.latency twice")
    room.note("ada", "now disk.latency comes")
    room.note("ada", "watch the latency of writes", watchers=True)
    lead, watch = trees(room)
    assert "disk.latency" in json.dumps(lead)
    assert "disk.latency" not in json.dumps(watch)
    assert "Disks that lie" not in json.dumps(watch)
    assert [line["text"] for line in watch["log"]] == ["a run begins", "watch the latency of writes"]
    assert watch["people"] == ["Ada (lead)"]
    assert len(watch["runs"]) == 1


def test_texts_of_a_cluster_lose_what_a_terminal_or_a_line_could_read_as_a_command():
    lead, watch = shown(*simulated_run.events(seed_text=MARKUP), simulated_run.end(), simulated_run.judged(MARKUP))
    assert MARKUP.removesuffix("\u202e").split("\x1b")[0] in json.dumps(lead, ensure_ascii=False), "the text is there"
    for tree in (lead, watch):
        assert "\x1b" not in json.dumps(tree, ensure_ascii=False)


def test_a_new_run_begins_with_empty_figures_and_keeps_the_log():
    room = Room()
    for number in (1, 2):
        room.begins(f"run {number}")
        for event in simulated_run.events(until_s=20):
            room.tell(event)
    lead, watch = trees(room)
    assert [line["text"] for line in lead["log"] if line["text"].startswith("begins")] == [
        "begins: run 1",
        "begins: run 2",
    ]
    assert len(lead["run"]["phases"]) == len(watch["run"]["phases"]) == 3
    assert lead["run"]["number"] == 2


ODD = [
    Change(event="fault.gone", fault_id="never heard of"),
    Phase(phase=""),
    Tick(t_ns=-5_000_000_000),
    Marked(event="mark.end", mark="never began"),
    Note(text="\x00" * 10_000),
    Guardrail(condition="x" * 10_000),
    Intent(fault_id="", kind="", target=Where(), params={"a": {"b": [1, None]}}),
    Phase(phase="start", t_ns=10**18),
    Tick(t_ns=10**15, leaders=(("leader", "x" * 10_000),)),
]


@pytest.mark.parametrize("event", ODD, ids=range(len(ODD)))
def test_no_event_is_too_odd_for_it(event):
    """What raises is left out by the bus, and the page would stand still from then on."""
    room = Room()
    room.tell(event)
    room.begins("x")
    room.tell(event)
    assert trees(room)


@pytest.mark.long
def test_two_hours_of_a_run_stay_small():
    """Faults that come and go all the time, and more lines than anybody reads. tests/contract measures the process."""
    room = Room()
    room.begins("two hours")
    for second in range(0, 7200, 4):
        t_ns = second * 10**9
        room.tell(simulated_run.at_time(simulated_run.tick(second, 7200), second))
        room.tell(Note(t_ns=t_ns, text=f"line {second} " + "x" * 200))
        room.tell(Intent(t_ns=t_ns, fault_id=str(second), kind="disk.latency", target=Where(host="consul-1")))
        room.tell(Change(t_ns=t_ns, event="fault.reverted", fault_id=str(second)))
    lead, watch = trees(room)
    assert lead["run"]["width"] == 8.0
    assert [len(tree["run"]["loads"]["kv-writes"]["p99"]) for tree in (lead, watch)] == [900, 900]
    assert len(json.dumps(lead)) < 400_000
    assert lead["run"]["more_faults"] == 1800 - 200
    assert len(lead["log"]) <= 400 < lead["lines"]
    kept = [document._messages for document in (each.document for each in room._pictures.values())]
    assert all(len(messages) <= 400 for messages in kept)
    assert sum(len(change) for messages in kept for _, changes in messages for change in changes) < 1_000_000
