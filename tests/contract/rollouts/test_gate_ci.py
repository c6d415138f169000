"""What a pipeline runs is run here: the steps of the action, GitLab's job, the hooks, and the playbook's commands."""

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
from hashidrill.clients.audit.sources import SUFFIXES
from hashidrill.faces.cli import gate as command
from hashidrill.faces.cli import init
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.schedules import jobs
from hashidrill.lab.provision.build import find_go
from hashidrill.testing.recordings import RecordingBuilder
from planted_gate import PlantedRuns
from repositories import new_repository

ACTION = ROOT / ".github/actions/gate/action.yml"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
GITLAB = ROOT / ".gitlab/gate.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
PLAYBOOK = "playbooks/gate-a-config-change.md"
_INPUT = re.compile(r"\binputs\.([\w-]+)")
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
_PINNED = re.compile(r"[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+(\.\d+)+")
pytestmark = [pytest.mark.long, pytest.mark.needs("consul 1.22.2")]


def read(path):
    return YAML(typ="safe").load(path.read_text())


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with `consul.d` on main; `change(text)` commits another text of it."""
    folder = tmp_path / "repository"
    git = new_repository(monkeypatch, folder)
    (folder / "consul.d").mkdir(parents=True)
    monkeypatch.chdir(folder)

    def change(text):
        (folder / "consul.d/server.hcl").write_text(text)
        git("add", "consul.d")
        git("commit", "-qm", "change")
        return git("rev-parse", "HEAD")

    change('node_name = "a"\nperformance { raft_multiplier = 3 }\n')
    change.folder, change.git = folder, git
    return change


def run_step(script, folder, **environment):
    """As a runner does: bash, with what it sets."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "UV_NO_SYNC": "1", "UV_FROZEN": "1", **environment},
    )


def evaluated(text, contexts):
    """The text with each `${{ a.b || c.d }}` replaced by the first of these that says something."""

    def value(name):
        found = contexts
        for key in name.strip().split("."):
            found = found.get(key) if isinstance(found, dict) else None
        return found or ""

    return _EXPRESSION.sub(lambda match: next(filter(None, map(value, match[1].split("||"))), ""), text)


