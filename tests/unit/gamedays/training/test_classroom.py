"""A class: who sits where, what a seat's key may do, how many games fit, and what the trainer's page shows."""

import base64
import json
import shlex
from collections import namedtuple
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import Audience
from hashidrill.faces.cli import train
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.training import classroom, games
from hashidrill.gamedays.training.campaign import Played
from hashidrill.gamedays.training.classroom import Carries, ClassRoom, ScoreTable, Seat, authorized_keys, seats_of
from hashidrill.gamedays.training.games import Game
from scripted_games import tells
from training_games import ADDRESSES, S, break_it, course, desk_of

FakeTimes = namedtuple("FakeTimes", "user nice system idle iowait irq softirq steal guest guest_nice")  # noqa: PYI024 - as psutil's


def key(kind="ssh-ed25519", said=None):
    """A public key as OpenSSH writes one: its type, and then bytes that begin with the same type."""
    name = (said or kind).encode()
    return f"{kind} {base64.b64encode(len(name).to_bytes(4) + name + bytes(36)).decode()}"


@pytest.mark.parametrize(
    ("asked", "names"), [("2", ["seat-1", "seat-2"]), ("ada, ben,eva.x", ["ada", "ben", "eva.x"]), ("ada", ["ada"])]
)
def test_a_class_is_a_number_or_names(asked, names):
    assert [seat.name for seat in seats_of(asked)] == names


def test_a_file_of_keys_names_its_trainees(tmp_path):
    file = tmp_path / "class.pub"
    file.write_text(f"# ours\n\n{key()} ada@laptop\n{key('sk-ssh-ed25519@openssh.com')} ben  at home\n")
    assert seats_of(str(file)) == [Seat("ada", key()), Seat("ben", key("sk-ssh-ed25519@openssh.com"))]


@pytest.mark.lie
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("0", "1 to 100 seats"),
        ("101", "1 to 100 seats"),
        ("ada,,ben", "'' cannot name a trainee"),
        ("ada,../ben", "there is no such file"),
        ("class.pub", "there is no such file"),
        ("ada,ben,ada", "ada is given twice"),
        ("ada,b n", "'b n' cannot name a trainee"),
    ],
)
def test_what_is_no_class_is_said(asked, says):
    with pytest.raises(UsageError, match=says):
        seats_of(asked)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f'command="sh" {key()} ada', "line 1: not a public key"),
        (f"no-pty {key()} ada", "line 1: not a public key"),
        (f"{key(said='ssh-rsa')} ada", "line 1: not a public key"),
        ("ssh-ed25519 ###### ada", "line 1: not a public key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "line 1: not a public key"),
        (key(), "line 1: write the trainee's name"),
        (f"{key()} ../ada", "line 1: '../ada' cannot name a trainee"),
        ("# nobody", "has no public key"),
    ],
)
def test_a_line_that_is_no_key_gets_no_seat(line, says, tmp_path):
    (tmp_path / "class.pub").write_text(line + "\n")
    with pytest.raises(UsageError, match=says):
        seats_of(str(tmp_path / "class.pub"))


def forced(line):
    """The command that sshd runs for a line of authorized_keys, as it takes the quotes out."""
    options = line.partition(" ssh-")[0]
    assert options.startswith('restrict,pty,command="')
    return shlex.split(options.partition('command="')[2].removesuffix('"').replace('\\"', '"'))


def test_a_seats_key_may_start_its_own_game_and_nothing_else(tmp_path):
    seats = [Seat("ada", key()), Seat("ben", key())]
    where = tmp_path / 'a "b" c'
    lines = authorized_keys(seats, where / "first.yaml", where / "runs", 7, "/opt/hashidrill").splitlines()[1:]
    state = f"XDG_STATE_HOME={tmp_path / 'state'}"
    for seat, line in zip(seats, lines, strict=True):
        words = forced(line)
        assert [word for word in words if not word.startswith("HASHIDRILL_")][:2] == ["env", state]
        assert words[words.index("/opt/hashidrill") :] == [
            *("/opt/hashidrill", "train", f"{where}/first.yaml", "--trainee", seat.name),
            *("--runs", f"{where}/runs", "--seed", "7"),
        ]
        assert line.endswith(f" {seat.key} {seat.name}")


def test_without_keys_the_trainer_sees_where_each_belongs(tmp_path):
    assert "PUBLIC-KEY-OF-seat-2 seat-2" in authorized_keys(seats_of("2"), tmp_path, tmp_path, None, "/opt/x")


# how many fit


@pytest.mark.parametrize(("cores", "free_gb", "fit"), [(2, 8, 5), (8, 3, 3), (0.1, 8, 0)])
def test_cores_and_memory_say_how_many_fit(cores, free_gb, fit):
    assert Carries(0.4, 1e9, cores, free_gb * 1e9).fit == fit


