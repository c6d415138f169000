"""How many training games a machine carries: what one takes, and whether a class of them is paged in time and counts.

    pytest -m bench -s tests/bench/test_bench_class.py

One game: CPU and memory of its processes after its pager went, by program: GAME_CORES, AGENT_CORES and the like in
hashidrill.gamedays.training.classroom come from there. A class: HASHIDRILL_CLASS games (8) begin at once, an expert
plays each to its end, and the score cards say whether the pager was late and whether the game counts.
"""

import contextlib
import json
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

import training_players as players
from hashidrill.core.errors import DatacenterError
from hashidrill.core.experiment.model import services_of
from hashidrill.gamedays.training import games
from scripted_games import course, played

pytestmark = [pytest.mark.bench, pytest.mark.live, pytest.mark.needs("datacenter", "consul 1.22.2")]

NAME, SEED = "first", 1
WATCHED_S, LOOKS_AROUND_S = 20.0, 20.0
CLASS = int(os.environ.get("HASHIDRILL_CLASS", "8"))


@pytest.fixture(autouse=True)
def _own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def processes(game):
    """All processes of a game but those of its trainee."""
    keeper = psutil.Process(game.pid)
    return [keeper, *keeper.children(recursive=True)]


def taken(found):
    """(CPU seconds, bytes that are its own or its share) of the agents, and of everything else."""
    cpu, memory = Counter(), Counter()
    for process in found:
        with contextlib.suppress(psutil.Error):
            what = "agents" if process.name() == "consul" else "the rest"
            times = process.cpu_times()
            cpu[what] += times.user + times.system
            memory[what] += process.memory_full_info().pss
    return cpu, memory


def test_what_one_game_takes(tmp_path):
    services = services_of(course(NAME, SEED).resolved.experiment.datacenter)
    agents = sum(len(service.places()) for service in services)
    with played(NAME, tmp_path / "card", seed=SEED) as game:
        found = processes(games.find_game("script"))
        before, _ = taken(found)
        time.sleep(WATCHED_S)
        after, memory = taken(found)
        game.say("give-up")
    print(f"\n{psutil.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; {NAME}, {agents} agents")
    for what in after:
        cores = (after[what] - before[what]) / WATCHED_S
        each = f", {cores / agents:.3f} cores and {memory[what] / agents / 1e6:.0f} MB each" if what == "agents" else ""
        print(f"{what:<9} {cores:.2f} cores, {memory[what] / 1e6:.0f} MB{each}")


def one(number, folder, looks_around):
    """Plays a game as an expert does. Returns its card, and the seconds from `ready` to the fault, if it came."""
    out = folder / f"card-{number}"
    with (
        contextlib.suppress(DatacenterError, AssertionError),
        played(NAME, out, seed=number, trainee=f"seat-{number}", looks_around=looks_around) as game,
    ):
        players.EXPERTS[NAME](game)
        game.done()
    kept = json.loads((out / "timeline.json").read_text())
    ready_ns = next(each["t_ns"] for each in kept["timeline"] if each["what"] == "ready")
    took_s = None if kept["fault_ns"] is None else round((kept["fault_ns"] - ready_ns) / 1e9)
    return json.loads((out / games.CARD_NAME).read_text()), took_s


def test_a_class_at_once(tmp_path):
    due_s = float(course(NAME, SEED).truth.page_after)
    free = psutil.virtual_memory().available
    psutil.cpu_percent()
    began, least = time.monotonic(), free
    everybody = threading.Barrier(CLASS)

    def all_here():
        everybody.wait(300)
        time.sleep(LOOKS_AROUND_S)

    with ThreadPoolExecutor(CLASS) as seats:
        playing = [seats.submit(one, number, tmp_path, all_here) for number in range(1, CLASS + 1)]
        while not all(each.done() for each in playing):
            time.sleep(1)
            least = min(least, psutil.virtual_memory().available)
    busy = psutil.cpu_percent()
    print(
        f"\n{CLASS} games of {NAME} on {psutil.cpu_count()} cores: {time.monotonic() - began:.0f} s, CPU {busy:.0f} %,"
        f" load average {os.getloadavg()[0]:.1f}, {(free - least) / 1e9:.1f} GB at most"
    )
    for number, each in enumerate(playing, 1):
        card, until_fault_s = each.result()
        late = "never paged" if card["paged_s"] is None else f"pager {card['paged_s'] - due_s:+.1f} s late"
        said = "; ".join(card["reasons"])
        print(f"seat-{number}: fault {until_fault_s} s after ready, {late}, {card['result']} {card['points']} {said}")
