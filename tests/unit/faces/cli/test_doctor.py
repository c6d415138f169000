"""What doctor says of machines that can and cannot: no process is started, nothing is tried."""

import json
from pathlib import Path

import pytest

from hashidrill.core.engine.machine_check import Fit, Wants
from hashidrill.core.errors import BinaryError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.capabilities import PacketFilter
from hashidrill.faces.cli import machine as doctor
from hashidrill.lab.provision import archive as binaries_archive
from hashidrill.lab.provision import binaries, machine
from hashidrill.lab.provision import build as binaries_build
from hashidrill.lab.provision.build import Go
from hashidrill.lab.provision.machine import Capability

WELL = {"namespaces": "", "links": "", **dict.fromkeys(machine.PACKET_FAULTS, ""), "netem": ""}
GO = Go(Path("/usr/bin/go"), (1, 24), "go1.24.2")
BASIC = Capability("namespaces", ok=True, detail="tried", cost="no local runs", required=True)
LACKING = Capability("netem", ok=False, detail="no [tc] here", cost="no network faults", fix="apt-get install tc")


@pytest.fixture
def printed(capsys):
    def of(found, *, as_json=False, verbose=False, fits=None):
        code = doctor.report(json=as_json, verbose=verbose, found=found, fits=fits)
        return code, capsys.readouterr().out

    return of


def test_a_machine_that_lacks_nothing_required_is_told_that_runs_are_possible(printed):
    code, text = printed([BASIC, LACKING])
    assert code == 0
    assert "Local runs are possible" in text


def test_each_missing_thing_has_its_cost_and_its_command_and_a_present_one_has_neither(printed):
    _, text = printed([BASIC, LACKING])
    assert "no network faults" in text
    assert "    apt-get install tc\n" in text
    assert "no local runs" not in text
    assert "no [tc] here" in printed([BASIC, LACKING], verbose=True)[1]


def test_a_required_thing_that_is_missing_is_exit_code_2_and_is_named(printed):
    code, text = printed([Capability("namespaces", ok=False, detail="refused", required=True), LACKING])
    assert code == 2
    assert "No local runs on this machine: missing: namespaces." in text


def test_a_long_command_is_never_wrapped_so_that_it_can_be_copied(printed):
    fix = "sudo sysctl -w " + "x" * 200
    _, text = printed([Capability("a", ok=False, detail="", fix=fix)])
    assert f"    {fix}\n" in text


def test_one_command_that_mends_two_things_is_printed_once(printed):
    twice = [Capability(name, ok=False, detail="", fix="the command") for name in ("go", "consul")]
    _, text = printed(twice)
    assert text.count("the command") == 1
    assert "go, consul:" in text


def test_json_is_whole_and_has_the_same_exit_code(printed):
    code, text = printed([Capability("namespaces", ok=False, detail="x" * 300, required=True)], as_json=True)
    found = json.loads(text)
    assert code == 2
    assert found["local_runs"] is False
    assert found["capabilities"][0]["detail"] == "x" * 300
    assert set(found["capabilities"][0]) == {"name", "ok", "detail", "cost", "fix", "required"}


FITS = [
    Fit("raft/small", Wants(0.7e9, "4 agents", 0.3e9, 50.0, "w 50/s"), []),
    Fit("incidents/large", Wants(9e9, "20 agents", 0.3e9, 50.0, "w 50/s"), ["memory: needs 9.0 GB [x]"]),
]


def test_experiments_that_do_not_fit_are_named_with_the_reason_and_the_others_are_counted(printed):
    code, text = printed([BASIC], fits=FITS, verbose=True)
    assert code == 0
    assert "1 of 2 experiments fit this machine right now." in text
    assert "raft/small, needs 700 MB of memory (4 agents)" in text
    assert "  incidents/large: memory: needs 9.0 GB [x]\n" in text
    assert "`hashidrill lab up --stack`, need 1.8 GB of memory." in text, "20 agents, and what runs with them"


