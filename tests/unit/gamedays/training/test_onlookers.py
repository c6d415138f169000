"""The page of a game: its trainer sees what is hidden, and neither those who watch nor the trainee's shells do."""

import contextlib
import json
import os
import stat
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.events import (
    Audience,
    Began,
    End,
    Figures,
    InForce,
    Intent,
    Lasting,
    Marked,
    Note,
    Phase,
    Proof,
    Seen,
    Steady,
    Tick,
    Where,
)
from hashidrill.faces.cli.app import app
from hashidrill.gamedays.training import games
from hashidrill.gamedays.training import keeper as keeping
from hashidrill.gamedays.training.games import Game, shell_command
from hashidrill.gamedays.training.in_sandbox import HOSTS_NAME
from hashidrill.gamedays.training.keeper import DONE, Keeper, Onlookers, page_of
from hashidrill.gamedays.warroom.room import Room
from scripted_games import tells
from training_games import ADDRESSES, PlayedGame, S, course

LEAD, WATCH = "http://127.0.0.1:1/LEAD-TOKEN/", "http://127.0.0.1:1/WATCH-TOKEN/"
FAULT_ID = "0-disk.latency-consul-1"


@dataclass
class ByHand(Keeper):
    """A keeper whose clock is set by hand, and whose timers nobody starts."""

    at_s: float = 0.0
    due: list[float] = field(default_factory=list)

    def _now_ns(self):
        return round(self.at_s * S)

    def _later(self, in_s, then):
        del then
        self.due.append(in_s)


def tick(phase, at):
    return Tick(
        t_ns=at * S,
        phase=phase,
        phase_ends_ns=900 * S,
        loads={"kv-writes": Figures(50.0, 2.0, 3.0, 0.1)},
        leaders=(("leader", "consul-1"),),
        faults=(InForce(FAULT_ID, "disk.latency", "consul-1", 900 * S),),
        marks=(Lasting("watch", 900 * S),),
    )


def game_of(tmp_path, looks_on, *, judged=True):
    """A keeper that played a whole game: every kind of event, everything that a trainee can say."""
    keeper = ByHand(course(), {"trainee": "ada", "out": str(tmp_path / "out")}, tmp_path, looks_on)
    keeper.desk.addresses = ADDRESSES
    keeper.onlookers.begins(keeper.course)
    publish = keeper.bus.publish
    publish(Began(id="20261123-game", experiment="disk.latency game"))
    for at, phase in enumerate(("start", "ready", "load", "steady")):
        publish(Phase(phase=phase, t_ns=at * S, ends_ns=99 * S))
        publish(tick(phase, at))
    publish(Steady(held=True, evidence="p50 4ms < 300ms", t_ns=8 * S))
    keeper.at_s = 9
    publish(Phase(phase="method", t_ns=9 * S, ends_ns=700 * S))
    publish(Intent(fault_id=FAULT_ID, kind="disk.latency", target=Where("consul-1"), params={"delay": "300ms"}, step=0))
    publish(Proof(event="fault.proven", fault_id=FAULT_ID, evidence=Seen("fsync slow", "fsync took 300ms"), t_ns=9 * S))
    publish(Note(text="consul.leader is consul-1: disk.latency follows it"))
    publish(tick("method", 10))
    keeper.at_s = 20
    keeper._page()
    for at, what, words in (
        (21, "users", ""),
        (22, "detected", "slow"),
        (23, "hint", ""),
        (24, "diagnosis", "the network of consul-1"),
        (25, "diagnosis", "the disk of consul-1 is slow"),
    ):
        keeper.at_s = at
        keeper.answer({"op": "say", "what": what, "words": words})
    for asked, text in (("typed", "dd if=/dev/zero of=/srv/consul/x conv=fsync"), ("acted", "stop consul")):
        keeper.answer({"op": asked, "host": "consul-1", "text": text, "wall": 1.0})
    keeper.at_s = 40
    keeper.answer({"op": "say", "what": "done"})
    publish(tick("method", 41))
    publish(Marked(event="mark.begin", mark="watch", t_ns=41 * S))
    publish(Phase(phase="recovery", t_ns=55 * S))
    publish(End(outcome="completed", error="disk.latency on consul-1", t_ns=60 * S))
    if judged:
        played = PlayedGame(tmp_path / "played").says("diagnosis", "the leader's disk is slow", at=25).repairs(at=30)
        keeper._judge(played.done(at=40).recording().path)
    return keeper


