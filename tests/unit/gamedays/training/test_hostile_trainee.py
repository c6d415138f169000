"""The hostile trainee finds each leak that is planted, and nothing where there is none."""

import base64
import re
import zlib
from pathlib import Path

import pytest

import hostile_trainee as hostile
from hostile_trainee import Search

pytestmark = pytest.mark.lie

TELLS = ("disk.latency", "disk-latency", '"delay": "500ms"', "slow-leader-disk")
STATUS = "Name:\tconsul\nState:\tS (sleeping)\nTracerPid:\t{tracer}\nSeccomp:\t{filters}\nNoNewPrivs:\t1\n"


def planted_process(
    proc: Path, pid: int, *, words: str = "sleep 9", environ: str = "", tracer: int = 0, filters: int = 0
):
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode())
    (folder / "environ").write_bytes(environ.encode())
    (folder / "status").write_text(STATUS.format(tracer=tracer, filters=filters))
    return folder


def places(search: Search) -> set[str]:
    return {one["place"] for one in search.found}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cmdline", b"toxic\0--fault\0disk.latency"),
        ("environ", b"HOME=/\0STEP=slow-leader-disk"),
        ("maps", b"7f0 r-xp /var/tmp/disk-latency.so"),
        ("cgroup", b"0::/run/disk-latency-0"),
        ("mountinfo", b'26 1 0:1 / /x rw - fuse "delay": "500ms" rw'),
    ],
)
def test_a_process_that_says_what_it_does_is_found(tmp_path, name, content):
    (planted_process(tmp_path, 12) / name).write_bytes(content)
    search = Search(TELLS)
    hostile.processes(search, tmp_path)
    assert places(search) == {f"processes: {name}"}


def test_an_open_file_with_the_name_of_the_fault_is_found(tmp_path):
    (planted_process(tmp_path, 12) / "fd" / "3").symlink_to("/run/undo/disk-latency.json")
    search = Search(TELLS)
    hostile.processes(search, tmp_path)
    assert places(search) == {"processes: open files"}


def test_the_searcher_does_not_find_itself(tmp_path):
    planted_process(tmp_path, 12, words="python3 disk.latency")
    search = Search(TELLS)
    hostile.processes(search, tmp_path, me=12)
    assert not search.found


def test_the_memory_of_an_engine_that_can_be_seen_is_read(tmp_path):
    folder = planted_process(tmp_path, 12)
    (folder / "maps").write_text("0000-1000 r-xp 0 0 0 /bin/python\n1000-2000 rw-p 0 0 0 [heap]\n")
    (folder / "mem").write_bytes(b"\0" * 0x1000 + b'{"fault": "disk.latency"}' + b"\0" * 0xF00)
    search = Search(TELLS)
    hostile.memory(search, tmp_path)
    assert places(search) == {"processes: memory"}


@pytest.mark.parametrize(("key", "sick"), [("TracerPid", {"tracer": 77}), ("Seccomp", {"filters": 2})])
def test_one_agent_that_is_held_unlike_its_peers_is_found(tmp_path, key, sick):
    for pid in (21, 22):
        planted_process(tmp_path, pid, words="/opt/consul agent")
    planted_process(tmp_path, 23, words="/opt/consul agent", **sick)
    search = Search(TELLS)
    hostile.peers(search, tmp_path)
    assert [one["tell"] for one in search.found] == [key]


def test_agents_that_are_all_held_alike_say_nothing(tmp_path):
    for pid in (21, 22, 23):
        planted_process(tmp_path, pid, words="/opt/consul agent", filters=2)
    search = Search(TELLS)
    hostile.peers(search, tmp_path)
    assert not search.found


def test_a_stopped_process_is_no_finding_where_it_is_the_symptom(tmp_path):
    for pid in (21, 22):
        planted_process(tmp_path, pid, words="/opt/consul agent")
    (tmp_path / "22" / "status").write_text("State:\tT (stopped)\nTracerPid:\t0\nSeccomp:\t0\nNoNewPrivs:\t1\n")
    with_symptom, without = Search(TELLS), Search(TELLS)
    hostile.peers(with_symptom, tmp_path, symptoms=["State"])
    hostile.peers(without, tmp_path)
    assert not with_symptom.found
    assert [one["tell"] for one in without.found] == ["State"]


@pytest.mark.parametrize("path", ["undo/disk-latency.json", "journal.jsonl", "notes/trainer"])
def test_a_file_is_found_by_its_name_and_by_what_is_in_it(tmp_path, path):
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text("{}" if "disk" in path else '{"with": {"delay": "500ms"}}'.replace('"with"', "with"))
    search = Search(TELLS)
    hostile.files(search, [tmp_path], skip=())
    assert {one["where"] for one in search.found} == {str(file)}


def test_the_library_is_counted_and_is_no_finding(tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "slow.yaml").write_text("fault: disk.latency")
    search = Search(TELLS, [str(tmp_path / "library")])
    hostile.files(search, [tmp_path], skip=())
    assert not search.found
    assert search.shelf == 1


def test_a_cgroup_with_the_name_of_the_fault_is_found(tmp_path):
    (tmp_path / "cgroup" / "disk-latency-1").mkdir(parents=True)
    search = Search(TELLS)
    hostile.kernel(search, tmp_path / "proc", tmp_path / "cgroup")
    assert places(search) == {"cgroups"}