@pytest.mark.parametrize("missing", [0, 1, 40])
@pytest.mark.parametrize("needy", [0, 50])
def test_without_more_words_it_is_one_screen_that_begins_with_what_is_missing(printed, missing, needy):
    lacking = [
        Capability(f"tool {number}", ok=False, detail="", cost=f"no {'x' * 99}", fix=f"apt-get install tool{number}")
        for number in range(missing)
    ]
    there = [Capability(f"thing {number}", ok=True, detail="d" * 200) for number in range(30)]
    _, text = printed([*there, *lacking, BASIC], fits=[FITS[0], *FITS[1:] * needy])
    lines = text.splitlines()
    assert len(lines) <= 25
    assert all(len(line) <= 80 for line in lines if "apt-get" not in line)
    assert lines[0].startswith("missing  tool 0") == bool(missing)
    assert ("hashidrill doctor -v" in text) == (missing > 1 or needy > 3)
    assert "thing 29" in text, "the name of what is there"


def test_what_stops_every_run_comes_first(printed):
    _, text = printed([LACKING, Capability("namespaces", ok=False, detail="refused", required=True)])
    assert text.splitlines()[0] == "MISSING  namespaces  refused"


def test_json_says_of_each_experiment_whether_it_fits(printed):
    _, text = printed([BASIC], as_json=True, fits=FITS)
    small, large = json.loads(text)["experiments"]
    assert (small["name"], small["fits"], small["lacks"]) == ("raft/small", True, [])
    assert (large["fits"], large["lacks"]) == (False, ["memory: needs 9.0 GB [x]"])


def test_trials_that_went_well_are_capabilities_that_are_there():
    assert machine.namespaces(WELL, root=True).ok
    assert machine.links(WELL).ok
    assert machine.netem(WELL).ok
    assert machine.packet_rules(WELL).ok
    assert machine.seccomp({"seccomp": ""}, "6.1.0-13-amd64").ok


def test_without_namespaces_what_lies_inside_them_is_missing_too_and_says_why():
    refused = {"namespaces": "unshare: Operation not permitted"}
    for found in (machine.namespaces(refused, root=False), machine.links(refused), machine.netem(refused)):
        assert not found.ok
        assert "unshare: Operation not permitted" in found.detail


def test_a_trial_that_crashed_makes_nothing_ok():
    crashed = {"trial": "ImportError: no module"}
    assert not machine.namespaces(crashed, root=True).ok
    assert "ImportError" in machine.links(crashed).detail
    assert not machine.seccomp(crashed, "6.1.0").ok


def test_the_user_namespaces_of_root_are_for_others_and_not_required():
    found = machine.user_namespaces({"namespaces": "refused"}, root=True)
    assert not found.required
    assert "root has" in found.cost


@pytest.mark.parametrize("release", ["5.4.0-150-generic", "4.19.0", "odd"])
def test_seccomp_notification_of_a_kernel_that_cannot_let_calls_go_on_is_not_enough(release):
    found = machine.seccomp({"seccomp": ""}, release)
    assert (found.ok, found.required) == (False, True)
    assert "5.5 or newer" in found.detail


def test_a_kernel_without_a_kind_of_packet_rule_loses_the_faults_made_of_it_alone():
    found = machine.packet_rules(WELL | {"drop by chance": "No such file or directory (rule)"})
    assert (found.ok, found.required) == (False, False)
    assert found.cost == "no network.loss"
    assert "drop by chance: No such file or directory" in found.detail
    assert found.fix == "sudo modprobe nft_numgen"


def test_a_kernel_without_nf_tables_loses_every_fault_that_filters_packets():
    found = machine.packet_rules(WELL | dict.fromkeys(machine.PACKET_FAULTS, "Operation not supported"))
    filtering = {kind for kind, fault in registry.faults().items() if PacketFilter in fault.capabilities}
    assert filtering
    assert filtering <= {*found.cost.removeprefix("no ").split(", ")}
    assert "modprobe nf_tables" in found.fix


@pytest.mark.parametrize(
    ("setting", "value", "command"),
    [
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
    ],
)
def test_the_kernel_setting_that_forbids_user_namespaces_is_named_with_its_exact_command(
    tmp_path, setting, value, command
):
    path = tmp_path / setting
    path.parent.mkdir()
    path.write_text(value + "\n")
    assert machine.namespace_fix(root=False, sysctls=tmp_path) == command


def test_a_setting_that_forbids_nothing_is_not_blamed(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "in_container", lambda: False)
    (tmp_path / "user").mkdir()
    (tmp_path / "user/max_user_namespaces").write_text("96365\n")
    assert "sysctl" not in machine.namespace_fix(root=False, sysctls=tmp_path)


def test_in_a_container_the_container_is_what_has_to_change(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "in_container", lambda: True)
    assert "--privileged" in machine.namespace_fix(root=True, sysctls=tmp_path)


