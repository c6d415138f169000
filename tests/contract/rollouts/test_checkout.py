"""Files of a revision come out of a real repository as a checkout has them, and nothing else changes."""

import os
from pathlib import Path

import pytest

from hashidrill.core.errors import UsageError
from hashidrill.core.util.checkout import check_out
from hashidrill.rollouts.gate.configuration import from_git
from repositories import git, new_repository

pytestmark = pytest.mark.lie


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Two commits of a configuration, a program, a file that archives leave out, and a change that is not committed."""
    top = tmp_path / "repository"
    new_repository(monkeypatch, top)
    (top / "deploy/consul.d").mkdir(parents=True)
    (top / ".gitattributes").write_text("*.json export-ignore\n")
    (top / "deploy/consul.d/limits.json").write_text("{}")
    (top / "deploy/run.sh").write_text("#!/bin/sh\n")
    (top / "deploy/run.sh").chmod(0o755)
    for text in ("old = true\n", "old = false\n"):
        (top / "deploy/consul.d/server.hcl").write_text(text)
        git(top, "add", "-A")
        git(top, "commit", "-qm", "change")
    (top / "deploy/consul.d/server.hcl").write_text("not committed\n")
    return top


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_all_of_a_revision_is_there_also_what_archives_leave_out(repository, tmp_path):
    into = tmp_path / "into"
    assert check_out("main~1", into, folder=repository) == into
    assert files(into) == [
        ".gitattributes",
        "deploy/consul.d/limits.json",
        "deploy/consul.d/server.hcl",
        "deploy/run.sh",
    ]
    assert (into / "deploy/consul.d/server.hcl").read_text() == "old = true\n"
    assert os.access(into / "deploy/run.sh", os.X_OK)


def test_paths_are_seen_from_the_folder_that_git_is_called_in(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(repository / "deploy")
    here = check_out("main", tmp_path / "into", paths=["consul.d", "run.sh"])
    assert here == tmp_path / "into/deploy"
    assert files(here) == ["consul.d/limits.json", "consul.d/server.hcl", "run.sh"]
    check_out("main", tmp_path / "other", paths=["../.gitattributes"])
    assert files(tmp_path / "other") == [".gitattributes"]


def test_the_work_tree_the_index_and_head_stay(repository, tmp_path):
    def state():
        index = (repository / ".git/index").read_bytes()
        return index, git(repository, "status", "--porcelain"), git(repository, "rev-parse", "HEAD")

    before = state()
    check_out("main~1", tmp_path / "into", folder=repository)
    assert state() == before
    assert (repository / "deploy/consul.d/server.hcl").read_text() == "not committed\n"


def test_it_is_the_same_inside_of_a_hook_and_from_a_bare_repository(repository, tmp_path, monkeypatch):
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(bare))
    check_out("main", tmp_path / "one", folder=bare)
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git/index"))  # as a pre-commit hook has it
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    check_out("main", tmp_path / "two", folder=repository)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert "not committed" not in (tmp_path / "two/deploy/consul.d/server.hcl").read_text()


@pytest.mark.parametrize(
    ("revision", "path", "said"),
    [
        ("main", "nomad.d", "main has no file at nomad.d"),
        ("v9", "deploy", "v9"),
        ("main", "/etc/passwd", "/etc/passwd"),
    ],
)
def test_what_is_not_there_is_said(repository, tmp_path, revision, path, said):
    with pytest.raises(UsageError, match=said):
        check_out(revision, tmp_path / "into", folder=repository, paths=[path])


def test_a_folder_that_is_no_repository_is_said(tmp_path):
    with pytest.raises(UsageError, match="not a git repository"):
        check_out("main", tmp_path / "into", folder=tmp_path)


def test_a_branch_cannot_have_a_file_of_this_machine_read(repository, tmp_path, monkeypatch):
    secret = tmp_path / "secret.hcl"
    secret.write_text("token = 1\n")
    Path(repository / "deploy/consul.d/x.hcl").symlink_to(secret)
    Path(repository / "deploy/consul.d/y.hcl").symlink_to("server.hcl")
    git(repository, "add", "deploy/consul.d/x.hcl", "deploy/consul.d/y.hcl")
    git(repository, "commit", "-qm", "links")
    monkeypatch.chdir(repository)
    with pytest.raises(UsageError, match=r"consul\.d/x\.hcl: links to .*outside of the repository"):
        from_git("main~1..main", ["deploy/consul.d"], tmp_path / "sides")
    git(repository, "rm", "-qf", "deploy/consul.d/x.hcl")
    git(repository, "commit", "-qm", "no link that leads out")
    _, candidate = from_git("main~2..main", ["deploy/consul.d"], tmp_path / "again")
    assert [Path(source.shown).name for source in candidate] == ["limits.json", "server.hcl", "y.hcl"]
