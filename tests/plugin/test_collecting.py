"""Which YAML files become tests, and what those tests are called."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]
LOAD = "kv-writes"


def collected(result):
    return [line for line in result.outlines if "::" in line]


def two(project, **kwargs):
    builder = project.builder(**kwargs)
    return project.plant(builder.expect("writes_recover", load=LOAD, within="10s").expect("leadership_stays"))


def test_one_test_an_expectation_with_names_that_a_person_can_read(project):
    result = project.run("--collect-only", "-q", two(project))
    assert collected(result) == [
        "experiments/slow-disk.yaml::writes_recover[load=kv-writes,within=10s]",
        "experiments/slow-disk.yaml::leadership_stays",
    ]
    assert project.ran == []


def test_the_same_expectation_twice_gets_names_of_its_own(project):
    path = project.plant(project.builder().expect("leadership_stays").expect("leadership_stays"))
    assert [line.rpartition("::")[2] for line in collected(project.run("--collect-only", "-q", path))] == [
        "leadership_stays",
        "leadership_stays#2",
    ]


def test_a_folder_on_the_command_line_is_searched(project):
    two(project)
    assert len(collected(project.run("--collect-only", "-q", "experiments"))) == 2


def test_nothing_is_collected_that_was_not_named(project):
    """A bare `pytest` in a project must not start to break a datacenter."""
    two(project)
    project.pytester.makepyfile(test_own="def test_own(): pass")
    result = project.run("-q")
    result.assert_outcomes(passed=1)
    assert project.ran == []


def test_testpaths_do_not_name_anything(project):
    two(project)
    project.pytester.makeini("[pytest]\ntestpaths = experiments")
    assert collected(project.run("--collect-only", "-q")) == []


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\n",
        "kind: Experiment\nname: somebody elses\n",
        "apiVersion: hashidrill/v1\nkind: Playbook\n",
        "test_name: an api test\nstages: []\n",
        "",
    ],
)
def test_other_yaml_is_left_alone(project, text):
    two(project)
    (project.path / "experiments" / "other.yaml").write_text(text)
    assert len(collected(project.run("--collect-only", "-q", "experiments"))) == 2


def test_json_schema_and_other_files_are_left_alone(project):
    two(project)
    (project.path / "experiments" / "schema.json").write_text('{"apiVersion": "hashidrill/v1", "kind": "Experiment"}')
    assert len(collected(project.run("--collect-only", "-q", "experiments"))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiVersion: hashidrill/v1\nkind: Experiment\nmetadata: [\n", "bad.yaml:"),
        ("apiVersion: hashidrill/v1\nkind: Experimant\n", "expected Experiment"),
        ("apiVersion: hashidrill/v1\n", "kind"),
    ],
)
def test_bad_yaml_is_a_collection_error_of_one_message(project, text, message):
    two(project)
    (project.path / "experiments" / "bad.yaml").write_text(text)
    result = project.run("experiments")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ERROR collecting experiments/bad.yaml*"])
    result.stdout.fnmatch_lines([f"*{message}*"])
    assert "Traceback" not in result.stdout.str()
    assert ".py:" not in result.stdout.str()
    assert project.ran == []


def test_an_unknown_hypothesis_is_a_collection_error_with_the_near_name(project):
    result = project.run(project.plant(project.builder().expect("leadership_stay")))
    result.stdout.fnmatch_lines(["*leadership_stay*did you mean leadership_stays*"])
    assert project.ran == []


def test_k_selects_by_expectation_experiment_and_tag(project):
    path = two(project, tags=["raft", "gate"])
    for word, count in {"writes_recover": 1, "slow-disk": 2, "gate": 2, "nothing": 0}.items():
        assert len(collected(project.run("--collect-only", "-q", path, "-k", word))) == count, word


def test_tags_are_markers_also_where_markers_are_strict(project):
    path = two(project, tags=["gate", "game-day"])
    for word, count in {"gate": 2, "game-day": 2, "not gate": 0}.items():
        assert len(collected(project.run("--collect-only", "-q", "--strict-markers", path, "-m", word))) == count, word


def test_a_tag_that_is_a_word_of_pytest_does_not_command_it(project):
    project.run(two(project, tags=["skip", "xfail"])).assert_outcomes(passed=2)


def test_only_what_is_selected_is_run(project):
    two(project)
    project.plant(project.builder("other").expect("leadership_stays"))
    project.run("experiments", "-k", "other").assert_outcomes(passed=1, deselected=2)
    assert project.ran == ["other"]


def test_a_node_id_selects_one_expectation(project):
    project.run(f"{two(project)}::leadership_stays").assert_outcomes(passed=1)


@pytest.mark.long
def test_without_the_plugin_nothing_of_it_is_left(project):
    result = project.pytester.runpytest_subprocess("-p", "no:hashidrill", two(project))
    assert result.ret in {pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED}
    assert (
        "unrecognized arguments"
        in project.pytester.runpytest_subprocess("-p", "no:hashidrill", "--hashidrill-runs", "x").stderr.str()
    )


def test_importing_the_plugin_imports_nothing_heavy():
    """It is loaded into every pytest run on a machine that has hashidrill."""
    heavy = [
        "numpy",
        "pydantic",
        "ruamel",
        "anyio",
        "aiohttp",
        "httpx2",
        "pyroute2",
        "typer",
        "hashidrill.core.recording.reader",
    ]
    code = f"import sys, hashidrill.faces.pytest_plugin; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_of_hypotheses_that_does_not_load_is_a_collection_error(project):
    path = two(project)
    (project.path / "hypotheses").mkdir()
    (project.path / "hypotheses" / "mine.py").write_text("import hashidrill\n1 / 0\n")
    result = project.run(path)
    result.stdout.fnmatch_lines(["*mine.py:2: cannot be imported: ZeroDivisionError*"])
    assert "Traceback" not in result.stdout.str()