def test_netem_is_loaded_where_it_is_installed_where_ubuntu_has_it_and_else_nothing_is_promised(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.release", lambda: "6.8.0-1")
    assert machine.netem_fix(tmp_path) == ""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="Ubuntu"\nID=ubuntu\n')
    assert "linux-modules-extra-6.8.0-1" in machine.netem_fix(tmp_path)
    module = tmp_path / "lib/modules/6.8.0-1/kernel/net/sched/sch_netem.ko.zst"
    module.parent.mkdir(parents=True)
    module.touch()
    assert machine.netem_fix(tmp_path) == "sudo modprobe sch_netem"


def test_a_container_is_known_by_what_its_engine_leaves(tmp_path):
    assert not machine.in_container(tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert machine.in_container(tmp_path)


@pytest.fixture
def lookup(monkeypatch):
    def put(*, here=None, why_not="the server is down"):
        def locate(name, version):
            if isinstance(here, Exception):
                raise here
            return here

        monkeypatch.setattr(binaries, "locate", locate)
        monkeypatch.setattr(binaries_archive, "why_not", lambda product, version: why_not)

    return put


def test_a_binary_that_is_here_is_said_with_its_place_and_origin(lookup):
    lookup(here=binaries.Binary(Path("/opt/consul"), "1.22.2", "PATH", "ab"))
    found = machine.binary("consul", "1.22.2", None)
    assert (found.ok, found.detail) == (True, "/opt/consul (PATH)")


def test_a_binary_that_is_not_here_says_how_it_will_be_had(lookup):
    lookup(why_not=None)
    assert "will be downloaded from" in machine.binary("consul", "1.22.2", None).detail
    lookup()
    assert "will be built with go1.24.2 (about 4 minutes)" in machine.binary("consul", "1.22.2", GO).detail


@pytest.mark.parametrize("go", [None, Go(Path("/usr/bin/go"), (1, 19), "go1.19.8")])
def test_a_binary_that_cannot_be_had_is_missing_and_the_default_consul_is_required(lookup, go):
    lookup()
    found = machine.binary("consul", "1.22.2", go)
    assert (found.ok, found.required) == (False, True)
    assert "the server is down; and there is no Go" in found.detail
    assert not machine.binary("toxiproxy-cli", "2.12.0", go).required


def test_nomad_without_a_c_compiler_is_missing_and_says_which_packages_bring_one(lookup, monkeypatch):
    lookup()
    monkeypatch.setattr(binaries_build, "find_go", lambda: GO)
    monkeypatch.setattr(binaries_build.shutil, "which", lambda name: None)
    found = machine.binary("nomad", "1.10.5", GO)
    assert not found.ok
    assert "no C compiler" in found.detail
    assert found.fix.endswith("gcc libc6-dev") or "gcc and libc6-dev" in found.fix


def test_what_tests_lack_is_said_in_a_checkout_and_nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "tool", lambda name: None if name in {"strace", "chromium"} else f"/usr/bin/{name}")
    [found] = machine.tools_of_tests()
    assert (found.ok, found.required, found.detail) == (False, False, "no strace"), "chromium-browser will do"
    assert "strace" in found.fix
    assert machine.tools_of_tests(tmp_path) == []


def test_an_explicit_path_that_is_wrong_is_mended_by_taking_it_out(lookup):
    lookup(here=BinaryError("HASHIDRILL_CONSUL names /nowhere"))
    found = machine.binary("consul", "1.22.2", GO)
    assert (found.ok, found.fix) == (False, "unset HASHIDRILL_CONSUL")


def test_an_old_go_is_missing_with_its_version(monkeypatch):
    found = machine.go_toolchain(Go(Path("/usr/bin/go"), (1, 19), "go1.19.8"))
    assert not found.ok
    assert "go1.19.8" in found.detail
    assert machine.go_toolchain(GO).ok


def test_building_wants_more_disk_than_running(tmp_path):
    assert machine.free_disk(1_000_000_000, tmp_path, building=False).ok
    assert not machine.free_disk(1_000_000_000, tmp_path, building=True).ok


def test_little_memory_is_a_warning_and_no_end():
    found = machine.memory(100_000_000)
    assert (found.ok, found.required) == (False, False)


def test_another_system_than_linux_has_no_local_runs(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    found = machine.detect()
    assert not machine.local_runs_possible(found)
