"""What a pipeline runs is run here: the steps of the action, GitLab's job, the hooks, and the playbook's commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from docs_pages import ROOT, commands, page, words_of
from hashidrill.cli import gate as command
from hashidrill.cli.app import app
from hashidrill.testing.recordings import RecordingBuilder
from planted_gate import PlantedRuns

ACTION = ROOT / ".github/actions/gate/action.yml"
WORKFLOW = ROOT / ".github/workflows/gate.yml"
GITLAB = ROOT / ".gitlab/gate.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
PLAYBOOK = "playbooks/gate-a-config-change.md"
_INPUT = re.compile(r"\$\{\{\s*inputs\.([\w-]+)\s*\}\}")
pytestmark = pytest.mark.needs("consul 1.22.2")


def read(path):
    return YAML(typ="safe").load(path.read_text())


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with `consul.d` on main; `change(text)` commits another text of it."""
    for name in list(os.environ):
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "repository"
    (folder / "consul.d").mkdir(parents=True)
    monkeypatch.chdir(folder)

    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()

    def change(text):
        (folder / "consul.d/server.hcl").write_text(text)
        git("add", "consul.d")
        git("commit", "-qm", "change")
        return git("rev-parse", "HEAD")

    git("init", "-q", "-b", "main")
    change('node_name = "a"\nperformance { raft_multiplier = 3 }\n')
    folder_of = change
    folder_of.folder, folder_of.git = folder, git
    return change


