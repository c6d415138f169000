"""An experiment with variants in pytest: one test an expectation and variant, and one a comparison."""

import json
import xml.etree.ElementTree as ET

import pytest

pytestmark = pytest.mark.long

pytest_plugins = ["pytester"]
LOAD = "kv-writes"
SIDES = {"candidate": "new", "baseline": "old", "figure": "kv-writes.latency.p50"}
COMPARE = [{"no_worse_than": {**SIDES, "or_below": "900ms"}}]
"""One round tells that a limit is kept; it takes three to tell that the candidate is slower."""


@pytest.fixture
def plant(project):
    def planted(*, new_s=0.5, new_proven=True, **kwargs):
        """Under fault, an operation takes 0.5 s in the one variant and `new_s` in the other."""
        builders = {
            "old": project.builder(latency=lambda at: 0.5 if 10 <= at < 32 else 0.01),
            "new": project.builder(latency=lambda at: new_s if 10 <= at < 32 else 0.01, proven=new_proven),
        }
        for builder in builders.values():
            builder.expect("writes_recover", load=LOAD, within="15s")
        return project.plant_variants(builders, **{"compare": COMPARE, **kwargs})

    return planted


def test_every_expectation_is_a_test_for_each_variant_and_every_comparison_is_one(project, plant):
    result = project.run(plant(), "-v")
    result.assert_outcomes(passed=3)
    for name in (
        "::old.writes_recover[[]load=kv-writes,within=15s[]]*PASSED",
        "::new.writes_recover*PASSED",
        "no_worse_than[[]candidate=new,baseline=old,*PASSED",
    ):
        result.stdout.fnmatch_lines([f"*{name}*"])
    assert project.ran == ["slow-disk-old", "slow-disk-new"]


def test_a_variant_is_selected_by_its_name(project, plant):
    project.run(plant(), "-k", "old.").assert_outcomes(passed=1, deselected=2)


def test_a_candidate_that_is_slower_fails_the_comparison_alone(project, plant):
    result = project.run(plant(new_s=1.5, rounds=3))
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "slow-disk: no_worse_than(candidate=new, baseline=old, figure=kv-writes.latency.p50, or_below=900ms)",
            "kv-writes.latency.p50 is 1.5s, the baseline's is 500ms: 3.00 times * in 3 rounds: worse by *",
            "comparison: *-slow-disk-compared-*",
            "see it again: hashidrill check *-slow-disk-compared-*",
            "FAIL *slow-disk *",
        ]
    )


def test_a_variant_that_is_invalid_is_an_error_of_its_tests_and_of_the_comparison(project, plant):
    result = project.run(plant(new_proven=False))
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["the comparison of slow-disk is INVALID:", "*round 1 of new is INVALID*not proven*"])


def test_an_expectation_is_that_of_the_worst_round(project, plant):
    path = plant(rounds=2)
    project.run(path, "-k", "writes_recover").assert_outcomes(passed=2, deselected=1)
    assert project.ran == ["slow-disk-old", "slow-disk-new", "slow-disk-new", "slow-disk-old"]


def test_recordings_of_a_comparison_are_judged_without_running_anything(project, plant):
    path = plant(new_s=1.5, rounds=3)
    project.run(path)
    del project.ran[:]
    result = project.run("--hashidrill-recording", ".hashidrill/runs", path)
    result.assert_outcomes(passed=2, failed=1)
    assert project.ran == []


def test_recordings_are_judged_by_what_the_experiment_expects_now(project, plant):
    path = plant()
    project.run(path)
    document = json.loads((project.path / path).read_text())
    document["variants"]["new"]["expect"] = [{"leadership_stays": None}]
    (project.path / path).write_text(json.dumps(document))
    result = project.run("--hashidrill-recording", ".hashidrill/runs", path, "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*new.leadership_stays*PASSED*"])


@pytest.mark.lie
def test_recordings_of_what_the_variant_no_longer_is_are_refused(project, plant):
    path = plant()
    project.run(path)
    document = json.loads((project.path / path).read_text())
    document["variants"]["new"]["datacenter"]["consul"]["config"]["performance"]["raft_multiplier"] = 7
    (project.path / path).write_text(json.dumps(document))
    result = project.run("--hashidrill-recording", ".hashidrill/runs", path)
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*did not run the variant new: datacenter.consul.config.performance.raft_multiplier*"])


def test_without_a_recorded_comparison_the_message_says_what_there_is(project, plant):
    path = plant()
    (project.path / "empty").mkdir()
    result = project.run("--hashidrill-recording", "empty", path)
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(
        ["*no comparison of slow-disk in empty (--hashidrill-recording); comparisons are of: none*"]
    )


def test_the_recording_fixture_has_a_run_of_one_variant(project, plant):
    plant()
    project.pytester.makepyfile("""
        import pytest

        @pytest.mark.experiment("experiments/slow-disk.yaml", variant="new")
        def test_of_new(recording):
            assert recording.variant == "new"

        @pytest.mark.experiment("experiments/slow-disk.yaml")
        def test_of_none(recording):
            pass
    """)
    result = project.run()
    result.assert_outcomes(passed=1, errors=1)
    assert project.ran[0] == "slow-disk-new"


def test_junit_has_the_figures_of_a_comparison(project, plant):
    project.run(plant(new_s=1.5, rounds=3), "--junitxml=j.xml")
    cases = {case.get("name"): case for case in ET.parse(project.path / "j.xml").iter("testcase")}
    [name] = [name for name in cases if name.startswith("no_worse_than")]
    properties = {each.get("name"): each.get("value") for each in cases[name].iter("property")}
    assert properties["finding"] == "broken"
    assert float(properties["figure.ratio"]) > 2