def page(room, audience):
    """All that a page of that audience has got."""
    batch = room.since(audience, None)
    assert batch is not None
    return str(batch.data)


def found_on(text, keeper):
    """Words there that tell what is hidden, or when it began."""
    words = [*tells(keeper.course), "disk", "fsync", "consul-1", "300ms", "Raft", "right", "Look at", "method", "900.0"]
    return sorted({word for word in words if word.lower() in text.lower()})


def test_the_trainer_sees_the_fault_the_truth_and_what_the_trainee_does(tmp_path):
    room = Room()
    keeper = game_of(tmp_path, Onlookers(room))
    seen = page(room, Audience.OPERATOR)
    for text in (
        "disk.latency on consul-1",
        "delay=300ms",
        "A slow disk",
        keeper.course.truth.diagnosis.exact[:12],
        "diagnosis, not right: the network of consul-1",
        "diagnosis, right: the disk of consul-1 is slow",
        "consul-1$ dd if=/dev/zero",
        "agent on consul-1: stop consul",
        "got the hint: Look at the disks.",
        "ada: ",
    ):
        assert text in seen, text


@pytest.mark.lie
def test_who_watches_sees_the_pager_the_figures_and_how_the_game_stands_and_nothing_of_the_fault(tmp_path):
    room = Room()
    keeper = game_of(tmp_path, Onlookers(room))
    seen = page(room, Audience.TRAINEE)
    pager = keeper.course.pager.text
    assert found_on(seen.replace(json.dumps(pager)[1:-1], ""), keeper) == []
    for text in (pager, "kv-writes", "paged", "watched", "says a diagnosis", "users are back", "ada: "):
        assert text in seen, text


@pytest.mark.lie
def test_when_the_hidden_fault_begins_changes_nothing_for_who_watches(tmp_path):
    room = Room()
    keeper = ByHand(course(), {"trainee": "ada", "out": ""}, tmp_path, Onlookers(room))
    keeper.onlookers.begins(keeper.course)
    keeper.bus.publish(Phase(phase="load"))
    keeper.bus.publish(Steady(held=True, evidence="p50", t_ns=S))
    keeper.bus.publish(tick("load", 1))
    before = room.since(Audience.TRAINEE, None).number
    keeper.bus.publish(Steady(held=True, evidence="p50", t_ns=2 * S))
    keeper.bus.publish(Phase(phase="method", t_ns=2 * S, ends_ns=99 * S))
    keeper.bus.publish(Intent(fault_id=FAULT_ID, kind="disk.latency", target=Where("consul-1"), step=0, t_ns=2 * S))
    assert room.since(Audience.TRAINEE, before) is None


class TellsWords(Onlookers):
    def said(self, who, what, words, answer, *, right):
        self.room.note(who, f"{words} {'right' if right else 'wrong'} {answer}", watchers=True)


class TellsPhases(Onlookers):
    def _shown(self, event):
        return event


class TellsTheTruth(Onlookers):
    def begins(self, course):
        super().begins(course)
        self.room.note("trainer", course.truth.title, watchers=True)


@pytest.mark.parametrize("planted", [TellsWords, TellsPhases, TellsTheTruth])
def test_a_page_that_tells_is_found(tmp_path, planted):
    room = Room()
    keeper = game_of(tmp_path, planted(room), judged=False)
    assert found_on(page(room, Audience.TRAINEE).replace(keeper.course.pager.text, ""), keeper)


def test_a_game_without_a_page_goes_as_ever(tmp_path):
    keeper = game_of(tmp_path, Onlookers())
    assert json.loads((tmp_path / "out" / "card.json").read_text())["trainee"] == "ada"
    assert (tmp_path / DONE).exists()
    assert keeper.due == [10.0, 1800.0]
    assert keeper.bus.failures == []


