"""Faults of Chaos Mesh on a real Consul, by its real controller and chaosd, behind a real API server with RBAC."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest

import real_chaos_mesh
import real_chaos_runs
from folded import unfolded
from hashidrill.lab.provision.products import KUBERNETES_VERSIONS
from real_chaos_machines import BANDWIDTH, MACHINE_CASES, NEEDED
from real_chaos_runs import KILLED_AT
from sandboxed_cases import CONSUL, Cases, played

VERSIONS = dict(KUBERNETES_VERSIONS)
pytestmark = [
    pytest.mark.live,
    pytest.mark.kubernetes,
    pytest.mark.needs(
        "datacenter", f"consul {CONSUL}", "go", *(f"{name} {version}" for name, version in VERSIONS.items())
    ),
]
BUSY = pytest.mark.may_skip("other work may keep the machine busy, or it has no stress-ng, iptables and ipset")


@pytest.fixture(scope="module")
def cases(binary, definitions, tmp_path_factory, tell):
    """Three sandboxes with all of it, because most of each case is waiting: two of whole runs, one of the others."""
    of_runs = [case.__name__ for case in real_chaos_runs.CASES]
    others = [case.__name__ for case in real_chaos_mesh.CASES if case not in real_chaos_runs.CASES]
    one_at_a_time = Lock()

    def locked(text):
        with one_at_a_time:
            tell(text)

    def part(names):
        log, only = tmp_path_factory.mktemp("chaos-mesh") / "log", " ".join(names)
        told = {"binary": binary, "versions": VERSIONS, "log": log, "tell": locked, "HASHIDRILL_CASES": only}
        return played("real_chaos_mesh.py", definitions, **told)

    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(part, (of_runs[:4], of_runs[4:], others)))
    return Cases(dict(line for one in parts for line in one.lines.items()), "".join(one.log for one in parts))


def test_a_fault_keeps_its_contract_on_the_real_thing(cases):
    line = cases["keeps_its_contract"]
    assert line["present"]["ok"]
    assert line["gone"]["ok"]


def test_one_that_kills_has_chaosd_start_the_agent_again(cases):
    line = cases["keeps_its_contract_when_it_kills"]
    assert line["present"]["ok"]
    assert line["gone"]["ok"]
    assert line["another"]


@pytest.mark.lie
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.needs(*NEEDED[kind]), BUSY] if NEEDED[kind] else [])
        for kind in MACHINE_CASES
    ],
)
def test_what_chaosd_does_to_a_machine_is_proven_gone_and_seen_to_be_disarmed(cases, kind):
    line = cases[f"machine:{kind}"]
    if "too busy" in line.get("refused", ""):
        pytest.skip(f"other work keeps this machine busy: {line['refused']}")
    assert line["present"]["ok"]
    assert line["gone"]["ok"]
    assert not line["disarmed"]["ok"]
    assert "its controller says AllInjected" in line["disarmed"]["measured"], "it is told, and not believed"


@pytest.mark.needs(*NEEDED[BANDWIDTH])
@BUSY
def test_a_delay_that_the_kernel_cannot_do_is_told_goes_and_blocks_no_other_fault(cases):
    line = cases["a_delay_that_fails_blocks_no_other_fault"]
    assert "controller failed" in line["told"] or "AllInjected" in line["told"]
    assert "\n" not in line["told"]
    assert line["present"]["ok"]
    assert line["gone"]["ok"]


def test_a_process_that_is_not_there_is_told_in_one_line(cases):
    line = cases["a_process_that_is_not_there_is_told"]
    assert not line["ok"]
    assert line["measured"].endswith("process consull not found")
    assert line["gone"]


def test_a_typo_that_the_server_drops_without_a_word_is_refused_by_us(cases):
    line = cases["a_typo_is_dropped_by_the_server_and_refused_by_us"]
    assert (line["status"], line["kept"]) == (201, ["process", "signal"])
    assert "spec.process.recoverCmmd: the cluster's definition does not have it, and would drop it" in line["told"]


@pytest.mark.lie
def test_what_is_exported_is_taken_by_the_real_definitions_and_admission(cases):
    line = cases["what_is_exported_is_taken"]
    assert line["refused"] == {}
    actions = ("bandwidth", "delay", "loss", "partition")
    kinds = {"IOChaos fault", "IOChaos latency", "Schedule", "StressChaos", "Workflow"}
    kinds |= {f"NetworkChaos {action}" for action in actions}
    kinds |= {f"PodChaos {action}" for action in ("container-kill", "pod-failure", "pod-kill")}
    assert set(line["kinds"]) == kinds
    assert "denied the request" in line["lies"]["admission"], "otherwise admission was not asked"
    assert "unknown field" in line["lies"]["a typo"]


def test_what_admission_refuses_is_told_and_no_role_is_blamed(cases):
    line = cases["what_admission_refuses_is_told"]
    assert "direction should be one of 'to' and 'from'" in line["told"]
    assert "acl kubernetes" not in line["told"]
    assert line["left"] == ""


def test_a_server_that_answers_nothing_ends_no_proof_and_each_call(cases):
    line = cases["a_server_that_answers_nothing_is_told"]
    assert line["still"], "the proof asks the agent, and not the server"
    assert "delete PhysicalMachineChaos" in line["told"]
    assert line["took_s"] < 60
    assert line["gone"]


def test_a_server_that_is_gone_is_told_before_anything_is_applied(cases):
    told = cases["a_server_that_is_gone_is_told"]["told"]
    assert "nothing was applied" in told
    assert "get pods` work?" in told


def test_a_namespace_that_ends_or_never_was_is_told(cases):
    line = cases["a_namespace_that_is_being_deleted_is_told"]
    assert "the namespace is being deleted" in line["told"]
    assert "acl kubernetes" not in line["told"]
    assert "does the namespace absent exist?" in line["nowhere"]


def test_a_definition_of_another_version_is_told_before_anything_is_applied(cases):
    line = cases["a_definition_of_another_version_is_told"]
    assert "spec.process.signal: the cluster's definition does not have it, and would drop it" in line["older"]
    assert "serves no PhysicalMachineChaos of chaos-mesh.org/v1alpha1" in line["other"]
    assert all("nothing was applied" in line[name] for name in ("older", "other"))


def test_a_run_on_a_real_chaos_mesh_is_proven_and_judged_and_leaves_nothing(cases):
    line = cases["a_run_is_proven_and_judged"]
    assert (line["exit"], line["verdict"], line["left"]) == (0, "PASS", [])


def test_a_run_in_which_nobody_injects_is_invalid_says_so_and_leaves_nothing(cases):
    line = cases["a_run_without_a_controller_is_invalid"]
    assert (line["exit"], line["left"]) == (3, [])
    assert "is chaos-controller-manager running?" in unfolded(line["said"] + line["why"])


def test_a_run_without_a_right_says_which_and_leaves_nothing(cases):
    line = cases["a_run_without_a_right_is_invalid"]
    assert (line["create"]["exit"], line["create"]["left"]) == (3, [])
    assert "we may not create physicalmachinechaos.chaos-mesh.org" in unfolded(line["create"]["why"])
    assert (line["pods"]["exit"], line["pods"]["left"]) == (2, [])
    assert 'cannot list resource "pods"' in unfolded(line["pods"]["said"])


def test_a_run_whose_controller_dies_ends_with_four_and_heal_finishes_it(cases):
    line = cases["a_run_whose_controller_dies_says_what_helps_and_is_healed"]
    assert line["exit"] == 4
    assert line["took_s"] < 90
    assert "still exists 5s after it was deleted" in unfolded(line["said"])
    assert "cleanFinalizer=forced" in "".join(line["said"].split())
    assert [kind for kind, *_ in line["stuck"]] == ["PhysicalMachineChaos"]
    assert (line["healed"]["exit"], line["healed"]["left"]) == (0, [])


@pytest.mark.parametrize("event", KILLED_AT)
def test_what_a_run_left_that_was_killed_is_healed(cases, event):
    line = cases[f"killed:{event}"]
    assert (line["healed"]["exit"], line["healed"]["left"]) == (0, [])
    assert line["answers"]
    if event in {"fault.applied", "fault.proven"}:
        assert [kind for kind, *_ in line["found"]] == ["PhysicalMachineChaos"], "there was something to heal"


def test_a_run_on_a_server_that_is_gone_does_not_begin_and_says_why(cases):
    line = cases["a_run_on_a_server_that_is_gone_does_not_begin"]
    assert line["exit"] == 2
    assert not line["began"]
    assert "get pods` work?" in unfolded(line["said"])


def test_an_observer_notices_that_it_was_disarmed(cases):
    line = cases["is_seen_to_be_disarmed"]
    assert not line["ok"]
    assert "consul answers" in line["measured"]


def test_the_controller_reverts_it_when_nobody_else_does(cases):
    assert cases["ends_by_itself"]["took_s"] < 28


def test_what_is_left_is_found_by_its_labels_and_gone(cases):
    line = cases["what_is_left_is_found_by_its_labels"]
    assert [(kind, run) for kind, _, run in line["found"]] == [("PhysicalMachineChaos", "run-1")]
    assert line["after"] == []


def test_a_stuck_finalizer_is_told_with_what_helps_and_goes_when_the_controller_is_back(cases):
    line = cases["a_stuck_finalizer_is_told_with_what_helps"]
    assert "cleanFinalizer=forced" in line["told"]
    assert line["gone"]


def test_a_controller_that_is_gone_is_told(cases):
    line = cases["a_controller_that_is_gone_is_told"]
    assert not line["ok"]
    assert "is chaos-controller-manager running?" in line["measured"]


@pytest.mark.lie
def test_a_chaosd_that_is_gone_is_told_and_what_recovered_without_being_injected_is_not_gone(cases):
    line = cases["an_unreachable_chaosd_is_told"]
    assert not line["ok"]
    assert (line["injected"], line["recovered"]) == ("False", "True"), "so says the real controller"
    assert not line["gone"]
    assert "its controller" in line["measured"]


def test_without_each_rule_of_its_role_it_is_refused(cases):
    told = cases["without_a_rule_it_is_refused"]["told"]
    assert told
    assert all("`hashidrill staging acl kubernetes EXPERIMENT` prints the role" in why for why in told.values())
