"""The attendant of a trainee's shell: it does what the small commands ask for, and tells the keeper what was typed."""

import subprocess
import threading
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hashidrill.gamedays.training.game_log import WORDS as WORDS_OF_SAY
from hashidrill.gamedays.training.inside import cell, client, own
from hashidrill.gamedays.training.inside.cell import Attendant
from hashidrill.lab.local.inside import journalctl, systemctl

SPEC = {
    "root": "/nowhere",
    "id": "1",
    "host": "consul-1",
    "source": "/src",
    "boot": ["python", "boot"],
    "python": {"program": "/usr/bin/python3"},
    "hosts": {name: {"folder": f"/hosts/{name}", "agents": {"consul": "server"}} for name in ("consul-1", "consul-2")},
}


class Telling(Attendant):
    """One whose keeper is a list."""

    def __init__(self, typed="", root="/nowhere"):
        self.told = []
        super().__init__({**SPEC, "root": root}, typed, run=lambda words, **_: subprocess.CompletedProcess(words, 3))

    def keeper(self, request):
        self.told.append(request)
        return {"text": "noted"} if request["op"] == "say" else {}


@pytest.fixture
def ran(monkeypatch):
    """What systemctl and journalctl were asked to do."""
    found = []
    for tool in (systemctl, journalctl):
        monkeypatch.setattr(tool, "run", lambda asked, **_: found.append(asked) or 3)
    return found


def test_what_is_said_goes_to_the_keeper_word_for_word():
    attendant = Telling()
    assert attendant.answer("say", ["diagnosis", "the", "disk"], []) == {"text": "noted"}
    assert attendant.told == [{"op": "say", "what": "diagnosis", "words": "the disk"}]


@pytest.mark.lie
def test_no_shell_of_the_game_can_overrule_a_diagnosis():
    """The keeper takes it from outside of the shells alone."""
    attendant = Telling()
    attendant.answer("say", ["overrule", "right"], [])
    assert attendant.answer("overrule", ["right"], [])["code"] == 127
    assert [told["op"] for told in attendant.told] == ["say"]


def test_an_agent_that_is_restarted_by_hand_is_told_to_the_keeper_and_a_look_is_not(ran):
    attendant = Telling()
    for look in (["status", "consul"], ["show", "-p", "MainPID", "consul"]):
        attendant.answer("systemctl", look, [])
    assert attendant.told == []
    attendant.answer("systemctl", ["restart", "consul.service"], [])
    attendant.answer("systemctl", ["kill", "--signal", "STOP", "consul"], [])
    assert [(told["op"], told["host"], told["text"]) for told in attendant.told] == [
        ("acted", "consul-1", "restart consul"),
        ("acted", "consul-1", "kill consul (SIGSTOP)"),
    ]
    assert ran[0] == systemctl.Systemctl("status", ("consul",))


@pytest.mark.lie
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("systemctl", ["status", "toxiproxy"]),
        ("systemctl", ["stop", "consul", "toxiproxy.service"]),
        ("systemctl", ["kill", "-s", "TERM", "toxiproxy"]),
        ("systemctl", ["show", "-p", "MainPID", "toxiproxy"]),
        ("systemctl", ["status", ""]),
        ("journalctl", ["-utoxiproxy"]),
        ("journalctl", ["--uni=toxiproxy"]),
        ("journalctl", ["-u", "toxiproxy"]),
        ("journalctl", ["--unit=toxiproxy", "-n", "5"]),
        ("journalctl", ["--unit", "toxiproxy"]),
        ("journalctl", ["-u", "consul", "-u", "toxiproxy"]),
    ],
)
def test_what_breaks_a_link_of_the_host_is_no_unit_of_the_trainee(ran, name, words):
    attendant = Telling()
    answer = attendant.answer(name, words, [])
    assert answer["error"].endswith(".service not found.")
    assert (answer["code"], ran, attendant.told) == (5, [], [])


UNITS = ("toxiproxy", "toxiproxy.service", "consul")
MORE = "-u --unit --since=-u --since -S -n 5 -- -qu -s TERM status show -p MainPID --value --until=--unit -g"
WORDS = [
    *UNITS,
    *(f"{flag}{unit}" for flag in ("-u", "--unit=", "--since=", "-n", "-s", "--signal=") for unit in UNITS),
    *MORE.split(),
]


