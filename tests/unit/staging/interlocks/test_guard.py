"""What is refused before anything happens, each with its own message; and what a run that is let in leaves behind."""

import datetime as dt
import json
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import anyio
import pytest

import virtual_time
from fake_kv import FakeKv
from hashidrill.core.engine.run_state import Acting
from hashidrill.core.errors import FaultError, InterlockError, RevertError
from hashidrill.core.protocols.abc import ApiAnswer, Target
from hashidrill.core.protocols.rights import Right
from hashidrill.core.util.redaction import Redactor
from hashidrill.staging.interlocks import arming, stop
from hashidrill.staging.interlocks.anchor import Anchor
from hashidrill.staging.interlocks.arming import Armed, Arming
from hashidrill.staging.interlocks.blast_radius import Window
from hashidrill.staging.interlocks.guard import Elsewhere, Guard, Subject
from hashidrill.staging.interlocks.kv import Kv
from hashidrill.staging.interlocks.lock import Holder
from hashidrill.staging.interlocks.production import Named
from hashidrill.staging.interlocks.settings import ANCHOR_KEY, TAKEN_BACK_KEY, settings_of
from tasks import raising

pytestmark = pytest.mark.lie

ONE = dt.datetime(2026, 11, 23, 13, tzinfo=dt.UTC)
ARMED, LOCK, STOP = (f"hashidrill-interlocks/{name}" for name in ("armed", "lock", "stop"))
SERVERS = frozenset({"consul-1", "consul-2", "consul-3"})
DIGEST = "sha256:aa11"
GOOD = Arming(
    "ana", (Armed("slow-leader-disk", DIGEST),), "staging-1", ONE - dt.timedelta(hours=1), ONE + dt.timedelta(hours=2)
)
WIDE = replace(GOOD, experiments=(Armed("slow-leader-disk", DIGEST, breaks_quorum=True),))
FROZEN = Armed("frozen-leader", DIGEST)
FIXED = Anchor.of(settings_of({}, "x"), "staging-1").text()
SECRET = "0e9a4c7b-consul-token-of-ana"
SUBJECT = Subject(
    "staging-1",
    "staging.yaml",
    "slow-leader-disk",
    DIGEST,
    "20261123-130000-slow-leader-disk-ab12",
    "ana@desk",
    names=(Named("datacenter", "dc1"), *(Named("host", host) for host in sorted(SERVERS))),
    metas={"consul-1": {"consul.environment": "staging"}},
    roles={host: {"consul": "server"} for host in SERVERS},
    voters={"consul": tuple(SERVERS)},
    windows=(Window(0, "disk.latency on consul:leader", SERVERS, 0, 20),),
    loads={"kv-writes": "consul.kv.write"},
    rights={Right("consul", "operator"): ["probes"]},
    needs_s=120.0,
)


RESTORE = replace(
    SUBJECT,
    may_break_quorum=True,
    breaks_quorum=True,
    windows=(Window(0, "consul.snapshot.restore on consul:leader", SERVERS, 0, 20, 3, sets_back=True),),
)


class World(FakeKv):
    """Consul with KV, a catalog, and servers that may be down."""

    def __init__(self, arm=GOOD, **more):
        super().__init__({ANCHOR_KEY: FIXED} | ({ARMED: arm.text()} if arm else {}), **more)
        self.services = {"consul": [], "web": ["staging"]}
        self.instances = {}
        self.down = frozenset()
        self.missing = []
        self.posted = []

    async def request(self, method, path, **more):
        if path == "/v1/catalog/services" and not self.silent:
            self.reads.append((method, path))
            return ApiAnswer(200 if self.services is not None else 403, json.dumps(self.services).encode())
        if path in self.instances:
            return ApiAnswer(200, json.dumps(self.instances[path]).encode())
        return await super().request(method, path, **more)

    def guard(self, written=None, folder=Path("/nowhere"), now=None):
        async def lacking(calls, rights):
            return [right for right in rights if right in self.missing]

        async def down():
            return self.down

        async def post(url, data):
            self.posted.append(data)

        began = anyio.current_time()
        return Guard(
            settings_of(written or {}, "staging.yaml"),
            {"consul": self},
            lacking={"consul": lacking},
            down=down,
            now=now or (lambda: ONE + dt.timedelta(seconds=anyio.current_time() - began)),
            redactor=Redactor([SECRET]),
            folder=folder,
            post=post,
        )

    def left(self):
        """What is in Consul beside the arming."""
        return sorted(key for key in self.keys if key not in {ARMED, ANCHOR_KEY})


