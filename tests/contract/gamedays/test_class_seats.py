"""A seat over real SSH: OpenSSH's client, a server that reads our authorized_keys, and the forced command."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from class_seats import WITHIN_S, Person, SeatServer, ssh
from places import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH client here"),
    pytest.mark.may_skip("a machine without the OpenSSH client cannot try it"),
]


def hashidrill(*words, env, **how):
    return subprocess.Popen([sys.executable.replace("python", "hashidrill"), *words], env=env, text=True, **how)


@pytest.fixture
def place(tmp_path):
    """A folder with ada's key, and an environment with a state of its own."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada@laptop", "-f", str(tmp_path / "ada")], check=True
    )
    return tmp_path, {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT / "runners")}


@pytest.fixture
def the_class(place):
    """A class of one seat: its process, and what it told."""
    folder, env = place
    words = ["train", "first", "--seats", str(folder / "ada.pub"), "--runs", str(folder / ".hashidrill/runs"), "--json"]
    process = hashidrill(*words, env=env, stdout=subprocess.PIPE, cwd=folder)
    lines = iter(process.stdout.readline, "")
    text = ""
    with contextlib.suppress(StopIteration):
        while not text.rstrip().endswith("}"):
            text += next(lines)
    yield process, json.loads(text)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=WITHIN_S)


def test_a_seats_key_opens_that_seats_game_whatever_its_owner_asks_for(the_class, place):
    """What the forced command prints comes in place of what was asked for; here it lists, as no datacenter starts."""
    folder, _ = place
    _, told = the_class
    assert told["seats"] == ["ada"]
    keys = folder / "keys"
    keys.write_text(Path(told["keys"]).read_text().replace(" train ", " train --list "))
    server = SeatServer(folder, keys)
    try:
        for asked in ([], ["sh", "-c", "id > /tmp/owned"], ["scp", "-t", "/"]):
            ada = Person(ssh(folder, server.port, *asked))
            assert ada.sees(b"Saving a cart takes seconds"), ada.seen
            assert b"best of ada" in ada.seen
            ada.leaves()
    finally:
        server.close()
    assert len(server.commands) == 3
    assert all(" train --list " in command and "--trainee ada" in command for command in server.commands)


@pytest.mark.lie
def test_a_key_that_has_no_seat_opens_nothing(the_class, place):
    folder, _ = place
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "eve")], check=True)
    server = SeatServer(folder, the_class[1]["keys"])
    try:
        done = subprocess.run(
            ssh(folder, server.port, "id", key="eve"),
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    finally:
        server.close()
    assert (done.returncode, done.stdout, server.commands) == (255, "", [])
    assert "Permission denied" in done.stderr


def events(url):
    """The first state with a seat: before that, the page has not looked at the games yet."""
    with urllib.request.urlopen(f"{url}events", timeout=20) as stream:
        return next(line.decode() for line in stream if line.startswith(b"data: {") and b'"rows":[{' in line)


def test_the_page_of_a_class_shows_its_seats_and_is_gone_with_its_command(the_class):
    process, told = the_class
    assert '"name":"ada"' in events(told["page"])
    with urllib.request.urlopen(told["page"], timeout=20) as page:
        assert b"class.js" in page.read()
    process.send_signal(signal.SIGKILL)
    process.wait(WITHIN_S)
    with pytest.raises(OSError, match="refused"):
        events(told["page"])
