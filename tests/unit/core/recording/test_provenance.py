"""A recording is data: judging never runs Python out of it, and says which hypotheses it used instead."""

import contextlib
import json
import sys
from functools import partial
from types import SimpleNamespace

import anyio
import pytest

from command_line import command_line
from hashidrill.core import hypothesis
from hashidrill.core.errors import MachineError, UsageError
from hashidrill.core.experiment.library import list_experiments
from hashidrill.core.experiment.loader import hypothesis_sources, load_experiment, load_text, resolve
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.hypothesis import files
from hashidrill.core.judging.judge import judge, read_verdict, write_verdict
from hashidrill.core.judging.verdict import Finding, Verdict
from hashidrill.core.recording import provenance
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage
from hashidrill.lab.runs import in_sandbox as sandboxed
from hashidrill.lab.runs import launch as runner
from hashidrill.testing.recordings import RecordingBuilder

LOSES = "no_acknowledged_write_lost"
EVIL = f"""
from pathlib import Path
from hashidrill.core.hypothesis import hypothesis
Path(__file__).with_name("was-run").touch()

@hypothesis
def {LOSES}(recording, *, load: str):
    pass
"""
OWN = """
from hashidrill.core.hypothesis import hypothesis

@hypothesis
def few(recording, *, at_most: int):
    assert len(recording.operations("kv-writes")) < at_most
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    (tmp_path / "somewhere").mkdir()
    monkeypatch.chdir(tmp_path / "somewhere")


def planted(path, **final):
    builder = RecordingBuilder(path).fault("noop", at=10, until=30).load("kv-writes").healthy()
    return builder.final_reads("kv-writes", final or None)


@pytest.fixture
def lost(tmp_path):
    """A recording that says: an acknowledged write is gone."""
    return planted(tmp_path / "theirs" / "run", **{"kv-writes/3": None}).expect(LOSES, load="kv-writes").build()


def plant(folder, text=EVIL, name="mine.py"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def harmless(recording, **how):
    """Judging it is FAIL as before, and nothing in it was run."""
    verdict = judge(Recording(recording.path), **how)
    assert not list(recording.path.parent.rglob("was-run"))
    assert verdict.verdict is Verdict.FAIL


@pytest.mark.lie
class TestARecordingIsData:
    @pytest.mark.parametrize("where", ["run/hypotheses", "hypotheses"])
    def test_python_in_it_or_beside_it_is_not_run(self, lost, where):
        plant(lost.path.parent / where)
        harmless(lost)

    @pytest.mark.parametrize("inside", [".", "artifacts", "logs/consul-1"])
    def test_not_from_a_working_directory_in_it_either(self, lost, inside, monkeypatch):
        plant(lost.path / "hypotheses")
        plant(lost.path.parent / "hypotheses")
        (lost.path / inside).mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(lost.path / inside)
        harmless(lost)

    def test_not_by_way_of_the_experiment_that_it_holds(self, lost):
        plant(lost.path / "hypotheses")
        harmless(lost, near_to=lost.path / "experiment.yaml")

    def test_not_through_a_link(self, lost, tmp_path):
        plant(lost.path / "hypotheses")
        (tmp_path / "somewhere" / "hypotheses").symlink_to(lost.path / "hypotheses")
        harmless(lost, near_to=tmp_path / "somewhere" / "x.yaml")

    def test_not_from_the_folder_in_which_it_is_judged(self, lost, tmp_path):
        """A stranger's archive has a recording and, above it, a hypothesis that turns its FAIL into a PASS."""
        plant(tmp_path / "somewhere" / "hypotheses")
        harmless(lost)
        assert not list(tmp_path.rglob("was-run"))

    def test_not_when_the_environment_names_it(self, lost, monkeypatch):
        monkeypatch.setenv(files.VARIABLE, str(plant(lost.path / "hypotheses")))
        with pytest.raises(UsageError, match="is in a recording"):
            hypothesis.get(LOSES)
        assert not list(lost.path.rglob("was-run"))

    def test_not_for_a_hypothesis_about_another_one(self, tmp_path):
        """A contrast looks its own hypothesis up."""
        run = planted(tmp_path / "theirs" / "run", **{"kv-writes/3": None})
        run.expect("contrast", of=LOSES, good="kv-writes", bad="kv-writes")
        plant(run.path / "hypotheses", EVIL.replace("    pass", "    return None"))
        recording = run.build()
        [judgement] = judge(recording).judgements
        assert not list(run.path.rglob("was-run"))
        assert "is broken for the good side" in judgement.text

    def test_results_are_not_written_through_a_link_that_it_holds(self, lost, tmp_path):
        mine = tmp_path / "precious"
        mine.write_text("mine")
        for name in ("verdict.json", "verdict.json.new"):
            (lost.path / name).symlink_to(mine)
        write_verdict(lost)
        assert mine.read_text() == "mine"
        assert read_verdict(lost.path).verdict is Verdict.FAIL


