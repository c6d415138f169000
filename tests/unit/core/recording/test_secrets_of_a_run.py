"""Nothing that a run writes holds a secret, and what a revert needs of one is there until the fault is gone."""

import json
import sqlite3

import pytest

import virtual_time
from hashidrill.core.engine.inject import injected
from hashidrill.core.errors import ExperimentError, FaultError, RevertError
from hashidrill.core.experiment.loader import load_experiment, load_text
from hashidrill.core.faults.disk import DiskLatency
from hashidrill.core.judging.comparison import differences
from hashidrill.core.judging.verdict import RunVerdict
from hashidrill.core.protocols.abc import Operation, Sample
from hashidrill.core.recording.journal import Clock, Journal, Undos, read_journal
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.writer import DATABASE_NAME, RUN_NAME, TABLES, RecordingWriter
from hashidrill.core.util.files import private_folder
from hashidrill.core.util.redaction import MARK, Redactor, without_secrets
from hashidrill.lab.runs import heal
from hashidrill.reports.html import write_html
from hashidrill.reports.markdown import write_markdown
from hashidrill.testing.fakes import FakeDatacenter
from hashidrill.testing.recordings import RecordingBuilder
from tasks import raising

GOSSIP, TOKEN = "marked-gossip-key-0001=", "marked-token-0002"
CONFIG = {"node_name": "consul-1", "encrypt": GOSSIP, "acl": {"enabled": True, "tokens": {"agent": TOKEN}}}


def mode(path):
    return path.stat().st_mode & 0o777