@virtual_time.ran
async def check(world, subject=SUBJECT, written=None, **more):
    await world.guard(written, **more).check(subject)


@virtual_time.ran
async def held(world, play=None, subject=SUBJECT, written=None, told=None):
    async with world.guard(written).held(subject, (told if told is not None else []).append) as one:
        if play is not None:
            await play(one)


# who is refused


ELSEWHERE = replace(
    SUBJECT,
    agents=(
        Elsewhere("nomad", "nomad-1", "10.9.0.1"),
        Elsewhere("nomad", "node-7", "10.9.0.7"),
        Elsewhere("vault", "v", "10.9.0.9"),
    ),
)


@pytest.mark.parametrize(
    ("instances", "said"),
    [
        (
            {},
            "v (10.9.0.9): the Consul that arms staging-1 does not list this nomad and vault: it has no node",
        ),
        (
            {"nomad": ["10.9.0.1"], "vault": ["10.9.0.9"]},
            "node-7 (10.9.0.7): the Consul that arms staging-1 does not list this nomad",
        ),
        ({"nomad": ["10.9.0.1", "10.9.0.7", "10.9.0.9"], "vault": []}, "does not list this vault"),
        ({"web": ["10.9.0.1", "10.9.0.7", "10.9.0.9"]}, "does not list this nomad and vault"),
    ],
)
def test_a_consul_arms_no_nomad_and_no_vault_but_its_own(instances, said):
    """An attach file may name the address of any Nomad beside a Consul that its author armed."""
    with pytest.raises(InterlockError, match=re.escape(said)):
        check(naming(World(), instances), ELSEWHERE)


def test_what_is_registered_in_the_consul_that_arms_may_be_attached():
    check(naming(World(), {"nomad-client": ["10.9.0.7"], "Nomad": ["10.9.0.1"], "vault": ["10.9.0.9"]}), ELSEWHERE)


def naming(world, instances):
    """`world` with these services, by the addresses of their instances: those of their nodes, or their own."""
    world.services |= {name: [] for name in instances}
    for name, addresses in instances.items():
        key = "Address" if name.startswith("nomad") else "ServiceAddress"
        world.instances[f"/v1/catalog/service/{name}"] = [{"Address": "10.0.0.1", key: each} for each in addresses]
    return world


def locked(world):
    async def lock():
        kv = Kv(world)
        value = json.dumps(vars(Holder("ben@desk", "run-9", "frozen-leader", "12:50")))
        await kv.put(LOCK, value, acquire=await kv.new_session("other", 600))

    virtual_time.run(lock())
    world.writes.clear()
    world.sessions = dict.fromkeys(world.sessions, (1000000000.0, 0))
    return world


def with_(world=None, **changes):
    world = world or World()
    for name, value in changes.items():
        setattr(world, name, value)
    return world


def later(**change):
    return replace(GOOD, **change)


