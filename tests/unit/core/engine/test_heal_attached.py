"""`heal --attach`: reverts, removes what loads left, and leaves audit lines, as a run's own actions do."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from test_in_attached import THEIRS, Allowing, Attached, filled, intent

from attached_estates import TOKEN, of_nomad
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.recording.journal import Clock, Journal, read_journal
from hashidrill.core.recording.signed_runs import audit_told, forget_open, key_of, note_of, our_run
from hashidrill.kubernetes import attach_capabilities
from hashidrill.staging.attach.datacenter import AttachedDatacenter
from hashidrill.staging.attach.discovery import discover
from hashidrill.staging.attach.http import Login
from hashidrill.staging.runs import heal_attached as heal_module
from hashidrill.staging.runs.heal_attached import heal_attached, unswept, with_lost
from our_runs import began
from virtual_time import run

AUDIT, LOCK = "hashidrill-audit/", "hashidrill-interlocks/lock"


def audit_lines(verbs):
    """As this machine signs them."""
    key = key_of("run-1")
    lines = [json.dumps({"verb": verb}).encode() + b"\n" for verb in verbs]
    return [key.signed(line, "audit.jsonl", number) for number, line in enumerate(lines)]


class Dead:
    """A run against the fake datacenter whose engine was killed with a fault in force, and its recording."""

    def __init__(self, folder, *, audit=("begin", "load", "apply"), name="staging", ours=True):
        self.game = Attached(folder)
        self.path, self.told = folder, []
        (folder / "resolved.json").write_text(json.dumps(self.game.resolved.to_data()))
        with self._journal(ours, id="run-1", experiment="short", root="", attached={"name": name}) as journal:
            self.event, self.intent = intent(self.game)
            journal.write(self.event, sync=True, **self.intent)
        (folder / "audit.jsonl").write_bytes(b"".join(audit_lines(audit)) + b'{"verb": "ap')
        filled(self.world)

    def _journal(self, ours, **run):
        if ours:
            return began(self.path, run.pop("id"), **run)
        journal = Journal(self.path / "journal.jsonl", Clock())
        journal.write("run", sync=True, **run)
        return journal

    def writes(self, event, **data):
        """Its engine had written this too."""
        with Journal(self.path / "journal.jsonl", Clock(), key=key_of("run-1")) as journal:
            journal.write(event, sync=True, **data)

    @property
    def world(self):
        return self.game.fake.world

    @property
    def keys(self):
        return {key: entry.value for key, entry in self.world.consul.kv.entries.items()}

    def lines(self):
        return [json.loads(value) for key, value in sorted(self.keys.items()) if key.startswith(AUDIT)]

    def left(self):
        """Of everything that is in this Consul, what is neither an audit line nor somebody else's."""
        found = {key for key in self.keys if not key.startswith(AUDIT)} - set(THEIRS)
        return found | set(self.world.consul.sessions)

    def heal(self, *, lost=(), **how):
        """`lost`: hosts that are no members any more."""
        fake = self.game.fake

        async def look(target, stack):
            wires = fake.wires(target)
            for wire in wires.values():
                await stack.enter_async_context(wire)
            found = await discover(target, wires)
            return replace(found, hosts={name: one for name, one in found.hosts.items() if name not in lost}), wires

        transport = lambda login: fake.transport(login.service)  # noqa: E731 - one line, used once
        [done] = run(
            heal_attached(
                self.game.target,
                [self.path],
                self.told.append,
                look=look,
                datacenter=partial(AttachedDatacenter, make_transport=transport),
                **how,
            )
        )
        return done

    def locked_by(self, run_id):
        session = self.world.consul.make_session("consul-1", "hashidrill", LOCK)
        value = json.dumps({"held_by": "ben", "run": run_id, "experiment": "x", "since": "12:00"}).encode()
        self.world.consul.answer(self.world.hosts["consul-1"], "PUT", f"/v1/kv/{LOCK}", {"acquire": session}, value)
        return session