@pytest.mark.long
@pytest.mark.lie
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400, deadline=None)
@given(name=st.sampled_from(["systemctl", "journalctl"]), words=st.lists(st.sampled_from(WORDS), max_size=6))
def test_no_command_line_prints_what_the_log_of_another_unit_says(tmp_path, monkeypatch, name, words):
    """What is checked is what runs: the line is read once."""
    host = {"folder": str(tmp_path), "agents": {"consul": "server"}}
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / "toxiproxy.log").write_text("latency 500 ms\n")
    monkeypatch.setattr(systemctl, "ask", lambda *_: {"pid": None, "exit": 0})
    attendant = Telling()
    attendant._spec = {**SPEC, "hosts": {"consul-1": host}}
    answer = attendant.answer(name, words, [])
    assert "latency" not in answer.get("text", "")


@pytest.mark.lie
@pytest.mark.parametrize(
    ("name", "words"),
    [("journalctl", ["--since=-u", "toxiproxy"]), ("systemctl", ["-s", "TERM", "status", "-s", "toxiproxy"])],
)
def test_a_line_that_two_readers_would_read_in_two_ways_runs_nothing(ran, name, words):
    assert Telling().answer(name, words, [])["code"] == 1
    assert ran == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("systemctl", ["kill", "-s", "CONT", "consul"]),
        ("systemctl", ["show", "-p", "MainPID", "--value", "consul"]),
        ("systemctl", ["restart", "consul.service"]),
        ("journalctl", ["-u", "consul", "-n", "100"]),
        ("journalctl", ["-xeu", "consul", "--since", "-5m"]),
    ],
)
def test_units_of_the_hosts_agents_are_the_trainees(ran, name, words):
    Telling().answer(name, words, [])
    assert [asked.units for asked in ran] == [("consul",)]


def test_journalctl_without_a_unit_says_what_it_knows():
    assert "this host supports: journalctl -u UNIT" in Telling().answer("journalctl", [], [])["error"]


def test_of_the_hosts_logs_a_shell_has_those_of_its_agents(tmp_path):
    """Here, a mount is a note of it, and what is mounted a copy."""
    folder, mounts = tmp_path / "host", []
    (folder / "logs").mkdir(parents=True)
    for name in ("consul", "toxiproxy"):
        (folder / "logs" / f"{name}.log").write_text(name)
    new = tmp_path / "new"
    (new / str(folder / "logs").lstrip("/")).mkdir(parents=True)
    own.logs(
        str(new),
        {"folder": str(folder), "agents": {"consul": "server", "nomad": "client"}},
        mount=lambda *words: mounts.append((*words[:2], bool(len(words) > 3 and words[3] & 1))),
    )
    at = f"{new}{folder}/logs"
    log = f"{at}/consul.log"
    assert mounts == [("none", at, False), (f"{folder}/logs/consul.log", log, False), ("none", log, True)]


def test_the_exit_code_of_systemctl_is_that_of_the_host(ran):
    assert Telling().answer("systemctl", ["is-active", "consul"], [])["code"] == 3


def test_a_host_that_is_none_is_named_with_those_there_are():
    assert "consul-1, consul-2" in Telling().answer("on", ["consul-9", "ls"], [])["error"]


def test_an_unknown_command_is_none():
    assert Telling().answer("reboot", [], [])["code"] == 127


def test_each_line_that_was_typed_is_told_once_and_half_a_line_later(tmp_path):
    typed = tmp_path / "typed"
    attendant = Telling(str(typed))
    typed.write_text("1700000000.5\tconsul members\n1700000001.5\tconsul")
    attendant.note()
    attendant.note()
    with typed.open("a") as file:
        file.write(" info\nno time\tx\n")
    over = threading.Event()
    over.set()
    attendant.note_until(over)
    assert [(each["wall"], each["text"]) for each in attendant.told] == [
        (1700000000.5, "consul members"),
        (1700000001.5, "consul info"),
    ]


