"""Disks with a size are file systems in memory: what does not fit this machine is refused before it runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import places
from folded import across_lines, unfolded
from hashidrill.core.engine import requirements
from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import load_experiment, resolve
from hashidrill.faces.cli import validate
from hashidrill.lab.runs import launch as runner

FULL = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: full, title: A full disk, why: It tests what a full disk takes}}
datacenter:
  consul: {{servers: {servers}, clients: 1}}
  disk: {{size: {size}}}
load: {{kv-writes: {{kind: consul.kv.write, rate: 50/s}}}}
steady_state: {{for: 5s, require: ["kv-writes.errors < 1%"]}}
method:
  - {{fault: {fault}, on: "consul:leader", for: 10s}}
expect:
  - no_acknowledged_write_lost: {{load: kv-writes}}
"""
GB = 1_000_000_000


@pytest.fixture
def machine(monkeypatch):
    """Sets the memory that is available here."""

    def has(available_bytes):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available_bytes))

    has(8 * GB)
    return has


@pytest.fixture
def experiment(tmp_path):
    def write(size="256MB", servers=3, fault="disk.full"):
        path = tmp_path / "full.yaml"
        path.write_text(FULL.format(size=size, servers=servers, fault=fault))
        return path

    return write


def check(path):
    """Without a cgroup that has a limit."""
    runner.check_machine(resolve(path), requirements.available_bytes(Path("/no/such/cgroup")))


@pytest.mark.lie
def test_disks_that_would_fill_the_memory_are_refused_with_the_size_that_fits(machine, experiment):
    with pytest.raises(ExperimentError) as error:
        check(experiment("60GB", servers=9))
    message = " ".join(str(error.value).split())
    assert "full.yaml:6:16: datacenter.disk.size: 10 hosts with a disk of 60GB each need 600GB of memory" in message
    assert "8GB are available here: use at most 600MB each, or fewer hosts" in message
    check(experiment("600MB", servers=9))


def test_the_size_that_is_named_fits_and_a_little_more_does_not(machine, experiment):
    machine(1_234_567_890)
    with pytest.raises(ExperimentError, match=across_lines("at most 231MB each")):
        check(experiment("232MB"))
    check(experiment("231MB"))


def test_a_size_counts_without_a_fault_that_fills_it_too(machine, experiment):
    """A load can fill it as well."""
    with pytest.raises(ExperimentError, match=across_lines("at most 1500MB each")):
        check(experiment("60GB", fault="process.pause"))


def test_disks_on_the_real_disk_need_no_memory(machine, tmp_path):
    machine(0)
    path = tmp_path / "x.yaml"
    path.write_text(places.GOOD.read_text())
    check(path)


def test_validate_and_run_refuse_it_before_anything_is_started(machine, experiment, tmp_path):
    path = experiment("60GB")
    assert "4 hosts with a disk of 60GB each" in unfolded(validate._error_of(path))

    def started(*_args, **_kwargs):
        raise AssertionError("a binary was asked for")

    with pytest.raises(ExperimentError, match=across_lines("4 hosts with a disk")):
        runner.run_experiment(resolve(path), runs_dir=tmp_path / "runs", ensure_binary=started)
    assert not (tmp_path / "runs").exists()


DAY = """\
apiVersion: hashidrill/v1
kind: GameDay
metadata: {name: day, title: A day, why: It tests what a full disk takes}
goals: [See a full disk]
people: {ana: {role: lead}}
experiments: [{experiment: full.yaml}]
"""
SCENARIO = "playbooks/training/payday.yaml"


def test_validate_refuses_a_game_day_and_a_scenario_with_such_disks_too(machine, experiment, tmp_path):
    experiment("60GB", servers=9)
    (tmp_path / "day.yaml").write_text(DAY)
    assert "full: 10 hosts with a disk of 60GB each" in unfolded(validate._error_of(tmp_path / "day.yaml"))
    scenario = tmp_path / "payday.yaml"
    scenario.write_text((places.ROOT / SCENARIO).read_text().replace("size: 256MB", "size: 60GB"))
    assert "full-disks: 4 hosts with a disk of 60GB each" in unfolded(validate._error_of(scenario))
    scenario.write_text((places.ROOT / SCENARIO).read_text())
    experiment("256MB")
    assert [validate._error_of(path) for path in (scenario, tmp_path / "day.yaml")] == [None, None]


@pytest.mark.lie
@pytest.mark.parametrize("kind", ["Experiment", "Base"])
def test_a_disk_that_no_memory_holds_is_refused_on_every_machine(machine, experiment, kind):
    machine(10**15)
    path = experiment("4000GB", servers=9)
    text = path.read_text().replace("kind: Experiment", f"kind: {kind}")
    path.write_text(
        text if kind == "Experiment" else text.partition("metadata")[0] + "datacenter:\n  disk: {size: 4000GB}\n"
    )
    assert "a disk of limited size lies in memory: give it at most 64GB" in unfolded(validate._error_of(path))


@pytest.mark.lie
@pytest.mark.parametrize("size", ["0B", "0.5B", "999kB"])
def test_a_disk_without_a_limit_is_no_disk_with_a_size(experiment, size):
    """tmpfs takes a size of 0 for no limit."""
    with pytest.raises(ExperimentError, match=across_lines("a disk needs at least 1MB")):
        load_experiment(experiment(size))


def v2(root, group, limit, used):
    (root / group).mkdir(parents=True, exist_ok=True)
    (root / group / "memory.max").write_text(f"{limit}\n")
    (root / group / "memory.current").write_text(f"{used}\n")


@pytest.fixture
def cgroups(machine, tmp_path):
    return tmp_path / "cgroup"


def left(tmp_path):
    return requirements.available_bytes(tmp_path / "own", tmp_path / "cgroup")


def test_the_limit_of_a_container_counts_and_of_all_that_it_is_in(cgroups, tmp_path):
    (tmp_path / "own").write_text("0::/pod/container\n")
    v2(cgroups, "pod/container", "max", GB)
    assert left(tmp_path) == 8 * GB
    v2(cgroups, "pod", 3 * GB, GB)
    assert left(tmp_path) == 2 * GB
    v2(cgroups, "pod/container", GB, GB // 4)
    assert left(tmp_path) == GB * 3 // 4


def test_the_limit_of_an_old_cgroup_counts(cgroups, tmp_path):
    (tmp_path / "own").write_text("7:cpu,cpuacct:/docker/a\n5:memory:/docker/a\n1:name=systemd:/docker/a\n")
    group = cgroups / "memory" / "docker" / "a"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(str(GB))
    (group / "memory.usage_in_bytes").write_text(str(2 * GB))
    assert left(tmp_path) == 0