HOUR = dt.timedelta(hours=1)
REFUSED = {
    "not armed": (World(None), SUBJECT, "not armed: there is nothing at Consul's key hashidrill-interlocks/armed"),
    "expired": (World(later(until=ONE - HOUR / 60)), SUBJECT, "expired at 2026-11-23T12:59:00Z"),
    "from the future": (World(later(since=ONE + HOUR)), SUBJECT, "is from the future"),
    "never armed": (with_(World(None), keys={}), SUBJECT, "not armed: nothing was ever armed there"),
    "for another content": (World(), replace(SUBJECT, digest="sha256:b"), "is for another content of slow-leader-disk"),
    "taken back, and put there again": (World(), SUBJECT, "was revoked; arm it again"),
    "a file of another name": (World(), replace(SUBJECT, datacenter="mine"), "metadata.name is mine and not staging-1"),
    "for another experiment": (World(later(experiments=(FROZEN,))), SUBJECT, "is for frozen-leader, not for"),
    "for another datacenter": (World(later(datacenter="staging-2")), SUBJECT, "is for the datacenter 'staging-2'"),
    "malformed": (World(None), SUBJECT, "is malformed: it is not JSON"),
    "too long a run": (World(), replace(SUBJECT, needs_s=7201), "ends too early: 7200s are left"),
    "another clock": (World(date="Mon, 23 Nov 2026 13:05:00 GMT"), SUBJECT, "are 300s apart"),
    "a host of production": (World(), replace(SUBJECT, names=[Named("host", "prod-1")]), "production: host 'prod-1'"),
    "meta of production": (World(), replace(SUBJECT, metas={"x": {"consul.environment": "production"}}), "node x says"),
    "a tag of production": (with_(services={"web": ["prod"]}), SUBJECT, "production: tag 'prod'"),
    "a service of production": (with_(services={"prod-web": []}), SUBJECT, "production: service 'prod-web'"),
    "stop button": (with_(World()), SUBJECT, "the stop button is pressed"),
    "already locked": (None, SUBJECT, "already locked: another game day holds hashidrill-interlocks/lock: ben@desk"),
    "quorum": (World(), replace(SUBJECT, windows=[Window(0, "x", SERVERS, 0, 9, 3)]), "breaks the quorum of consul"),
    "quorum by a server that is down": (with_(down=frozenset({"consul-2"})), SUBJECT, "1 already down (consul-2)"),
    "quorum, said by the command alone": (
        World(),
        replace(SUBJECT, windows=[Window(0, "x", SERVERS, 0, 9, 3)], breaks_quorum=True),
        "the experiment must say `breaks_quorum: true`",
    ),
    "quorum, said by the experiment alone": (
        World(),
        replace(SUBJECT, windows=[Window(0, "x", SERVERS, 0, 9, 3)], may_break_quorum=True),
        "the command must say --breaks-quorum",
    ),
    "quorum, not said by the arming": (
        World(),
        replace(RESTORE, windows=[Window(0, "x", SERVERS, 0, 9, 3)]),
        "the arming must say so (`hashidrill staging arm --breaks-quorum`)",
    ),
    "blast radius": (
        World(),
        replace(
            SUBJECT,
            roles={f"client-{n}": {"nomad": "client"} for n in range(10)},
            voters={},
            windows=[Window(0, "x", frozenset(f"client-{n}" for n in range(10)), 0, 9, 3)],
        ),
        "the blast radius is too wide: the method may disturb 3 of 10 nomad clients",
    ),
    "token too weak": (with_(missing=[Right("consul", "operator")]), SUBJECT, "it lacks consul: operator: read (for"),
    "token may not read": (with_(denied={("GET", "/v1/kv/")}), SUBJECT, "the token may not read the key"),
    "token may not list services": (with_(services=None), SUBJECT, "Consul did not list its services: HTTP 403"),
    "nobody answers": (with_(silent=True), SUBJECT, "no answer in time"),
}
REFUSED["malformed"][0].put(ARMED, "armed!")
REFUSED["taken back, and put there again"][0].put(TAKEN_BACK_KEY, json.dumps({GOOD.nonce: "2026-11-23T15:00:00Z"}))
REFUSED["stop button"][0].put(STOP, stop.Pressed("ben", "12:59").text())


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_it_is_refused_before_anything_happens(case):
    world, subject, said = REFUSED[case]
    world = locked(World()) if world is None else world
    before, sessions = {key: list(entry) for key, entry in world.keys.items()}, dict(world.sessions)
    with pytest.raises(InterlockError) as refused:
        check(world, subject)
    assert said in str(refused.value)
    assert refused.value.exit_code == 2
    with pytest.raises(InterlockError) as again:
        held(world, subject=subject)
    assert said in str(again.value)
    assert world.writes == [], "it only looked"
    assert (world.keys, world.sessions) == (before, sessions)