def test_a_keeper_that_is_gone_ends_no_shell():
    assert Attendant(SPEC, "/nowhere/typed").answer("say", ["done"], []) == {"error": "the game is over"}


@pytest.mark.lie
@pytest.mark.parametrize(
    "words", ["less /var/log/consul.log", "top", "rm -i x", "sh -c df", "consul kv put x -", "curl -d @- x", "cat"]
)
def test_a_command_that_may_ask_gets_what_is_typed(words):
    assert client.reads_keys(words.split())


@pytest.mark.parametrize(
    "words", ["consul members", "df -h /srv/consul", "/usr/bin/ss -tan", "journalctl -f -u consul"]
)
def test_a_command_that_reads_no_keys_leaves_what_is_typed_ahead(words, monkeypatch):
    assert not client.reads_keys(words.split())
    watched = []
    door = SimpleNamespace(fileno=lambda: 9)

    def look(sources, *_):
        watched.append([*sources])
        return [each for each in sources if each == door.fileno()], [], []

    monkeypatch.setattr(client.select, "select", look)
    monkeypatch.setattr(client.os, "read", lambda *_: b"{}\n")
    assert client.copied(door, 8, keys=False) == b"{}\n"
    assert all(0 not in sources for sources in watched)


@pytest.mark.parametrize("words", [[], ["down"], ["train", "--list"]])
def test_inside_there_is_no_more_of_hashidrill_than_say(words, capsys):
    assert client.main("hashidrill", words) == 2
    assert "hashidrill say" in capsys.readouterr().err


HOSTS = {
    name: {"agents": {agent: "server"}}
    for agent, names in {"consul": ["consul-1", "consul-2"], "nomad": ["nomad-1"], "vault": ["vault-1"]}.items()
    for name in names
}


@pytest.mark.parametrize("host", HOSTS)
def test_help_is_one_screen_and_every_command_of_the_shell_is_on_it(host):
    attendant = Telling()
    attendant._spec = {**SPEC, "host": host, "hosts": HOSTS}
    text = attendant.answer("help", [], [])["text"]
    assert len(text.splitlines()) < 24
    assert max(map(len, text.splitlines())) < 80
    words = {word.strip(",:`") for word in text.split()}
    assert {name for name in cell._CLIENT_NAMES if name not in words} == {"help"}
    assert {what for what in WORDS_OF_SAY if what not in words} == set()


DONE = {"read": (3, 8192, 0.0), "write": (10, 20480, 0.5), "fsync": (4, 0, 2.4)}


def test_what_a_disk_did_is_a_line_as_the_kernel_writes_it():
    """The places of Documentation/admin-guide/iostats.rst: reads, writes, time busy, and flushes at the end."""
    words = own.disk_figures(DONE, 2.5).split()
    assert words[:3] == ["254", "0", "vda"]
    fields = [int(word) for word in words[3:]]
    assert len(fields) == 17
    assert [fields[at] for at in (0, 2, 3, 4, 6, 7, 9, 15, 16)] == [3, 16, 0, 10, 40, 500, 2500, 4, 2400]


def test_iostat_shows_a_disk_that_waits(monkeypatch, capsys):
    before, after = ([0] * 17, [int(word) for word in own.disk_figures(DONE, 2.5).split()[3:]])
    looks = iter([before, after])
    monkeypatch.setattr(client, "disk", lambda: next(looks))
    monkeypatch.setattr(client.time, "sleep", lambda _: None)
    assert client.iostat(["-x", "2"]) == 0
    titles, row = (line.split() for line in capsys.readouterr().out.splitlines())
    shown = dict(zip(titles, row, strict=True))
    assert (shown["Device"], shown["f/s"], shown["f_await"], shown["%util"]) == ("vda", "2.0", "600.0", "100.0")
    assert (shown["w/s"], shown["w_await"], shown["r_await"]) == ("5.0", "50.0", "0.0")


@pytest.mark.lie
def test_a_command_of_a_game_that_is_over_says_so(capsys):
    assert client.main("users", []) == 1
    assert capsys.readouterr().err == "the game is over\n"