def run_step(script, folder, **environment):
    """As a runner does: bash, with what it sets."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "UV_NO_SYNC": "1", "UV_FROZEN": "1", **environment},
    )  # fmt: skip


class TestTheAction:
    @pytest.fixture
    def steps(self, repository, tmp_path):
        """Runs the steps of the action with these inputs; exit codes by name, outputs, and the summary."""

        def run(**given):
            action = read(ACTION)
            inputs = {name: about.get("default", "") for name, about in action["inputs"].items()} | given
            files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
            for file in files.values():
                file.touch()
            shims = tmp_path / "shims"
            shims.mkdir(exist_ok=True)
            (shims / "sudo").write_text("#!/bin/sh\nexit 0\n")
            (shims / "sudo").chmod(0o755)
            codes = {}
            for step in (step for step in action["runs"]["steps"] if "run" in step):
                given_to_it = {key: _INPUT.sub(lambda found: inputs[found[1]], value)
                               for key, value in step.get("env", {}).items()}  # fmt: skip
                done = run_step(
                    step["run"], repository.folder, **given_to_it, **{name: str(file) for name, file in files.items()},
                    GITHUB_ACTION_PATH=str(ACTION.parent), PATH=f"{shims}:{os.environ['PATH']}",
                )  # fmt: skip
                codes[step["name"]] = (done.returncode, done.stdout + done.stderr)
            return codes, *(file.read_text() for file in files.values())

        return run

    def test_a_change_that_changes_nothing_passes_and_says_so(self, repository, steps):
        repository('node_name = "b"\nperformance { raft_multiplier = 3 }\n')
        codes, output, summary = steps(path="consul.d", base="main~1", head="main")
        assert {name: code for name, (code, _) in codes.items()} == dict.fromkeys(codes, 0), codes
        assert output == "verdict=no change\n"
        assert "no change" in summary

    def test_what_consul_refuses_fails_the_job(self, repository, steps):
        repository("no_such_key = 3\n")
        codes, output, _ = steps(path="consul.d\n", base="main~1", head="main")
        assert codes["gate"][0] == 2
        assert "invalid config key no_such_key" in codes["gate"][1]
        assert output == ""
        assert codes["summary"][0] == 0

    def test_options_and_several_paths_reach_the_command(self, repository, steps):
        repository("performance { raft_multiplier = 4 }\n")
        codes, *_ = steps(path="consul.d\nconsul.d/server.hcl", base="main~1", head="main",
                          arguments="--dry-run --suite raft/killed-leader")  # fmt: skip
        assert "runs raft/killed-leader" in codes["gate"][1]

    def test_every_input_that_is_used_is_declared_and_none_is_in_a_script(self):
        action = read(ACTION)
        assert set(_INPUT.findall(ACTION.read_text())) == set(action["inputs"])
        scripts = "".join(step.get("run", "") for step in action["runs"]["steps"])
        assert "${{" not in scripts  # what a pull request names must not become code


def test_the_workflow_calls_the_action_with_inputs_that_it_has():
    workflow = read(WORKFLOW)
    called = workflow.get("on", workflow.get(True))["workflow_call"]["inputs"]
    assert set(_INPUT.findall(WORKFLOW.read_text())) == set(called)
    [step] = [step for step in workflow["jobs"]["gate"]["steps"] if "actions/gate" in step.get("uses", "")]
    assert (ROOT / step["uses"].removeprefix("./.hashidrill-source/") / "action.yml").is_file()
    assert set(step["with"]) <= set(read(ACTION)["inputs"])
    [checkout] = [step for step in workflow["jobs"]["gate"]["steps"] if step.get("with", {}).get("fetch-depth") == 0]
    assert "checkout" in checkout["uses"]  # a shallow clone lacks the base


def test_gitlabs_job_runs(repository, binary):
    base = repository('performance { raft_multiplier = 3 }\nnode_name = "b"\n')
    head = repository('performance { raft_multiplier = 3 }\nnode_name = "c"\n')
    job = read(GITLAB)[".hashidrill-gate"]
    script = [line.replace("git clone -q --depth 1", f"ln -s {ROOT} .hashidrill-source #") for line in job["script"]]
    done = run_step(
        "\n".join(script), repository.folder, CI_PROJECT_DIR=str(repository.folder), HASHIDRILL_PATH="consul.d",
        CI_MERGE_REQUEST_DIFF_BASE_SHA=base, CI_COMMIT_SHA=head, HASHIDRILL_SOURCE=str(ROOT),
        HASHIDRILL_ARGUMENTS="--suite raft/killed-leader", HASHIDRILL_CONSUL=str(binary("consul", "1.22.2").path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for kept in (*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]):
        assert (repository.folder / kept).exists()


@pytest.mark.parametrize(
    ("hook", "right", "wrong"),
    [
        ("hashidrill-validate", "extends: good", "kind: Experiment\nnonsense: true"),
        ("hashidrill-audit", 'retry_join = ["10.0.0.1"]', 'retry_join = ["10.0.0.1"]\nretry_max = 3'),
    ],
)
def test_a_hook_passes_what_is_right_and_stops_what_is_wrong(tmp_path, hook, right, wrong):
    [said] = [each for each in read(HOOKS) if each["id"] == hook]
    name = {"hashidrill-validate": "experiments/gate.yaml", "hashidrill-audit": "consul.d/server.hcl"}[hook]
    assert re.search(said["files"], name)
    assert not re.search(said["files"], "README.md")
    file = tmp_path / name
    file.parent.mkdir()
    program, *words = [*said["entry"].split(), *said.get("args", [])]
    words += [name] if said.get("pass_filenames", True) else []
    codes = []
    for text in (right, wrong):
        file.write_text((ROOT / "experiments/raft/killed-leader.yaml").read_text().replace(
            "../bases", str(ROOT / "experiments/bases")) if text == "extends: good" else text)  # fmt: skip
        done = subprocess.run([Path(sys.executable).with_name(program), *words], cwd=tmp_path, capture_output=True,
                              check=False)  # fmt: skip
        codes.append(done.returncode)
    assert codes[0] == 0
    assert codes[1] in {1, 2}


# the playbook


def lines_of_the_playbook():
    return [line for line, _ in commands(page(PLAYBOOK)) if len(words_of(line)) > 1]


def test_the_playbook_is_half_as_long_as_it_was():
    assert len((ROOT / PLAYBOOK).read_text().splitlines()) <= 131 // 2


@pytest.mark.needs("consul 1.10.3")
@pytest.mark.parametrize("line", lines_of_the_playbook())
def test_each_command_of_the_playbook_runs(line, repository, tmp_path, monkeypatch):
    """With runs that leave planted recordings; all else is as it is."""
    repository("performance { raft_multiplier = 4 }\n")
    repository.git("update-ref", "refs/remotes/origin/main", "main~1")
    new = repository.folder / "new/consul.d"
    new.mkdir(parents=True)
    (new / "server.hcl").write_text("performance { raft_multiplier = 4 }\n")
    (repository.folder / "consul.d/server.hcl").write_text("performance { raft_multiplier = 3 }\n")
    planted = PlantedRuns(repository.folder / "runs")
    planted.folder.mkdir()
    kept_run = RecordingBuilder(planted.folder / "20250101-000000-planted-0000").fault("noop", at=10, until=30)
    kept_run.load("kv-writes").final_reads("kv-writes").healthy().expect("no_acknowledged_write_lost", load="kv-writes")
    kept_run.build()
    monkeypatch.setattr(command, "Means", lambda say, events: planted.means())
    kept = partial(command.calibrate, play=planted.means().play, folder=tmp_path / "kept")
    monkeypatch.setattr(command, "calibrate", kept)
    done = CliRunner().invoke(app, words_of(line))
    assert done.exit_code == 0, f"{line}: {done.output}\n{done.exception!r}"
    if "--schema" in line:
        assert json.loads(done.stdout)


def test_the_playbook_has_commands_at_all():
    assert len(lines_of_the_playbook()) >= 6
