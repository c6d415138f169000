"""When a host takes its fault away by itself: a lease, a deadline, and what is said of them. No clock is read."""

import ast
import importlib.util
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashidrill.staging.carriers.inside.agent import Agent, Lease, main
from hashidrill.staging.carriers.inside.notes import Note
from hashidrill.staging.carriers.inside.system import RefusedError, System
from hashidrill.staging.carriers.shell import AGENT, OBSERVERS, OLDEST_PYTHON, handed, program

pytestmark = pytest.mark.lie


def test_a_lease_is_over_when_nobody_renewed_it():
    lease = Lease(10, 100, now=0)
    assert (lease.over(9.9), lease.left_s(4)) == ("", 6)
    lease.renew(9)
    assert (lease.over(18.9), lease.over(19)) == ("", "lease")


def test_nobody_can_renew_what_is_over():
    lease = Lease(10, 100, now=0)
    lease.renew(11)
    assert lease.over(11) == "lease"


def test_a_deadline_comes_however_often_it_is_renewed():
    lease = Lease(10, 25, now=0)
    for now in range(0, 25, 5):
        lease.renew(now)
    assert (lease.over(24.9), lease.over(25)) == ("", "deadline")
    assert lease.left_s(20) == 5


def test_the_guardian_waits_a_little_longer_than_the_agent():
    lease = Lease(10, 100, now=0)
    assert (lease.over(11), lease.over(11, 2), lease.over(12, 2)) == ("lease", "", "lease")


@given(
    lease_s=st.floats(1, 100),
    deadline_s=st.floats(1, 1000),
    gaps=st.lists(st.floats(0.01, 200), min_size=1, max_size=50),
)
def test_it_is_never_in_force_longer_than_either_says(lease_s, deadline_s, gaps):
    """Whenever renewals come: at any moment it was renewed within the lease, and the deadline is not over."""
    lease, now, renewed = Lease(lease_s, deadline_s, 0.0), 0.0, 0.0
    for gap in gaps:
        now += gap
        if not lease.over(now):
            assert now < deadline_s
            assert now - renewed < lease_s + 1e-9 * now  # sums of floats
            assert 0 < lease.left_s(now) <= min(deadline_s - now, lease_s) + 1e-9 * now
            lease.renew(now)
            renewed = now
        else:
            lease.renew(now)
            assert lease.over(now + 1000)
            assert lease.left_s(now) == 0
            return


@pytest.mark.parametrize("name", sorted({*AGENT, *OBSERVERS}))
def test_what_is_sent_to_hosts_is_of_the_oldest_python_and_needs_nothing_else_there(name):
    source = Path(importlib.util.find_spec(name).origin).read_text()
    tree = ast.parse(source, feature_version=OLDEST_PYTHON)
    for node in ast.walk(tree):
        imported = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        imported += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for each in imported:
            if each in {"hashidrill.staging.carriers.inside", "hashidrill.core.util"}:  # their modules by name
                assert {f"{each}.{alias.name}" for alias in node.names} <= {*OBSERVERS, *AGENT}
            elif each.startswith("hashidrill"):
                assert each in {*OBSERVERS, *AGENT}, f"{name} imports {each}, which is not sent along"


def test_modules_are_sent_in_the_order_in_which_they_need_each_other():
    for bundle in (AGENT, OBSERVERS):
        for number, name in enumerate(bundle):
            tree = ast.parse(Path(importlib.util.find_spec(name).origin).read_text())
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hashidrill"):
                    several = node.module in {"hashidrill.staging.carriers.inside", "hashidrill.core.util"}
                    needed = {f"{node.module}.{alias.name}" for alias in node.names} if several else {node.module}
                    assert needed <= {*bundle[:number]}, name


def test_a_program_says_how_long_it_is():
    text = program({"id": "ä"})
    length, _, rest = handed(text).partition(b"\n")
    assert int(length) == len(rest)
    assert rest.decode() == text
    compile(text, "program", "exec")


def test_a_note_is_for_its_owner_alone_and_leaves_no_folder(tmp_path):
    note = Note(tmp_path / "run", "0/../x y")
    note.write({"memo": {"a": 1}})
    assert note.path.parent == tmp_path / "run"
    assert note.path.stat().st_mode & 0o777 == 0o600
    assert note.path.parent.stat().st_mode & 0o777 == 0o700
    assert note.read() == {"memo": {"a": 1}}
    note.forget()
    assert not (tmp_path / "run").exists()
    assert note.read() is None


def opened_to_all(note):
    note.path.parent.chmod(0o777)


def opened_to_the_group(note):
    note.path.parent.chmod(0o770)


def led_elsewhere(note):
    elsewhere = note.path.parent.rename(note.path.parent.with_name("elsewhere"))
    note.path.parent.symlink_to(elsewhere)


def written_by_all(note):
    note.path.chmod(0o666)


