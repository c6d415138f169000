"""A deliberately wrong runbook, followed in the engine: what it does to the servers is seen and told as harm."""

from types import SimpleNamespace

import anyio
import pytest

from engine_game import SLOW, Game
from hashidrill.gamedays.runbooks.attendant import LOOK_EVERY_S, Attendant
from hashidrill.gamedays.runbooks.follower import Follower
from hashidrill.gamedays.runbooks.judge import harm_of
from hashidrill.gamedays.runbooks.parser import read_runbook
from places import ROOT
from runbook_pages import SERVERS, FakeHands

WRONG = read_runbook(ROOT / "tests/support/planted/runbook-restart-all.md")
HOSTS = [{"name": server.name, "agents": {"consul": "server"}} for server in SERVERS]


class Hosts(FakeHands):
    """Servers whose agents are really stopped and started by what is run on them."""

    def __init__(self, running):
        self.processes = {f"{server.name}/consul": f"{number}@1" for number, server in enumerate(SERVERS)}
        observe, *_ = (block.text for block in WRONG.blocks if block.kind == "observe")
        [confirm] = [block.text for block in WRONG.blocks if block.kind == "confirm"]
        answers = {
            observe: "3\n",
            "systemctl stop consul": self.stop,
            "systemctl start consul": self.start,
            confirm: lambda host, count: int(count == 1 or not all(self.processes.values())),
        }
        super().__init__(answers, hosts=list(SERVERS))
        self.journal = running.journal

    def stop(self, host, _count):
        self.processes[f"{host}/consul"] = ""
        return 0

    def start(self, host, count):
        self.processes[f"{host}/consul"] = f"{host}@{count + 1}"
        return 0

    async def agents(self):
        return dict(self.processes)

    def note(self, what, text, **data):
        self.journal.write("attended.did", what=what, text=text, **data)


class Follows:
    """As the attendant of a rehearsal, with hosts that are planted."""

    at_s = 5.0

    def __init__(self, runbook):
        self.runbook = runbook

    async def attend(self, running):
        doing = Hosts(running)
        async with anyio.create_task_group() as group:
            await group.start(Attendant._watch, doing)
            follower = Follower(self.runbook, doing)
            await follower.follow()
            await anyio.sleep(2 * LOOK_EVERY_S)
            group.cancel_scope.cancel()


@pytest.fixture
def followed(tmp_path):
    """The harm that came of following a runbook while the disk of consul-1 is slow."""

    def follow(runbook):
        game = Game(tmp_path, [SLOW])
        assert game.run(attendant=Follows(runbook)) == "complete"
        ailing = SimpleNamespace(host="consul-1", proven=True)
        did = [entry for entry in game.journal if entry.event == "attended.did"]
        return harm_of(SimpleNamespace(run={"hosts": HOSTS}, faults=[ailing]), did), did

    return follow


@pytest.mark.lie
def test_turning_them_all_off_and_on_again_is_caught_although_it_works_in_the_end(followed):
    harm, did = followed(WRONG)
    assert any(entry.data.get("outcome") == "done" for entry in did)
    assert any("quorum of consul was lost by hand" in text for text in harm)
    assert [text for text in harm if "healthy" in text] == [
        "a healthy server was restarted: consul-2/consul",
        "a healthy server was restarted: consul-3/consul",
    ]


def test_the_same_blocks_on_the_sick_server_alone_are_no_harm(followed, tmp_path):
    text = WRONG.text.replace("on=consul:servers timeout", "on=consul-1 timeout")
    assert text != WRONG.text
    path = tmp_path / "runbook-restart-all.md"
    path.write_text(text)
    harm, did = followed(read_runbook(path))
    assert (harm, any(entry.data["what"] == "acts" for entry in did)) == ([], True)
