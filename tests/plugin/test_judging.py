"""What pytest says of a run: passed, failed, error, xfailed; and what JUnit keeps of it."""

import json
import shutil
import sys
import xml.etree.ElementTree as ET

import pytest

from hashidrill.core.errors import MachineError
from hashidrill.core.experiment.loader import load_text
from hashidrill.core.judging.comparison import differences
from hashidrill.core.judging.judge import read_verdict
from hashidrill.gamedays.history import (
    on_turn_red as turned_runs,  # once: pytester forgets what a session inside of it imported
)
from hashidrill.gamedays.history.store import Store, history_file, opened

pytestmark = pytest.mark.long

pytest_plugins = ["pytester"]
LOAD = "kv-writes"


def recovers(builder, **kwargs):
    return builder.expect("writes_recover", load=LOAD, within="10s", **kwargs)


class TestOutcomes:
    def test_all_expectations_of_a_file_share_one_run(self, project):
        path = project.plant(recovers(project.builder()).expect("leadership_stays").expect("green_but_sick", load=LOAD))
        result = project.run(path)
        result.assert_outcomes(passed=3)
        assert result.ret == 0
        assert project.ran == ["slow-disk"]

    def test_what_is_broken_fails_with_words_figures_and_where_to_look(self, project):
        result = project.run(project.plant(recovers(project.builder(recovery=14)).expect("leadership_stays")))
        result.assert_outcomes(passed=1, failed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(
            [
                "*slow-disk: writes_recover[[]load=kv-writes,within=10s[]]*",
                "slow-disk: writes_recover(load=kv-writes, within=10s)",
                "kv-writes did not recover within 10s after the last fault ended*",
                "expected p50 under 300ms: it stayed there only from 13.5s on",
                "figures:",
                "  recovered_after_s = 13.5",
                "recording: */.hashidrill/runs/slow-disk-1",
                "see it again: hashidrill check */.hashidrill/runs/slow-disk-1",
            ]
        )
        assert "Traceback" not in result.stdout.str()
        assert ".py:" not in result.stdout.str()

    def test_a_known_issue_that_is_broken_is_an_expected_failure(self, project):
        builder = recovers(project.builder(recovery=14), known_issue="hashicorp/consul#22064")
        result = project.run(project.plant(builder), "-rx")
        result.assert_outcomes(xfailed=1)
        assert result.ret == 0
        result.stdout.fnmatch_lines(["XFAIL*hashicorp/consul#22064: kv-writes did not recover*"])

    def test_a_known_issue_that_holds_fails(self, project):
        result = project.run(project.plant(recovers(project.builder(), known_issue="hashicorp/consul#22064")))
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*it held, although known_issue names hashicorp/consul#22064*"])

    def test_runxfail_makes_known_issues_failures(self, project):
        builder = recovers(project.builder(recovery=14), known_issue="hashicorp/consul#22064")
        project.run(project.plant(builder), "--runxfail").assert_outcomes(failed=1)

    def test_an_invalid_run_is_an_error_of_every_test_with_the_reasons(self, project):
        path = project.plant(recovers(project.builder(proven=False)).expect("leadership_stays"))
        result = project.run(path)
        result.assert_outcomes(errors=2)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(
            [
                "the run of slow-disk is INVALID:",
                "  - fault noop on consul-1 was not proven in force: asked for in force, measured nothing of it",
                "see it again: hashidrill check *",
            ]
        )
        assert "Traceback" not in result.stdout.str()
        assert project.ran == ["slow-disk"]

    def test_a_lost_write_fails_even_in_an_invalid_run(self, project):
        builder = project.builder(proven=False).final_reads(LOAD, {"kv-writes/3": None})
        result = project.run(project.plant(builder.expect("no_acknowledged_write_lost", load=LOAD)))
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*lost acknowledged writes on 1 keys: kv-writes/3*"])

    def test_an_expectation_with_nothing_to_check_is_an_error(self, project):
        result = project.run(project.plant(recovers(project.builder()).expect("leader_elected")))
        result.assert_outcomes(passed=1, errors=1)
        result.stdout.fnmatch_lines(["leader_elected() cannot be judged: *no election to judge*"])

    def test_x_stops_at_the_first_failure(self, project):
        project.plant(recovers(project.builder("a", recovery=14)).expect("leadership_stays"))
        project.plant(project.builder("b").expect("leadership_stays"))
        project.run("experiments", "-x").assert_outcomes(failed=1)
        assert project.ran == ["a"]

    def test_a_run_that_cannot_be_had_is_an_error_once_and_not_tried_again(self, project, monkeypatch):
        def refuse(resolved, **_):
            project.ran.append(resolved.path.stem)
            raise MachineError("no user namespaces here; `sysctl kernel.unprivileged_userns_clone=1` gives them")

        monkeypatch.setattr(sys.modules["hashidrill.lab.runs.launch"], "run_experiment", refuse)
        result = project.run(project.plant(recovers(project.builder()).expect("leadership_stays")))
        result.assert_outcomes(errors=2)
        result.stdout.fnmatch_lines(["slow-disk could not be run: no user namespaces here; *"])
        assert "Traceback" not in result.stdout.str()
        assert project.ran == ["slow-disk"]

    def test_a_guardrail_that_tripped_fails_a_test_of_its_own(self, project):
        builder = project.builder().guardrail("kv-writes.errors > 90% for 20s", tripped_at=28, evidence="errors 97%")
        result = project.run(project.plant(builder.end("guardrail").expect("leadership_stays")))
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines(["*guardrail `kv-writes.errors > 90% for 20s` tripped 28.0s into the run*"])

    def test_guardrails_that_held_pass(self, project):
        builder = project.builder().guardrail("kv-writes.errors > 90% for 20s").expect("leadership_stays")
        project.run(project.plant(builder)).assert_outcomes(passed=2)

    def test_a_hypothesis_of_the_users_own_is_judged_too(self, project):
        (project.path / "hypotheses").mkdir()
        (project.path / "hypotheses" / "mine.py").write_text(
            "from hashidrill.core.hypothesis import hypothesis\n\n@hypothesis\ndef few(recording, *, at_most: int):\n"
            "    count = len(recording.operations('kv-writes'))\n    assert count < at_most\n"
        )
        path = project.plant(project.builder().expect("few", at_most=9999).expect("few", at_most=5))
        result = project.run(path)
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines(["assert count < at_most (*mine.py:6)", "count = 2300", "at_most = 5"])


class TestRuns:
    def test_recordings_go_under_rootdir_with_their_verdict(self, project):
        project.run(project.plant(recovers(project.builder())))
        assert project.runs_dirs == [project.path / ".hashidrill" / "runs"]
        assert read_verdict(project.runs_dirs[0] / "slow-disk-1").invalid == []

    def test_or_where_they_are_told_to(self, project):
        project.run("--hashidrill-runs", str(project.path / "elsewhere"), project.plant(recovers(project.builder())))
        assert project.runs_dirs == [project.path / "elsewhere"]

    def test_the_summary_has_a_line_for_each_experiment(self, project):
        project.plant(recovers(project.builder("a", recovery=14)))
        project.plant(recovers(project.builder("b")))
        project.plant(recovers(project.builder("c", proven=False)))
        project.run("experiments").stdout.fnmatch_lines(
            [
                "*= hashidrill =*",
                "FAIL    a  */.hashidrill/runs/a-1",
                "PASS    b  */.hashidrill/runs/b-2",
                "INVALID c  */.hashidrill/runs/c-3",
            ]
        )

    def test_there_is_no_summary_where_nothing_was_run(self, project):
        project.pytester.makepyfile(test_own="def test_own(): pass")
        assert "hashidrill" not in project.run("test_own.py").stdout.str().partition("collected")[2]

    def test_verbose_shows_how_the_run_goes(self, project):
        path = project.plant(recovers(project.builder()))
        project.run("-v", path).stdout.fnmatch_lines(["hashidrill: slow-disk:   10.0s method"])
        assert "10.0s method" not in project.run(path).stdout.str()


class TestRecordingOption:
    def test_judges_without_running(self, project):
        path = project.plant(recovers(project.builder()))
        project.run("--hashidrill-recording", "planted/slow-disk", path).assert_outcomes(passed=1)
        assert project.ran == []

    def test_leaves_the_recording_as_it_was(self, project):
        path = project.plant(recovers(project.builder()))
        before = {file: file.read_bytes() for file in (project.path / "planted").rglob("*") if file.is_file()}
        project.run("--hashidrill-recording", "planted/slow-disk", path)
        assert {file: file.read_bytes() for file in (project.path / "planted").rglob("*") if file.is_file()} == before

    def test_a_directory_of_recordings_is_matched_by_experiment(self, project):
        project.plant(recovers(project.builder("a", recovery=14)))
        project.plant(recovers(project.builder("b")))
        project.run("--hashidrill-recording", "planted", "experiments").assert_outcomes(passed=1, failed=1)

    def test_the_newest_of_several_is_taken(self, project):
        path = project.plant(recovers(project.builder()))
        older = recovers(project.builder(recovery=14)).run_info(started_at="2020-01-01T00:00:00+00:00")
        older.path = project.path / "planted" / "zz-older"
        older.build()
        project.run("--hashidrill-recording", "planted", path).assert_outcomes(passed=1)

    def test_the_expectations_of_the_file_at_hand_are_the_ones_judged(self, project):
        """So that a threshold can be tried on yesterday's recording."""
        path = project.plant(recovers(project.builder()))
        document = json.loads((project.path / path).read_text())
        document["expect"] = [{"writes_recover": {"load": LOAD, "within": "500ms"}}]
        (project.path / path).write_text(json.dumps(document))
        project.run("--hashidrill-recording", "planted", path).assert_outcomes(failed=1)

    @pytest.mark.lie
    @pytest.mark.parametrize(
        ("part", "value", "said"),
        [
            (
                "method",
                [{"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "9s"}, "for": "20s"}],
                "*method?0?.fault: the experiment says disk.latency, the run had noop*",
            ),
            (
                "load",
                {LOAD: {"kind": "consul.kv.write", "rate": "500/s"}},
                "*load.kv-writes.rate: the experiment says 500*, the run had 50*",
            ),
            (
                "datacenter",
                {"consul": {"servers": 5}},
                "*datacenter.consul.servers: the experiment says 5, the run had 3*",
            ),
            (
                "guardrails",
                ["kv-writes.errors > 5% for 5s"],
                "*guardrails?0?: the experiment says *, the run had nothing*",
            ),
            ("recovery", {"for": "90s"}, "*recovery.for: the experiment says *, the run had 20s*"),
        ],
    )
    def test_a_recording_of_another_experiment_of_that_name_is_not_judged(self, project, part, value, said):
        path = project.plant(recovers(project.builder()))
        document = json.loads((project.path / path).read_text())
        document[part] = value
        (project.path / path).write_text(json.dumps(document))
        result = project.run("--hashidrill-recording", "planted", path)
        assert result.parseoutcomes().get("passed", 0) == 0
        assert result.parseoutcomes()["errors"] >= 1
        result.stdout.fnmatch_lines(["*planted/slow-disk is a recording of another experiment named slow-disk:", said])

    def test_the_newest_recording_of_that_very_experiment_is_taken(self, project):
        path = project.plant(recovers(project.builder()))
        newer = recovers(project.builder(recovery=14)).run_info(started_at="2030-01-01T00:00:00+00:00")
        newer.path = project.path / "planted" / "newer"
        newer._method = [{**step, "for": "25s"} for step in newer._method]
        newer.build()
        project.run("--hashidrill-recording", "planted", path).assert_outcomes(passed=1)

    def test_a_secret_that_the_recording_does_not_hold_is_no_difference(self, project):
        path = project.plant(recovers(project.builder()))
        document = json.loads((project.path / path).read_text())
        redacted = json.loads(json.dumps(document))
        redacted["datacenter"]["consul"]["config"] = {"encrypt": "[redacted]"}
        document["datacenter"]["consul"]["config"] = {"encrypt": "cg8StVXbQJ0gPvMd9o7yrg=="}
        (project.path / path).write_text(json.dumps(document))
        asked = load_text(json.dumps(document))
        assert differences(asked, load_text(json.dumps(redacted))) == []
        redacted["datacenter"]["consul"]["servers"] = 5
        assert differences(asked, load_text(json.dumps(redacted))) == [
            "datacenter.consul.servers: the experiment says 3, the run had 5"
        ]

    def test_no_recording_of_that_experiment_is_an_error_that_names_those_there_are(self, project):
        project.plant(project.builder("a").expect("leadership_stays"))
        path = project.plant(project.builder("b").expect("leadership_stays"))
        result = project.run("--hashidrill-recording", "planted/a", path)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["*no recording of b in planted/a (--hashidrill-recording); recordings are of: a"])
        assert project.ran == []

    def test_a_directory_that_is_not_there_is_an_error(self, project):
        path = project.plant(project.builder().expect("leadership_stays"))
        project.run("--hashidrill-recording", "nope", path).stdout.fnmatch_lines(["*nope: there is no such directory*"])


class TestHandWritten:
    TEST = """
        import pytest

        @pytest.mark.experiment("experiments/slow-disk.yaml")
        def test_by_hand(recording):
            assert recording.operations("kv-writes").percentile_s(50) < {limit}
    """

    def test_the_recording_fixture_runs_the_experiment_that_the_marker_names(self, project):
        project.plant(project.builder().expect("leadership_stays"))
        project.pytester.makepyfile(self.TEST.format(limit=1))
        project.run("--strict-markers").assert_outcomes(passed=1)
        assert project.ran == ["slow-disk"]

    def test_assertions_are_explained_by_pytest(self, project):
        project.plant(project.builder().expect("leadership_stays"))
        project.pytester.makepyfile(self.TEST.format(limit=0.001))
        result = project.run()
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["E * assert 0.01* < 0.001"])

    def test_the_run_is_shared_with_the_yaml_of_the_same_session(self, project):
        path = project.plant(project.builder().expect("leadership_stays"))
        test = project.pytester.makepyfile(self.TEST.format(limit=1))
        project.run(path, str(test)).assert_outcomes(passed=2)
        assert project.ran == ["slow-disk"]

    def test_a_path_relative_to_the_test_works_too(self, project):
        project.plant(project.builder().expect("leadership_stays"), folder="tests/experiments")
        (project.path / "tests" / "test_it.py").write_text(
            "import pytest\n\n@pytest.mark.experiment('experiments/slow-disk.yaml')\ndef test_it(recording): pass\n"
        )
        project.run("tests/test_it.py").assert_outcomes(passed=1)

    def test_an_invalid_run_is_an_error_not_a_failure(self, project):
        project.plant(project.builder(proven=False).expect("leadership_stays"))
        project.pytester.makepyfile(self.TEST.format(limit=1))
        result = project.run()
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["*the run of slow-disk is INVALID:*"])

    @pytest.mark.parametrize(
        ("marker", "message"),
        [
            ("", '*the recording fixture needs @pytest.mark.experiment("path/of/experiment.yaml")*'),
            ("@pytest.mark.experiment('nope.yaml')", "*there is no experiment nope.yaml in any of:*"),
        ],
    )
    def test_a_marker_that_names_nothing_is_an_error(self, project, marker, message):
        project.pytester.makepyfile(f"import pytest\n{marker}\ndef test_it(recording): pass")
        result = project.run()
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([message])