@pytest.fixture(autouse=True)
def _a_machine_of_its_own(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def dead(tmp_path):
    return Dead(tmp_path)


def test_what_it_does_is_in_the_audit_as_every_other_action_is(dead):
    done = dead.heal()
    assert (done.reverted, done.stuck, done.left) == (["0-transfer"], [], [])
    said = [(line["verb"], line.get("what", ""), line.get("where", "")) for line in dead.lines()]
    assert said == [
        ("heal", "short", ""),
        ("revert", "consul.leader.transfer", "consul-1"),
        ("gone", "consul.leader.transfer", "consul-1"),
        ("clean-up", "consul.kv.write", "keys below hashidrill-once/kv-writes/run-1/"),
        ("clean-up", "consul.kv.write", "keys below hashidrill/kv-writes/"),
        ("end", "short", ""),
    ]
    last = dead.lines()[-1]
    assert last["note"].endswith("run-1/: 1, keys below hashidrill/kv-writes/: 20")
    assert {line["run"] for line in dead.lines()} == {"run-1"}
    assert all("@" in line["who"] for line in dead.lines())
    assert any(text.startswith("audit: revert consul.leader.transfer on consul-1 by ") for text in dead.told)
    assert TOKEN not in json.dumps(dead.lines()) + "".join(dead.told) + (dead.path / "audit.jsonl").read_text()


def test_nothing_is_left_in_consul_but_audit_lines_and_what_is_others(dead):
    assert len(dead.left()) == 21
    dead.heal()
    assert dead.left() == set()
    assert {key: value for key, value in dead.keys.items() if not key.startswith(AUDIT)} == THEIRS


@pytest.mark.parametrize(
    ("mine", "others", "said"),
    [
        (["generators-run-1"], ["generators-run-12"], "generators-run-1 of the run's workers"),
        (
            ["carrier-run-1.0a1b2c3d", "carrier-run-1.ffffffff"],
            ["carrier-run-12.0a1b2c3d", "carrier-run-1.web"],
            "carrier-run-1.ffffffff, which carried the run's faults",
        ),
    ],
)
def test_the_jobs_of_its_workers_and_carriers_are_removed_and_those_of_no_other_run(dead, mine, others, said):
    jobs = {("nomad", "/v1/jobs"): [{"ID": f"hashidrill-{name}"} for name in (*mine, *others)]}
    removed = {("nomad", f"/v1/job/hashidrill-{name}"): {} for name in (*mine, *others)}
    dead.game.fake.answers |= of_nomad() | jobs | removed
    login = Login("nomad", "http://10.73.0.21:4646")
    dead.game.target = replace(dead.game.target, logins={**dead.game.target.logins, "nomad": login})
    dead.heal()
    deleted = [one.url for one in dead.game.fake.asked if one.method == "DELETE" and "/v1/job/" in one.url.path]
    assert [url.path for url in deleted] == [f"/v1/job/hashidrill-{name}" for name in mine]
    assert {url.params["purge"] for url in deleted} == {"true"}
    assert f"removed the job hashidrill-{said}" in dead.told


def test_the_lines_of_the_run_itself_are_not_overwritten(dead):
    dead.world.consul.kv.answer("PUT", f"/v1/kv/{AUDIT}run-1/0001", {}, b'{"verb": "begin"}')
    dead.heal()
    assert dead.keys[f"{AUDIT}run-1/0001"] == b'{"verb": "begin"}'
    assert {key.rpartition("/")[0] for key in dead.keys if key.startswith(AUDIT)} == {f"{AUDIT}run-1"}


def test_a_second_heal_has_nothing_to_do_and_writes_nothing(dead):
    dead.heal()
    before = dead.keys
    assert dead.heal() is None
    assert dead.keys == before


def test_the_lock_of_the_dead_run_itself_is_in_nobodys_way(dead):
    session = dead.locked_by("run-1")
    assert dead.heal().left == []
    assert dead.left() == {LOCK, session}, "it ends by its TTL"


@pytest.mark.lie
def test_keys_are_not_touched_while_the_run_of_somebody_else_goes_on_and_the_fault_is_reverted_all_the_same(dead):
    """The keys have the name of the load: they may be those that the other run writes now."""
    dead.locked_by("run-of-ben")
    done = dead.heal()
    assert done.reverted == ["0-transfer"]
    assert done.cleaned == ["keys below hashidrill-once/kv-writes/run-1/: 1"], "these have the name of the run"
    assert len([key for key in dead.keys if key.startswith("hashidrill/kv-writes/")]) == 20
    assert "another game day holds hashidrill-interlocks/lock: ben, with x (run-of-ben)" in done.left[0]
    assert [line["verb"] for line in dead.lines()][-2:] == ["left", "end"]
    dead.world.consul.sessions.clear()
    dead.world.consul.kv.entries.pop(LOCK)
    again = dead.heal()
    assert (again.died, again.left, again.cleaned) == (False, [], ["keys below hashidrill/kv-writes/: 20"])
    assert dead.left() == set()


def test_a_consul_that_takes_no_audit_line_does_not_hold_up_the_revert(dead):
    kv = dead.world.consul.kv
    answer = kv.answer
    refused = ApiAnswer(500, b"No cluster leader")
    kv.answer = lambda method, path, *rest: (
        refused if method == "PUT" and AUDIT in path else answer(method, path, *rest)
    )
    done = dead.heal()
    assert done.reverted == ["0-transfer"]
    assert any("audit lines are in this recording alone" in text for text in dead.told)
    verbs = [json.loads(line)["verb"] for line in (dead.path / "audit.jsonl").read_text().splitlines()[4:]]
    assert verbs[:3] == ["heal", "revert", "gone"]


def test_one_that_ran_against_another_datacenter_is_left_alone_and_leaves_no_line(tmp_path):
    dead = Dead(tmp_path, name="another")
    assert dead.heal().refused == "it ran against another, not against staging"
    assert dead.lines() == []
    assert len(dead.left()) == 21


def test_its_own_end_is_the_last_line_of_the_journal(dead):
    dead.heal()
    assert [entry.event for entry in read_journal(dead.path / "journal.jsonl")][-3:] == [
        "fault.reverted",
        "fault.gone",
        "end",
    ]


@pytest.mark.parametrize(
    ("verbs", "unknown"),
    [
        (["begin", "load", "apply", "gone", "clean-up", "end"], False),
        (["begin", "load", "apply"], True),
        (["begin", "load", "left", "end"], True),
        (["begin", "left", "end", "heal", "clean-up", "end"], False),
        (["begin", "heal", "left", "end"], True),
        (["begin", "end", "heal", "revert"], True),
        ([], False),
    ],
)
def test_whether_anything_may_be_left_is_told_by_the_audit_lines(tmp_path, verbs, unknown):
    (tmp_path / "audit.jsonl").write_bytes(b"".join(audit_lines(verbs)))
    assert unswept(tmp_path, key_of("run-1")) is unknown


def test_a_recording_without_audit_lines_touched_nothing(tmp_path):
    assert not unswept(tmp_path, key_of("run-1"))


LIES = {
    "an end that nobody wrote": lambda lines: [*lines[:3], b'{"verb": "end"}\n'],
    "the end of another run": lambda lines: [
        *lines[:3],
        key_of("run-2").signed(b'{"verb": "end"}\n', "audit.jsonl", 3),
    ],
    "a line of the journal": lambda lines: [
        *lines[:3],
        key_of("run-1").signed(b'{"verb": "end"}\n', "journal.jsonl", 3),
    ],
    "what is left is not there": lambda lines: [*lines[:2], *lines[3:]],
    "what is left is changed": lambda lines: [line.replace(b'"left"', b'"gone"') for line in lines],
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", LIES)
def test_an_audit_line_that_was_changed_added_or_taken_out_does_not_count_and_is_told(tmp_path, lie):
    lines = audit_lines(["begin", "load", "left", "end"])
    (tmp_path / "audit.jsonl").write_bytes(b"".join(lines))
    assert audit_told(tmp_path, "run-1") == "audit.jsonl: 4 lines, as this machine wrote them"
    (tmp_path / "audit.jsonl").write_bytes(b"".join(LIES[lie](lines)))
    assert unswept(tmp_path, key_of("run-1"))
    assert "as this machine wrote them" not in audit_told(tmp_path, "run-1")


def test_hosts_with_a_fault_that_may_be_in_force_are_waited_for_and_no_others(dead, tmp_path, monkeypatch):
    """A host that has nothing of ours may restart as it likes: heal does not wait for it."""
    asked = []

    def held_by(*args, awaited, **more):
        asked.append(set(awaited))
        return attach_capabilities.held(*args, awaited=awaited, **more)

    monkeypatch.setattr(
        heal_module, "in_kubernetes", lambda: SimpleNamespace(**vars(attach_capabilities) | {"held": held_by})
    )
    dead.heal()
    dead.heal()
    (tmp_path / "other").mkdir()
    other = Dead(tmp_path / "other", name="another")
    other.heal()
    assert asked == [{"consul-1"}, set(), set()]


def test_hosts_from_which_it_is_proven_gone_are_waited_for_as_well(dead):
    """A partition is seen from its other side too."""
    undo = {**dead.intent["undo"], "peers": ["consul-2"]}
    dead.writes("fault.intent", **{**dead.intent, "undo": undo})
    assert heal_module._faulted(our_run(dead.path), "staging") == {"consul-1", "consul-2"}


def test_why_a_fault_is_stuck_is_told_and_in_the_audit(dead):
    undo = {**dead.intent["undo"], "kind": "consul.leader.transferred"}
    dead.writes("fault.intent", **{**dead.intent, "undo": undo})
    assert dead.heal().stuck == ["0-transfer"]
    [stuck] = [line for line in dead.lines() if line["verb"] == "stuck"]
    assert "consul.leader.transferred" in stuck["note"]


@pytest.mark.lie
def test_a_host_that_its_fault_took_out_of_the_membership_is_reached_where_the_run_had_found_it(dead):
    """Consul's autopilot removes a server that is frozen: nobody lists it, and its fault must be reverted there."""
    done = dead.heal(lost=("consul-1",))
    assert (done.reverted, done.stuck) == (["0-transfer"], [])
    [told] = [text for text in dead.told if "is not a member" in text]
    assert told.startswith("consul-1 is not a member of staging any more")
    assert "reverted at 10.73.0.11, where" in told


def test_a_host_that_is_gone_and_has_no_fault_is_not_looked_for(dead):
    done = dead.heal(lost=("client-1",))
    assert (done.reverted, done.stuck) == (["0-transfer"], [])
    assert not any("is not a member" in text for text in dead.told)


def test_a_host_that_is_a_member_by_another_name_is_not_made_twice(dead):
    """Two hosts cannot have one address: whoever asked one would ask the other."""
    estate = run(discover(dead.game.target, dead.game.fake.wires(dead.game.target)))
    renamed = {**estate.hosts, "new-1": replace(estate.hosts["consul-1"], name="new-1")}
    del renamed["consul-1"]
    known = {dead.path: our_run(dead.path)}
    found = with_lost(replace(estate, hosts=renamed), dead.game.target, known, dead.told.append)
    assert [*found.hosts] == [*renamed]


def test_a_run_that_did_not_come_so_far_as_to_know_its_hosts_has_lost_none(dead):
    known = {dead.path: our_run(dead.path)}
    (dead.path / "resolved.json").write_text('{"experiment": null}')
    estate = run(discover(dead.game.target, dead.game.fake.wires(dead.game.target)))
    fewer = replace(estate, hosts={"consul-2": estate.hosts["consul-2"]})
    assert with_lost(fewer, dead.game.target, known, dead.told.append) == fewer


FORGED = "10.66.6.6"


class TestARecordingOfAnotherMachine:
    """A journal that anyone can write: it moves no fault, and no token, by its own word."""

    @pytest.fixture
    def theirs(self, tmp_path):
        return Dead(tmp_path, ours=False)

    @staticmethod
    def touched(dead):
        """What was written there, of all requests."""
        return [str(one.url) for one in dead.game.fake.asked if one.method != "GET"]

    def test_is_left_alone(self, theirs):
        before, asked = {file: file.read_bytes() for file in theirs.path.iterdir()}, len(self.touched(theirs))
        done = theirs.heal()
        assert "this machine does not know it as its own" in done.refused
        assert (done.reverted, done.cleaned, self.touched(theirs)[asked:]) == ([], [], [])
        assert {file: file.read_bytes() for file in theirs.path.iterdir()} == before

    def test_gets_no_token_to_the_address_that_it_forges(self, theirs):
        resolved = theirs.path / "resolved.json"
        resolved.write_text(resolved.read_text().replace("10.73.0.11", FORGED))
        for confirm in (None, lambda *_: True):
            done = theirs.heal(lost=("consul-1",), confirm=confirm, open_guard=lambda *_: Allowing())
            assert (done.reverted, done.stuck) == ([], [])
        assert "no address of that recording is used" in done.refused
        assert not [one for one in theirs.game.fake.asked if one.url.host == FORGED]

    def test_a_forged_address_in_a_recording_of_our_own_is_seen(self, tmp_path):
        dead = Dead(tmp_path)
        resolved = tmp_path / "resolved.json"
        resolved.write_text(resolved.read_text().replace("10.73.0.11", FORGED))
        assert "resolved.json has changed since the run began" in dead.heal(lost=("consul-1",)).refused
        assert not [one for one in dead.game.fake.asked if one.url.host == FORGED]

    def test_is_reverted_on_the_hosts_that_are_confirmed_while_the_interlocks_hold(self, theirs):
        asked, guard = [], Allowing()
        done = theirs.heal(confirm=lambda *told: asked.append(told) or True, open_guard=lambda *_: guard)
        [(host, what)] = asked
        assert (host, done.reverted, done.refused) == ("consul-1", ["0-transfer"], "")
        assert "as still in force: consul.leader.transfer" in what
        assert [verb for verb, *_ in guard.noted] == ["revert", "gone"]
        assert guard.plan.experiment.metadata.name == "short", "what the datacenter must be armed for"
        assert len([key for key in theirs.keys if key.startswith("hashidrill/kv-writes/")]) == 20, "not swept"
        assert "the data of its loads is not removed" in done.left[-1]
        again = theirs.heal(confirm=lambda *_: True)
        assert (again.reverted, again.stuck) == ([], []), "what heal wrote beside its journal counts"

    @pytest.mark.parametrize("why", ["not confirmed", "not armed", "another kind", "secrets"])
    def test_is_not_reverted_where_one_of_them_says_no(self, theirs, why):
        journal = theirs.path / "journal.jsonl"
        if why == "another kind":
            journal.write_text(journal.read_text().replace("consul.leader.transfer", "consul.config"))
        if why == "secrets":
            journal.write_text(journal.read_text().replace('"host": ', '"kept": "/etc/shadow", "host": ', 1))
        guard = Allowing(allows=why != "not armed")
        done = theirs.heal(confirm=lambda *_: why != "not confirmed", open_guard=lambda *_: guard)
        told = {"another kind": "its experiment never applies consul.config on consul-1", "secrets": "has secrets"}
        assert told.get(why, why) in done.refused
        assert (done.reverted, guard.noted) == ([], [])


class TestOurOwnJournal:
    def test_lines_that_others_add_say_nothing(self, dead):
        """Neither a fault of their making nor the word that ours is gone."""
        undo = {**dead.intent["undo"], "fault_id": "9-theirs", "kind": "consul.config"}
        with Journal(dead.path / "journal.jsonl", Clock()) as journal:
            journal.write("fault.intent", **{**dead.intent, "fault_id": "9-theirs", "undo": undo})
            journal.write("fault.gone", fault_id="0-transfer", evidence={})
            journal.write("end", outcome="complete", error="")
        done = dead.heal()
        assert (done.reverted, done.stuck, done.died) == (["0-transfer"], [], True)

    def test_a_line_of_another_run_or_of_another_file_or_said_twice_says_nothing(self, dead, tmp_path):
        other = tmp_path / "other"
        other.mkdir()
        with began(other, "run-2") as journal:
            journal.write("note", text="so that the numbers are the same")
            journal.write("fault.gone", fault_id="0-transfer", evidence={})
        gone = (other / "journal.jsonl").read_bytes().splitlines(keepends=True)[-1]
        own = (dead.path / "journal.jsonl").read_bytes().splitlines(keepends=True)
        for name, lines in (("journal.jsonl", [gone, own[-1]]), ("heal.jsonl", own)):
            with (dead.path / name).open("ab") as file:
                file.writelines(lines)
        assert [entry.event for entry in our_run(dead.path).entries] == ["run", "fault.intent"]
        assert dead.heal().reverted == ["0-transfer"]

    @pytest.mark.parametrize("line", [1, 2])
    def test_a_journal_that_lacks_lines_is_healed_as_far_as_it_goes_and_never_called_done(self, dead, line):
        undo = {**dead.intent["undo"], "fault_id": "1-lost"}
        dead.writes("fault.intent", **{**dead.intent, "fault_id": "1-lost", "undo": undo})
        path = dead.path / "journal.jsonl"
        note_of("run-1").write_text(json.dumps({"recording": str(dead.path), "lines": 3}))
        lines = path.read_bytes().splitlines(keepends=True)
        del lines[line]
        path.write_bytes(b"".join(lines))
        done = dead.heal()
        assert len(done.reverted) == 1
        assert "faults that it no longer names may be in force" in done.left[0]

    def test_a_copy_is_not_the_run_and_an_old_journal_is_none(self, dead, tmp_path):
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("journal.jsonl", "resolved.json"):
            (copy / name).write_bytes((dead.path / name).read_bytes())
        before, dead.path = dead.path, copy
        assert f"it is a copy: the run is recorded in {before}" in dead.heal().refused
        dead.path = before
        assert dead.heal().reverted == ["0-transfer"]
        (before / "journal.jsonl").write_bytes((copy / "journal.jsonl").read_bytes())
        assert "this is an old copy" in dead.heal().refused, "all of it was settled; its undo is of another time"

    def test_a_recording_that_was_moved_is_still_the_run(self, dead, tmp_path):
        moved = tmp_path / "moved"
        moved.mkdir()
        for name in ("journal.jsonl", "resolved.json"):
            (dead.path / name).rename(moved / name)
        note = note_of("run-1")
        note.write_text(json.dumps({**json.loads(note.read_text()), "recording": str(tmp_path / "is-gone")}))
        dead.path = moved
        assert dead.heal().reverted == ["0-transfer"]

    @pytest.mark.parametrize("name", ["journal.jsonl", "heal.jsonl", "resolved.json", "audit.jsonl", "artifacts"])
    def test_nothing_is_read_or_written_through_a_link(self, dead, tmp_path, name):
        mine = tmp_path / "precious"
        file = dead.path / name
        mine.write_bytes(file.read_bytes() if file.exists() else b"mine")
        before = mine.read_bytes()
        file.unlink(missing_ok=True)
        file.symlink_to(mine)
        done = dead.heal()
        assert f"its {name} is a link" in done.refused
        assert mine.read_bytes() == before


def test_what_is_called_after_a_load_waits_for_the_lock_even_if_the_run_has_that_name(tmp_path):
    """A name decides nothing: keys of a load that the run's id happens to be part of may be another run's."""
    dead = Dead(tmp_path)
    forget_open("run-1")
    (tmp_path / "journal.jsonl").unlink()
    with began(tmp_path, "kv", experiment="short", attached={"name": "staging"}) as journal:
        journal.write(dead.event, sync=True, **dead.intent)
    dead.locked_by("run-of-ben")
    done = dead.heal()
    assert "another game day holds" in done.left[0]
    assert len([key for key in dead.keys if key.startswith("hashidrill/kv-writes/")]) == 20