@pytest.fixture
def project(tmp_path):
    """A user's project with a hypothesis of its own, and a recording of its experiment that keeps it."""

    class Project:
        path = tmp_path / "project"
        hypotheses = plant(tmp_path / "project" / "hypotheses", OWN)

        def recorded(self, at_most=9999, of=None):
            run = planted(tmp_path / "runs" / "run").expect("few", at_most=at_most)
            if of:
                run.expect("contrast", of=of, good="kv-writes", bad="kv-writes")
            run.path.mkdir(parents=True)
            experiment = load_text(json.dumps(run.experiment()), near_to=self.path / "x.yaml")
            kept = hypothesis_sources(experiment, self.path / "x.yaml")
            (run.path / provenance.HYPOTHESES_NAME).write_text(json.dumps(kept))
            return run.build()

    return Project()


class TestWhatWasResolved:
    def test_is_kept_as_text_with_its_hash_and_its_origin(self, project):
        kept = json.loads((project.recorded().path / provenance.HYPOTHESES_NAME).read_text())
        about = kept["hypotheses"]["few"]
        assert about["file"] == str(project.hypotheses / "mine.py")
        assert kept["sources"][about["sha256"]] == OWN

    def test_what_a_contrast_is_about_is_kept_too(self, project):
        kept = json.loads((project.recorded(of="latency_stays").path / provenance.HYPOTHESES_NAME).read_text())
        assert list(kept["hypotheses"]) == ["few", "contrast", "latency_stays"]

    def test_is_sealed(self, project):
        recording = project.recorded()
        path = recording.path / provenance.HYPOTHESES_NAME
        path.write_text(path.read_text().replace("at_most", "at_mist"))
        assert any("hypotheses.json has changed since the run" in reason for reason in damage(recording))

    def test_the_same_hypotheses_need_no_word(self, project):
        verdict = judge(project.recorded(), near_to=project.path)
        assert (verdict.verdict, verdict.notes) == (Verdict.PASS, [])

    def test_a_copy_of_them_in_a_named_folder_is_the_same(self, project, tmp_path):
        copy = plant(tmp_path / "somewhere" / "hypotheses", OWN, "renamed.py")
        verdict = judge(project.recorded(), recorded_hypotheses=copy)
        assert (verdict.verdict, verdict.notes) == (Verdict.PASS, [])

    def test_no_other_file_of_a_named_folder_is_run(self, project, tmp_path):
        """Consent is to a content: one of that name that says something else is not the run's."""
        other = plant(tmp_path / "other" / "hypotheses", EVIL.replace(f"def {LOSES}", "def few"))
        verdict = judge(project.recorded(5), recorded_hypotheses=other)
        assert not list(tmp_path.rglob("was-run"))
        assert verdict.verdict is Verdict.INVALID
        assert f"no file in {other} has that SHA-256" in verdict.judgements[0].text

    def test_a_shipped_one_does_not_stand_for_one_of_the_same_name_that_the_run_had_from_elsewhere(self, tmp_path):
        """A project's stricter writes_recover: the laxer one that ships would turn its FAIL into a PASS."""
        strict = plant(tmp_path / "project" / "hypotheses", OWN.replace("def few", "def writes_recover"))
        run = planted(tmp_path / "runs" / "run").expect("writes_recover", at_most=5)
        run.path.mkdir(parents=True)
        experiment = load_text(json.dumps(run.experiment()), near_to=strict)
        (run.path / provenance.HYPOTHESES_NAME).write_text(json.dumps(hypothesis_sources(experiment, strict)))
        recording = run.build()
        assert judge(recording, recorded_hypotheses=strict).verdict is Verdict.FAIL
        verdict = judge(recording)
        assert verdict.verdict is Verdict.INVALID
        assert "the shipped hypothesis differs from the one that the run used" in verdict.judgements[0].text

    @pytest.mark.lie
    def test_others_are_used_and_named(self, project):
        recording = project.recorded()
        plant(project.hypotheses, OWN + "    assert False, 'stricter now'\n")
        verdict = judge(recording, near_to=project.path)
        assert verdict.verdict is Verdict.FAIL
        [note] = verdict.notes
        assert "few: judged with" in note
        assert "which differs from the file that the run used" in note

    def test_one_that_is_not_here_says_where_the_run_had_it_from(self, project):
        verdict = judge(project.recorded())
        assert verdict.verdict is Verdict.INVALID
        assert f"its run resolved it from {project.hypotheses / 'mine.py'}" in verdict.judgements[0].text
        assert "--hypotheses" in verdict.judgements[0].text
        assert "--recorded-hypotheses" in verdict.judgements[0].text

    def test_the_command_that_judges_again_names_the_folder_if_it_is_here(self, project):
        path = project.recorded().path
        again = provenance.judging_again(path)
        assert again == f"hashidrill check {path} --hypotheses {project.hypotheses}"
        (project.hypotheses / "mine.py").unlink()
        assert provenance.judging_again(path) == f"hashidrill check {path}"

    def test_another_version_of_hashidrill_is_named(self, project, monkeypatch):
        recording = project.recorded()
        monkeypatch.setattr(provenance, "__version__", "9.0")
        assert any(
            "made this recording, 9.0 judges it" in note for note in judge(recording, near_to=project.path).notes
        )

    def test_notes_stay_with_the_verdict(self, project):
        recording = project.recorded()
        plant(project.hypotheses, OWN + "    # another\n")
        written = write_verdict(recording, near_to=project.path)
        assert written.notes
        assert read_verdict(recording.path).notes == written.notes

    def test_the_hash_is_of_what_is_run_and_not_of_a_file_that_changed_since(self, project):
        used = hypothesis.get("few", near_to=project.path)
        plant(project.hypotheses, OWN + "    # another\n")
        assert files.source_of(used).decode() == OWN