def test_each_reason_has_a_message_of_its_own():
    said = [text for case, (_, _, text) in REFUSED.items() if not case.startswith("quorum, said")]
    assert len(set(said)) == len(said)


def test_what_nothing_speaks_against_may_run_and_to_check_it_writes_nothing():
    world = World()
    check(world)
    assert world.reads
    assert world.writes == []


def test_all_three_may_allow_to_break_the_quorum():
    wide = replace(SUBJECT, windows=[Window(0, "x", SERVERS, 0, 9, 3)], breaks_quorum=True, may_break_quorum=True)
    check(World(WIDE), wide)


def test_a_datacenter_without_consul_has_nowhere_to_keep_a_lock():
    with pytest.raises(InterlockError, match="kept in Consul, but the attach file names no Consul"):
        Guard(
            settings_of({}, "x"), {"nomad": None}, lacking={}, down=None, now=None, redactor=Redactor(), folder=Path()
        )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"arming": {"file": "armed.json"}}, "interlocks.arming: an arming in a file must be signed"),
        ({"armin": {}}, "interlocks.armin: Extra inputs are not permitted"),
        ({"stop": {"within": "10m"}}, "interlocks.stop.within: give 200ms to 30s"),
        ({"lock": {"ttl": "5s"}}, "interlocks.lock.ttl: Consul accepts 10s to 24h"),
        ({"blast_radius": {"clients": "0%"}}, "interlocks.blast_radius.clients: must be over 0%"),
        (["x"], "interlocks: must be a mapping"),
    ],
)
def test_settings_that_cannot_be_are_named(written, said):
    with pytest.raises(InterlockError) as wrong:
        settings_of(written, "staging.yaml")
    assert str(wrong.value).startswith("staging.yaml: ")
    assert said in str(wrong.value)


# a signed file


