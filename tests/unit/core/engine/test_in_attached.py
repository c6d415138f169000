"""Runs against an attached datacenter, in virtual time: agents are fakes behind their URLs, the engine is real."""

import contextlib
import json
from dataclasses import replace
from functools import partial

import anyio
import pytest

import virtual_time
from attached_estates import TOKEN, FakeEstate, consul_target, of_nomad
from engine_game import ALWAYS, Traffic, Writer
from hashidrill.core.engine.run import run
from hashidrill.core.engine.run_state import Teller
from hashidrill.core.errors import AttachError, FaultError, InterlockError, SelectorError
from hashidrill.core.experiment.attached import attached_to
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.model import DatacenterSpec, make_fault
from hashidrill.core.protocols.events import Bus
from hashidrill.core.recording.journal import UNSIGNED, Clock, Journal, read_journal
from hashidrill.core.util.redaction import Redactor
from hashidrill.lab.runs import heal
from hashidrill.staging.attach.datacenter import AttachedDatacenter
from hashidrill.staging.attach.discovery import discover
from hashidrill.staging.attach.http import Login, Secret
from hashidrill.staging.attach.plan import plan_of
from hashidrill.staging.runs import in_attached
from hashidrill.testing.fakes import FakeDatacenter

pytestmark = pytest.mark.lie

TRANSFER = {"fault": "consul.leader.transfer", "on": "consul:leader", "for": "5s"}


class Allowing:
    """Interlocks that say yes, and note what they were asked."""

    armed = "an arming"

    def __init__(self, *, stop_after_s=None, refuses=(), allows=True):
        self.plan = None
        self.admitted, self.noted = [], []
        self._stop_after_s, self._refuses, self._allows = stop_after_s, refuses, allows
        self.lost = False

    @contextlib.asynccontextmanager
    async def hold(self, plan, tell, recording, key=UNSIGNED):
        self.plan = plan
        if not self._allows:
            raise InterlockError("not armed")
        tell("held")
        async with anyio.create_task_group() as group:  # as those that watch a lock
            group.start_soon(anyio.sleep_forever)
            yield self
            group.cancel_scope.cancel()
        self.admitted.append("released")

    async def stopped(self):
        await anyio.sleep(self._stop_after_s or 1e6)
        return "somebody pressed stop"

    async def mine(self):
        return not self.lost

    @contextlib.asynccontextmanager
    async def admits(self, acting):
        if acting.kind in self._refuses:
            raise InterlockError(f"{acting.kind} must not be on {acting.target.host}")
        self.admitted.append((acting.kind, acting.target.host))
        yield

    def note(self, verb, what="", where="", note=""):
        self.noted.append((verb, what, where, note))


class Attached:
    """One run in the engine's own code, with the fake datacenter at the other end of its wires."""

    def __init__(self, folder, method=(TRANSFER,), *, world=None, interlocks=None, **more):
        self.folder, self.fake = folder, FakeEstate(world or FakeDatacenter())
        self.target = consul_target(folder)
        self.estate = virtual_time.run(self.fake.found(self.target))
        self.interlocks = interlocks or Allowing()
        document = {
            "apiVersion": "hashidrill/v1",
            "kind": "Experiment",
            "metadata": {"name": "short", "title": "A short one", "why": "It tests the engine"},
            "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "5/s"}},
            "steady_state": ALWAYS,
            "recovery": {"for": "1s"},
            "method": list(method),
            "expect": [{"no_acknowledged_write_lost": {"load": "kv-writes"}}],
            **more,
        }
        self.resolved = attached_to(
            Document("x.yaml", json.dumps(document)),
            self.estate.as_datacenter(),
            name="staging",
            path=folder / "x.yaml",
        )
        self.traffic = self.writer = None

    def run(self, **more):
        async def look(target, stack):
            wires = self.fake.wires(target)
            for wire in wires.values():
                await stack.enter_async_context(wire)
            return await discover(target, wires), wires

        def generator(clock, _id):
            self.traffic = Traffic(clock, None, None, {})
            return self.traffic

        def recording(path, redactor):
            self.writer = Writer(path, redactor)
            return self.writer

        def engine(*args, load_generator, clock, **kept):
            self.entrances, self.fleet = (load_generator.keywords[key] for key in ("entrances", "fleet"))
            return run(
                *args, **kept, clock=virtual_time.VirtualClock(), load_generator=generator, recording_writer=recording
            )

        transport = lambda login: self.fake.transport(login.service)  # noqa: E731 - one line, used once
        info = {"id": "run-1", "attached": {"name": "staging"}, "undos": str(self.folder / "undos")}
        spec = {
            "recording": str(self.folder),
            "resolved": self.resolved.to_data(),
            "target": self.target.handed_over(),
            "estate": self.estate.to_data(),
            "secrets": [],
            "info": info,
            "origin_ns": 0,
        }
        given = {
            "look": look,
            "interlocks": lambda *_: self.interlocks,
            "run": engine,
            "datacenter": partial(AttachedDatacenter, make_transport=transport),
        }
        return virtual_time.run(in_attached.run_given(json.loads(json.dumps(spec)), **(given | more)))

    @property
    def journal(self):
        return read_journal(self.folder / "journal.jsonl")

    @property
    def events(self):
        return [entry.event for entry in self.journal]

    def datacenter(self):
        """The datacenter as a later process has it."""
        transport = lambda login: self.fake.transport(login.service)  # noqa: E731 - as above
        spec = DatacenterSpec.model_validate(self.estate.as_datacenter())
        return AttachedDatacenter(
            spec, self.target, self.estate, self.fake.wires(self.target), make_transport=transport
        )


