"""The check that nothing is left can fail: what is planted is found, and what is not ours is not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hashidrill.lab.sandbox import nf_tables
from leaks import VARIABLE, Ground

SLEEP = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]


@pytest.fixture
def planted(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    return Ground(work)


def started(env, *arguments):
    process = subprocess.Popen(
        [*SLEEP, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True
    )
    process.stdout.readline()
    return process


def ended(process):
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_clean_ground_is_clean(planted):
    assert planted.left() == []
    assert planted.left_after(0.2) == []


def test_a_planted_directory_is_found(planted):
    (planted.work / "hashidrill-abc").mkdir()
    assert planted.left() == [f"directory {planted.work}/hashidrill-abc"]
    assert planted.left_after(0.2) == planted.left()


def test_a_planted_process_is_found_by_what_it_inherited(planted):
    process = started({**os.environ, VARIABLE: str(planted.work)})
    try:
        [line] = planted.left()
        assert line.startswith(f"process {process.pid}: {sys.executable}")
    finally:
        ended(process)
    assert planted.left() == []


def test_a_planted_process_is_found_by_what_it_names(planted):
    process = started({"PATH": os.environ["PATH"]}, f"{planted.work}/hashidrill-abc/run.json")
    try:
        assert len(planted.left()) == 1
    finally:
        ended(process)


def test_a_process_of_another_session_is_not_ours(planted):
    others = planted.work.parent / (planted.work.name + "-of-another")
    process = started({**os.environ, VARIABLE: str(others)}, f"{others}/hashidrill-abc/run.json")
    try:
        assert planted.left() == []
    finally:
        ended(process)


def test_a_stopped_process_is_found_too(planted):
    process = started({**os.environ, VARIABLE: str(planted.work)})
    process.send_signal(signal.SIGSTOP)
    try:
        assert len(planted.left()) == 1
    finally:
        process.send_signal(signal.SIGCONT)
        ended(process)


@pytest.mark.may_skip("an ordinary user cannot plant these")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes cgroups, mounts and tables of packet rules out here")
class TestAsRoot:
    def test_a_planted_cgroup_is_found(self, planted):
        parents = [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")]
        [parent, *_] = [path for path in parents if (path / "cgroup.procs").exists()] or pytest.skip("no cgroups here")
        group = parent / "hashidrill-planted"
        group.mkdir()
        try:
            assert planted.left() == [f"cgroup {group}"]
        finally:
            group.rmdir()
        assert planted.left() == []

    def test_a_planted_mount_is_found(self, planted, tmp_path):
        place = tmp_path / "mounted"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "hashidrill", place], check=True)
        try:
            assert planted.left() == [f"mount {place}"]
        finally:
            subprocess.run(["umount", place], check=True)

    def test_a_planted_table_of_packet_rules_is_found(self, planted):
        nf_tables.replace("hashidrill_planted", [], [])
        try:
            assert planted.left() == ["table of packet rules hashidrill_planted"]
        finally:
            nf_tables.remove("hashidrill_planted")

    def test_what_was_there_before_is_not_held_against_us(self, planted):
        nf_tables.replace("hashidrill_before", [], [])
        try:
            assert Ground(planted.work).left() == []
        finally:
            nf_tables.remove("hashidrill_before")