@pytest.mark.lie
def test_more_games_than_memory_are_refused_and_more_than_cores_are_warned_of():
    with pytest.raises(UsageError, match=r"memory for 8 games: 8\.0 GB, but 4\.0 GB are free: at most 4 fit"):
        Carries(0.1, 1e9, 16, 4e9).trouble(8)
    assert "8 games at once: about 3.2 cores, but 2.0 are left for games" in Carries(0.4, 1e8, 2, 4e9).trouble(8)
    assert Carries(0.4, 1e8, 4, 4e9).trouble(8) == ""


def test_a_game_that_is_on_takes_its_share_and_a_larger_scenario_more(monkeypatch):
    monkeypatch.setattr(classroom, "usable_cores", lambda: 4.0)
    alone, beside = Carries.here(course(), 0), Carries.here(course(), 3)
    assert alone.cores == pytest.approx(4.0 * classroom.SHARE)
    assert beside.cores == pytest.approx(4.0 * classroom.SHARE - 3 * alone.game_cores)
    larger = Carries.here(course(datacenter={"consul": {"servers": 5, "clients": 4}}), 0)
    assert larger.game_cores > alone.game_cores
    assert larger.game_bytes > alone.game_bytes
    busier = Carries.here(course(load={"kv-writes": {"kind": "consul.kv.write", "rate": "500/s"}}), 0)
    assert busier.game_cores > larger.game_cores


# the trainer's page


class Day:
    """A class whose clock and games are set by hand."""

    def __init__(self, monkeypatch, tmp_path):
        self.now, self.on, self.played = 0.0, {}, {}
        self._root = tmp_path
        monkeypatch.setattr(games, "all_games", lambda: [self._game(name) for name in self.on])
        monkeypatch.setattr(games, "ask", self._ask)
        monkeypatch.setattr(classroom, "played", lambda name: self.played.get(name, []))
        self.table = ScoreTable(["ada", "ben"], "small", clock=lambda: self.now)

    def _game(self, name):
        return Game(name, "small", 1, 1, str(self._root), str(self._root))

    def _ask(self, game, request, *, within_s):
        assert (request, within_s < 5) == ({"op": "state"}, True)
        desk = self.on[game.trainee]
        if desk is None:
            raise UsageError("timed out")
        return desk.shown(round(self.now * S))

    def looks(self, now):
        self.now = now
        return {row["name"]: row for row in self.table.look()["rows"]}


@pytest.fixture
def day(monkeypatch, tmp_path):
    return Day(monkeypatch, tmp_path)


def test_a_game_is_followed_from_its_quiet_time_to_its_score(day):
    desk = desk_of(course(), paged=False)
    assert {name: row["state"] for name, row in day.looks(0).items()} == {"ada": "not begun", "ben": "not begun"}
    day.on["ada"] = desk
    assert day.looks(5)["ada"]["state"] == "looking around"
    break_it(desk)
    desk.page(20 * S)
    assert (day.looks(30)["ada"]["state"], day.looks(30)["ada"]["since_page_s"]) == ("paged", 10)
    desk.say("diagnosis", "the disk of consul-1 is slow", 40 * S)
    assert day.looks(45)["ada"]["state"] == "diagnosed"
    desk.say("done", "", 60 * S)
    assert (day.looks(65)["ada"]["state"], day.looks(70)["ada"]["since_page_s"]) == ("mitigated", 40)
    day.on.clear()
    day.played["ada"] = [Played("small", 1, "passed", 87, "9999-01-01T00:00:00+00:00")]
    row = day.looks(80)["ada"]
    assert (row["state"], row["result"], row["points"]) == ("over", "passed", 87)
    assert row["spans"] == [
        ["looking around", 5, 30],
        ["paged", 30, 45],
        ["diagnosed", 45, 65],
        ["mitigated", 65, 80],
        ["over", 80, 80],
    ]


@pytest.mark.lie
def test_a_game_of_yesterday_is_no_score_of_this_class(day):
    day.played["ada"] = [Played("small", 1, "passed", 99, "2020-01-01T00:00:00+00:00")]
    assert (day.looks(1)["ada"]["state"], day.looks(1)["ada"]["points"]) == ("not begun", None)


@pytest.mark.lie
def test_a_game_that_was_killed_has_no_score(day):
    day.on["ada"] = desk_of(course())
    day.looks(30)
    day.on.clear()
    assert day.looks(31)["ada"]["state"] == "ended without a score"


def test_a_keeper_that_is_busy_leaves_what_was_seen_last(day):
    day.on["ada"] = desk_of(course())
    day.looks(30)
    day.on["ada"] = None
    assert day.looks(31)["ada"]["state"] == "paged"


def test_who_gives_up_has_not_mitigated_anything(day):
    day.on["ada"] = desk = desk_of(course())
    desk.say("give-up", "", 30 * S)
    assert day.looks(31)["ada"]["state"] == "gave up"


def test_a_game_without_a_seat_has_a_row_too(day):
    day.on["zoe"] = desk_of(course())
    assert list(day.looks(30)) == ["ada", "ben", "zoe"]