class TestJUnit:
    @pytest.fixture
    def cases(self, project):
        builder = recovers(project.builder(recovery=14)).expect("green_but_sick", load=LOAD).expect("leader_elected")
        builder.expect("latency_stays", load=LOAD, known_issue="hashicorp/consul#22064")
        project.run("--junitxml=junit.xml", project.plant(builder))
        tree = ET.parse(project.path / "junit.xml")
        return {case.get("name").partition("[")[0]: case for case in tree.iter("testcase")}

    def test_has_one_case_an_expectation_under_the_name_of_the_experiment(self, cases):
        assert list(cases) == ["writes_recover", "green_but_sick", "leader_elected", "latency_stays"]
        assert {case.get("classname") for case in cases.values()} == {"experiments.slow-disk.yaml"}
        assert cases["writes_recover"].get("name") == "writes_recover[load=kv-writes,within=10s]"

    def test_tells_failure_error_and_skip_apart(self, cases):
        found = {name: [child.tag for child in case if child.tag != "properties"] for name, case in cases.items()}
        assert found == {
            "writes_recover": ["failure"],
            "green_but_sick": [],
            "leader_elected": ["error"],
            "latency_stays": ["skipped"],
        }
        assert "did not recover within 10s" in cases["writes_recover"].find("failure").text

    def test_has_the_evidence_of_each_case_in_its_properties(self, cases):
        for name, finding in {
            "writes_recover": "broken",
            "green_but_sick": "held",
            "leader_elected": "invalid",
        }.items():
            properties = {each.get("name"): each.get("value") for each in cases[name].iter("property")}
            assert properties["finding"] == finding
            assert properties["experiment"] == "slow-disk"
            assert properties["recording"].endswith(".hashidrill/runs/slow-disk-1")
            assert len(properties["evidence"]) > 40
        assert (
            float(
                {e.get("name"): e.get("value") for e in cases["writes_recover"].iter("property")}[
                    "figure.recovered_after_s"
                ]
            )
            == 13.5
        )

    def test_says_that_a_verdict_turned_and_the_history_has_both_runs(self, project, monkeypatch):
        """As properties of each test of the run that failed, and in the last lines."""
        sent = []
        monkeypatch.setenv("HASHIDRILL_NOTIFY", "https://hooks.example.org/s3cr3t")
        monkeypatch.setattr(turned_runs, "send", lambda url, body, **_: sent.append(body["before"]))
        turned = []
        for number, recovery in enumerate((2.0, 14, 14)):
            builder = recovers(project.builder(recovery=recovery)).run_info(id=f"run-{number}")
            shutil.rmtree(builder.path, ignore_errors=True)
            result = project.run("--junitxml=junit.xml", project.plant(builder))
            [case] = ET.parse(project.path / "junit.xml").iter("testcase")
            properties = {each.get("name"): each.get("value") for each in case.iter("property")}
            turned.append(properties.get("turned", ""))
            assert ("turned from PASS to FAIL" in result.stdout.str()) == bool(turned[-1])
            assert "s3cr3t" not in result.stdout.str()
        assert [text.partition(":")[0] for text in turned] == ["", "slow-disk turned from PASS to FAIL", ""]
        assert sent == ["PASS"]
        with opened(history_file()) as database:
            assert [run.id for run in Store(database).runs()] == ["run-0", "run-1", "run-2"]

    def test_a_recording_that_is_judged_again_is_no_new_run(self, project):
        builder = recovers(project.builder())
        project.run("--hashidrill-recording", builder.path, project.plant(builder))
        assert not history_file().exists()
