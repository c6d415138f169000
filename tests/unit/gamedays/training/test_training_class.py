"""Several games at once: neither names, nor files, nor what is said and done in one of them reaches another."""

import fcntl
import json
import os
import signal
from types import SimpleNamespace

import anyio
import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import UsageError
from hashidrill.faces.cli import train
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.training import games
from hashidrill.gamedays.training.campaign import best
from hashidrill.gamedays.training.game_log import PAGED, WATCHED
from hashidrill.gamedays.training.games import Game
from hashidrill.gamedays.training.in_sandbox import HOSTS_NAME, AtWork
from hashidrill.gamedays.training.inside.cell import Attendant
from hashidrill.gamedays.training.keeper import DONE, READY, Keeper
from training_games import ADDRESSES, PlayedGame, S, break_it, course
from virtual_time import run

CLASS = ("ada", "ben", "ada.b")
"""One name begins as another does."""


class Playing(Keeper):
    """A keeper after its pager went, without processes, timers and clock."""

    def _now_ns(self):
        return 30 * S

    def _later(self, in_s, then):
        pass


@pytest.fixture
def keepers(monkeypatch, tmp_path):
    """Three games that are on, each with a folder of its own; the door of each is its keeper."""
    found = {}
    own = games.sc.process_state(os.getpid())
    for number, name in enumerate(CLASS, 1):
        root = tmp_path / f"root-{number}"
        root.mkdir()
        (root / "pid").write_text(str(1000 + number))
        host = {
            "address": "10.73.0.11",
            "pid": number,
            "folder": f"{root}/consul-1",
            "agents": {"consul": "server"},
            "environment": {},
        }
        (root / HOSTS_NAME).write_text(json.dumps({"hosts": {"consul-1": host}, "user": None, "binaries": {}}))
        request = {"trainee": name, "out": str(tmp_path / f"out-{name}")}
        keeper = Playing(course(seed=number), request, root)
        keeper.desk.addresses = ADDRESSES
        keeper.desk.state = "quiet"
        break_it(keeper.desk)
        keeper.desk.page(20 * S)
        found[str(root)] = keeper
        games.remember(Game(name, f"scenario-{number}", os.getpid(), own[1], str(root), request["out"]))
    monkeypatch.setattr(games, "ask", lambda game, request: found[game.root].answer(dict(request)))
    return {keeper.request["trainee"]: keeper for keeper in found.values()}


def typed(*words):
    return CliRunner().invoke(app, list(words))


def said(keeper):
    return [(entry.what, entry.text) for entry in keeper.desk.timeline if entry.what != "pager"]


@pytest.mark.lie
def test_what_one_says_is_on_nobody_elses_timeline(keepers):
    for name in CLASS:
        done = typed("say", "diagnosis", f"the disk of {name}", "--trainee", name)
        assert done.exit_code == 0, done.output
    assert {name: said(keeper) for name, keeper in keepers.items()} == {
        name: [("diagnosis", f"the disk of {name}")] for name in CLASS
    }


def test_who_is_done_ends_their_own_game_alone(keepers):
    typed("say", "done", "--trainee", "ada")
    assert {name: keeper.desk.state for name, keeper in keepers.items()} == {
        "ada": WATCHED,
        "ben": PAGED,
        "ada.b": PAGED,
    }
    assert [(keeper.sealed / DONE).exists() for keeper in keepers.values()] == [True, False, False]


def test_hints_are_bought_by_one(keepers):
    typed("say", "hint", "--trainee", "ben")
    assert [len(said(keeper)) for keeper in keepers.values()] == [0, 1, 0]


@pytest.mark.parametrize("command", [["say", "done"], ["lab", "shell", "consul-1"]])
def test_whoever_does_not_say_whose_game_is_told_which_are_on_and_nothing_happens(keepers, command):
    error = typed(*command).exception
    assert isinstance(error, UsageError)
    assert "name the trainee with --trainee: ada, ada.b, ben" in str(error)
    assert all(not said(keeper) for keeper in keepers.values())


def test_a_name_that_is_nobodys_is_nobodys_game(keepers):
    error = typed("say", "done", "--trainee", "ad").exception
    assert isinstance(error, UsageError)
    assert "did you mean ada" in str(error)
    assert all(not said(keeper) for keeper in keepers.values())


def test_a_shell_is_one_of_the_datacenter_of_its_own_game(keepers, monkeypatch):
    ran = []
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr("hashidrill.faces.cli.train.subprocess.run", lambda words, **_: ran.append(words) or done)
    for name in CLASS:
        typed("lab", "shell", "consul-1", "--trainee", name)
    for name, words, number in zip(CLASS, ran, (1001, 1002, 1003), strict=True):
        root = str(keepers[name].sealed)
        assert any(f'"process": "{number}"' in word for word in words)
        assert words[-1].startswith(f"{root}/cells/")
        spec = (keepers[name].sealed / "cells" / words[-1].rpartition("/")[2]).read_text()
        assert not [other for other in keepers.values() if str(other.sealed) in spec and str(other.sealed) != root]
        assert json.loads(spec)["root"] == root