@pytest.mark.parametrize(
    ("command", "said", "found"),
    [
        ("nft list ruleset", b"table inet a { chain b { ip saddr 10.73.0.12 drop } }", True),
        ("nft list ruleset", b"table inet a { chain b { numgen random mod 1000 < 300 accept } }", True),
        ("nft list ruleset", b"", False),
        ("ps -ef --forest", b"root 1 strace -e inject=disk-latency", True),
        ("ps -ef --forest", b"consul 31 consul agent; drop", False),
    ],
)
def test_what_a_command_prints_is_read_and_of_rules_any_that_drops(command, said, found):
    search = Search(TELLS)
    hostile.commands(search, lambda one: said if one == command else None)
    assert bool(search.found) is found


def test_a_command_that_is_not_there_counts_as_refused():
    search = Search(TELLS)
    hostile.commands(search, lambda _: None)
    assert sum(row["refused"] for row in search.tried.values()) == len(hostile.COMMANDS)


def test_a_proxy_that_lists_its_toxics_is_found(tmp_path):
    search = Search(("toxicity",))
    hostile.doors(
        search,
        ["127.0.0.1"],
        lambda _, port, path: b'{"toxicity": 1}' if (port, path) == (8474, "/proxies") else b"",
        tmp_path,
    )
    assert [one["where"] for one in search.found] == ["127.0.0.1:8474/proxies"]


TABLE = "  sl  local_address rem_address   st\n"


def test_who_listens_here_is_read_and_who_is_connected_is_not(tmp_path):
    (tmp_path / "net").mkdir()
    rows = "   0: 0B00490A:211A 00000000:0000 0A\n   1: 0B00490A:55F1 0C00490A:1F 01\n"
    (tmp_path / "net/tcp").write_text(f"{TABLE}{rows}")
    (tmp_path / "net/tcp6").write_text(f"{TABLE}   0: {'0' * 32}:2134 {'0' * 32}:0000 0A\n")
    assert hostile.listeners(tmp_path) == [0x211A, 0x2134]


@pytest.mark.parametrize(
    ("sick", "found"),
    [
        ([8300, 8500, 7007], {}),
        ([8300, 8500, 7007, 8474, 25_113], {8474: ["consul-2"], 25_113: ["consul-2"]}),
        ([8300, 8500], {7007: ["client-1", "consul-1"]}),
    ],
)
def test_a_host_that_listens_where_no_other_does_is_found(sick, found):
    """As one with a toxiproxy did; a client has none of a server's ports, and that is no finding."""
    assert hostile.unlike({"consul-1": [8300, 8500, 7007], "consul-2": sick, "client-1": [8500, 7007]}) == found


def test_who_is_connected_is_read_with_both_ends_and_who_listens_is_not(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(
        f"{TABLE}   0: 1F00490A:55F1 2000490A:C350 06\n   1: 1F00490A:211A 00000000:0000 0A\n"
    )
    six = f"{'0' * 16}FFFF0000"
    (tmp_path / "net/tcp6").write_text(f"{TABLE}   0: {six}1F00490A:2134 {six}1F00490A:C351 01\n")
    assert hostile.connections(tmp_path) == [
        ["10.73.0.31", 22_001, "10.73.0.32", 50_000],
        ["10.73.0.31", 8500, "10.73.0.31", 50_001],
    ]


ME = "10.73.0.31"
CLIENT = [7007, 8301, 8500, 22_001]


@pytest.mark.parametrize(
    ("sick", "found"),
    [
        ([[ME, 8500, "10.73.0.2", 50_000], [ME, 50_007, "10.73.0.11", 8300]], {}),
        ([[ME, 22_001, "10.73.0.2", 50_000]], {"with port 22001": ["client-1"]}),
        ([[ME, 50_001, "10.73.0.33", 22_001]], {"with port 22001": ["client-1"]}),
        ([[ME, 50_001, ME, 8500], [ME, 8500, ME, 50_001]], {"to its own port 8500": ["client-1"]}),
    ],
)
def test_connections_that_no_host_with_the_same_agents_has_are_found(sick, found):
    """As those of a toxiproxy were; a server's to itself are Consul's own, and no client has them."""
    hosts = {
        "consul-1": {"listeners": [8300, *CLIENT], "connections": [["10.73.0.11", 50_000, "10.73.0.11", 8300]]},
        "client-1": {"listeners": CLIENT, "connections": sick},
        "client-2": {"listeners": CLIENT, "connections": []},
    }
    assert hostile.unlike_connections(hosts) == found


def test_connections_that_all_such_hosts_have_say_nothing():
    each = {"listeners": CLIENT, "connections": [[ME, 50_001, ME, 8500], [ME, 22_001, "10.73.0.2", 50_000]]}
    assert hostile.unlike_connections({"client-1": each, "client-2": each}) == {}


def test_the_environment_is_searched():
    search = Search(TELLS)
    hostile.environment(search, {"PS1": "slow-leader-disk$ ", "HOME": "/root"})
    assert [one["where"] for one in search.found] == ["PS1"]


def test_the_text_for_the_shell_is_whole_and_names_nothing_that_it_searches_for():
    text = hostile.program(TELLS)
    packed = re.fullmatch(r"import base64,zlib;exec\(zlib\.decompress\(base64\.b85decode\('(.*)'\)\)\)", text)
    assert packed is not None
    program = zlib.decompress(base64.b85decode(packed[1])).decode()
    compile(program, "program", "exec")
    assert "everything(**json.loads(" in program
    assert not [tell for tell in TELLS if tell in text]
