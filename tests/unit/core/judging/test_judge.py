"""Whether a run counts, and what its expectations come to."""

import gc
import json
import weakref

import pytest

from hashidrill.core.errors import NOT_READY, OWN_CONFIGURATION, RecordingError
from hashidrill.core.judging.judge import judge, read_verdict, write_verdict
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.testing.recordings import RecordingBuilder

LOAD = "kv-writes"


@pytest.fixture
def builder(tmp_path):
    """A run with nothing wrong: each test plants one defect."""
    return RecordingBuilder(tmp_path / "run")


def good(builder, **load):
    builder.fault("disk.latency", "consul-1", at=10, until=30)
    return builder.load(LOAD, **load).final_reads(LOAD).healthy()


def reasons(builder):
    return judge(builder.build()).invalid


def test_a_good_run_is_a_pass_with_evidence(builder):
    good(builder).expect("writes_recover", load=LOAD, within="10s").expect("leadership_stays")
    verdict = judge(builder.build())
    assert verdict.verdict is Verdict.PASS
    assert verdict.invalid == []
    assert [judgement.finding for judgement in verdict.judgements] == [Finding.HELD, Finding.HELD]
    assert verdict.judgements[0].title == "writes_recover(load=kv-writes, within=10s)"
    assert verdict.judgements[0].figures["recovered_after_s"] == 0


def test_a_broken_expectation_is_a_fail_with_figures(builder):
    good(builder, latency=0.5).expect("writes_recover", load=LOAD, within="10s")
    verdict = judge(builder.build())
    assert verdict.verdict is Verdict.FAIL
    assert verdict.judgements[0].finding is Finding.BROKEN
    assert verdict.judgements[0].figures["worst_p50_s"] == 0.5


def test_a_recording_is_let_go_of_once_it_is_judged(builder):
    """A search for a capacity judges dozens of them, and each holds all its operations."""
    good(builder).expect("writes_recover", load=LOAD, within="10s").expect("leadership_stays")
    recording = builder.build()
    assert judge(recording).verdict is Verdict.PASS
    assert recording.operations(LOAD) is recording.operations(LOAD)
    assert recording.series("raft.leader") is recording.series("raft.leader")
    held = [
        weakref.ref(recording),
        weakref.ref(recording.operations(LOAD)),
        weakref.ref(recording.series("raft.leader")),
    ]
    del recording
    gc.collect()
    assert [each() for each in held] == [None, None, None]


class TestInvalidRuns:
    @pytest.mark.parametrize(
        ("outcome", "reason"),
        [
            ("crashed", "the run crashed: boom"),
            ("interrupted", "the run was interrupted: boom"),
            ("fault", "a fault could not be put in force: boom"),
            ("revert", "a fault could not be reverted: boom"),
            (None, "the run died: its journal has no end (was it killed?)"),
        ],
    )
    def test_runs_that_did_not_end_as_planned(self, builder, outcome, reason):
        assert reason in reasons(good(builder).end(outcome, error="boom"))

    @pytest.mark.lie
    def test_an_agent_that_did_not_start_is_no_crash_of_the_run(self, builder):
        said = (
            f"consul-1: consul {NOT_READY}, {OWN_CONFIGURATION} (datacenter.consul.server_config): invalid config key"
        )
        assert reasons(good(builder).end("crashed", error=said))[0] == f"the datacenter never got ready: {said}"

    def test_a_steady_state_that_never_held(self, builder):
        for phase, at in {"start": 0, "ready": 2, "steady": 4, "quiesce": 40}.items():
            builder.phase(phase, at=at)
        builder.load(LOAD, end=40).event(
            "steady", at=40, held=False, evidence="kv-writes.errors was 40%, required < 1%"
        )
        verdict = judge(builder.end("steady-state").expect("leadership_stays").build())
        assert verdict.invalid == [
            "the steady state never held, so no fault was applied: kv-writes.errors was 40%, required < 1%"
        ]
        assert verdict.judgements[0].finding is Finding.INVALID
        assert "the steady state never held" in verdict.judgements[0].text
        assert verdict.verdict is Verdict.INVALID

    @pytest.mark.parametrize(
        ("how", "reason"),
        [
            ({"proven": False}, "was not proven in force: asked for in force, measured nothing of it"),
            ({"failed": "no such disk"}, "could not be applied: no such disk"),
            ({"gone": False}, "was not proven gone: "),
            ({"gone": False}, "still there"),
            ({"until": None}, "was not proven gone: it was never reverted"),
        ],
    )
    def test_a_fault_that_was_not_what_it_was_to_be(self, builder, how, reason):
        builder.fault("disk.latency", **{"at": 10, "until": 30, **how}).load(LOAD).final_reads(LOAD)
        (said,) = reasons(builder)
        assert said.startswith("fault disk.latency on consul-1 ")
        assert reason in said

    def test_no_fault_at_all(self, builder):
        assert "no fault was applied, so the run proves nothing" in reasons(builder.load(LOAD).final_reads(LOAD))

    def test_a_step_that_was_never_carried_out(self, builder):
        good(builder).fault("process.kill", "consul-2", at=31, until=35)
        builder._events = [e for e in builder._events if e[2].get("fault_id") != "process.kill-1"]
        assert reasons(builder) == ["the run never carried out step 2 of the method (process.kill on host:consul-2)"]

    def test_a_load_without_a_successful_operation(self, builder):
        assert reasons(good(builder, outcome="fail")) == [
            "load kv-writes had no successful operation out of 2300; the last error: no leader"
        ]

    def test_a_load_that_did_nothing(self, builder):
        builder.fault("disk.latency", at=10, until=30)
        assert reasons(builder) == ["load kv-writes did not perform a single operation"]

    def test_an_experiment_that_does_not_read(self, builder):
        recording = good(builder).build()
        (recording.path / "resolved.json").write_text('{"not": "an experiment"}\n')
        verdict = judge(recording)
        assert "the experiment of this recording cannot be read" in verdict.invalid[0]
        assert verdict.verdict is Verdict.INVALID

    def test_expectations_of_an_invalid_run_are_invalid_but_say_what_was_measured(self, builder):
        builder.fault("disk.latency", at=10, until=30, proven=False).load(LOAD, latency=0.5).final_reads(LOAD).healthy()
        builder.fault("process.kill", at=10, until=30).expect("writes_recover", load=LOAD, within="10s")
        verdict = judge(builder.build())
        assert verdict.verdict is Verdict.INVALID
        assert verdict.judgements[0].text.startswith("the run is INVALID: fault disk.latency")
        assert "measured anyway: broken: kv-writes did not recover" in verdict.judgements[0].text

    def test_a_lost_write_fails_even_an_invalid_run(self, builder):
        builder.fault("disk.latency", at=10, until=30, proven=False).load(LOAD)
        builder.final_reads(LOAD, {"kv-writes/3": None}).expect("no_acknowledged_write_lost", load=LOAD)
        verdict = judge(builder.build())
        assert verdict.invalid
        assert verdict.judgements[0].finding is Finding.BROKEN
        assert verdict.verdict is Verdict.FAIL