def test_a_fault_of_consuls_api_is_applied_proven_and_seen_gone_by_address_alone(tmp_path):
    game = Attached(tmp_path)
    assert game.run() == "complete", game.journal[-1].data
    assert [event for event in game.events if event.startswith("fault.")] == [
        "fault.intent",
        "fault.applied",
        "fault.proven",
        "fault.reverted",
        "fault.gone",
    ]
    assert game.fake.world.consul.leader != "consul-1"
    proof = next(entry for entry in game.journal if entry.event == "fault.proven").data["evidence"]
    assert proof["measured"] == f"{game.fake.world.consul.leader} leads in term 3"


def test_the_interlocks_are_held_around_the_run_and_asked_for_each_fault(tmp_path):
    game = Attached(tmp_path)
    game.run()
    assert game.interlocks.admitted == [("consul.leader.transfer", "consul-1"), "released"]
    verbs = [(one.verb, one.what, one.on, one.hosts) for one in game.interlocks.plan.actions]
    servers = ("consul-1", "consul-2", "consul-3")
    assert verbs == [
        ("offer", "consul.kv.write", "consul:clients", ("client-1",)),
        ("apply", "consul.leader.transfer", "consul:leader", servers),
    ]
    assert game.interlocks.plan.run_id == "run-1"
    assert game.fleet is None, "loads are offered here unless the file says otherwise"


def test_what_a_carrier_tells_while_the_run_goes_on_is_in_its_journal_without_secrets(tmp_path):
    """Like that a revert waits for a host that restarts: without it, nobody knows later why it took so long."""
    game = Attached(tmp_path)
    said = f"waiting for up to 90s: client-1: the client is down {TOKEN}"

    @contextlib.asynccontextmanager
    async def carry(*_, tell, **more):
        tell("before the run")
        async with anyio.create_task_group() as tasks:

            async def waits():
                await anyio.sleep(5)
                tell(said)

            tasks.start_soon(waits)
            yield {}
            tasks.cancel_scope.cancel()
        tell("after the run")

    assert game.run(carry=carry) == "complete"
    notes = [entry.data["text"] for entry in game.journal if entry.event == "note"]
    assert [note for note in notes if "run" in note] == []
    [note] = [note for note in notes if note.startswith("waiting for up to 90s: client-1: the client is down ")]
    assert TOKEN not in note
    assert game.journal[-1].event == "end"


def test_a_disk_that_is_full_does_not_end_the_revert_that_tells_what_it_waits_for(tmp_path):
    heard = []
    tell = Teller(Bus(heard.append), Redactor())

    class Full:
        def write(self, *_, **more):
            raise OSError(28, "No space left on device")

    with tell.kept_in(Full()):
        tell("waiting")
    assert [event.text for event in heard] == ["waiting"]


def test_nothing_is_touched_when_the_interlocks_say_no(tmp_path):
    game = Attached(tmp_path, interlocks=Allowing(allows=False))
    looked = len(game.fake.asked)
    with pytest.raises(InterlockError, match="not armed"):
        game.run()
    assert {request.method for request in game.fake.asked[looked:]} == {"GET"}
    assert not (tmp_path / "journal.jsonl").exists()