class TestRecordedHypotheses:
    """The flag that runs what a recording keeps: the same verdict in a year, for whoever trusts its maker."""

    @pytest.mark.parametrize(("at_most", "finding"), [(9999, Finding.HELD), (5, Finding.BROKEN)])
    def test_they_give_the_verdict_of_then(self, project, at_most, finding):
        recording = project.recorded(at_most)
        plant(project.hypotheses, OWN + "    assert False\n")
        verdict = judge(recording, near_to=project.path, recorded_hypotheses=True)
        assert [judgement.finding for judgement in verdict.judgements] == [finding]
        assert "Python code from the recording was run" in verdict.notes[0]

    def test_the_text_of_an_assertion_is_told(self, project):
        [judgement] = judge(project.recorded(5), recorded_hypotheses=True).judgements
        assert "assert len(recording.operations" in judgement.text

    def test_one_that_is_not_kept_is_invalid(self, lost):
        [judgement] = judge(lost, recorded_hypotheses=True).judgements
        assert judgement.finding is Finding.INVALID
        assert f"it holds no source of '{LOSES}'" in judgement.text

    def test_a_source_that_is_not_what_its_hash_says_is_not_run(self, project, monkeypatch):
        recording = project.recorded()
        path = recording.path / provenance.HYPOTHESES_NAME
        path.write_text(path.read_text().replace("< at_most", "> at_most"))
        monkeypatch.setattr("hashidrill.core.judging.validity.damage", lambda _: [])
        [judgement] = judge(recording, recorded_hypotheses=True).judgements
        assert "does not match its SHA-256; it was not run" in judgement.text

    @pytest.fixture
    def check(self, monkeypatch, capsys, tmp_path):
        return partial(command_line(monkeypatch, capsys, tmp_path / "somewhere"), "check")

    def test_check_says_that_it_runs_them(self, project, check):
        code, out, err = check(project.recorded().path, "--recorded-hypotheses")
        assert code == 0
        assert "warning: running Python from" in err
        assert "note: judged with the hypotheses that the recording keeps" in out

    def test_check_does_not_unless_it_is_asked_to(self, project, check):
        code, _, err = check(project.recorded().path)
        assert code == 3
        assert "warning" not in err

    def test_check_without_the_runs_own_hypotheses_keeps_the_earlier_verdict(self, project, check):
        path = project.recorded().path
        kept = [path / name for name in ("verdict.json", "report.html", "summary.md")]
        assert check(path, "--hypotheses", project.hypotheses)[0] == 0
        before = [each.read_bytes() for each in kept]
        code, out, _ = check(path)
        assert code == 3
        assert "nothing was written: without few the earlier verdict stays" in out
        assert [each.read_bytes() for each in kept] == before

    def test_check_takes_a_folder_of_hypotheses(self, project, check):
        path = project.recorded().path
        assert check(path, "--hypotheses", project.hypotheses)[0] == 0
        assert check(path, "--hypotheses", project.path)[0] == 0

    @pytest.mark.parametrize("where", ["run/hypotheses", "nowhere", ""])
    def test_but_none_that_is_none_or_lies_in_a_recording(self, lost, check, where):
        plant(lost.path / "hypotheses")
        code, _, err = check(lost.path, "--hypotheses", lost.path.parent / where)
        assert code == 2
        assert "hypotheses" in err or "is in a recording" in err


