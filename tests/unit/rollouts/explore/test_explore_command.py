"""`hashidrill explore` with recordings in place of runs: trials, verdicts, findings, and what is kept."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import load_experiment
from hashidrill.core.recording.reader import Recording
from hashidrill.faces.cli import explore as command
from hashidrill.faces.cli.app import app
from hashidrill.rollouts.bisect.trials import Outcome
from hashidrill.rollouts.explore import space
from hashidrill.rollouts.explore.guidance import Seen
from hashidrill.rollouts.explore.lab_trials import FINDINGS, RUNS, Kept, LabTrials, Trials, seen_in
from hashidrill.rollouts.explore.search import Played
from hashidrill.rollouts.explore.space import Arm, Move
from hashidrill.rollouts.explore.trace import trace_of
from hashidrill.testing.recordings import RecordingBuilder
from killed_searches import BUG, SIMULATED, Campaign

EXPERIMENT = "raft/killed-leader"
KILL = Move("process.kill", "consul:leader", '{"signal": "KILL"}', 0, 2)
CUT = Move("network.partition", "consul:one-follower", '{"direction": "both", "from": "all"}', 2, 4, space.ELECTED)


@pytest.fixture(scope="module")
def trials():
    return Trials.of(find_experiment(EXPERIMENT))


def recorded(path, *, slow=False, ended="complete", proven=True):
    """A run in which the leader was lost for 3 s, and consul-3 was behind."""
    run = RecordingBuilder(path).fault("process.kill", "consul-1", at=10, until=14, proven=proven)
    run.healthy().load("kv-writes", latency=3.0 if slow else 0.01).final_reads("kv-writes")
    run.expect("latency_stays", load="kv-writes", p50_below="300ms")
    return Recording(run.end(ended).build().path)


def test_a_trial_is_the_experiment_with_other_steps_and_short_phases(trials):
    experiment = trials.resolved((KILL, CUT), 2.0).experiment

    first, second = experiment.method
    assert (first.fault, first.on, first.for_) == ("process.kill", "consul:leader", 4.0)
    assert (str(second.when), second.at, second.within) == ("leader elected", 4.0, 8.0)
    assert experiment.steady_state.for_ == 2.0
    assert experiment.recovery.for_ == 9.0, "as long as the longest `within`, and a second"
    assert list(experiment.load) == ["kv-writes", "kv-reads"]


def test_the_space_is_what_validate_accepts(trials):
    found = trials.space(["process.kill", "disk.latency"])

    roles = ("consul:leader", "consul:one-follower", "consul:servers")
    assert {*found.arms} == {Arm(kind, on) for kind in ("process.kill", "disk.latency") for on in roles}
    assert space.SNAPSHOT in found.moments
    assert not trials.fits((KILL, KILL)), "two faults on one agent at the same time"


@pytest.mark.parametrize(
    ("when", "at", "fits"),
    [("gone:0", 2, True), (space.ELECTED, 3, True), ("proven:0", 0, False), ("", 1, False), (space.ELECTED, 0, False)],
)
def test_faults_one_at_a_time_wait_for_each_other(when, at, fits):
    """Two servers that are gone together have lost the quorum: that is no finding."""
    one = Trials.of(find_experiment(EXPERIMENT), at_once=1)
    second = Move("network.partition", "consul:one-follower", '{"from": "servers"}', at, 2, when)

    assert one.fits((KILL, second)) is fits
    assert not one.fits((replace(second, on="consul:servers"),)), "three servers"
    assert Trials.of(find_experiment(EXPERIMENT)).fits((KILL, second)), "any number, unless it is said"
    if fits:
        assert one.resolved((KILL, second), 2.0).experiment.method[1].after == ([] if when == space.ELECTED else ["s1"])


@pytest.mark.parametrize(
    ("kinds", "says"),
    [(["nomad.node.drain", "nope"], "nope"), (["tap.fail"], "no role of this datacenter can have it")],
)
def test_kinds_that_cannot_be_drawn_are_refused(kinds, says, trials):
    with pytest.raises(Exception, match=says):
        trials.space(kinds)


def test_expectations_about_a_step_of_the_experiment_are_refused():
    with pytest.raises(UsageError, match="must hold for any method"):
        Trials.of(find_experiment("raft/slow-leader-disk"))


@pytest.mark.parametrize(
    ("how", "outcome"),
    [({}, Outcome.HELD), ({"slow": True}, Outcome.BROKEN)],
)
def test_a_broken_expectation_of_a_valid_run_is_a_broken_promise(how, outcome, tmp_path):
    seen = seen_in(recorded(tmp_path / "run", **how), Path(EXPERIMENT))

    assert seen["outcome"] is outcome, seen["text"]
    assert bool(seen["promises"]) is (outcome is Outcome.BROKEN)


def test_a_promise_that_a_run_says_nothing_about_does_not_make_it_invalid(tmp_path):
    def seen(name, *promises):
        run = RecordingBuilder(tmp_path / name).fault("disk.latency", "consul-1", at=10, until=14).healthy()
        run.load("kv-writes").final_reads("kv-writes").expect("leader_elected", within="4s")
        for promise in promises:
            run.expect(promise, load="kv-writes", p50_below="300ms")
        return seen_in(Recording(run.build().path), Path(EXPERIMENT))

    alone, both = seen("alone"), seen("both", "latency_stays")

    assert alone["outcome"] is Outcome.INVALID
    assert "no fault removed the leader" in alone["text"]
    assert both["outcome"] is Outcome.HELD
    assert [each.partition("(")[0] for each in both["unjudged"]] == ["leader_elected"]


@pytest.mark.lie
def test_a_promise_that_broke_on_a_busy_machine_did_not_hold(tmp_path):
    """Another promise holds, and yet the trial is not one in which all is well."""
    run = RecordingBuilder(tmp_path / "run").fault("disk.latency", "consul-1", at=10, until=14).healthy()
    run.load("kv-writes", latency=lambda t: 3.0 if t > 10 else 0.01).final_reads("kv-writes")
    run.expect("latency_stays", load="kv-writes").expect("no_acknowledged_write_lost", load="kv-writes")
    run.series("machine.others", 1.8, every=1.0).series("machine.idle", 0.0, every=1.0)
    seen = seen_in(Recording(run.build().path), Path(EXPERIMENT))

    assert (seen["outcome"], seen["promises"]) == (Outcome.INVALID, ())
    assert "other work kept this machine busy" in seen["text"]


@pytest.mark.lie
@pytest.mark.parametrize("how", [{"ended": "fault"}, {"proven": False}, {"ended": "crashed"}])
def test_a_run_that_is_invalid_breaks_no_promise(how, tmp_path):
    """A slow run whose fault was not proven, or that did not end as planned."""
    seen = seen_in(recorded(tmp_path / "run", slow=True, **how), Path(EXPERIMENT))

    assert (seen["outcome"], seen["promises"], seen["states"]) == (Outcome.INVALID, (), ())


def test_a_trace_has_elections_lags_and_errors(tmp_path):
    run = RecordingBuilder(tmp_path / "run").fault("process.kill", "consul-1", at=10, until=14)
    run.load("kv-writes", outcome=lambda t: "fail" if 10 <= t < 12 else "ok")
    for second in range(40):
        lost = 10 <= second < 13
        run.sample("raft.leader", 0.0 if lost else 1.0, at=second, ok=not lost)
        leads, term = ("consul-1", 2.0) if second < 10 else ("consul-2", 3.0)
        for host in ("consul-1", "consul-2", "consul-3"):
            text = "leads" if host == leads and not lost else ""
            run.sample("raft.term", term, at=second, text=text, host=host)
            behind = host == "consul-3" and second < 20
            run.sample("raft.commit_index", second * 50.0 - 500 * behind, at=second, host=host)
    trace = trace_of(Recording(run.build().path))

    assert {"leader elected", "a server is 100 entries behind", "a leader was lost"} <= {*trace.effects}
    assert trace.gap_s == 3.0
    assert any("leader 0" in state for state in trace.states)
    assert any(" errors " in state for state in trace.states)
    assert [*map(set, trace.caused)] == [{"leader elected", "a server is 100 entries behind"}]


def test_a_look_that_is_late_is_no_lost_leader(tmp_path):
    run = RecordingBuilder(tmp_path / "run").fault("process.kill", "consul-2", at=10, until=14).load("kv-writes")
    for half in range(80):
        run.sample("raft.leader", float(half != 22), at=half / 2, ok=half != 22)
    trace = trace_of(Recording(run.build().path))

    assert trace.gap_s == 0.0
    assert "a leader was lost" not in trace.effects


class FakeLab(LabTrials):
    """Runs that were recorded before: the promise breaks where a leader is killed."""

    def __enter__(self):
        self.folder.mkdir(exist_ok=True)
        return self

    def __exit__(self, *_):
        pass

    def __call__(self, candidate, beat_s):
        broken = any(move.kind == "process.kill" and move.on == "consul:leader" for move in candidate)
        path = self.folder / RUNS / f"run-{len([*(self.folder / RUNS).glob('*')])}-{beat_s}"
        run = recorded(path, slow=broken)
        return Seen(**{**seen_in(run, self.trials.path), "took_s": {"method": 20.0}})


@pytest.fixture
def explore(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "LabTrials", FakeLab)
    return lambda *words: CliRunner().invoke(app, ["explore", *words])


@pytest.mark.long
def test_a_finding_is_an_experiment_that_anybody_runs(explore, tmp_path):
    kinds = ("--faults", "process.kill,process.pause", "--seed", "1")
    done = explore(EXPERIMENT, *kinds, "--beat", "2s", "--trials", "40", "--json")

    assert done.exit_code == 1, done.output
    document = json.loads(done.stdout)
    [finding] = document["findings"]
    assert [move["kind"] for move in finding["candidate"]] == ["process.kill"]
    found = load_experiment(finding["file"])
    assert [(step.fault, step.on) for step in found.faults] == [("process.kill", "consul:leader")]
    assert found.method[0].for_ == 2 * finding["candidate"][0]["length"], "beats of 2s, as was asked"
    assert f"{finding['broke']} of {finding['of']} valid runs" in found.metadata.why
    assert "seed 1" in found.metadata.why
    assert (Path(finding["best"]) / "report.html").is_file()
    [folder] = (tmp_path / ".hashidrill/explore").glob("*")
    assert len([*(folder / RUNS).glob("*")]) < 40

    again = explore("--resume", str(folder), "--trials", "45", "--json")
    assert again.exit_code == 1, again.output
    assert json.loads(again.stdout)["trials"] == 45
    assert len([*(folder / FINDINGS).glob("*")]) == 1

    report = explore(EXPERIMENT, *kinds, "--report")
    assert "1 exploration, 45 trials" in report.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name the experiment"),
        ((EXPERIMENT, "--attach", "staging.yaml"), "explore searches in a local datacenter alone"),
        ((EXPERIMENT, "--strategy", "clever"), "it is one of guided, random"),
        ((EXPERIMENT, "--resume", "there"), "--resume takes the experiment from its log"),
        (("--resume", "nowhere"), "this log cannot be read"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_one_message(words, says, explore):
    done = explore(*words)

    assert done.exit_code == 2 or isinstance(done.exception, UsageError)
    assert says in f"{done.output}{done.exception}"


def test_recordings_stay_within_their_bytes_and_those_of_findings_go_last(tmp_path):
    """Six trials, of which the first and the third are findings."""
    kept, of_findings = Kept(tmp_path, most_bytes=2500), []
    for number in range(6):
        run = tmp_path / RUNS / f"run{number}"
        run.mkdir(parents=True)
        (run / "journal.jsonl").write_bytes(b"." * 1000)
        kept.keep(Played((), 1.0, Seen(Outcome.HELD, recording=str(run))), useful=number != 1)
        if number in {0, 2}:
            kept.of_finding(str(run))
        of_findings.append([path.name for path in sorted((tmp_path / RUNS).iterdir())])
        assert sum(file.stat().st_size for file in tmp_path.rglob("*.jsonl")) <= 2500

    assert of_findings[1] == of_findings[0] == ["run0"]
    assert of_findings[-1] == ["run0", "run2"]


def test_what_a_killed_search_left_is_removed(tmp_path):
    for name in ("logged", "torn"):
        (tmp_path / RUNS / name).mkdir(parents=True)
    Kept(tmp_path).begin([Played((), 1.0, Seen(Outcome.HELD, recording=str(tmp_path / RUNS / "logged")))])

    assert [path.name for path in (tmp_path / RUNS).iterdir()] == ["logged"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_search_that_is_killed_loses_no_trial_and_counts_none_twice(kills, tmp_path, tell):
    """The real command, whose trials are played in a simulated network."""
    Campaign(SIMULATED, tmp_path, bug=BUG).run(kills, 45, 8.0, tell)