def test_a_fault_that_the_interlocks_refuse_is_not_applied(tmp_path):
    game = Attached(tmp_path, interlocks=Allowing(refuses={"consul.leader.transfer"}))
    assert game.run() == "fault"
    assert "fault.intent" not in game.events
    assert game.fake.world.consul.leader == "consul-1"
    assert "must not be on consul-1" in game.journal[-1].data["error"]


def test_the_stop_button_reverts_and_ends_the_run(tmp_path):
    game = Attached(tmp_path, [TRANSFER | {"for": "50s"}], interlocks=Allowing(stop_after_s=10))
    assert game.run() == "interrupted"
    assert game.events.count("fault.gone") == 1
    assert game.journal[-1].data["error"] == "somebody pressed stop"


THEIRS = {
    "app/config": b"theirs",
    "hashidrill/kv-writes-of-ben/1": b"theirs",
    "hashidrill-once/kv-writes/run-0/0/1": b"x",
}


def filled(world, **keys):
    """What this run's load put there, its process killed before it could clean up; and what others did."""
    ours = [f"hashidrill/kv-writes/{n}" for n in range(20)] + ["hashidrill-once/kv-writes/run-1/0/7"]
    for key, value in {**THEIRS, **dict.fromkeys(ours, b"ours"), **keys}.items():
        world.consul.kv.answer("PUT", f"/v1/kv/{key}", {}, value)


def test_a_run_leaves_none_of_its_keys_and_all_of_the_others(tmp_path):
    game = Attached(tmp_path)
    filled(game.fake.world)
    assert game.run() == "complete"
    assert {key: entry.value for key, entry in game.fake.world.consul.kv.entries.items()} == THEIRS
    assert game.interlocks.noted == [
        ("clean-up", "consul.kv.write", "keys below hashidrill/kv-writes/", "20 removed"),
        ("clean-up", "consul.kv.write", "keys below hashidrill-once/kv-writes/run-1/", "1 removed"),
    ]
    assert game.interlocks.admitted[-1] == "released", "the lock is held until nothing is left"


def test_neither_does_one_that_is_stopped_nor_one_that_crashes(tmp_path):
    game = Attached(tmp_path, [TRANSFER | {"for": "50s"}], interlocks=Allowing(stop_after_s=10))
    filled(game.fake.world)
    assert game.run() == "interrupted"
    assert set(game.fake.world.consul.kv.entries) == set(THEIRS)

    async def crashing(*_, **__):
        filled(game.fake.world)
        raise OSError("whatever ended it")

    with pytest.raises(ExceptionGroup):
        game.run(run=crashing)
    assert set(game.fake.world.consul.kv.entries) == set(THEIRS)


def test_what_could_not_be_removed_is_told_and_in_the_audit(tmp_path):
    game = Attached(tmp_path)
    filled(game.fake.world)
    game.fake.weak = {"/v1/kv/hashidrill/kv-writes/"}
    assert game.run() == "complete"
    [(verb, _, where, note), *_] = game.interlocks.noted
    assert (verb, where) == ("left", "keys below hashidrill/kv-writes/")
    assert "HTTP 403 Permission denied" in note
    assert "hashidrill/kv-writes/3" in game.fake.world.consul.kv.entries


def test_a_run_that_lost_its_lock_leaves_what_whoever_holds_it_now_may_use(tmp_path):
    """Another run of the same experiment writes the very same keys."""
    game = Attached(tmp_path)
    game.interlocks.lost = True
    filled(game.fake.world)
    game.run()
    left = set(game.fake.world.consul.kv.entries) - set(THEIRS)
    assert len(left) == 20
    assert all(key.startswith("hashidrill/kv-writes/") for key in left), "what has the name of the run is gone"
    [(verb, kind, where, note)] = [line for line in game.interlocks.noted if line[0] == "left"]
    assert (verb, kind, where) == ("left", "consul.kv.write", "keys below hashidrill/kv-writes/")
    assert "another run may use it by now" in note