@pytest.mark.lie
def test_a_game_that_was_given_up_or_ended_by_the_trainer_goes_on_no_more(day):
    for name in ("ada", "ben", "zoe"):
        day.on[name] = desk_of(course())
    day.on["ada"].say("give-up", "", 30 * S)
    day.on["zoe"].cancel(30 * S)
    day.now = 31
    assert day.table.going_on() == ["ben"]
    assert day.looks(31)["zoe"]["state"] == "ended by the trainer"


@pytest.mark.lie
@pytest.mark.parametrize(("idle", "says"), [(0.02, "2% of its CPU time is idle: the game may not count"), (0.5, "")])
def test_a_busy_machine_is_told_of_when_the_game_starts_and_when_the_trainee_is_ready(idle, says):
    looks = iter(range(4))

    def times():
        number = next(looks)
        return FakeTimes(10 * number * (1 - idle), 0, 0, 10 * number * idle, 0, 0, 0, 0, 0, 0)

    clock = iter(range(4))
    desk = desk_of(course(), paged=False)
    desk.busy = games.CpuUse(times, lambda: next(clock)).warning
    assert desk.shown(0)["busy"] == ""  # nothing is known yet
    assert says in desk.shown(S)["busy"]
    text, _ = desk.say("ready", "", 2 * S)
    assert text.startswith("noted; from now on something may break")
    assert says in text
    assert ("busy" in text) == bool(says)


@pytest.mark.lie
def test_the_table_tells_nothing_of_the_fault_while_a_game_is_on(day):
    desk = desk_of(course())
    desk.addresses = ADDRESSES
    desk.say("diagnosis", "the disk of consul-1 takes 300ms", 30 * S)
    day.on["ada"] = desk
    shown = json.dumps(day.looks(40)).lower()
    assert [tell for tell in [*tells(desk.course), "consul-1", "disk", "right"] if tell.lower() in shown] == []


def test_a_page_takes_the_table_whole_as_it_changes():
    room = ClassRoom({"title": "small, 2 seats", "about": []})
    room.show({"now": 1.0, "rows": [{"name": "ada"}]})
    batch = room.since(Audience.OPERATOR, None)
    assert (batch.whole, json.loads(batch.data)["rows"]) == (True, [{"name": "ada"}])
    assert room.since(Audience.OPERATOR, batch.number) is None
    room.over()
    assert json.loads(room.since(Audience.OPERATOR, batch.number).data)["over"] is True


@pytest.mark.lie
def test_who_has_not_the_trainers_address_gets_nothing():
    room = ClassRoom({"title": "small", "about": []})
    room.show({"rows": [{"name": "ada"}]})
    assert room.since(Audience.TRAINEE, None) is None


# the command


def test_the_trainer_is_told_what_to_type_and_to_use_no_account_of_root(capsys):
    told = {"seats": ["ada"], "page": "http://x", "keys": "/a b/keys", "login": "ssh root@here"}
    train._tell_class(course(), told, Carries(0.4, 1e9, 8, 8e9), "", keyless=False)
    said = capsys.readouterr().out
    assert "cat '/a b/keys' >> ~/.ssh/authorized_keys" in said
    assert "a separate account" in said
    train._tell_class(course(), told | {"login": "ssh games@here"}, Carries(0.4, 1e9, 8, 8e9), "", keyless=False)
    assert "a separate account" not in capsys.readouterr().out


def typed(*words, **env):
    return CliRunner().invoke(app, list(words), env=env)


@pytest.mark.parametrize("command", [["train", "--list"], ["train"], ["train", "first", "--no-shell"]])
@pytest.mark.lie
def test_a_bad_name_in_the_environment_is_refused(command):
    error = typed(*command, HASHIDRILL_TRAINEE="../ada").exception
    assert isinstance(error, UsageError)
    assert "HASHIDRILL_TRAINEE: '../ada' cannot name a trainee" in str(error)


def test_the_environment_names_the_trainee():
    assert json.loads(typed("train", "--json", HASHIDRILL_TRAINEE="eva").stdout)["trainee"] == "eva"
    assert json.loads(typed("train", "--json", "--trainee", "ada", HASHIDRILL_TRAINEE="eva").stdout)["trainee"] == "ada"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seats", "2", "--listen", "0.0.0.0"], "one IPv4 address"),
        (["--seats", "2", "--listen", "everywhere"], "one IPv4 address"),
        (["--seats", "2", "--serve"], "--serve and --tell-trainer are about a single game"),
        (["--listen", "127.0.0.2"], "use it with --seats"),
        (["--seats", "2", "--listen", "10.99.99.99"], "Cannot assign"),
        (["--seats", "2", "--games"], "name its scenario"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_starts(words, says, tmp_path):
    scenario = [] if "--games" in words else ["first"]
    error = typed("train", *scenario, *words, "--runs", str(tmp_path / "runs")).exception
    assert isinstance(error, UsageError)
    assert says in str(error)
    assert not list(Path(tmp_path).glob("training/*"))