class TestTheAction:
    @pytest.fixture
    def steps(self, repository, tmp_path):
        """Runs the steps of the action with these inputs; exit codes by name, outputs, and the summary."""

        def run(event_name="pull_request", event=None, folder=None, **given):
            action = read(ACTION)
            inputs = {name: about.get("default", "") for name, about in action["inputs"].items()} | given
            event = {"repository": {"default_branch": "main"}, **(event or {})}
            contexts = {"inputs": inputs, "github": {"event": event}}
            files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
            for file in files.values():
                file.touch()
            shims = tmp_path / "shims"
            shims.mkdir(exist_ok=True)
            (shims / "sudo").write_text("#!/bin/sh\nexit 0\n")
            (shims / "sudo").chmod(0o755)
            codes = {}
            for step in (step for step in action["runs"]["steps"] if "run" in step):
                done = run_step(
                    step["run"],
                    folder or repository.folder,
                    **{key: evaluated(value, contexts) for key, value in step.get("env", {}).items()},
                    **{name: str(file) for name, file in files.items()},
                    GITHUB_ACTION_PATH=str(ACTION.parent),
                    GITHUB_EVENT_NAME=event_name,
                    PATH=f"{shims}:{os.environ['PATH']}",
                )
                codes[step["name"]] = (done.returncode, done.stdout + done.stderr)
            return codes, *(file.read_text() for file in files.values())

        return run

    def test_a_change_that_changes_nothing_passes_and_says_so(self, repository, steps):
        repository('node_name = "b"\nperformance { raft_multiplier = 3 }\n')
        codes, output, summary = steps(path="consul.d", base="main~1", head="main")
        assert {name: code for name, (code, _) in codes.items()} == dict.fromkeys(codes, 0), codes
        assert output.startswith("verdict=no change\n")
        assert "no change" in summary

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("event_name", "event"),
        [
            ("pull_request", {"pull_request": {"base": {"sha": "BASE"}, "head": {"sha": "HEAD"}}}),
            ("pull_request", {"pull_request": {"base": {"sha": "BASE"}, "head": {"repo": {"fork": True}}}}),
            ("merge_group", {"merge_group": {"base_sha": "BASE", "head_sha": "HEAD"}}),
            ("push", {"before": "BASE", "after": "HEAD"}),
            ("push", {"before": "0" * 40, "after": "HEAD", "created": True}),
            ("workflow_dispatch", {"inputs": None}),
        ],
        ids=["pull request", "fork", "merge queue", "push", "new branch", "by hand"],
    )
    def test_each_event_says_what_to_compare_with(self, repository, steps, event_name, event):
        """What Consul refuses was not there before: it is seen by whom compares with the right commit."""
        base = repository.git("rev-parse", "HEAD")
        repository.git("update-ref", "refs/remotes/origin/main", base)
        head = repository("no_such_key = 3\n")
        told = json.loads(json.dumps(event).replace("BASE", base).replace("HEAD", head))
        codes, *_ = steps(event_name, told, path="consul.d")
        assert codes["gate"][0] == 2
        assert "invalid config key no_such_key" in codes["gate"][1]

    def test_the_target_of_a_pull_request_is_not_gated_in_place_of_its_change(self, repository, steps):
        base = repository.git("rev-parse", "HEAD")
        told = {"pull_request": {"base": {"sha": base}}}
        codes, output, _ = steps("pull_request_target", told, path="consul.d")
        assert codes["gate"][0] == 2
        assert "use pull_request" in codes["gate"][1]
        assert "verdict" not in output

    def test_a_shallow_checkout_says_what_to_change(self, repository, steps, tmp_path):
        base = repository.git("rev-parse", "HEAD")
        repository("no_such_key = 3\n")
        shallow = tmp_path / "shallow"
        repository.git("clone", "-q", "--depth", "1", f"file://{repository.folder}", str(shallow))
        codes, *_ = steps("pull_request", {"pull_request": {"base": {"sha": base}}}, shallow, path="consul.d")
        assert codes["gate"][0] == 2
        assert "fetch-depth: 0" in codes["gate"][1]

    def test_binaries_are_kept_again_only_when_there_are_others(self, tmp_path):
        """A key that never changes would be saved once, and each later version built in each job."""
        steps = read(ACTION)["runs"]["steps"]
        [script] = [step["run"] for step in steps if step.get("id") == "kept"]
        [saving] = [step for step in steps if "cache/save" in step.get("uses", "")]
        assert saving["with"]["key"].endswith("${{ steps.kept.outputs.key }}")
        output, binary = tmp_path / "output", tmp_path / ".cache/hashidrill/bin/consul/1.22.2/consul"
        for present in (False, False, True):
            if present:
                binary.parent.mkdir(parents=True)
                binary.touch()
            assert run_step(script, tmp_path, HOME=str(tmp_path), GITHUB_OUTPUT=str(output)).returncode == 0
        none, still_none, one = re.findall(r"^key=(\w{16})$", output.read_text(), re.MULTILINE)
        assert none == still_none != one

    def test_what_consul_refuses_fails_the_job(self, repository, steps):
        repository("no_such_key = 3\n")
        codes, output, _ = steps(path="consul.d\n", base="main~1", head="main")
        assert codes["gate"][0] == 2
        assert "invalid config key no_such_key" in codes["gate"][1]
        assert "verdict" not in output
        assert codes["summary"][0] == 0

    def test_options_and_several_paths_reach_the_command(self, repository, steps):
        repository("performance { raft_multiplier = 4 }\n")
        codes, *_ = steps(
            path="consul.d\nconsul.d/server.hcl",
            base="main~1",
            head="main",
            arguments="--dry-run --suite raft/killed-leader",
        )
        assert "runs raft/killed-leader" in codes["gate"][1]

    @pytest.mark.lie
    def test_every_input_that_is_used_is_declared_and_none_is_in_a_script(self):
        action = read(ACTION)
        assert set(_INPUT.findall(ACTION.read_text())) == set(action["inputs"])
        scripts = "".join(step.get("run", "") for step in action["runs"]["steps"])
        assert "${{" not in scripts  # what a pull request names must not become code