def test_loads_go_to_workers_on_the_datacenters_own_nomad(tmp_path):
    game = Attached(tmp_path)
    game.fake.answers |= of_nomad()
    login = Login("nomad", "http://10.73.0.21:4646", token=Secret("of-nomad"))
    game.target = replace(game.target, logins={**game.target.logins, "nomad": login}, engine={"nomad": {"workers": 2}})
    game.estate = virtual_time.run(game.fake.found(game.target))
    assert game.run() == "complete", game.journal[-1].data
    assert (game.fleet["spawner"], game.fleet["workers"]) == ("nomad", 2)
    assert Login.received(game.fleet["login"]).token.reveal() == "of-nomad"
    [line] = [each for each in game.interlocks.noted if each[0] == "workers"]
    assert line == ("workers", "nomad job", "2 clients", "hashidrill-generators-run-1")


def test_workers_without_a_nomad_are_refused_before_anything_is_touched(tmp_path):
    game = Attached(tmp_path)
    game.target = replace(game.target, engine={"nomad": {"workers": 2}})
    with pytest.raises(AttachError, match=r"engine\.nomad: Nomad is not attached"):
        game.run()
    assert not (tmp_path / "journal.jsonl").exists()


def test_a_datacenter_that_changed_since_it_was_looked_at_is_not_touched(tmp_path):
    game = Attached(tmp_path)
    game.fake.world.consul.answer(game.fake.world.hosts["client-1"], "PUT", "/v1/agent/leave", {}, b"")
    with pytest.raises(InterlockError, match="staging has changed since the experiment was checked: client-1; run it"):
        game.run()


def test_probes_go_through_the_agents_own_urls_with_the_token(tmp_path):
    game = Attached(tmp_path)
    game.run()
    leaders = [row for row in game.writer.rows if getattr(row, "signal", "") == "raft.leader" and not row.host]
    assert leaders
    assert all(row.ok for row in leaders[:3])
    assert {request.headers.get("X-Consul-Token") for request in game.fake.asked} == {TOKEN}
    assert not any(row.signal.startswith(("disk.", "process.")) for row in game.writer.rows if hasattr(row, "signal"))


def test_loads_are_told_what_the_agents_want_of_them(tmp_path):
    game = Attached(tmp_path)
    game.run()
    assert game.entrances["http://10.73.0.31:8500"]["headers"] == {"X-Consul-Token": TOKEN}


def test_the_recording_names_the_datacenter_and_holds_no_token(tmp_path):
    game = Attached(tmp_path)
    game.run()
    (tmp_path / "token").unlink()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN.encode() not in written
    assert TOKEN not in json.dumps(game.writer.run)
    assert game.writer.run["attached"]["notes"] == []
    assert game.writer.run["attached"]["addresses"] == {"consul": "http://10.73.0.11:8500"}
    assert game.journal[0].data["attached"] == {"name": "staging"}
    assert (tmp_path / "logs" / "README").read_text().startswith("The logs of an attached datacenter are not collected")
    assert any("no logs, and no figures of disks" in entry.data.get("text", "") for entry in game.journal)


def test_what_the_experiment_says_of_its_own_datacenter_is_said_not_to_count(tmp_path):
    """One that was written for another version must not pass for a test of that one."""
    game = Attached(tmp_path, datacenter={"consul": {"version": "1.10.3", "config": {"log_level": "warn"}}})
    assert game.run() == "complete"
    said = "the experiment's settings for its own datacenter do not count: consul.version, consul.config"
    assert said in game.writer.run["attached"]["notes"]
    assert said in [entry.data.get("text") for entry in game.journal]


def test_a_fault_that_its_host_cannot_have_is_not_applied(tmp_path):
    """The check before the run refuses it; where somebody got past that, the engine does."""
    game = Attached(tmp_path, [{"fault": "disk.latency", "on": "consul:leader", "with": {"delay": "1s"}, "for": "5s"}])
    assert game.run() == "fault"
    assert "lacks DiskCanary" in game.journal[-1].data["error"]


def test_an_old_consul_without_a_transfer_in_its_api_cannot_be_deposed_by_address(tmp_path):
    world = FakeDatacenter()
    world.consul.version = "1.10.3"
    game = Attached(tmp_path, world=world)
    assert game.run() == "fault"
    assert "consul-1 lacks PacketFilter" in game.journal[-1].data["error"]
    assert "nothing was applied" in game.journal[-1].data["error"]


