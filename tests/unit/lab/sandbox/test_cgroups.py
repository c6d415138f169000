"""The CPU controller of cgroup v2: what a run turns on for the whole machine, the last run turns off again."""

import os
from pathlib import Path

import pytest

from hashidrill.lab.runs import heal
from hashidrill.lab.sandbox import cgroups, janitor
from tasks import raising


class Kernel:
    """A cgroup v2 hierarchy in a directory: files that the kernel would make, and attributes."""

    def __init__(self, root, monkeypatch):
        self.root, self.marks, self.monkeypatch = root, {}, monkeypatch
        (root / "cgroup.controllers").write_text("cpu memory")
        self.control.write_text("memory")
        real_write, real_mkdir = Path.write_text, Path.mkdir
        kernel = self

        def write(path, text, *args, **options):
            if path.name != "cgroup.subtree_control":
                return real_write(path, text, *args, **options)
            words = {*path.read_text().split()} if path.exists() else set()
            words = words | {text[1:]} if text.startswith("+") else words - {text.lstrip("-")}
            return real_write(path, " ".join(sorted(words)), *args, **options)

        def mkdir(path, *args, **options):
            real_mkdir(path, *args, **options)
            if path.is_relative_to(kernel.root):
                real_write(path / "cpu.max", "max 100000")

        monkeypatch.setattr(Path, "write_text", write)
        monkeypatch.setattr(Path, "mkdir", mkdir)
        monkeypatch.setattr(cgroups, "_ROOT", root)
        monkeypatch.setattr(os, "setxattr", lambda path, name, value: self.marks.update({(str(path), name): value}))
        monkeypatch.setattr(os, "getxattr", self._get)
        monkeypatch.setattr(os, "removexattr", lambda path, name: self.marks.pop((str(path), name)))

    def _get(self, path, name):
        if (str(path), name) not in self.marks:
            raise OSError(61, "No data available")
        return self.marks[str(path), name]

    @property
    def control(self):
        return self.root / "cgroup.subtree_control"

    @property
    def handed_down(self):
        return self.control.read_text().split()

    def group(self, name, **files):
        (self.root / name).mkdir()
        for file, text in files.items():
            (self.root / name / file.replace("_", ".", 1)).write_text(text)

    def ends(self, run):
        """The run's groups are removed, as the janitor does."""
        for path in sorted((self.root / run).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (self.root / run).rmdir()


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    (tmp_path / "cgroup").mkdir()
    return Kernel(tmp_path / "cgroup", monkeypatch)


@pytest.mark.lie
def test_what_a_run_turned_on_at_the_root_is_off_again_after_it(kernel):
    assert cgroups.make("hashidrill-a/consul-1").version == 2
    assert kernel.handed_down == ["cpu", "memory"]
    kernel.ends("hashidrill-a")
    assert cgroups.give_back()
    assert kernel.handed_down == ["memory"]
    assert kernel.marks == {}


def test_what_was_on_before_stays_on(kernel):
    kernel.control.write_text("+cpu")
    cgroups.make("hashidrill-a/consul-1")
    kernel.ends("hashidrill-a")
    assert not cgroups.give_back()
    assert kernel.handed_down == ["cpu", "memory"]


def test_the_last_of_several_runs_turns_it_off_whichever_turned_it_on(kernel):
    cgroups.make("hashidrill-a/consul-1")
    cgroups.make("hashidrill-b/consul-1")
    kernel.ends("hashidrill-a")
    assert not cgroups.give_back()
    assert kernel.handed_down == ["cpu", "memory"]
    kernel.ends("hashidrill-b")
    assert cgroups.give_back()
    assert kernel.handed_down == ["memory"]


@pytest.mark.lie
@pytest.mark.parametrize(
    "files", [{"cpu_max": "50000 100000"}, {"cpu_weight": "200"}, {"cpu_idle": "1"}, {"cgroup_subtree_control": "+cpu"}]
)
def test_who_came_to_use_it_meanwhile_keeps_it(kernel, files):
    cgroups.make("hashidrill-a/consul-1")
    kernel.group("user.slice", **files)
    kernel.ends("hashidrill-a")
    assert not cgroups.give_back()
    assert kernel.handed_down == ["cpu", "memory"]
    assert kernel.marks == {}, "it is theirs now"


def test_groups_that_only_happen_to_be_there_do_not_keep_it(kernel):
    cgroups.make("hashidrill-a/consul-1")
    kernel.group("user.slice", cpu_max="max 100000", cpu_weight="100", cpu_idle="0")
    kernel.ends("hashidrill-a")
    assert cgroups.give_back()


def test_what_cannot_be_marked_is_not_turned_on(kernel, monkeypatch):
    """Nobody would know later whose it is. The host's processes are stopped and continued in turn instead."""
    monkeypatch.setattr(os, "setxattr", raising(OSError(1, "Operation not permitted")))
    assert cgroups.make("hashidrill-a/consul-1") is None
    assert kernel.handed_down == ["memory"]


def test_heal_gives_it_back_where_no_janitor_lived_to(kernel, monkeypatch, tmp_path):
    monkeypatch.setenv("HASHIDRILL_WORK", str(tmp_path))
    cgroups.make("hashidrill-a/consul-1")
    kernel.ends("hashidrill-a")
    heal.sweep(())
    assert kernel.handed_down == ["memory"]


def test_the_janitor_gives_it_back_once_the_runner_is_gone(kernel, monkeypatch, tmp_path):
    cgroups.make("hashidrill-a/consul-1")
    kernel.ends("hashidrill-a")
    monkeypatch.setattr(janitor.select, "select", lambda *_: ([0], [], []))
    with monkeypatch.context() as gone:
        gone.setattr(os, "read", lambda *_: b"")  # end of file: nobody holds the other end of the pipe
        janitor.main({"root": str(tmp_path / "hashidrill-a"), "pid_file": str(tmp_path / "pid")})
    assert kernel.handed_down == ["memory"]