class TestTheRun:
    """What the runner hands to the engine, with the sandbox left out."""

    @pytest.fixture
    def handed_over(self, project, tmp_path):
        """(the engine's command, what it is given, the recording) for an experiment with a hypothesis of its own."""
        seen = []

        @contextlib.contextmanager
        def no_sandbox(command, environment, log, *, given):
            seen.append((command, given))
            raise MachineError("no sandbox here")
            yield

        binary = SimpleNamespace(path="/bin/consul", version="1.22.2", sha256="0" * 64, source="PATH")
        document = planted(tmp_path / "unused").expect("few", at_most=9999).experiment()
        path = project.path / "x.yaml"
        path.write_text(json.dumps(document))
        with pytest.raises(MachineError):
            runner.run_experiment(
                resolve(path),
                runs_dir=tmp_path / "runs",
                ensure_binary=lambda *_, **__: binary,
                start_sandbox=no_sandbox,
            )
        [recording] = (tmp_path / "runs").iterdir()
        return (*seen[0], recording)

    def test_the_recording_keeps_the_experiment_and_what_it_resolved(self, handed_over, project):
        *_, recording = handed_over
        assert (recording / "experiment.yaml").read_text() == (project.path / "x.yaml").read_text()
        kept = json.loads((recording / provenance.HYPOTHESES_NAME).read_text())
        assert list(kept["hypotheses"]) == ["few"]

    @pytest.mark.lie
    def test_the_engine_takes_it_as_it_was_resolved(self, handed_over, project):
        """It is not resolved again: in the sandbox nothing lies beside it, and the file may be another one by then."""
        _, spec, _ = handed_over
        (project.hypotheses / "mine.py").unlink()
        (project.path / "x.yaml").unlink()
        given = []

        async def run(experiment, *_, **__):
            given.append(experiment)
            return "complete"

        go = partial(
            sandboxed.run_given, json.loads(json.dumps(spec)), project.path, datacenter=lambda *_, **__: None, run=run
        )
        assert anyio.run(go) == "complete"
        assert [each.hypothesis for each in given[0].expect] == ["few"]

    def test_no_module_of_the_working_directory_stands_for_one_of_ours(self, handed_over):
        """`-m` puts the working directory first in Python's path, unless it is told not to."""
        assert handed_over[0][:3] == [sys.executable, "-P", "-m"]


@pytest.mark.long
def test_every_experiment_of_the_library_is_the_same_after_it_was_handed_over():
    for path in list_experiments():
        resolved = resolve(path)
        given = ResolvedExperiment.from_data(json.loads(json.dumps(resolved.to_data())))
        assert given.experiment == load_experiment(path), path
        assert given.parameters == resolved.parameters, path
