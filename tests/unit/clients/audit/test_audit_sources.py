"""Which files are read, what each is taken for, and how a bad one is told without harming the others."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hashidrill.clients.audit import sources
from hashidrill.clients.audit.kinds import KINDS
from hashidrill.clients.audit.run import audit
from hashidrill.clients.audit.sources import collect, read_document

AGENT = 'data_dir = "/opt/consul"\nserver = true\nbootstrap_expect = 3\n'


def kinds(folder, **options):
    return {Path(each.path).name: each.kind for each in collect([folder], **options).documents}


def problem(path, **options):
    [only] = collect([path], **options).problems
    assert "\n" not in str(only)
    return str(only)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.hcl", AGENT, "consul-agent"),
        ("a.json", '{"server": true, "retry_join": ["a"]}', "consul-agent"),
        ("web.json", '{"service": {"name": "web", "port": 80}}', "consul-agent"),
        ("join.hcl", 'retry_join = ["a"]', "consul-agent"),
        ("a.hcl", 'kind = "service-resolver"\nname = "web"', "consul-entry"),
        ("a.json", '[{"Kind": "service-defaults", "Name": "web"}]', "consul-entry"),
        ("a.hcl", 'job "a" {\n group "b" {}\n}', "nomad-job"),
        ("a.hcl", 'job "a" {\n task "b" {}\n}', "nomad-job"),
        ("a.json", '{"Job": {"TaskGroups": [{"Name": "a"}]}}', "nomad-job"),
        ("a.hcl", "server {\n  enabled = true\n}", "nomad-agent"),
        ("a.hcl", "client {\n  enabled = true\n}\nconsul {}\nvault {}", "nomad-agent"),
        ("a.hcl", 'storage "consul" {}\nlistener "tcp" {}', "vault-server"),
        ("a.json", '{"storage": {"raft": {"path": "/a"}}}', "vault-server"),
        ("a.hcl", 'vault {}\nauto_auth {\n}\ntemplate {\n source = "a"\n}', "vault-agent"),
        ("a.hcl", "vault {\n retry {\n num_retries = 5\n}\n}", "vault-agent"),
        ("a.hcl", 'vault {}\ntemplate {\n source = "a"\n}', "consul-template"),
        ("a.hcl", "consul {\n retry {\n attempts = 5\n}\n}", "consul-template"),
        ("a.service", "[Service]\nExecStart=/bin/true", "systemd-unit"),
        ("app.env", "A=1", "environment"),
        ("a.py", "import consul", "python"),
    ],
)
def test_a_file_is_recognised_by_what_it_says(name, text, kind):
    assert read_document(name, text).kind == kind


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("package.json", '{"name": "web", "version": "1", "scripts": {"check": "tsc"}, "connect": "4"}'),
        ("composer.json", '{"services": ["a"], "checks": [1]}'),
        ("tsconfig.json", '{"compilerOptions": {"strict": true}}'),
        ("list.json", "[1, 2]"),
        ("text.json", '"text"'),
        ("policy.hcl", 'path "secret/*" {\n  capabilities = ["read"]\n}'),
        ("main.hcl", 'resource "aws_instance" "a" {}\nprovider "aws" {}'),
        ("env.hcl", 'vault {\n  address = "a"\n}\nsecret {\n  path = "a"\n}\nupcase = true'),
        ("volume.hcl", 'type = "csi"\nid = "a"\nplugin_id = "b"'),
        ("empty.hcl", ""),
        ("policy.hcl", 'path "secret/*"\n{\n  capabilities = ["read"]\n}'),
    ],
)
def test_what_is_not_ours_is_left_alone(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    found = collect([tmp_path])
    assert (found.documents, found.problems) == ([], [])
    assert "not recognised" in found.skipped[0]
    assert "name its kind with --kind" in problem(tmp_path / name)


def test_a_part_of_an_agent_is_recognised_by_its_neighbours(tmp_path):
    (tmp_path / "log.hcl").write_text('log_level = "debug"\n')
    assert kinds(tmp_path) == {}
    (tmp_path / "server.hcl").write_text(AGENT)
    assert kinds(tmp_path) == {"log.hcl": "consul-agent", "server.hcl": "consul-agent"}
    (tmp_path / "vault.hcl").write_text('storage "raft" {\n}\n')
    assert kinds(tmp_path)["log.hcl"] == "consul-agent"
    (tmp_path / "nomad.hcl").write_text("client {\n  enabled = true\n}\n")
    assert "log.hcl" not in kinds(tmp_path)


def test_two_agents_in_one_directory_are_two(tmp_path):
    (tmp_path / "one.hcl").write_text(AGENT)
    (tmp_path / "two.hcl").write_text(AGENT + 'retry_join = ["10.0.0.1"]\n')
    found = [each for each in audit([tmp_path]).findings if each.rule_id == "HD101"]
    assert [Path(each.path).name for each in found] == ["one.hcl"]
    (tmp_path / "both.hcl").write_text('retry_join = ["10.0.0.1"]\n')
    assert not audit([tmp_path]).findings


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_can_be_forced(tmp_path, kind):
    file = tmp_path / "config"
    file.write_text("# nothing\n")
    assert kinds(file, kind=kind) == {"config": kind}


def test_directories_of_others_are_not_gone_into(tmp_path):
    for name in ("node_modules", ".git", ".venv", "ours"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.hcl").write_text(AGENT)
    found = collect([tmp_path], exclude=["x*"])
    assert [Path(each.path).parent.name for each in found.documents] == ["ours"]
    assert len([line for line in found.skipped if "not entered" in line]) == 3


@pytest.mark.parametrize("pattern", ["old", "*/old/*", "a.hcl", "*.hcl"])
def test_what_is_excluded_is_not_read(tmp_path, pattern):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.hcl").write_text("{{ broken")
    found = collect([tmp_path], exclude=[pattern])
    assert (found.documents, found.problems) == ([], [])


def test_a_file_that_is_named_twice_is_read_once(tmp_path):
    (tmp_path / "a.hcl").write_text(AGENT)
    (tmp_path / "b.hcl").symlink_to("a.hcl")
    assert len(collect([tmp_path, tmp_path / "a.hcl"]).documents) == 1


def test_a_loop_of_symlinks_ends(tmp_path):
    (tmp_path / "deeper").symlink_to(tmp_path)
    (tmp_path / "loop.hcl").symlink_to("loop.hcl")
    (tmp_path / "a.hcl").write_text(AGENT)
    found = collect([tmp_path])
    assert len(found.documents) == 1
    assert "too many levels of symbolic links" in str(found.problems[0])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a = 1\0", "a binary file"),
        (b"a = 1\n\xff\xfe", "not UTF-8 (first in line 2"),
        (b"server {\n  a = \n}\n", "bad.hcl:3:1: a value was expected"),
        (b"count = [[ .count ]]\n", "render it, then audit the result"),
        (b"bootstrap_expect = SERVER_COUNT\n", "render it, then audit the result"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_one_line(tmp_path, data, said):
    (tmp_path / "bad.hcl").write_bytes(data)
    (tmp_path / "good.hcl").write_text(AGENT)
    found = collect([tmp_path])
    assert [Path(each.path).name for each in found.documents] == ["good.hcl"]
    assert said in str(found.problems[0])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"a": x}', "a.json:1:7: not JSON: expecting value"),
        ("a.py", "def f(:\n", "not Python 3"),
        ("a.py", "(" * 10000, "not Python 3"),
        ("a.service", "ExecStart\n", "a unit has"),
    ],
)
def test_other_languages_are_refused_with_their_place(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    assert said in problem(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("devcontainer.json", b"// for an editor\n{}"),
        ("tsconfig.json", b'{\n  // strict\n  "compilerOptions": {"strict": true}\n}'),
        ("settings.json", b'{"editor.tabSize": 4, /* here */ "server": {"port": 1}, "name": "web",}'),
        ("package.json", b'\xef\xbb\xbf{"name": "web", "services": ["a"], // b\n "check": "tsc"}'),
        (".json", b'["a", "b"'),
        ("app.json", b'{"server": {"enabled": true}, "path": "a\\/b"}'),
        ("package-lock.json", b'{"name": "web"}' + b" " * sources.MAX_BYTES),
        ("fixture.json", b"{\0}"),
        ("latin.json", b'{"name": "\xff"}'),
        ("bake.hcl", b'group "default" {\n  targets = ["a" "b"]\n}'),
        ("python2.py", b"print 'a'\n"),
        ("upstart.nomad", b"start on (started udev and runlevel [2345])\nrespawn\n"),
        ("user.service", b"export class UserService {}\n"),
    ],
)
def test_a_malformed_file_of_another_program_is_left_alone(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    (tmp_path / "dangling.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo.json")
    found = collect([tmp_path])
    assert (found.documents, found.problems, found.unread) == ([], [], [])
    assert [f"{tmp_path / name}:" in line for line in found.skipped].count(True) == 1
    assert problem(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b'{"bind_addr": "0.0.0.0", /* no */ "retry_join": ["a"]}'),
        ("a.json", b'\xef\xbb\xbf{"bind_addr": "0.0.0.0", "retry_join": ["a"]}'),
        ("a.json", b'{"data_dir": "/a", "server": {"enabled": true}, # no\n}'),
        ("a.json", b'{"TaskGroups": [], "ID": "web", // no\n}'),
        ("a.hcl", b'storage "raft" {\n  path = \n}\napi_addr = "a"\n'),
        ("a.hcl", b'job "web" {\n  group "a" {\n'),
        ("a.hcl", b'server {\n  enabled = true\n  bootstrap_expect = 3\n  server_join { retry_join = ["a" "b"] }\n}\n'),
        ("a.hcl", b"# \xff\nserver {\n  enabled = true\n  bootstrap_expect = 3\n}\n"),
        ("a.nomad", b"job [[ .name ]] {\n}\n"),
        ("a.py", b"import consul\nprint 'a'\n"),
        ("consul.service", b"ExecStart=/bin/consul\n"),
    ],
)
def test_a_malformed_file_that_is_plainly_meant_for_an_agent_is_a_problem(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    assert str(tmp_path / name) in problem(tmp_path)


def test_a_malformed_file_of_a_kind_that_is_forced_is_a_problem(tmp_path):
    (tmp_path / "a.json").write_text("{x")
    assert collect([tmp_path]).problems == []
    assert "a.json:1:2: not JSON" in str(collect([tmp_path], kind="nomad-agent").problems[0])


def test_a_malformed_file_beside_an_agents_is_taken_for_a_part_of_it(tmp_path):
    (tmp_path / "log.hcl").write_text('log_level = debug"\n')
    assert collect([tmp_path]).problems == []
    (tmp_path / "server.hcl").write_text(AGENT)
    assert "log.hcl:1:13: a value was expected, not 'debug'" in problem(tmp_path)


def test_a_malformed_file_that_speaks_of_an_agent_is_named(tmp_path):
    (tmp_path / "settings.json").write_text('{"terminal.env": {"VAULT_ADDR": "a"}, // here\n}')
    found = collect([tmp_path])
    assert (found.problems, [each.what for each in found.unread]) == ([], ["unreadable file"])


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.hcl", AGENT + "telemetry {\n  disable_compat_1.9 = true\n}\n", "consul-agent"),
        ("a.hcl", '{"server": false, "data_dir": "/opt/consul", "retry_max": 3, }', "consul-agent"),
        ("a.json", '{"server": {"enabled": true, "bootstrap_expect": 3,},}', "nomad-agent"),
        ("a.json", "server {\n  enabled = true\n}", "nomad-agent"),
        ("a.json", 'storage "raft" {\n  path = "/a"\n}', "vault-server"),
        ("a.json", '{"server": true, "retry_join": ["\\ud83d\\ude00"], "encrypt": "a\\/b"}', "consul-agent"),
        ("a.hcl", 'job "a" {\n group "b" {\n count = var.a\n}\n}', "nomad-job"),
    ],
)
def test_a_file_is_read_as_its_own_agent_reads_it(tmp_path, name, text, kind):
    (tmp_path / name).write_text(text)
    assert kinds(tmp_path) == {name: kind}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"server": true, "retry_join": ["a"],}'),  # Consul goes by the name
        ("a.json", "server = true\nbootstrap_expect = 3\n"),
        ("a.json", '{"server": {"enabled": true, "bootstrap_expect": 3}, "region": "a\\/b"}'),  # no escape of HCL
        ("a.hcl", "server {\n  enabled = true\n  bootstrap_expect = 1 + 2\n}"),
        ("a.hcl", 'storage "raft" {}\napi_addr = "a"\napi_addr = "b"\n'),
        ("a.hcl", "\ufeff" + AGENT),
    ],
)
def test_what_its_own_agent_refuses_is_a_problem_even_if_another_would_take_it(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert f"{name}:" in problem(tmp_path)


def test_a_huge_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_BYTES", 2048)
    (tmp_path / "a.json").write_text("[" + "1," * 2000 + "1]")
    assert "files over 2 kB are not read" in problem(tmp_path / "a.json")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.hcl")
    assert "not a regular file" in problem(tmp_path / "pipe.hcl")
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(tmp_path / "socket.hcl"))
        assert "not a regular file" in problem(tmp_path / "socket.hcl")


def test_what_is_not_there_or_not_allowed_is_told(tmp_path, monkeypatch):
    assert "no such file or directory" in problem(tmp_path / "missing")
    (tmp_path / "a.hcl").write_text(AGENT)

    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert problem(tmp_path / "a.hcl") == f"{tmp_path / 'a.hcl'}: permission denied"


def test_a_directory_that_cannot_be_listed_is_told(tmp_path, monkeypatch):
    (tmp_path / "a.hcl").write_text(AGENT)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    assert problem(tmp_path) == f"{tmp_path}: permission denied"


SEEDS = [path.read_bytes() for path in sorted(Path(__file__).with_name("cases").rglob("*")) if path.is_file()]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_bytes_at_all_make_it_crash(tmp_path, data):
    """Fixtures with a piece cut out or put in, and byte soup, as every kind of file."""
    seed = data.draw(st.sampled_from(SEEDS) | st.binary(max_size=40))
    start = data.draw(st.integers(0, len(seed)))
    soup = seed[:start] + data.draw(st.binary(max_size=6)) + seed[data.draw(st.integers(start, len(seed))) :]
    file = tmp_path / f"a{data.draw(st.sampled_from(sources.SUFFIXES))}"
    file.write_bytes(soup)
    result = audit([file], kind=data.draw(st.none() | st.sampled_from(KINDS)))
    assert result.files or result.problems
    assert all("\n" not in str(each) for each in result.problems)