class TestExpectations:
    def test_a_known_issue_does_not_excuse_what_cannot_be_judged(self, builder):
        good(builder).expect("writes_recover", load="kv-reads", within="10s", known_issue="hashicorp/consul#22064")
        assert judge(builder.build()).judgements[0].finding is Finding.INVALID

    def test_a_hypothesis_with_nothing_to_check_is_invalid(self, builder):
        good(builder).expect("leader_elected")
        verdict = judge(builder.build())
        assert verdict.judgements[0].finding is Finding.INVALID
        assert verdict.verdict is Verdict.INVALID

    @pytest.mark.parametrize(
        ("name", "params", "text"),
        [
            ("writes_recovers", {}, "did you mean writes_recover"),
            (
                "writes_recover",
                {"load": LOAD, "within": 10},
                "wrong parameters: within: Value error, 10 has no unit",
            ),
        ],
    )
    def test_what_cannot_even_be_asked_is_invalid(self, builder, name, params, text):
        judgement = judge(good(builder).expect(name, **params).build()).judgements[0]
        assert judgement.finding is Finding.INVALID
        assert text in judgement.text

    def test_a_crashing_hypothesis_is_invalid(self, builder, tmp_path):
        (tmp_path / "hypotheses").mkdir()
        (tmp_path / "hypotheses" / "mine.py").write_text(
            "from hashidrill.core.hypothesis import hypothesis\n@hypothesis\n"
            "def crashing(recording):\n    return recording.nope\n"
        )
        judgement = judge(good(builder).expect("crashing").build(), near_to=tmp_path).judgements[0]
        assert judgement.finding is Finding.INVALID
        assert "hypothesis crashing crashed: AttributeError" in judgement.text
        assert "mine.py:4" in judgement.text

    def test_a_guardrail_that_tripped_is_a_fail(self, builder):
        good(builder).guardrail("kv-writes.errors > 90% for 20s", tripped_at=28, evidence="errors 97%").end("guardrail")
        verdict = judge(builder.build())
        assert verdict.invalid == []
        assert verdict.judgements[-1].title == "guardrail(kv-writes.errors > 90% for 20s)"
        assert "tripped 28.0s into the run (errors 97%)" in verdict.judgements[-1].text
        assert verdict.verdict is Verdict.FAIL

    def test_other_expectations_may_be_judged_over_the_same_recording(self, builder, tmp_path):
        recording = good(builder, latency=0.2).expect("writes_recover", load=LOAD, within="10s").build()
        strict = RecordingBuilder(tmp_path / "strict").load(LOAD)
        strict.expect("writes_recover", load=LOAD, within="10s", p50_below="100ms")
        assert judge(recording).verdict is Verdict.PASS
        judged = judge(recording, strict.build().experiment)
        assert judged.judgements[0].finding is Finding.BROKEN


class TestVerdictFile:
    def test_reads_back_as_it_was_written(self, builder):
        good(builder, latency=99.0).expect("writes_recover", load=LOAD, within="10s").expect("leadership_stays")
        recording = builder.build()
        written = write_verdict(recording)
        assert len(written.judgements) == 2
        assert read_verdict(recording.path) == written

    def test_is_strict_json_with_the_verdict_first(self, builder):
        recording = (
            good(builder, outcome=lambda t: "fail" if t > 10 else "ok")
            .expect("writes_recover", load=LOAD, within="10s")
            .build()
        )
        write_verdict(recording)

        def refuse(constant):
            raise AssertionError(f"{constant} is not JSON")

        document = json.loads((recording.path / "verdict.json").read_text(), parse_constant=refuse)
        assert next(iter(document)) == "verdict"
        assert document["verdict"] == "FAIL"
        assert document["judgements"][0]["figures"]["recovered_after_s"] == "never"

    def test_the_same_recording_gives_the_same_verdict(self, builder):
        recording = good(builder).build()
        first = write_verdict(recording), (recording.path / "verdict.json").read_bytes()
        assert (write_verdict(recording), (recording.path / "verdict.json").read_bytes()) == first

    def test_a_missing_or_spoiled_file_says_what_to_do(self, tmp_path):
        with pytest.raises(RecordingError, match="not judged yet; run `hashidrill check"):
            read_verdict(tmp_path)
        (tmp_path / "verdict.json").write_text('{"judgements": [{}]')
        with pytest.raises(RecordingError, match="unreadable"):
            read_verdict(tmp_path)