@pytest.mark.lie
def test_a_signed_file_arms_and_a_changed_one_does_not(tmp_path):
    """The first of these was admitted: an attach file pinned a key of its own, and signed for itself."""
    key, check_ = arming.new_key(), globals()["check"]
    written = {"arming": {"file": "armed.json", "public_key": arming.public_of(key)}}
    with pytest.raises(InterlockError, match=r"interlocks\.arming\.public_key is ed25519:.* and not unset"):
        check_(World(), written=written, folder=tmp_path)
    fixed = Anchor.of(settings_of(written, "x"), "staging-1").text().encode()

    def check(world, **more):
        world.keys[ANCHOR_KEY] = [fixed, "", 1]
        check_(world, **more)

    with pytest.raises(InterlockError, match=r"not armed: there is nothing at .*armed\.json"):
        check(World(None), written=written, folder=tmp_path)
    file = tmp_path / "armed.json"
    file.write_text(arming.sign(GOOD, key))
    check(World(None), written=written, folder=tmp_path)
    file.write_text(file.read_text().replace("ana", "eve"))
    with pytest.raises(InterlockError, match="has a bad signature"):
        check(World(None), written=written, folder=tmp_path)
    file.write_text(GOOD.text())
    with pytest.raises(InterlockError, match="is not signed"):
        check(World(None), written=written, folder=tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(InterlockError, match="cannot be read"):
        check(World(None), written=written, folder=tmp_path)


# a run that is let in


def acting(host="consul-1", step=0, fault_id="0-disk.latency"):
    return Acting("disk.latency", Target(host, "10.0.0.1", "consul"), fault_id, step, 20.0)


def lines(world):
    return [json.loads(world.value(key)) for key in world.left()]


def test_a_run_leaves_its_audit_lines_and_nothing_else():
    world, told = World(), []

    async def play(one):
        assert LOCK in world.keys
        async with one.admits(acting()):
            await anyio.sleep(20)

    held(world, play, told=told, written={"audit": {"webhook": "https://hooks.example/x"}})
    assert {key.split("/")[0] for key in world.left()} == {"hashidrill-audit"}
    assert not world.sessions
    assert [line["verb"] for line in lines(world)] == ["begin", "load", "apply", "gone", "end"]
    assert [line["verb"] for line in world.posted] == ["begin", "load", "apply", "gone", "end"]
    assert sum(text.startswith("audit: ") for text in told) == 5
    apply = lines(world)[2]
    assert (apply["who"], apply["what"], apply["where"]) == ("ana@desk", "disk.latency", "consul-1")
    assert apply["until"] == "2026-11-23T13:00:20.000Z"


def test_a_second_one_is_kept_out_while_the_first_goes_on():
    world = World()

    async def play(_):
        with pytest.raises(InterlockError, match=r"already locked: .*ana@desk, with slow-leader-disk"):
            await world.guard().check(SUBJECT)

    held(world, play)


def test_the_line_of_a_fault_is_there_before_the_fault_is():
    world = World()

    async def play(one):
        async with one.admits(acting()):
            assert lines(world)[-1]["verb"] == "apply"

    # the lock's own key is no line
    async def only_lines(one):
        world.keys.pop(LOCK)
        await play(one)

    held(world, only_lines)


def test_no_fault_without_a_line_where_nothing_explains_consuls_silence():
    world = World()

    async def play(one):
        world.denied.add(("PUT", "/v1/kv/hashidrill-audit"))
        with pytest.raises(InterlockError, match="nothing was applied: Consul did not store the audit line"):
            async with one.admits(acting()):
                raise AssertionError
        world.denied.clear()

    held(world, play)


def test_a_line_late_because_of_a_fault_in_force_does_not_stop_the_method_nor_hold_up_its_revert():
    world = World()

    async def play(one):
        async with one.admits(acting()):
            world.silent = True
            async with one.admits(acting(fault_id="1-disk.latency")):
                began = anyio.current_time()
            assert anyio.current_time() == began, "a revert waits for nobody"
            world.silent = False

    held(world, play)
    assert [line["verb"] for line in lines(world)] == ["begin", "load", "apply", "apply", "gone", "gone", "end"]


def test_a_fault_on_another_host_by_now_is_refused_though_the_plan_allowed_it():
    async def play(one):
        async with one.admits(acting()):
            with pytest.raises(InterlockError, match="nothing was applied: the method breaks the quorum of consul"):
                async with one.admits(acting("consul-2", 1, "1-disk.latency")):
                    raise AssertionError

    held(World(), play)


def test_a_fault_is_refused_once_another_server_went_down_by_itself():
    world = World()

    async def play(one):
        world.down = frozenset({"consul-3"})
        with pytest.raises(InterlockError, match="with 1 already down"):
            async with one.admits(acting()):
                raise AssertionError

    held(world, play)


def test_a_fault_that_follows_leaves_its_host_before_it_takes_the_next():
    async def play(one):
        moved = anyio.Event()

        async def first():
            async with one.admits(acting()):
                await moved.wait()
                await anyio.sleep(3)  # its revert

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await anyio.sleep(1)
            moved.set()
            began = anyio.current_time()
            async with one.admits(acting("consul-2", 0, "0-disk.latency-move1")):
                assert 3 <= anyio.current_time() - began < 4

    held(World(), play)


def test_a_fault_that_is_stuck_is_said_to_be():
    world = World()

    async def play(one):
        with pytest.raises(RevertError):
            async with one.admits(acting()):
                raise RevertError("disk.latency on consul-1 is still seen")

    held(world, play)
    assert [line["verb"] for line in lines(world)][2:] == ["apply", "stuck", "end"]


# stops


def stopped(world, during=None, **more):
    whys = []

    async def play(one):
        async with anyio.create_task_group() as group:
            if during is not None:
                group.start_soon(during)
            began = anyio.current_time()
            whys.extend([await one.stopped(), anyio.current_time() - began])
            group.cancel_scope.cancel()

    held(world, play, **more)
    return whys


FROZEN_ALONE = replace(GOOD, experiments=(FROZEN,)).text()


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda world: world.put(STOP, stop.Pressed("ben", "13:00", "wrong cluster").text()), "pressed by ben"),
        (lambda world: world.keys.pop(ARMED), "not armed"),
        (lambda world: world.put(ARMED, FROZEN_ALONE), "not for slow-leader-disk"),
    ],
    ids=["the stop button", "disarmed", "armed for another"],
)
def test_a_run_is_stopped_within_the_time_of_the_stop_button_and_leaves_a_line(act, said):
    world = World()

    async def later():
        await anyio.sleep(10)
        act(world)

    why, took_s = stopped(world, later)
    assert said in why
    assert took_s <= 12
    assert [key for key in world.left() if key != STOP and json.loads(world.value(key))["verb"] == "stop"]