def test_a_stop_by_the_trainer_is_possible_from_the_start_of_the_game_to_its_end(tmp_path):
    pressed = []
    room = Room(interrupt=lambda: pressed.append("stop"))
    assert room.stop() is False
    keeper = ByHand(course(), {"trainee": "ada", "out": ""}, tmp_path, Onlookers(room))
    keeper.onlookers.begins(keeper.course)
    assert room.stop() is True
    keeper.bus.publish(End(outcome="interrupted"))
    assert (room.stop(), pressed) == (False, ["stop"])


# the address of the trainer's page


@pytest.fixture
def served(monkeypatch):
    """A server that serves nobody."""

    @contextlib.contextmanager
    def serve(port):
        assert port == 8800
        room = Room()
        room.lead_url, room.watch_url = LEAD, WATCH
        yield room

    monkeypatch.setattr("hashidrill.gamedays.warroom.serving.serve", serve)


def asked(to):
    return {"port": 8800, "to": str(to)}


def test_the_trainers_address_is_in_a_file_of_its_owner_alone_as_long_as_the_page_is_served(served, tmp_path):
    to, said = tmp_path / "ada", []
    with page_of(asked(to), "ada", said.append) as looks_on:
        assert looks_on.room is not None
        assert to.read_text() == f"{LEAD}\n"
        assert stat.S_IMODE(to.stat().st_mode) == 0o600
    assert not to.exists()
    assert said == [{"page": WATCH, "trainer": str(to)}]


def test_the_trainers_address_can_go_to_another_terminal(served):
    mine, theirs = os.openpty()
    said = []
    try:
        with page_of(asked(os.ttyname(theirs)), "ada", said.append):
            told = os.read(mine, 1000).decode()
    finally:
        os.close(mine)
        os.close(theirs)
    assert told.split() == ["page", "for", "the", "trainer", "of", "ada", LEAD]
    assert "LEAD" not in str(said)


@pytest.mark.parametrize("to", ["there", "nowhere/ada", "link", "/dev/null"])
def test_what_is_no_new_file_and_no_terminal_is_refused_before_anything_is_served(tmp_path, to):
    (tmp_path / "there").write_text("somebody's")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(UsageError, match="the address of the trainer's page cannot be written here"),
        page_of(asked(tmp_path / to), "ada", print),
    ):
        pass
    assert (tmp_path / "there").read_text() == "somebody's"
    assert not (tmp_path / "elsewhere").exists()


def test_without_serve_there_is_no_page():
    with page_of(None, "ada", print) as looks_on:
        assert looks_on.room is None


def test_neither_the_game_that_is_on_nor_a_shell_of_it_knows_the_trainers_address(served, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "pid").write_text("1")
    host = {"address": "10.73.0.11", "pid": 1, "folder": "/x", "agents": {"consul": "server"}, "environment": {}}
    (root / HOSTS_NAME).write_text(json.dumps({"hosts": {"consul-1": host}, "user": None, "binaries": {}}))
    game = Game("ada", "first", os.getpid(), 0, str(root), str(tmp_path))
    to = games.page_file("ada")
    to.parent.mkdir(parents=True)
    with page_of(asked(to), "ada", lambda _: None):
        state = games.remember(game).read_text()
        words = shell_command(game, "consul-1", ["ls"])
        spec = "".join(path.read_text() for path in (root / "cells").iterdir())
        assert "LEAD-TOKEN" in to.read_text()
    for text in (state, " ".join(words), spec):
        assert "LEAD-TOKEN" not in text
        assert str(to) not in text


@pytest.mark.parametrize("option", [["--port", "8800"], ["--tell-trainer", "x"]])
def test_an_option_of_the_page_without_serve_is_refused(option):
    done = CliRunner().invoke(app, ["train", "first", *option])
    assert isinstance(done.exception, UsageError)
    assert f"{option[0]} is about the page that --serve serves" in str(done.exception)


def test_the_state_of_a_game_is_told_in_the_words_of_the_desk(tmp_path):
    told = []

    class Tells(Onlookers):
        def stands(self, state, t_ns):
            told.append((state, t_ns // S))

    game_of(tmp_path, Tells(), judged=False)
    assert told == [("quiet", 0), ("paged", 20), ("watched", 40)]


def test_every_kind_of_phrase_for_all_is_a_word_that_a_trainee_can_say():
    from hashidrill.gamedays.training.game_log import WORDS

    assert set(keeping._TOLD_TO_ALL) < set(WORDS)
