"""Which experiments fit a machine: what they want by what they say, and what is too little.
Disks with a size are file systems in memory: what does not fit this machine is refused before it runs.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import anyio
import psutil
import pytest

import places
from folded import across_lines, unfolded
from hashidrill.core.engine import machine_check, requirements
from hashidrill.core.engine.machine_check import Machine, misfits, wants
from hashidrill.core.engine.requirements import required_by
from hashidrill.core.errors import ExperimentError, MachineError, UnfitError
from hashidrill.core.experiment.library import find_experiment, list_experiments
from hashidrill.core.experiment.loader import load_experiment, load_text, resolve
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import PacketFilter
from hashidrill.faces.cli import validate
from hashidrill.lab.provision import machine as provision_machine
from hashidrill.lab.runs import launch
from hashidrill.lab.runs import launch as runner
from tasks import raising

LARGE = Machine(memory_bytes=64e9, disk_bytes=500e9, cores=32, operation_s=50e-6)
ROBLOX = "incidents/roblox-2021"
TEXT = """
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: x, title: x, why: x}
datacenter: {consul: {servers: 3, clients: 2}}
load:
  w: {kind: consul.kv.write, rate: 100/s, PROFILE}
steady_state: {for: 5s, require: ["w.errors < 1%"]}
method: [{fault: noop, on: "consul:leader", for: 100s}]
expect: [{no_acknowledged_write_lost: {load: w}}]
"""


def wanted(name_or_text):
    experiment = load_text(name_or_text) if "\n" in name_or_text else load_experiment(find_experiment(name_or_text))
    return wants(experiment, required_by(experiment))


def lacking(name, **less):
    """What a large machine lacks when it has less of one thing."""
    return misfits(wanted(name), Machine(**{**vars(LARGE), **less}))


def test_every_experiment_of_the_library_fits_a_large_machine():
    for path in list_experiments():
        experiment = load_experiment(path)
        assert misfits(wants(experiment, required_by(experiment)), LARGE) == [], path


@pytest.mark.parametrize(
    ("less", "said"),
    [
        ({"memory_bytes": 0.5e9}, "GB for 8 agents and 24000 views, available: 0.5 GB"),
        ({"disk_bytes": 1e9}, "disk: needs 1.9 GB, free: 1.0 GB"),
        ({"operation_s": 2e-3}, "the generator's core: kv-writes 20/s, views 500/s"),
        ({"cores": 0.5}, "for the agents), usable: 0.5"),
    ],
)
def test_what_is_missing_is_named_with_what_is_wanted_and_what_there_is(less, said):
    lacks = lacking(ROBLOX, **less)
    assert any(said in lack for lack in lacks), lacks


@pytest.mark.lie
def test_one_missing_thing_does_not_hide_another():
    assert len(lacking(ROBLOX, memory_bytes=1e8, disk_bytes=1e8, cores=0.2, operation_s=1e-2)) == 4


@pytest.mark.parametrize(
    ("profile", "peak"),
    [
        ("timeout: 10s", 100),
        ("profile: {spike: {to: 300%, for: 10s}}", 300),
        ("profile: {steps: [50%, 200%, 100%], each: 5s}", 200),
        ("profile: {ramp: {to: 400%, over: 50s}}", 400),
        ("profile: {ramp: {by: 50%, every: 5s, while: [w.errors < 1%]}}", 100),
        ("profile: {search: {until: [w.errors > 1%], from: 200%, to: 1000%, every: 4s, for: 90s}}", 200),
        ("profile: {spike: {to: 10%, for: 10s}}", 100),
    ],
)
def test_a_load_counts_by_its_peak_and_one_that_is_steered_by_what_it_reaches_in_all_cases(profile, peak):
    assert wanted(TEXT.replace("PROFILE", profile)).operations_per_s == pytest.approx(peak)


@pytest.mark.lie
def test_a_machine_that_is_too_small_ends_the_run_before_anything_is_started(tmp_path):
    experiment = load_experiment(find_experiment(ROBLOX))
    with pytest.raises(UnfitError, match=r"^memory: needs .* GB for 8 agents and 24000 views, available: 0.1 GB"):
        machine_check.require(experiment, required_by(experiment), tmp_path, machine=Machine(1e8, 1e12, 4, 1e-4))


def test_a_large_machine_is_let_through(tmp_path):
    experiment = load_experiment(find_experiment(ROBLOX))
    machine_check.require(experiment, required_by(experiment), tmp_path, machine=LARGE)


@pytest.mark.lie
@pytest.mark.parametrize("operations_per_s", [0, 20, 399, 401, 5000, float("inf")])
@pytest.mark.parametrize("cores", [0.4, 0.9, 2, 32])
@pytest.mark.parametrize("real_s", [50e-6, machine_check.SLOWEST_OPERATION_S])
def test_the_speed_is_measured_only_where_it_can_decide(operations_per_s, cores, real_s, tmp_path):
    """What is said is what would be said if it were always measured."""
    measured = []
    measure = lambda: measured.append(True) or real_s  # noqa: E731 - it belongs to the list above it
    here = Machine.here(tmp_path, operations_per_s, cores=cores, measure=measure)
    wanted = machine_check.Wants(0, "", 0, operations_per_s, "w")
    assert bool(measured) is (operations_per_s * machine_check.SLOWEST_OPERATION_S > min(0.8, cores - 0.5))
    assert misfits(wanted, here) == misfits(wanted, replace(here, operation_s=real_s))


def test_an_ordinary_experiment_needs_no_measurement_and_an_unusual_one_does(tmp_path):
    measured = []
    measure = lambda: measured.append(True) or 1e-4  # noqa: E731 - it belongs to the list above it
    for name, times in (("raft/slow-leader-disk", 0), (ROBLOX, 1)):
        Machine.here(tmp_path, wanted(name).operations_per_s, cores=2.0, measure=measure)
        assert len(measured) == times


def test_the_datacenter_asks_before_it_starts(tmp_path):
    from hashidrill.core.experiment.model import DatacenterSpec
    from hashidrill.lab.local.datacenter import LocalDatacenter

    datacenter = LocalDatacenter(
        DatacenterSpec(), tmp_path, {}, check_machine=raising(UnfitError("cores: 9.9 are wanted"))
    )
    with pytest.raises(UnfitError, match=r"cores: 9.9"):
        anyio.run(datacenter.start)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("cores", "fits"), [(0.05, True), (1.4, True), (1.5, False), (2, False), (8, False)])
def test_a_throttle_that_could_not_be_told_from_none_is_known_before_anything_is_started(cores, fits):
    text = TEXT.replace("PROFILE", "keys: 10").replace(
        'fault: noop, on: "consul:leader"', f'fault: cpu.throttle, on: "consul:leader", with: {{cores: {cores}}}'
    )
    lacks = misfits(wanted(text), Machine(**{**vars(LARGE), "cores": 2}))
    said = f"cores: a cpu.throttle to {cores:g} cores cannot be proven on 2; throttle to 1.37 or less"
    assert lacks == ([] if fits else [said])


def test_a_vault_agent_takes_more_memory_than_one_of_consul():
    """Measured, a Vault server has up to twice as much of its own."""
    three = {"consul": {"servers": 3, "clients": 0}}
    with_nomad = DatacenterSpec.model_validate({"consul": None, "nomad": {"servers": 3, "clients": 0}})
    with_vault = DatacenterSpec.model_validate({"consul": None, "vault": {"servers": 3}})
    consul = machine_check.agents_bytes(DatacenterSpec.model_validate(three))
    assert machine_check.agents_bytes(with_nomad) == consul == 3 * (70_000_000 + 10_000_000)
    assert machine_check.agents_bytes(with_vault) == 3 * (100_000_000 + 10_000_000)


def test_agents_that_share_a_host_share_what_hashidrill_runs_there():
    spec = DatacenterSpec.model_validate({"consul": {"servers": 3, "clients": 0}, "vault": {"servers": 3}})
    assert machine_check.agents_bytes(spec) == 6 * 10_000_000 + 6 * 70_000_000 + 3 * 100_000_000


@pytest.mark.lie
def test_a_datacenter_that_is_too_large_for_the_memory_is_refused_with_what_it_has():
    spec = DatacenterSpec.model_validate({"consul": {"servers": 3}, "nomad": {"servers": 3, "clients": 20}})
    with pytest.raises(
        UnfitError, match=r"for 50 agents \(27 of Consul, 23 of Nomad\), available: 1.0 GB; start fewer"
    ):
        machine_check.require_agents(spec, 1e9)
    machine_check.require_agents(spec, 8e9)


@pytest.fixture
def kernel(monkeypatch):
    """`kernel(drop="...")`: what the trial of packet rules finds; without a call, no trial may be made."""
    monkeypatch.setattr(provision_machine, "run_trials", lambda what: pytest.fail(f"{what} was tried"))

    def finds(**refused):
        said = dict.fromkeys(provision_machine.PACKET_FAULTS, "") | refused
        monkeypatch.setattr(provision_machine, "run_trials", lambda what: {"namespaces": ""} | said if what else {})

    return finds


def prepared(name):
    """The binaries that the library's experiment of that name gets."""
    resolved = resolve(find_experiment(name))
    return [*launch.prepare(resolved, print, ensure_binary=lambda name, *_, **__: name)]