def test_the_end_of_the_arming_stops_it():
    why, took_s = stopped(World(replace(GOOD, until=ONE + dt.timedelta(seconds=150))))
    assert why.startswith("the arming ended at 2026-11-23T13:02:30")
    assert 150 <= took_s <= 152


# what a restore sets back


def restored(world, *, pressed_s, ends_s=1.0, by=lambda world: world.put(STOP, stop.Pressed("ben", "13:00").text())):
    """A run whose fault sets Consul back `ends_s` after it began; somebody acts `pressed_s` after that.

    Returns why the run stops, or why the fault was not applied, and what the operator is told.
    """
    told, whys = [], []

    async def play(one):
        before = world.snapshot()
        began_s = anyio.current_time()

        async def stopped():
            whys.append(await one.stopped())

        async def act():
            await anyio.sleep(pressed_s)
            by(world)

        async def fault():
            async with one.admits(acting()):
                await anyio.sleep(began_s + ends_s - anyio.current_time())
                world.restore(before)
                await anyio.sleep(3)

        async with anyio.create_task_group() as group:
            group.start_soon(stopped)
            group.start_soon(act)
            await anyio.sleep(0.3)
            try:
                await fault()
            except InterlockError as error:
                whys.append(str(error))
            await anyio.sleep(5)
            group.cancel_scope.cancel()

    held(world, play, RESTORE, told=told)
    return whys, told


@pytest.mark.lie
@pytest.mark.parametrize("before_s", [0.15, 0.21, 0.36, 0.6])
def test_a_stop_that_was_pressed_while_consul_is_set_back_ends_the_run_and_stays_pressed(before_s):
    """By hand, so nothing presses it again: no look fell into that time, and the run went on."""
    world = World(WIDE)
    whys, told = restored(world, pressed_s=1.0 - before_s)
    assert "pressed by ben" in whys[0]
    assert "pressed by ben" in stop.read(world.value(STOP)).why
    assert any("the stop button is pressed again" in text for text in told)


@pytest.mark.lie
def test_a_disarming_while_consul_is_set_back_ends_the_run_and_leaves_the_button_pressed():
    """What was taken back was there again, and armed."""
    world = World(WIDE)
    whys, _ = restored(world, pressed_s=0.7, by=lambda world: world.keys.pop(ARMED))
    assert whys[0].startswith("not armed: there is nothing at")
    assert ARMED in world.keys
    assert "not armed" in stop.read(world.value(STOP)).why


@pytest.mark.lie
def test_an_arming_in_whose_place_an_older_one_is_again_arms_nothing():
    """It was replaced by one that covers this run as well, and not the next."""
    world = World(WIDE)
    whys, _ = restored(world, pressed_s=0.7, by=lambda world: world.put(ARMED, replace(WIDE, why="narrower").text()))
    assert "Consul's state was reset" in whys[0]
    assert STOP in world.keys


@pytest.mark.lie
def test_a_stop_just_before_a_fault_that_sets_back_is_seen_before_it_is_applied():
    """The last look may be a second old by then."""
    world = World(WIDE)
    before = world.value(ARMED)
    whys, _ = restored(world, pressed_s=0.29, ends_s=60)
    assert "pressed by ben" in whys[0]
    assert world.value(ARMED) == before
    assert any("nothing was applied: the stop button was pressed by ben" in why for why in whys)


