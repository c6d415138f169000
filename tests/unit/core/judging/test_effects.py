"""A fault that was proven in force, and that neither its agent, nor a load, nor a leader showed, is told."""

from datetime import UTC, datetime

import pytest

from hashidrill.core.judging.judge import judge, without_effect
from hashidrill.testing.recordings import RecordingBuilder

EPOCH = 1_760_000_000.0


@pytest.fixture
def builder(tmp_path):
    """disk.full on consul-1 from 10 s to 30 s, with nothing else to be seen."""
    return RecordingBuilder(tmp_path / "run").fault("disk.full", "consul-1", at=10, until=30)


def recorded(builder, *logged, latency=0.01, outcome="ok", new_process_at=None, log=True, **leader):
    """A run whose agent logged `logged`: (second, level, text)."""
    builder.load("kv-writes", latency=latency, outcome=outcome).leader(**leader)
    builder.series("consul.autopilot_healthy", 1.0).final_reads("kv-writes")
    for at in range(4, 50):
        builder.sample("process.rss", 9e7, at=at, host="consul-1", text="S")
        if at != new_process_at:
            builder.sample("process.cpu", 0.1, at=at, host="consul-1")
    recording = builder.build()
    if log:
        folder = recording.path / "logs/consul-1"
        folder.mkdir(parents=True)
        stamp = lambda at: datetime.fromtimestamp(EPOCH + at, UTC).strftime("%FT%T.%f")  # noqa: E731
        lines = [(2, "INFO", "agent: Started"), *logged]
        (folder / "consul.log").write_text(
            "==> Starting Consul agent...\n" + "".join(f"{stamp(at)}Z [{level}]  {said}\n" for at, level, said in lines)
        )
    return recording


def told(builder, *logged, **shown):
    return list(without_effect(recorded(builder, *logged, **shown)))


def test_a_fault_that_nothing_showed_is_told(builder):
    [said] = told(builder)
    assert said.startswith("disk.full on consul-1 was proven in force for 20s, and nothing else showed it")


def test_it_is_a_note_of_the_verdict_and_changes_none(builder):
    verdict = judge(recorded(builder))
    assert verdict.verdict == "PASS", verdict
    assert [note for note in verdict.notes if "nothing else showed it" in note]


@pytest.mark.parametrize(
    "shown",
    [
        {"latency": lambda t: 0.1 if 10 <= t < 30 else 0.01},
        {"latency": lambda t: 0.2 if 10 <= t < 30 and int(t * 50) % 20 == 0 else 0.01},
        {"outcome": lambda t: "fail" if 20 <= t < 20.1 else "ok"},
        {"new_process_at": 20},
        {"leader": lambda t: "consul-1" if t < 20 else "consul-2"},
        {"term": lambda t: 2 if t < 20 else 3},
    ],
    ids=["slower", "slower tail", "an error", "another process", "another leader", "elected again"],
)
def test_what_showed_it_is_enough(builder, shown):
    assert told(builder, **shown) == []


def test_a_new_warning_of_its_agent_shows_it_and_one_that_was_there_before_does_not(builder):
    assert told(builder, (20, "ERROR", "raft: write failed: no space left on device")) == []


def test_a_warning_that_was_there_before_the_fault_shows_nothing(builder):
    old = "agent.http: Request error: from=10.73.0.1:41"
    assert told(builder, (6, "ERROR", f"{old}646"), (20, "ERROR", f"{old}999"), (40, "WARN", "agent: over"))


@pytest.mark.parametrize("lacks", ["the log", "a second proof"])
def test_nothing_is_said_where_nobody_can_tell(tmp_path, builder, lacks):
    if lacks == "a second proof":  # it happened once, or another fault undid it
        builder = RecordingBuilder(tmp_path / "other").fault("consul.snapshot.save", "consul-1", at=10, until=None)
    assert told(builder, log=lacks != "the log") == []