def test_every_action_is_pinned_by_commit():
    """A tag is moved by whom breaks into an action's repository: tj-actions/changed-files, March 2025."""
    files = [
        *WORKFLOWS,
        *(ROOT / ".github/actions").glob("*/action.yml"),
        *(Path(module.__file__).with_name("templates") / "workflow.yml" for module in (jobs, init)),
    ]
    used = [line.partition("uses: ")[2] for file in files for line in file.read_text().splitlines() if "uses: " in line]
    assert len(used) > 10
    assert [each for each in used if not each.startswith("./") and not _PINNED.fullmatch(each)] == []


def lint(*files):
    """What actionlint says of these workflows; empty when nothing is wrong."""
    go = find_go()
    command = [str(go.path), "-C", str(ROOT / "tests/support/actionlint"), "tool", "actionlint", "-shellcheck=", *files]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env={**os.environ, "GOFLAGS": ""}
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


@pytest.mark.needs("go")
class TestWorkflowsAsGitHubReadsThem:
    def test_ours(self):
        assert lint(*WORKFLOWS) == ""

    @pytest.mark.parametrize("path", [PLAYBOOK, "playbooks/audit-your-config.md"])
    def test_the_ones_in_the_playbooks(self, path, tmp_path):
        [text] = [text for text in page(path).fences("yaml") if text.startswith("# fragment: .github/workflows")]
        file = tmp_path / "workflow.yml"
        file.write_text(text)
        assert lint(file) == ""
        workflow = read(file)
        [steps] = [job["steps"] for job in workflow["jobs"].values()]
        used = [step["uses"].split("@") for step in steps if "uses" in step]
        assert [name for name, at in used if not re.fullmatch("[0-9a-f]{40}", at) and at != "COMMIT"] == []
        [upload] = [step for step in steps if "upload-sarif@" in step.get("uses", "")]
        assert upload["continue-on-error"]
        assert workflow["permissions"]["security-events"] == "write"

    def test_the_one_that_gates_gives_the_action_what_it_takes(self):
        [text] = [text for text in page(PLAYBOOK).fences("yaml") if text.startswith("# fragment: .github/workflows")]
        steps = YAML(typ="safe").load(text)["jobs"]["gate"]["steps"]
        [step] = [step for step in steps if "actions/gate@" in step.get("uses", "")]
        assert set(step["with"]) <= set(read(ACTION)["inputs"])
        [checkout] = [step for step in steps if "actions/checkout@" in step.get("uses", "")]
        assert checkout["with"]["fetch-depth"] == 0  # a shallow clone lacks the base

    def test_a_schedule(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        words = ["schedule", "raft/frozen-leader", "--cron", "17 2 * * *", "--github", "--command", "hashidrill"]
        assert CliRunner().invoke(app, words).exit_code == 0
        [file] = tmp_path.rglob("*.yml")
        assert lint(file) == ""

    def test_the_one_that_init_writes(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert CliRunner().invoke(app, ["init"]).exit_code == 0
        assert lint(tmp_path / init.WORKFLOW) == ""

    def test_what_github_refuses_is_found(self, tmp_path):
        file = tmp_path / "wrong.yml"
        file.write_text("on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    step: []\n")
        assert 'unexpected key "step"' in lint(file)


def test_gitlabs_job_runs(repository, binary):
    base = repository('performance { raft_multiplier = 3 }\nnode_name = "b"\n')
    head = repository('performance { raft_multiplier = 3 }\nnode_name = "c"\n')
    job = read(GITLAB)[".hashidrill-gate"]
    # of another revision than that of the default branch, and in place of its own environment, which takes a minute
    source = repository.folder.parent / "hashidrill.git"
    repository.git("init", "-q", "--bare", "-b", "main", str(source))
    repository.git("push", "-q", str(source), "main~1:refs/heads/main", "main:refs/tags/v1")
    script = [line.replace("--project .hashidrill-source", f"--project {ROOT}") for line in job["script"]]
    done = run_step(
        "\n".join(script),
        repository.folder,
        CI_PROJECT_DIR=str(repository.folder),
        HASHIDRILL_PATH="consul.d",
        CI_MERGE_REQUEST_DIFF_BASE_SHA=base,
        CI_COMMIT_SHA=head,
        HASHIDRILL_SOURCE=str(source),
        HASHIDRILL_REF="v1",
        HASHIDRILL_ARGUMENTS="--suite raft/killed-leader",
        HASHIDRILL_CONSUL=str(binary("consul", "1.22.2").path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kept in (*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]):
        assert (repository.folder / kept).exists()
    assert repository.git("-C", ".hashidrill-source", "rev-parse", "HEAD") == repository.git("rev-parse", "main")


def test_a_hook_sees_all_that_its_command_reads():
    [said] = [each for each in read(HOOKS) if each["id"] == "hashidrill-audit"]
    for name in (*(f"folder/file{suffix}" for suffix in SUFFIXES), "units/consul.service.d/override.conf"):
        assert re.search(said["files"], name), name
    assert not re.search(said["files"], "nginx.conf")


@pytest.mark.parametrize(
    ("hook", "right", "wrong"),
    [
        ("hashidrill-validate", "extends: good", "kind: Experiment\nnonsense: true"),
        ("hashidrill-audit", 'retry_join = ["10.0.0.1"]', 'retry_join = ["10.0.0.1"]\nretry_max = 3'),
    ],
)
def test_a_hook_passes_what_is_right_and_stops_what_is_wrong(tmp_path, hook, right, wrong):
    [said] = [each for each in read(HOOKS) if each["id"] == hook]
    name = {"hashidrill-validate": "experiments/own/gate.yaml", "hashidrill-audit": "consul.d/server.hcl"}[hook]
    assert re.search(said["files"], name)
    assert not re.search(said["files"], "README.md")
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    program, *words = [*said["entry"].split(), *said.get("args", [])]
    words += [name] if said.get("pass_filenames", True) else []
    codes = []
    for text in (right, wrong):
        file.write_text(
            (ROOT / "experiments/raft/killed-leader.yaml")
            .read_text()
            .replace("../bases", str(ROOT / "experiments/bases"))
            if text == "extends: good"
            else text
        )
        done = subprocess.run(
            [Path(sys.executable).with_name(program), *words], cwd=tmp_path, capture_output=True, check=False
        )
        codes.append(done.returncode)
    assert codes[0] == 0
    assert codes[1] in {1, 2}


# the playbook


def lines_of_the_playbook():
    return [line for line, _ in commands(page(PLAYBOOK)) if len(words_of(line)) > 1]


@pytest.mark.long
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
    path = str(kept_run.build().path)
    monkeypatch.setattr(command, "Means", lambda say, events: planted.means())
    kept = partial(command.calibrate, play=planted.means().play, folder=tmp_path / "kept")
    monkeypatch.setattr(command, "calibrate", kept)
    done = CliRunner().invoke(app, [path if word == "RUN" else word for word in words_of(line)])
    assert done.exit_code == 0, f"{line}: {done.output}\n{done.exception!r}"
    if "--schema" in line:
        assert json.loads(done.stdout)


def test_the_playbook_has_commands_at_all():
    assert len(lines_of_the_playbook()) >= 6