def test_a_restore_during_which_no_one_acts_presses_nothing():
    world = World(WIDE)
    assert restored(world, pressed_s=0.5, by=lambda _: None) == ([], ANY)
    assert STOP not in world.keys


# clocks


@pytest.mark.lie
@pytest.mark.parametrize(
    ("until_s", "back_s", "said", "after_s"),
    [(150, 30, "the arming ended at", 150), (7200, 3600, "apart", 100)],
    ids=["set back a little", "far from Consul's"],
)
async def test_a_clock_that_is_set_back_prolongs_no_arming(until_s, back_s, said, after_s):
    """After 100 s: what is left counts by the time that passed, and a clock that leaves Consul's stops the run."""
    world, whys = World(replace(GOOD, until=ONE + dt.timedelta(seconds=until_s))), []
    began = anyio.current_time()

    def now():
        gone_s = anyio.current_time() - began
        return ONE + dt.timedelta(seconds=gone_s if gone_s < 100 else gone_s - back_s)

    async with world.guard(now=now).held(SUBJECT, print) as one:
        whys.extend([await one.stopped(), anyio.current_time() - began])
    assert said in whys[0]
    assert after_s <= whys[1] <= after_s + 2


@pytest.mark.parametrize(("sets_clock", "stopped"), [(True, False), (False, True)])
async def test_a_fault_that_sets_the_clock_of_consul_does_not_stop_its_own_run(sets_clock, stopped):
    """The two clocks agreed when it began, and what is left of the arming counts by the time that passes."""
    world, why = World(replace(GOOD, until=ONE + dt.timedelta(hours=2))), []
    began = anyio.current_time()

    def now():
        gone_s = anyio.current_time() - began
        return ONE + dt.timedelta(seconds=gone_s + (600 if gone_s > 10 else 0))

    async with world.guard(now=now).held(replace(SUBJECT, sets_clock=sets_clock), print) as one:
        with anyio.move_on_after(60):
            why.append(await one.stopped())
    assert bool(why) is stopped
    assert all("apart" in text for text in why)


# whose the lock is


def test_a_run_has_the_datacenter_to_itself_while_nobody_else_holds_the_lock():
    world, said = World(), []

    async def play(one):
        said.append(await one.mine())
        world._end(world.keys[LOCK][1])  # as when a snapshot from before the run was restored
        said.append(await one.mine())
        world.shut.clear()
        value = json.dumps(vars(Holder("ben@desk", "run-9", "frozen-leader", "12:50")))
        await Kv(world).put(LOCK, value, acquire=await Kv(world).new_session("other", 600))
        said.append(await one.mine())

    held(world, play)
    assert said == [True, True, False]


def test_a_lock_that_was_lost_stays_lost_and_one_that_nobody_can_see_is_not_ours():
    world = World()

    async def play(one):
        world.silent = True
        with pytest.raises(FaultError, match="could not read the key"):
            await one.mine()
        world.silent = False
        one._lock.lose("it could not be renewed")
        assert not await one.mine()

    held(world, play)


# errors are themselves


def test_an_error_of_the_run_comes_out_as_it_went_in():
    with pytest.raises(FaultError, match="as it is"):
        held(World(), raising(FaultError("as it is")))


def test_no_trace_no_run():
    """The first line cannot be written: then nothing is begun, and the lock is released."""
    world = World()
    world.denied.add(("PUT", "/v1/kv/hashidrill-audit"))
    with pytest.raises(InterlockError, match="did not store the first audit line"):
        held(world)
    assert world.left() == []
    assert not world.sessions


def test_no_secret_is_told():
    told = []

    async def play(one):
        with pytest.raises(RevertError):
            async with one.admits(acting()):
                raise RevertError(f"PUT with {SECRET}")

    world = World()
    held(world, play, told=told, written={"audit": {"webhook": "https://hooks.example/x"}})
    everything = json.dumps([told, world.posted, [world.value(key) for key in world.left()]])
    assert "PUT with" in everything
    assert SECRET not in everything
