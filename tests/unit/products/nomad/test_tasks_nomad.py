"""The processes of Nomad's tasks are found in /proc by what Nomad tells them, on the host whose disk they work on."""

from types import SimpleNamespace

from hashidrill.products.nomad.tasks import ProcTasks
from virtual_time import run


def process(proc, pid, environment, *, state="S", caught=0, name="a task (1)"):
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(b"\0".join(f"{key}={value}".encode() for key, value in environment.items()))
    numbers = " ".join(str(number) for number in range(5, 23))
    (folder / "stat").write_text(f"{pid} ({name}) {state} 4 {numbers}")
    (folder / "status").write_text(f"Name:\t{name}\nSigCgt:\t{caught:016x}\n")


def look(tmp_path, host="node-1"):
    disk = tmp_path / "hosts" / host / "disk"
    there = SimpleNamespace(use=lambda _: SimpleNamespace(data=disk))
    return run(ProcTasks(there, tmp_path / "proc").task_processes())


def told(tmp_path, alloc, host="node-1"):
    folder = tmp_path / "hosts" / host / "disk/nomad/alloc" / alloc / "alloc"
    return {"PATH": "/bin", "NOMAD_ALLOC_ID": alloc, "NOMAD_JOB_ID": "web", "NOMAD_ALLOC_DIR": folder}


def test_a_task_is_found_with_its_allocation_its_state_and_the_signals_that_it_handles(tmp_path):
    process(tmp_path / "proc", 71, told(tmp_path, "a1"), state="T", caught=1 << (15 - 1) | 1)
    [found] = look(tmp_path)
    assert (found.alloc, found.job, found.pid, found.state, found.catches) == ("a1", "web", 71, "T", {1, 15})
    assert found.reference == "71@22"  # the 22nd field of stat, whatever is in the name


def test_what_is_no_task_and_what_runs_on_another_host_is_not_found(tmp_path):
    process(tmp_path / "proc", 71, {"PATH": "/bin"})
    process(tmp_path / "proc", 72, told(tmp_path, "a2", "node-11"))
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/73").mkdir()  # it has just ended
    assert look(tmp_path) == []
