"""Interlocks against a real Consul of somebody else, with TLS and ACLs on, and a token with the generated policy alone.

What is left in that Consul is asked by its own operator, with another client than ours.
"""

import base64
import datetime as dt
import json
import signal
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from attached_consul import Staging
from drills import experiment, hashidrill, proven, start
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.recording.journal import read_journal
from hashidrill.staging.attach.plan import digest_of
from hashidrill.staging.interlocks.anchor import Anchor
from hashidrill.staging.interlocks.arming import new_key, parse, public_of, sign
from hashidrill.staging.interlocks.settings import ANCHOR_KEY, settings_of

pytestmark = pytest.mark.long

LOAD = {"kv-writes": {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:clients"}}
TRANSFER = {"fault": "consul.leader.transfer", "on": "consul:leader", "for": "2s"}
EXPECT = [{"no_acknowledged_write_lost": {"load": "kv-writes"}}]
ARMED, LOCK, STOP = (f"hashidrill-interlocks/{name}" for name in ("armed", "lock", "stop"))
SECRET = "marked-secret-in-the-why-7f3a9c"


class Estate(Staging):
    """Somebody else's Consul, with an operator who arms, and a token that has what `hashidrill staging acl` printed."""

    def keys(self):
        """All of its KV store but what its operator put there to see that it works."""
        found = {}
        for entry in json.loads(self.ask("GET", "/v1/kv/?recurse")):
            if entry["Key"] != "ready":
                found[entry["Key"]] = base64.b64decode(entry["Value"] or "").decode()
        return found

    def clear(self):
        for key in self.keys():
            self.ask("DELETE", f"/v1/kv/{key}")
        for session in json.loads(self.ask("GET", "/v1/session/list")):
            self.ask("PUT", f"/v1/session/destroy/{session['ID']}")

    def sessions(self):
        return json.loads(self.ask("GET", "/v1/session/list"))

    def token(self, rules):
        """The name of a token file for these rules."""
        secret = str(uuid.uuid4())
        name = f"least-{secret[:8]}"
        self.make_token(name, secret, rules)
        (self.folder / f"{name}.token").write_text(secret + "\n")
        return name

    def secret(self, name):
        return (self.folder / f"{name}.token").read_text().strip()


@pytest.fixture(scope="module")
def estate(consul, tmp_path_factory):
    with Estate(consul.path, tmp_path_factory.mktemp("staging"), network=78).running() as there:
        yield there


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """What `hashidrill staging acl` prints for the experiment of this file."""
    path = experiment(
        tmp_path_factory.mktemp("acl") / "moved.yaml", method=[TRANSFER], load=LOAD, expect=EXPECT, servers=3
    )
    done = hashidrill("staging", "acl", "consul", path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def least(estate, policy):
    return estate.token(policy)


@pytest.fixture
def moved(tmp_path, estate):
    estate.clear()
    return experiment(tmp_path / "moved.yaml", method=[TRANSFER], load=LOAD, expect=EXPECT, servers=3)


def say(estate, home, *words, token="management", **more):
    file = estate.attach_file(name=f"operator-{token}.yaml", token=token, **more)
    return hashidrill(*words, "--attach", file, env=home)


def arm(estate, home, path, *words):
    done = say(estate, home, "staging", "arm", path, "--for", "30m", *words)
    assert done.returncode == 0, done.stderr


def run(estate, home, tmp_path, path, *words, token, **more):
    file = estate.attach_file(token=token, **more)
    return hashidrill("run", path, "--attach", file, "--json", "--runs", tmp_path / "runs", *words, env=home)


def test_with_the_generated_policy_alone_it_runs_and_leaves_audit_lines_and_no_secret(
    estate, least, moved, home, tmp_path
):
    arm(estate, home, moved, "--why", "game day 12")
    before, led = estate.keys(), estate.leader()
    done = run(estate, home, tmp_path, moved, token=least)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    [said] = json.loads(done.stdout)
    assert said["verdict"] == "PASS"
    assert estate.leader() != led
    left = {key: value for key, value in estate.keys().items() if key not in before}
    recording = Path(said["recording"])
    lines = [json.loads(left[key]) for key in sorted(left) if key.startswith("hashidrill-audit/")]
    assert {key.partition("/")[2].partition("/")[0] for key in left if key.startswith("hashidrill-audit/")} == {
        recording.name
    }
    assert [line["verb"] for line in lines] == ["begin", "load", "apply", "gone", "clean-up", "end"]
    assert lines[2]["what"] == "consul.leader.transfer"
    assert lines[2]["where"] == led
    kept = [json.loads(line) for line in (recording / "audit.jsonl").read_text().splitlines()]
    assert all(line.pop("mac") for line in kept)
    assert lines == kept
    others = {key for key in left if not key.startswith("hashidrill-audit/")}
    assert others == set(), "audit lines, and nothing else"
    assert LOCK not in left
    assert estate.sessions() == []
    everything = json.dumps(estate.keys()).encode() + done.stdout.encode() + done.stderr.encode()
    everything += b"".join(path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file())
    everything += b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    for token in (estate.secret(least), estate.management, estate.drill):
        assert token.encode() not in everything


def test_a_snapshot_is_restored_under_the_generated_policy_and_nothing_is_left_but_audit_lines(estate, home, tmp_path):
    """The experiment of the page: what it restores brings keys of its loads back, and the lock of a moment ago."""
    estate.clear()
    shipped = "state/snapshot-reset"
    done = hashidrill("staging", "acl", "consul", shipped)
    assert done.returncode == 0, done.stderr
    token = estate.token(done.stdout)
    arm(estate, home, shipped, "--breaks-quorum")
    before = estate.keys()
    done = run(estate, home, tmp_path, shipped, "--breaks-quorum", token=token)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    [said] = json.loads(done.stdout)
    events = [entry.event for entry in read_journal(Path(said["recording"]) / "journal.jsonl")]
    assert events.count("fault.proven") == 2
    after = estate.keys()
    assert {key for key in after if key not in before and not key.startswith("hashidrill-audit/")} == set()
    lines = [json.loads(value) for key, value in sorted(after.items()) if key.startswith("hashidrill-audit/")]
    assert [line["what"] for line in lines if line["verb"] == "apply"] == [
        "consul.snapshot.save",
        "consul.snapshot.restore",
    ]
    assert {line["what"] for line in lines if line["verb"] == "clean-up"} >= {"consul.kv.write", "consul.kv.cas"}
    assert estate.sessions() == []


def rules_of(policy):
    """Each rule of the policy, with its comment."""
    return ["# for" + part for part in policy.split("# for")[1:]]


def test_with_one_rule_less_it_is_named_before_anything_starts(estate, policy, moved, home, tmp_path):
    """Those that discovery does not need: what that needs has messages of its own."""
    arm(estate, home, moved)
    before = estate.keys()
    rules = rules_of(policy)
    left_out = [
        rule for rule in rules if "hashidrill/kv-writes/" in rule or "session_prefix" in rule or "audit" in rule
    ]
    assert len(left_out) == 3
    for rule in left_out:
        weak = estate.token("".join(each for each in rules if each != rule))
        done = run(estate, home, tmp_path, moved, token=weak)
        assert done.returncode == 2, done.stdout
        place = rule.splitlines()[1].partition(" {")[0]
        assert f"consul: {place}: write" in " ".join(done.stderr.split())
        assert "the token is too weak for moved" in done.stderr
    assert estate.keys() == before
    assert not (tmp_path / "runs").exists()


def digest():
    """What the experiment of this file does, as `hashidrill staging arm` would allow it."""
    with tempfile.TemporaryDirectory() as folder:
        path = experiment(Path(folder) / "moved.yaml", method=[TRANSFER], load=LOAD, expect=EXPECT, servers=3)
        return digest_of(resolve(path).experiment, settings_of({}, "x"))


def anchored():
    """What a first arming writes."""
    return {ANCHOR_KEY: Anchor.of(settings_of({}, "x"), "staging-1").text()}


def put(estate, keys):
    for key, value in keys.items():
        estate.ask("PUT", f"/v1/kv/{key}", value.encode())
    return keys


def arming(**to):
    now = dt.datetime.now(dt.UTC)
    said = {
        "armed_by": "ana",
        "experiments": [{"name": "moved", "digest": digest()}],
        "datacenter": "staging-1",
        "nonce": "1",
        "since": (now - dt.timedelta(hours=1)).isoformat(),
        "until": (now + dt.timedelta(hours=1)).isoformat(),
    }
    return json.dumps(said | to)


REFUSED = {
    "not armed": (dict, "not armed: there is nothing at"),
    "another content": (
        lambda: {ARMED: arming(experiments=[{"name": "moved", "digest": "sha256:00"}])},
        "is for another content of moved",
    ),
    "malformed": (lambda: {ARMED: "armed!"}, "is malformed"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_stands_in_its_keys_refuses_a_run_before_anything_happens(case, estate, least, moved, home):
    make, said = REFUSED[case]
    keys = put(estate, anchored() | make())  # now: a run of everything collects its tests half an hour before this one
    refused(estate, run(estate, home, moved.parent, moved, token=least), said, keys, moved.parent)


def refused(estate, done, said, keys, tmp_path):
    assert done.returncode == 2, done.stdout
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert estate.keys().keys() == keys.keys()
    assert not (tmp_path / "runs").exists()


@pytest.mark.lie
def test_a_file_that_brings_its_own_key_button_and_lock_arms_nothing(estate, least, moved, home, tmp_path):
    """It was admitted: what arms stood in the file of whoever wanted to run."""
    key = new_key()
    keys = put(estate, anchored())
    own = (
        f"interlocks: {{arming: {{file: mine.json, public_key: '{public_of(key)}'}}, stop: {{key: mine/stop}},"
        " lock: {key: mine/lock}}\n"
    )
    (estate.folder / "mine.json").write_text(sign(parse(arming(), "mine"), key))
    done = run(estate, home, tmp_path, moved, token=least, interlocks=own)
    refused(estate, done, "interlocks.arming.public_key is ed25519:", keys, tmp_path)


def test_one_that_somebody_else_has_locked_is_refused_and_says_who(estate, least, moved, home, tmp_path):
    keys = put(estate, anchored() | {ARMED: arming()}) | {LOCK: ""}
    made = json.loads(estate.ask("PUT", "/v1/session/create", json.dumps({"TTL": "60s", "NodeChecks": []}).encode()))
    holder = {"held_by": "ben@desk", "run": "run-9", "experiment": "frozen-leader", "since": "12:50"}
    assert estate.ask("PUT", f"/v1/kv/{LOCK}?acquire={made['ID']}", json.dumps(holder).encode()) == b"true"
    done = run(estate, home, tmp_path, moved, token=least)
    refused(estate, done, "already locked: another game day holds", keys, tmp_path)
    assert "ben@desk, with frozen-leader (run-9), since 12:50" in " ".join(done.stderr.split())
    estate.clear()


def test_a_run_that_may_break_the_quorum_is_refused(estate, least, moved, home):
    """A server hangs: one more, and nobody leads. It is not among the keys, and doctor sees it as alive for seconds."""
    keys = put(estate, anchored() | {ARMED: arming()})
    hung = next(host for host in ("stage-2", "stage-3") if host != estate.leader())
    estate._processes[hung].send_signal(signal.SIGSTOP)
    try:
        done = run(estate, home, moved.parent, moved, token=least)
    finally:
        estate._processes[hung].send_signal(signal.SIGCONT)
        estate.until(estate._whole, "whole Consul")
    refused(estate, done, f"with 1 already down ({hung}), but 2 must be left", keys, moved.parent)
    assert "the command must say --breaks-quorum" in " ".join(done.stderr.split())


def test_a_plan_touches_nothing_and_says_what_the_interlocks_say(estate, least, moved, home, tmp_path):
    arm(estate, home, moved)
    before = estate.keys()
    file = estate.attach_file(token=least)
    done = hashidrill("run", moved, "--attach", file, "--plan", env=home)
    assert done.returncode == 0, done.stderr
    assert "consul.leader.transfer on consul:leader (one of stage-1, stage-2, stage-3)" in done.stdout
    assert done.stdout.rstrip().endswith("The interlocks let it run.")
    say(estate, home, "staging", "disarm")
    assert hashidrill("run", moved, "--attach", file, "--plan", env=home).returncode == 2
    del before[ARMED]
    assert estate.keys().keys() == {*before, "hashidrill-interlocks/taken-back"}
    assert estate.sessions() == []


def test_the_stop_button_reverts_ends_the_run_and_lets_nothing_start(estate, least, tmp_path, home):
    estate.clear()
    held = TRANSFER | {"for": "60s"}
    path = experiment(tmp_path / "moved.yaml", method=[held], load=LOAD, expect=EXPECT, servers=3)
    arm(estate, home, path)
    file = estate.attach_file(token=least)
    runner = start("run", path, "--attach", file, "--plain", "--runs", tmp_path / "runs", env=home)
    journal = proven(tmp_path / "runs", runner)
    pressed_s = time.monotonic()
    assert say(estate, home, "staging", "stop", "--why", "wrong cluster").returncode == 0
    out, error = runner.communicate(timeout=90)
    took_s = time.monotonic() - pressed_s
    end = read_journal(journal)[-1]
    assert end.data["outcome"] == "interrupted", f"{out}\n{error}"
    assert "the stop button was pressed by" in end.data["error"]
    assert "wrong cluster" in end.data["error"]
    events = [entry.event for entry in read_journal(journal)]
    assert "fault.gone" in events
    assert took_s < 45, "two seconds to see it, and the time of its revert"
    assert runner.returncode == 130, error
    lines = [json.loads(value) for key, value in sorted(estate.keys().items()) if key.startswith("hashidrill-audit/")]
    assert [line["verb"] for line in lines if line["verb"] in {"stop", "end"}] == ["stop", "end"]
    assert estate.sessions() == []
    again = hashidrill("run", path, "--attach", file, "--runs", tmp_path / "runs", env=home)
    assert again.returncode == 2
    assert "the stop button is pressed" in again.stderr
    assert say(estate, home, "staging", "stop", "--release").returncode == 0


def test_a_secret_in_what_a_person_writes_gets_nowhere(estate, least, tmp_path, home):
    """`--why` goes into the arming, which is the person's own; nothing of ours copies it."""
    estate.clear()
    path = experiment(tmp_path / "moved.yaml", method=[TRANSFER], load=LOAD, expect=EXPECT, servers=3)
    arm(estate, home, path, "--why", SECRET)
    done = run(estate, home, tmp_path, path, token=least)
    assert done.returncode == 0, done.stderr
    audit = [value for key, value in estate.keys().items() if key.startswith("hashidrill-audit/")]
    written = b"".join(each.read_bytes() for each in (tmp_path / "runs").rglob("*") if each.is_file())
    assert SECRET.encode() not in written + json.dumps(audit).encode() + done.stdout.encode() + done.stderr.encode()