class Game:
    """A fault whose revert needs the agent's whole configuration as it was, tokens included."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "journal.jsonl"
        self.undos = tmp_path / "sandbox/undos"
        self.world = FakeDatacenter()
        self.told = []
        self.kept = None
        self.reverted_with = []

    def fault(self, **overrides):
        game = self

        async def prior(_self, _target):
            return {"config": CONFIG}

        async def apply(fault, undo):
            game.kept = {file.name: (mode(file), json.loads(file.read_text())) for file in game.undos.glob("*")}
            await DiskLatency.apply(fault, undo)

        async def revert(fault, undo):
            game.reverted_with.append(undo["prior"]["config"])
            await DiskLatency.revert(fault, undo)

        planted = {"prior": prior, "apply": apply, "revert": revert, **overrides}
        cls = type("Planted", (DiskLatency,), planted)
        return cls(cls.Params.model_validate({"delay": "500ms"}), self.world)

    def open(self, redactor=None, undos=None):
        return Journal(self.path, Clock(), self.told.append, redactor=redactor, undos=undos or self.undos)

    async def inject(self, fault):
        with self.open() as journal:
            target = self.world.target("consul-1")
            async with injected(fault, target, fault_id="0-slow", step=0, journal=journal):
                pass

    def entry(self, event):
        [one] = [entry for entry in read_journal(self.path) if entry.event == event]
        return one.data


@pytest.fixture
def game(tmp_path):
    return Game(tmp_path)


@pytest.mark.lie
def test_the_journal_holds_the_undo_without_its_secrets_and_the_revert_still_has_them(game):
    virtual_time.run(game.inject(game.fault()))
    written = game.path.read_text() + str(game.told)
    assert GOSSIP not in written
    assert TOKEN not in written
    shown = {**CONFIG, "encrypt": MARK, "acl": {"enabled": True, "tokens": {"agent": MARK}}}
    assert game.entry("fault.intent")["undo"]["prior"]["config"] == shown
    assert game.reverted_with == [CONFIG]


def test_what_the_journal_lacks_is_kept_for_its_owner_alone_from_before_apply_until_the_fault_is_gone(
    game,
):
    virtual_time.run(game.inject(game.fault()))
    permissions, undo = game.kept["0-slow.json"]
    assert permissions == 0o600
    assert undo["prior"]["config"] == CONFIG
    assert game.entry("fault.intent")["undo"]["kept"] == str(game.undos / "0-slow.json")
    assert mode(game.undos) == 0o700
    assert list(game.undos.iterdir()) == []


def test_it_stays_while_the_fault_does(game):
    with pytest.raises(RevertError):
        virtual_time.run(game.inject(game.fault(revert=raising(FaultError("the agent does not answer")))))
    assert [file.name for file in game.undos.iterdir()] == ["0-slow.json"]


def test_an_undo_without_secrets_is_in_the_journal_whole(game):
    async def prior(_self, _target):
        return {"config": {"log_level": "INFO"}, "ports": (8500, 8501)}

    virtual_time.run(game.inject(game.fault(prior=prior)))
    assert "kept" not in game.entry("fault.intent")["undo"]
    assert not game.undos.exists()


def test_another_process_reverts_with_what_was_kept_and_then_removes_it(game):
    async def half_way(fault):
        with game.open() as journal:
            target = game.world.target("consul-1")
            undo = {**fault.plan(target, fault_id="0-slow"), "prior": {"config": CONFIG}}
            journal.write(
                "fault.intent",
                sync=True,
                fault_id="0-slow",
                kind=fault.kind,
                target={"host": "consul-1", "agent": ""},
                undo=journal.undos.for_journal(undo),
            )
            return undo

    undo = virtual_time.run(half_way(game.fault()))
    [found] = heal.open_faults(read_journal(game.path))
    with game.open() as journal:
        assert journal.undos.restored(found) == undo
        journal.write("note", text=f"Consul said: {TOKEN} is not known")
        journal.undos.forget("0-slow")
    assert TOKEN not in game.path.read_text()
    assert list(game.undos.iterdir()) == []


@pytest.mark.lie
@pytest.mark.parametrize("broken", ["gone", "another's", "open to all", "a link"])
def test_a_kept_undo_that_is_gone_or_not_ours_is_said_to_be_and_nothing_is_guessed(game, broken, tmp_path):
    undo = {"fault_id": "0-slow", "kind": "disk.latency", "host": "consul-1", "prior": {"config": CONFIG}}
    shown = Undos(game.undos, Redactor()).for_journal(undo)
    file = game.undos / "0-slow.json"
    if broken == "gone":
        file.unlink()
    elif broken == "another's":
        file.write_text(json.dumps({**undo, "fault_id": "1-other"}))
    elif broken == "open to all":
        file.chmod(0o644)
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FaultError, match=r"0-slow: the journal holds its undo without the secrets. .*restore by hand"):
        Undos(None, Redactor()).restored(shown)


def test_a_journal_without_a_place_for_undos_says_that_nothing_was_kept():
    shown = Undos(None, Redactor()).for_journal({"fault_id": "0", "prior": {"encrypt": GOSSIP}})
    with pytest.raises(FaultError, match=r"Their file \(nowhere\)"):
        Undos(None, Redactor()).restored(shown)


def test_the_journal_is_for_its_owner_alone(game):
    with game.open() as journal:
        journal.write("note", text="x")
    assert mode(game.path) == 0o600


def test_operations_samples_and_final_reads_hold_no_known_secret_whoever_said_it(tmp_path):
    writer = RecordingWriter(tmp_path / "run", Redactor([TOKEN]))
    writer.operation(
        Operation("app.attempts", 1, 1, 2, "fail", f"GET /{TOKEN}", f'{{"a":"{TOKEN}"}}', 403, f"no {TOKEN}")
    )
    writer.operation(Operation("kv", 1, 1, 2, "ok", "kv/1", "value", 200, ""))
    writer.operation(Operation("kv", 3, 3, 4, "fail", "kv/1", "value", 403, "X-Consul-Token: hun7er is not known"))
    writer.sample(1, Sample("raft.leader", 1.0, f"leader of {TOKEN}", "consul-1"))
    writer.final_reads("kv", {"kv/1": TOKEN, "kv/2": None})
    writer.write_run({"config": {"consul-1": CONFIG}, "command": f"run --x {TOKEN}"})
    writer.close()
    database = sqlite3.connect(tmp_path / "run" / DATABASE_NAME)
    rows = [row for table in TABLES for row in database.execute(f"SELECT * FROM {table}")]
    database.close()
    assert TOKEN not in str(rows)
    assert "hun7er" not in str(rows)
    assert ("kv", 1, 1, 2, "ok", "kv/1", "value", 200, "") in [row[1:10] for row in rows]
    assert len(rows) == 6
    run = (tmp_path / "run" / RUN_NAME).read_text()
    assert GOSSIP not in run
    assert TOKEN not in run
    assert '"node_name": "consul-1"' in run
    assert {file.name: mode(file) for file in (tmp_path / "run").iterdir()} == {DATABASE_NAME: 0o600, RUN_NAME: 0o600}
    assert mode(tmp_path / "run") == 0o700


@pytest.mark.lie
def test_a_report_of_an_older_recording_shows_no_secret_either(tmp_path):
    """Recordings that were made before configurations were redacted are still judged and shown."""
    recording = RecordingBuilder(tmp_path / "run").load("kv-writes").build()
    run = json.loads((recording.path / RUN_NAME).read_text())
    (recording.path / RUN_NAME).write_text(json.dumps({**run, "config": {"consul-1": CONFIG}}))
    page = write_html(Recording(recording.path), RunVerdict([], []), tmp_path / "run")
    summary = write_markdown(Recording(recording.path), RunVerdict([], []), tmp_path / "run")
    assert GOSSIP not in page.read_text()
    assert TOKEN not in page.read_text()
    assert "consul-1" in page.read_text()
    assert (mode(page), mode(summary)) == (0o600, 0o600)


def test_private_folders_are_made_with_those_above_and_others_are_left_as_they_are(tmp_path):
    (tmp_path / "there").mkdir(mode=0o755)
    private_folder(tmp_path / "there/a/b")
    private_folder(tmp_path / "there/a/b")
    assert [mode(tmp_path / "there" / part) for part in (".", "a", "a/b")] == [0o755, 0o700, 0o700]


def test_agents_do_not_get_the_tokens_of_their_user_but_the_licence_that_they_need():
    environment = {
        "PATH": "/bin",
        "VAULT_TOKEN": "t",
        "CONSUL_HTTP_AUTH": "a:b",
        "CONSUL_LICENSE": "l",
        "HOME": "/root",
    }
    assert without_secrets(environment) == {"PATH": "/bin", "CONSUL_LICENSE": "l", "HOME": "/root"}


@pytest.mark.lie
def test_an_error_about_a_secret_says_where_it_is_and_not_what(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"apiVersion: hashidrill/v1\nkind: Experiment\ndatacenter:\n  consul:\n    config:\n      encrypt: {GOSSIP}\n"
        f"    servers: {TOKEN}\n    token: {TOKEN}\n"
    )
    with pytest.raises(ExperimentError) as caught:
        load_experiment(file)
    assert "mine.yaml:8:" in str(caught.value)
    assert TOKEN not in str(caught.value)
    assert f"    token: {'*' * len(TOKEN)}" in str(caught.value)


@pytest.mark.lie
def test_two_experiments_are_compared_without_showing_a_secret_of_either(tmp_path):
    first, second = (load_text(document(config)) for config in (CONFIG, {"log_level": "DEBUG"}))
    told = str(differences(first, second))
    assert "log_level" in told
    assert GOSSIP not in told
    assert TOKEN not in told


def document(config):
    return json.dumps(
        {
            "apiVersion": "hashidrill/v1",
            "kind": "Experiment",
            "metadata": {"name": "mine", "title": "Mine", "why": "It is mine"},
            "datacenter": {"consul": {"config": config}},
            "load": {"kv": {"kind": "consul.kv.write", "rate": "5/s"}},
            "steady_state": {"require": ["kv.errors < 1%"]},
            "method": [{"fault": "noop", "on": "consul:leader", "for": "1s"}],
            "expect": [{"no_acknowledged_write_lost": {"load": "kv"}}],
        }
    )