def journalled(folder, *events, name="staging"):
    with Journal(folder / "journal.jsonl", Clock(), redactor=Redactor()) as journal:
        journal.write("run", id="run-1", experiment="x", root="", attached={"name": name})
        for event, data in events:
            journal.write(event, sync=True, **data)


def intent(game):
    """What a transfer of the leadership had journalled when its engine died."""

    async def main():
        datacenter = game.datacenter()
        fault = make_fault(game.resolved.experiment.faults[0], datacenter)
        [target] = await datacenter.select("consul:leader")
        undo = {**fault.plan(target, fault_id="0-transfer"), "prior": dict(await fault.prior(target))}
        await fault.apply(undo)
        return undo

    undo = virtual_time.run(main())
    return ("fault.intent", {"fault_id": "0-transfer", "kind": undo["kind"], "step": 0, "undo": undo})


def test_what_a_killed_engine_left_is_reverted_from_its_journal(tmp_path):
    game = Attached(tmp_path)
    journalled(tmp_path, intent(game))
    healed = virtual_time.run(heal.heal_run(tmp_path, game.datacenter(), attached="staging"))
    assert (healed.reverted, healed.stuck, healed.refused) == (["0-transfer"], [], "")
    assert [entry.event for entry in read_journal(tmp_path / "journal.jsonl")][-3:] == [
        "fault.reverted",
        "fault.gone",
        "end",
    ]


def test_a_run_is_healed_only_through_the_datacenter_that_it_ran_against(tmp_path):
    game = Attached(tmp_path)
    journalled(tmp_path, intent(game), name="another")
    healed = virtual_time.run(heal.heal_run(tmp_path, game.datacenter(), attached="staging"))
    assert healed.refused == "it ran against another, not against staging"
    alone = virtual_time.run(heal.heal_run(tmp_path))
    assert "attached datacenter another: `hashidrill heal --attach FILE` reverts" in alone.refused


def test_what_is_not_there_is_said_by_name(tmp_path):
    datacenter = Attached(tmp_path).datacenter()
    for call, said in (
        (lambda: datacenter.select("nomad:leader"), "staging has no nomad"),
        (lambda: datacenter.select("host:consul-9"), "there is no host 'consul-9'"),
        (lambda: datacenter.endpoints("host:client-1/vault"), "client-1: there is no vault"),
    ):
        with pytest.raises(SelectorError) as caught:
            virtual_time.run(call())
        assert said in str(caught.value)
    with pytest.raises(FaultError, match="there is no nomad to ask for /v1/x"):
        virtual_time.run(datacenter.hosts["client-1"].api("GET", "/v1/x", agent="nomad"))


def test_a_plan_has_what_would_be_touched_in_order_of_time(tmp_path):
    game = Attached(tmp_path, [TRANSFER | {"at": "20s"}, TRANSFER | {"at": "1s", "name": "first"}])
    plan = plan_of(game.resolved.experiment, game.target, game.estate)
    assert [(one.verb, one.at_s, one.name, one.step) for one in plan.actions] == [
        ("offer", 0.0, "kv-writes", -1),
        ("apply", 1.0, "first", 1),
        ("apply", 20.0, "", 0),
    ]


def with_silent_client(folder):
    """Its client agents listen to their own machines alone, as many do."""
    game = Attached(folder, world=FakeDatacenter(servers=3, clients=2))
    game.fake.silent = {"10.73.0.31", "10.73.0.32"}
    return game


def test_where_no_agent_of_a_via_answers_loads_go_to_the_address_that_was_given_and_that_is_said(tmp_path):
    game = with_silent_client(tmp_path)
    game.run()
    assert [one.endpoints for one in game.traffic.specifications] == [["http://10.73.0.11:8500"]]
    assert game.entrances["http://10.73.0.11:8500"]["headers"] == {"X-Consul-Token": TOKEN}
    said = [entry.data["text"] for entry in game.journal if entry.event == "note"]
    assert any("no load goes to agents that do not answer" in text and "client-1/consul" in text for text in said)
    assert any("does not answer: client-1/consul" in note for note in game.writer.run["attached"]["notes"])


def test_loads_go_to_the_agents_that_answer(tmp_path):
    game = with_silent_client(tmp_path)
    game.fake.silent = {"10.73.0.31"}
    game.run()
    assert [one.endpoints for one in game.traffic.specifications] == [["http://10.73.0.32:8500"]]
