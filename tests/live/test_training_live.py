"""Training on real clusters: an expert passes, a bungler is told of the harm, and words alone pass nothing.

Each game takes one to three minutes; the final a quarter of an hour. `-m long` plays one, with everything in it.
"""

import json
import shlex
import urllib.request

import pytest

import hostile_trainee
import training_players as players
from hashidrill.lab.runs.launch import binaries_for
from places import ROOT
from scripted_games import course, played, tells

pytestmark = pytest.mark.live
SEED = 1
SHORT = "first"


def marked(name):
    needs = ("datacenter", *(" ".join(each) for each in binaries_for(course(name, SEED).resolved.experiment)))
    return pytest.param(name, marks=[pytest.mark.needs(*needs), pytest.mark.timeout(1800 if name == "final" else 600)])


EVERY = [marked(name) for name in players.EXPERTS]


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    """Games of a person of this machine are none of ours."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", EVERY)
def test_an_expert_brings_users_back_and_is_right(name, tmp_path):
    with played(name, tmp_path / "card", seed=SEED) as game:
        players.EXPERTS[name](game)
        card = game.done()
    assert (card["result"], card["reasons"], card["harm"]) == ("passed", [], []), json.dumps(card, indent=1)
    if name == "final":
        assert card["mitigated_s"] < 45 * 60


@pytest.mark.lie
@pytest.mark.nightly
@pytest.mark.parametrize("name", EVERY)
def test_words_alone_pass_nothing(name, tmp_path):
    exact = course(name, SEED).truth.diagnosis.exact
    with played(name, tmp_path / "card", seed=SEED) as game:
        host = next(iter(h for h in game.hosts if h in exact), game.hosts[0])
        players.guess(game, exact.replace("${host}", host))
        card = game.done()
    assert card["result"] == "failed", json.dumps(card, indent=1)
    assert card["reasons"]


def searched(game, host, hidden, *, also=(), seconds=hostile_trainee.SECONDS):
    """What somebody says who searched that host for what is hidden."""
    symptoms = ["State"] if any("pause" in str(s) for s in hidden.truth.method) else []
    library = [str(ROOT)]
    program = hostile_trainee.program([*tells(hidden), *also], library=library, symptoms=symptoms, seconds=seconds)
    code, text = game.on(host, f"python3 -c {shlex.quote(program)}")
    assert code == 0, text[-2000:]
    return json.loads(text.strip().splitlines()[-1])


@pytest.mark.nightly
@pytest.mark.parametrize("name", EVERY)
def test_who_searches_finds_nothing_but_symptoms_and_who_restarts_everything_is_told_what_they_harmed(
    name, tmp_path, record_property
):
    hidden = course(name, SEED)
    with played(name, tmp_path / "card", seed=SEED) as game:
        told = {host: searched(game, host, hidden) for host in game.hosts}
        players.bungle(game, game.hosts)
        card = game.done()
    record_property("tried", json.dumps({host: each["tried"] for host, each in told.items()}))
    assert all(each["tried"]["files"]["looked at"] > 10 for each in told.values())
    assert {host: each["found"] for host, each in told.items() if each["found"]} == {}
    assert hostile_trainee.unlike({host: each["listeners"] for host, each in told.items()}) == {}
    assert hostile_trainee.unlike_connections(told) == {}
    assert card["result"] != "passed"
    assert card["harm"], json.dumps(card, indent=1)


SYNCS = ("dd if=/dev/zero of=x bs=4k count=1 oflag=dsync", "sync -f .", "echo > x; sync x", "sync")
"""The last one is of the whole machine: how long it takes elsewhere is nobody's promise."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", [marked(SHORT)])
def test_what_somebody_does_on_a_slow_host_is_as_slow_as_its_agent(name, tmp_path):
    with played(name, tmp_path / "card", seed=SEED) as game:
        sick = players.leader(game)
        well = next(host for host in game.hosts if host != sick)
        took_s = {(host, each): took(game, host, each) for host in (sick, well) for each in SYNCS}
        waits_ms = {host: f_await_ms(game, host) for host in (sick, well)}
    assert waits_ms[sick] > 200, waits_ms
    assert waits_ms[well] < 20, waits_ms
    assert min(took_s[sick, each] for each in SYNCS) > 0.2, took_s
    assert max(took_s[well, each] for each in SYNCS[:-1]) < 0.2, took_s


def took(game, host, command):
    """Seconds, in the folder of the agent's data."""
    timed = f"TIMEFORMAT=%R; cd $CONSUL_DATA; time {{ {command}; }} 2>/dev/null"
    code, text = game.on(host, f"bash -c {shlex.quote(timed)}")
    assert code == 0, text
    return float(text.strip().splitlines()[-1])


def f_await_ms(game, host):
    """What iostat says of each flush, over five seconds in which the shop writes."""
    code, text = game.on(host, "iostat 5")
    assert code == 0, text
    titles, row = (line.split() for line in text.strip().splitlines())
    return float(dict(zip(titles, row, strict=True))["f_await"])


def shown(address):
    """What a page has got so far."""
    with urllib.request.urlopen(f"{address}events", timeout=20) as stream:
        return next(line.decode() for line in stream if line.startswith(b"data: {") and len(line) > 20)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [marked(SHORT)])
def test_a_whole_game_with_a_page_a_searcher_on_the_sick_host_and_an_expert(name, tmp_path):
    hidden = course(name, SEED)
    with played(name, tmp_path / "card", seed=SEED, trainer=tmp_path / "trainer") as game:
        lead = (tmp_path / "trainer").read_text().strip()
        token = lead.rstrip("/").rpartition("/")[2]
        assert hidden.truth.title in shown(lead)
        told = searched(game, players.leader(game), hidden, also=[token], seconds=15)
        players.EXPERTS[name](game)
        watched = shown(game.page)
        card = game.done()
    assert told["found"] == []
    assert told["tried"]["files"]["looked at"] > 10
    assert game.pager.split(".")[0] in watched
    assert [tell for tell in [*tells(hidden), token] if tell.lower() in watched.lower()] == []
    assert (card["result"], card["reasons"], card["harm"]) == ("passed", [], []), json.dumps(card, indent=1)
    assert not (tmp_path / "trainer").exists()