def test_the_environment_says_whose_shell_it_is(keepers, monkeypatch):
    ran = []
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr("hashidrill.faces.cli.train.subprocess.run", lambda words, **_: ran.append(words) or done)
    monkeypatch.setenv("HASHIDRILL_TRAINEE", "ben")
    typed("lab", "shell", "consul-1")
    typed("say", "detected")
    assert ran[0][-1].startswith(f"{keepers['ben'].sealed}/cells/")
    assert [len(said(keeper)) for keeper in keepers.values()] == [0, 1, 0]


def test_what_is_said_in_a_shell_and_who_is_out_of_the_rotation_stay_in_its_game(keepers):
    asked, shown = [], []

    class Asks(Attendant):
        def keeper(self, request):
            asked.append((self._spec["root"], request["what"]))
            return {"text": "noted"}

    hosts = {name: {"address": at, "agents": {"consul": "server"}} for name, at in ADDRESSES.items()}
    for keeper in keepers.values():
        (keeper.sealed / "cells").mkdir()
        shell = Asks({"root": str(keeper.sealed), "host": "consul-1", "hosts": hosts}, "typed")
        if not shown:  # the first of them is without one host
            (keeper.sealed / "cells" / "rotation").write_text('["consul-2"]')
        shell.answer("say", ["detected"], [])
        shown.append(shell.answer("rotation", [], [])["text"].count("out"))
    assert asked == [(str(keeper.sealed), "detected") for keeper in keepers.values()]
    assert shown == [1, 0, 0]


def test_each_has_files_of_their_own(keepers, tmp_path):
    state = games.games_dir()
    files = [{games.page_file(name), state / f"{name}.log", state / "on" / f"{name}.json"} for name in CLASS]
    assert len(set.union(*files)) == 9
    assert len({game.root for game in games.all_games()} | {game.out for game in games.all_games()}) == 6


def test_each_gets_their_own_card_and_progress(tmp_path):
    for name, words in (("ada", "the leader's disk is slow"), ("ben", "the network")):
        played = PlayedGame(tmp_path / name).says("diagnosis", words, at=25).repairs(at=30).done(at=40)
        keeper = Playing(played.course, {"trainee": name, "out": str(tmp_path / f"out-{name}")}, tmp_path)
        keeper.desk = played.desk
        keeper._judge(played.recording().path)
    assert {name: best(name)["small"].result for name in ("ada", "ben")} == {"ada": "passed", "ben": "partly"}
    cards = [json.loads((tmp_path / f"out-{name}" / games.CARD_NAME).read_text()) for name in ("ada", "ben")]
    assert [card["trainee"] for card in cards] == ["ada", "ben"]


def test_the_trainer_sees_who_plays_what_and_nothing_of_what_is_hidden(keepers):
    page = games.page_file("ben")
    page.parent.mkdir(parents=True)
    page.write_text("http://127.0.0.1:1/token/")
    typed("say", "done", "--trainee", "ada")
    rows = json.loads(typed("train", "--games", "--json").stdout)
    assert [(row["trainee"], row["scenario"], row["state"]) for row in rows] == [
        ("ada", "scenario-1", "mitigated"),
        ("ada.b", "scenario-3", PAGED),
        ("ben", "scenario-2", PAGED),
    ]
    assert [row["page"] for row in rows] == [None, None, str(page)]
    shown = typed("train", "--games").stdout
    assert "token" not in shown
    assert "disk" not in shown


def test_without_a_game_the_trainer_is_told_so():
    assert typed("train", "--games").stdout.strip() == "no game is on"


# who has begun a game, before it says so itself


def spawned(kept):
    """In place of a keeper's process: keeps what a keeper has, its standard error."""

    def spawn(words, *, stderr, **_more):
        kept.append(os.dup(stderr.fileno()))
        return SimpleNamespace(words=words)

    return spawn


@pytest.mark.lie
def test_somebody_who_began_a_game_cannot_begin_another_before_it_is_over_and_others_can():
    kept = []
    games.start({"trainee": "ada"}, spawned(kept))
    (games.games_dir() / "ada.log").write_text("what the first one said")
    with pytest.raises(UsageError, match="ada is already in a game"):
        games.start({"trainee": "ada"}, spawned(kept))
    assert (games.games_dir() / "ada.log").read_text() == "what the first one said"
    games.start({"trainee": "ben"}, spawned(kept))
    for fd in kept:
        os.close(fd)
    games.start({"trainee": "ada"}, spawned(kept))
    os.close(kept[-1])


