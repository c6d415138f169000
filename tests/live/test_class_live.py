"""A seat of a class on a real cluster: over SSH into the game, back after a lost connection, on the trainer's page."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

from class_seats import Person, SeatServer, ssh
from hashidrill.gamedays.training import games

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.needs("datacenter", "consul 1.22.2"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH client here"),
    pytest.mark.may_skip("a machine without the OpenSSH client cannot try it"),
]
STARTS_WITHIN_S = 180.0


def rows(url):
    """The table of the trainer's page."""
    with urllib.request.urlopen(f"{url}events", timeout=20) as stream:
        line = next(line for line in stream if line.startswith(b"data: {") and len(line) > 20)
    return {row["name"]: row for row in json.loads(line.removeprefix(b"data: "))["data"]["rows"]}


def comes_to(told, state):
    """Ada's row once it has that state: the page looks once a second."""
    end = time.monotonic() + 20
    while (row := rows(told["page"])["ada"])["state"] != state:
        assert time.monotonic() < end, row
        time.sleep(0.2)
    return row


def test_a_seat_over_ssh_is_a_shell_of_the_game_and_of_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada", "-f", str(tmp_path / "ada")], check=True
    )
    program = sys.executable.replace("python", "hashidrill")
    words = ["train", "first", "--seats", "ada.pub", "--seed", "1", "--runs", str(tmp_path / "runs"), "--json"]
    trainer = subprocess.Popen([program, *words], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            text += trainer.stdout.readline()
        told = json.loads(text)
        assert rows(told["page"])["ada"]["state"] == "not begun"
        server = SeatServer(tmp_path, told["keys"])
        try:
            _plays(server, tmp_path, told)
        finally:
            for game in games.all_games():
                games.ask(game, {"op": "say", "what": "give-up"})
            server.close()
    finally:
        trainer.terminate()
        trainer.communicate(timeout=60)


def _plays(server, folder, told):
    ada = Person(ssh(folder, server.port))
    assert ada.sees(b"client-1:", STARTS_WITHIN_S), ada.seen
    comes_to(told, "looking around")
    ada.types("id -u; cat /proc/self/status | grep CapEff; ls /root /work; ps -e | wc -l; echo all-of''-it")
    assert ada.sees(b"all-of-it\r\n"), ada.seen
    assert b"CapEff:\t0000000000000000" in ada.seen
    if os.geteuid() == 0:
        assert b"65534" in ada.seen
    ada.types("iostat 1")
    assert ada.sees(b"vda "), ada.seen
    ada.leaves()
    again = Person(ssh(folder, server.port, "bash"))
    assert again.sees(b"your game of first goes on"), again.seen
    assert again.sees(b"client-1:"), again.seen
    again.types("say ready")
    assert again.sees(b"*** PAGER ***", STARTS_WITHIN_S), again.seen
    comes_to(told, "paged")
    again.types("say give-up")
    assert again.sees(b"failed: ", STARTS_WITHIN_S), again.seen
    again.leaves()
    assert comes_to(told, "over")["result"] == "failed"