REFUSED = "Operation not supported (rule)"


@pytest.mark.parametrize(
    ("name", "lacks", "fault"),
    [
        ("network/partitioned-leader", "drop", "network.partition"),
        ("network/lossy-follower", "drop by chance", "network.loss"),
        ("network/slow-api", "redirect", "network.latency"),
        ("raft/bloated-leader-avoided", "mark connections", "consul.leader.avoid"),
    ],
)
def test_a_network_fault_is_refused_by_name_before_anything_starts_where_the_kernel_refuses_its_rules(
    kernel, name, lacks, fault
):
    kernel(**{lacks: REFUSED})
    with pytest.raises(MachineError) as refused:
        prepared(name)
    assert f"{fault} needs packet rules that this machine's kernel refuses ({lacks}: {REFUSED})" in str(refused.value)
    kernel()
    assert "consul" in prepared(name)


def test_a_kernel_that_cannot_drop_by_chance_still_partitions(kernel):
    kernel(**{"drop by chance": REFUSED})
    assert "consul" in prepared("network/partitioned-leader")


@pytest.mark.parametrize("name", ["raft/slow-leader-disk", "raft/frozen-leader"])
def test_packet_rules_never_stand_before_a_fault_of_a_disk_or_a_process(kernel, name):
    assert "consul" in prepared(name)


def test_a_fault_of_a_plug_in_that_filters_packets_needs_a_kernel_that_drops_them(kernel, monkeypatch):
    monkeypatch.setattr(registry.fault("noop"), "capabilities", frozenset({PacketFilter}))
    experiment = load_text(TEXT.replace("PROFILE", ""))
    kernel(drop=REFUSED)
    with pytest.raises(MachineError, match="noop needs packet rules"):
        launch.check_packet_rules(SimpleNamespace(path="x.yaml", experiment=experiment))
    kernel()
    launch.check_packet_rules(SimpleNamespace(path="x.yaml", experiment=experiment))


def test_a_trial_that_crashed_is_no_leave_to_start(kernel, monkeypatch):
    monkeypatch.setattr(provision_machine, "run_trials", lambda _: {"trial": "it did not end"})
    with pytest.raises(MachineError, match="it did not end"):
        prepared("network/partitioned-leader")


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
    with pytest.raises(ExperimentError, match=across_lines("4 hosts with a disk")):
        runner.run_experiment(
            resolve(path), runs_dir=tmp_path / "runs", ensure_binary=raising(AssertionError("a binary was asked for"))
        )
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