def test_the_file_of_a_game_that_ended_is_kept_while_the_next_one_of_that_person_begins(tmp_path):
    file = games.remember(Game("ada", "first", 2**22 + 1, 1, str(tmp_path), str(tmp_path)))
    with (games.games_dir() / "ada.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert games.all_games() == []
        assert file.exists()
    assert games.all_games() == []
    assert not file.exists()


def busy(*_):
    raise UsageError("timed out")


@pytest.mark.lie
@pytest.mark.parametrize("answers", [True, False])
def test_ctrl_c_ends_a_game_whose_keeper_is_too_busy_to_answer(keepers, monkeypatch, answers):
    signals = []
    monkeypatch.setattr(train.os, "kill", lambda pid, number: signals.append((pid, number)))
    if not answers:
        monkeypatch.setattr(games, "ask", busy)
    game = games.find_game("ada")
    with pytest.raises(KeyboardInterrupt), train._attended(game):
        raise KeyboardInterrupt
    assert signals == ([] if answers else [(game.pid, signal.SIGTERM)])


@pytest.mark.lie
def test_ctrl_c_says_what_becomes_of_the_game_and_where_its_card_will_be(keepers):
    game = games.find_game("ada")
    with pytest.raises(KeyboardInterrupt) as stopped, train._attended(game):
        raise KeyboardInterrupt
    [note] = stopped.value.__notes__
    assert "counts as given up; its faults are removed now" in note
    assert game.out in note


def test_a_trainer_who_gives_a_game_up_is_told_whose_it_was(keepers, monkeypatch):
    assert "ben's game ends as given up" in typed("say", "give-up", "--trainee", "ben").output
    monkeypatch.setenv("HASHIDRILL_TRAINEE", "ada")
    assert "you gave up" in typed("say", "give-up").output


@pytest.mark.lie
def test_a_trainer_ends_one_game_for_nothing_and_no_shell_can(keepers):
    assert "counts for nothing" in typed("train", "--cancel", "--trainee", "ben").output
    assert [keeper.desk.cancelled for keeper in keepers.values()] == [False, True, False]
    assert (keepers["ben"].sealed / DONE).exists()
    assert "say one of" in keepers["ada"].answer({"op": "say", "what": "cancel"})["text"]


def test_a_shell_that_was_left_is_opened_again_by_enter_until_the_game_is_over(monkeypatch, capsys):
    opened, on = [], iter([True, True, False])
    monkeypatch.setattr(train, "_shell", lambda *_: opened.append(1))
    monkeypatch.setattr(train, "_is_on", lambda _: next(on))
    monkeypatch.setattr(train, "_enter", lambda _: True)
    train._in_shells(None, train.console())
    assert len(opened) == 3
    assert "this terminal waits: Enter opens a shell, Ctrl-C gives up" in capsys.readouterr().out


@pytest.mark.parametrize(("typed_in", "opens"), [(b"\n", True), (b"", False)])
def test_a_terminal_waits_for_enter_and_a_closed_one_opens_nothing(typed_in, opens, monkeypatch):
    monkeypatch.setattr(train, "_is_on", lambda _: True)
    monkeypatch.setattr(train.select, "select", lambda *_: ([0], [], []))
    monkeypatch.setattr(train.os, "read", lambda *_: typed_in)
    assert train._enter(None) is opens


@pytest.mark.lie
def test_the_title_is_shown_with_the_pager_and_not_before(keepers, capsys):
    keepers["ada"].desk.course = game = course()
    begun = SimpleNamespace(line=lambda: {"error": "stop"}, log="")
    with pytest.raises(UsageError):
        train._play(game, begun, "ada", train.console(), shell=False)
    assert game.title not in capsys.readouterr().out
    assert any(game.title in line for line in train._pager_lines(keepers["ada"].desk.shown(0), game, shell=True))


# the quiet time before anything breaks


async def looked_around(trainee):
    """Seconds of the clock that the engine waited for them."""
    began = anyio.current_time()
    await trainee.look_around()
    return anyio.current_time() - began


@pytest.mark.parametrize(("file", "takes_s"), [("ready", 0), ("done", 0), ("", 120)])
def test_the_engine_waits_until_the_trainee_is_ready_or_gives_up_and_no_longer_than_the_quiet_time(
    file, takes_s, tmp_path
):
    if file:
        (tmp_path / file).touch()
    trainee = AtWork(0.0, tmp_path / "done", tmp_path / "ready", 120.0)
    assert run(looked_around(trainee)) == pytest.approx(takes_s, abs=1)


@pytest.mark.lie
def test_only_a_trainee_who_looks_around_can_be_ready(keepers):
    """All three were paged already."""
    assert "already" in typed("say", "ready", "--trainee", "ada").output
    keepers["ben"].desk.state, keepers["ben"].desk.page_ns = "quiet", None
    assert "something may break" in typed("say", "ready", "--trainee", "ben").output
    assert [(keeper.sealed / READY).exists() for keeper in keepers.values()] == [False, True, False]