def a_link(note):
    note.path.symlink_to(note.path.rename(note.path.with_name("other")))


PLANTED = [opened_to_all, opened_to_the_group, led_elsewhere, written_by_all, a_link]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_note_that_another_user_may_have_put_there_is_not_acted_on(tmp_path, plant, capfd):
    """What it says is started as root."""
    note = Note(tmp_path / "run", "f")
    note.write({"spec": {"kind": "kill", "args": {}}, "memo": {}, "agent": "1@1"})
    assert note.read() is not None
    plant(note)
    with pytest.raises(RefusedError) as refused:
        note.read()
    assert refused.value.name == "note"
    with pytest.raises(SystemExit) as ended:
        main({"undo": True, "id": "f", "folder": str(tmp_path / "run")})
    assert ended.value.code == 2
    assert '"event": "refused", "name": "note"' in capfd.readouterr().out


@pytest.mark.parametrize("plant", PLANTED[:3])
def test_no_note_is_written_where_others_may_write(tmp_path, plant):
    note = Note(tmp_path / "run", "f")
    note.write({})
    plant(note)
    with pytest.raises(RefusedError, match=r"is not this user's alone .* name another folder in carriers\.ssh\.notes"):
        note.write({"memo": {}})


def test_a_folder_of_another_user_holds_no_note_of_ours(tmp_path, monkeypatch):
    note = Note(tmp_path / "run", "f")
    note.write({})
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
    for act in (note.read, lambda: note.write({})):
        with pytest.raises(RefusedError, match="is not this user's alone"):
            act()


@pytest.mark.usefixtures("signals_restored")
def test_a_note_that_cannot_be_written_is_said_before_anything_is_applied(tmp_path, capfd):
    """A full disk, for example: here a file is where the folder would be."""
    (tmp_path / "run").write_text("")
    applied = []

    class Able(System):
        def run(self, command, text=""):
            if "-f" in command and "-c" not in command:
                applied.append(command)
            return 0, "", ""

        def is_root(self):
            return True

    spec = {"id": "f", "kind": "packets", "args": {"table": "t", "script": ""}, "folder": str(tmp_path / "run")}
    assert Agent(spec, Able()).run() == 2
    assert not applied
    assert '"name": "note"' in capfd.readouterr().out
    with pytest.raises(RefusedError, match="cannot be read"):
        Note(tmp_path, "no").path.write_text("{") and Note(tmp_path, "no").read()


@pytest.mark.parametrize(
    ("ours", "theirs", "undone"),
    [("run-a", "run-b", False), ("run-b", "run-b", True), ("", "run-b", True), ("run-a", None, True)],
)
def test_a_note_of_another_run_is_left_alone(tmp_path, capfd, ours, theirs, undone):
    """One without a run is of a version that wrote none."""
    note = Note(tmp_path / "run", "f")
    spec = {"id": "f", "kind": "packets", "args": {"table": "t", "script": ""}, **({"run": theirs} if theirs else {})}
    note.write({"spec": spec, "memo": {}, "agent": "1@1"})

    class Heard(System):
        def signal(self, reference, number):
            note.forget()  # the agent reverts by itself
            return True

    with pytest.raises(SystemExit) as ended:
        main({"undo": True, "id": "f", "folder": str(tmp_path / "run"), "run": ours}, Heard())
    said = json.loads(capfd.readouterr().out)
    if undone:
        assert (ended.value.code, said["event"], note.read()) == (0, "reverted", None)
    else:
        assert (ended.value.code, said["event"], said["name"]) == (2, "refused", "another-run")
        assert note.read() is not None
        assert said["why"] == (
            f"{note.path} is of the run run-b: a fault (packets) which process 1@1, now gone, left; it is left alone"
        )


def test_whose_faults_are_in_force_there_is_said_by_what_reverts(tmp_path, capfd):
    """An observer sees that a disk is slow, and not who slows it. Notes that cannot be read are nobody's."""
    folder = tmp_path / "run"
    system = System()
    living = system.reference(os.getpid())
    for run, kind in (("run-a", "disk"), ("run-b", "disk"), ("run-c", "cpu"), ("", "pause")):
        spec = {"id": f"f-{run}", "kind": kind, "args": {}, "run": run, "who": "ana@desk"}
        Note(folder, spec["id"]).write({"spec": spec, "memo": {}, "agent": living})
    (folder / "torn.json").write_text("{")
    with pytest.raises(SystemExit):
        main({"undo": True, "id": "0-slow", "folder": str(folder), "run": "run-a"}, system)
    others = json.loads(capfd.readouterr().out)["others"]
    assert [one["kind"] for one in others] == ["disk", "cpu"]
    assert others[0]["why"] == (
        f"{folder}/f-run-b.json is of the run run-b, started by ana@desk: a fault (disk) which process {living} has in"
        " force; it is left alone"
    )
