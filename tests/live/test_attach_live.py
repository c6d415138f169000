"""Against a datacenter of somebody else: a real Consul with TLS, client certificates, ACLs and gossip encryption.

What is seen of it afterwards is asked by another client than ours, as its operators would.
"""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from attached_consul import Staging
from drills import experiment, hashidrill, proven, start
from hashidrill.core.recording.journal import read_journal
from hashidrill.core.recording.reader import Recording
from polled import wait
from ssh_servers import Here, SshServers
from toxiproxies import in_links, proxies_of

LOAD = {"kv-writes": {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:clients"}}
TRANSFER = {"fault": "consul.leader.transfer", "on": "consul:leader", "for": "2s"}
EXPECT = [
    {"writes_recover": {"load": "kv-writes", "p50_below": "500ms", "within": "5s"}},
    {"no_acknowledged_write_lost": {"load": "kv-writes"}},
]
_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def staging(consul, tmp_path_factory):
    with Staging(consul.path, tmp_path_factory.mktemp("staging")).running() as estate:
        yield estate


@pytest.fixture
def short(staging, tmp_path):
    """A transfer of the leadership under writes, beside a page of the estate that wants a certificate and a token."""
    files = {key: f"{staging.folder}/{key.removesuffix('_file')}.pem" for key in ("ca_file", "cert_file", "key_file")}
    page = {
        "kind": "http",
        "url": f"{staging.url('stage-1')}/v1/agent/self",
        "json": "Config.NodeName",
        "equals": "stage-1",
        "headers": {"X-Consul-Token": {"file": f"{staging.folder}/drill.token"}},
        "tls": files,
    }
    stays = {"signal_stays": {"condition": "page.ok == 1", "during": "run", "gap": "5s"}}
    path = experiment(
        tmp_path / "moved-leader.yaml", method=[TRANSFER], load=LOAD, expect=[*EXPECT, stays], recovery="6s", servers=3
    )
    path.write_text(json.dumps({**json.loads(path.read_text()), "probes": {"page": page}}))
    return path


@pytest.fixture
def links(staging, toxiproxy, home):
    """(the attach file, the URL of the API) of a toxiproxy in the links of that estate."""
    with in_links(toxiproxy.path, staging.attach_file(name="plan.yaml"), staging.folder, home) as url:
        services = f'services: {{toxiproxy: {{address: "{url}"}}}}\n'
        yield staging.attach_file(name="links.yaml", interlocks=services), url


SLOW_LINK = {"fault": "network.latency", "on": "consul:leader", "with": {"delay": "300ms", "port": 8501}, "for": "3s"}


@pytest.mark.long
def test_a_link_is_slowed_by_the_toxiproxy_of_the_estate_and_is_as_before_afterwards(staging, links, tmp_path, home):
    path = experiment(tmp_path / "slow-link.yaml", method=[SLOW_LINK], load=LOAD, expect=EXPECT[1:], servers=3)
    armed(staging, path, home)
    file, url = links
    before = proxies_of(url)
    done = hashidrill("run", path, "--attach", file, "--json", "--runs", tmp_path / "runs", env=home)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
    [said] = json.loads(done.stdout)
    entries = read_journal(Path(said["recording"]) / "journal.jsonl")
    [proof] = [entry.data["evidence"] for entry in entries if entry.event == "fault.proven"]
    assert f"through {staging.leader()}-consul-8501, toxics in 1 of 1" in proof["measured"]
    assert proof["figures"]["measured_s"] > 0.29
    assert proxies_of(url) == before


def armed(staging, path, home):
    """By an operator of theirs, who does not wait until the lock of a killed engine ends by itself."""
    staging.ask("DELETE", "/v1/kv/hashidrill-interlocks/lock")
    file = staging.attach_file(name="operator.yaml", token="management")
    done = hashidrill("staging", "arm", path, "--attach", file, "--for", "10m", env=home)
    assert done.returncode == 0, done.stderr


def run(staging, path, tmp_path, home, **more):
    file = staging.attach_file(**more)
    done = hashidrill("run", path, "--attach", file, "--json", "--runs", tmp_path / "runs", env=home)
    return done, (json.loads(done.stdout) if done.stdout.startswith("[") else [])


def test_a_run_by_address_is_proven_and_judged_and_shows_no_token(staging, short, tmp_path, home):
    armed(staging, short, home)
    led = staging.leader()
    done, said = run(staging, short, tmp_path, home)
    assert done.returncode == 0, f"{done.stderr}\n{said}"
    assert said[0]["verdict"] == "PASS"
    recording = Recording(Path(said[0]["recording"]))
    assert staging.leader() != led
    assert [window.proven for window in recording.faults] == [True]
    assert recording.run["attached"]["addresses"] == {"consul": staging.url("stage-1")}
    assert len(recording.operations("kv-writes")) > 50
    assert recording.operations("kv-writes").ok.mean() > 0.5
    assert recording.series("raft.leader")
    assert recording.series("page.ok").value.min() == 1
    folder = tmp_path / "runs"
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file()) + done.stderr.encode()
    for token in (staging.drill, staging.management):
        assert token.encode() not in written
    assert "staging-1" in (Path(said[0]["recording"]) / "report.html").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"ca": "other-ca"}, "its certificate is not accepted"),
        ({"token": "unknown"}, "is not known there"),
        ({"address": "https://127.77.0.9:8501"}, "is it reachable from this machine?"),
        ({"address": "http://127.77.0.1:8501"}, "speaks TLS: write its address as https://127.77.0.1:8501"),
    ],
)
def test_what_cannot_be_attached_has_its_own_message(  # noqa: PLR0917
    staging, short, tmp_path, home, more, said
):
    (staging.folder / "unknown.token").write_text("99999999-8888-7777-6666-555555555555\n")
    file = staging.attach_file(name="bad.yaml", **more)
    for words in (("doctor",), ("run", short, "--runs", tmp_path / "runs")):
        done = hashidrill(*words, "--attach", file, env=home)
        assert done.returncode == 2
        assert said in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_doctor_needs_no_right_to_write(staging, home):
    done = hashidrill("doctor", "--attach", staging.attach_file(name="read.yaml", token="reader"), "--json", env=home)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {one["name"]: one["agents"] for one in found["hosts"]}["worker-1"] == {"consul": "client"}
    assert {"state/snapshot-reset"} <= {one["name"] for one in found["experiments"] if one["runs"]}
    assert found["silent"] == {}


def begun(staging, path, tmp_path, home):
    """A run whose fault is in force: (the runner, its journal, the pids of its engine)."""
    runner = start("run", path, "--attach", staging.attach_file(), "--plain", "--runs", tmp_path / "runs", env=home)
    journal = proven(tmp_path / "runs", runner, within_s=60)
    return runner, journal, engines(journal)


def engines(journal):
    """The engines of that run: their journal is open in them."""
    held = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(fd.readlink() == journal for fd in (folder / "fd").iterdir()):
                held.append(int(folder.name))
    return held


def process_table():
    """Every command line and every environment that this user may read."""
    found = b""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
    return found


HELD = {"fault": "consul.leader.transfer", "on": "consul:leader", "for": "50s"}


def test_a_killed_runner_leaves_an_engine_that_reverts_and_closes_the_recording(staging, tmp_path, home):
    path = experiment(
        tmp_path / "killed-runner.yaml", method=[HELD], load=LOAD, expect=EXPECT, recovery="6s", servers=3
    )
    armed(staging, path, home)
    runner, journal, pids = begun(staging, path, tmp_path, home)
    assert pids
    table = process_table()
    assert staging.drill.encode() not in table
    assert staging.management.encode() not in table
    os.killpg(runner.pid, signal.SIGKILL)
    runner.communicate()
    wait("the engine to end", lambda: not engines(journal), _WITHIN_S)
    events = [entry.event for entry in read_journal(journal)]
    assert "fault.gone" in events
    assert events[-1] == "end"
    assert read_journal(journal)[-1].data["outcome"] == "interrupted"


def test_what_a_killed_engine_left_is_healed_from_its_journal(staging, tmp_path, home):
    path = experiment(
        tmp_path / "killed-engine.yaml", method=[HELD], load=LOAD, expect=EXPECT, recovery="6s", servers=3
    )
    armed(staging, path, home)
    runner, journal, pids = begun(staging, path, tmp_path, home)
    os.killpg(runner.pid, signal.SIGKILL)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    runner.communicate()
    alone = hashidrill("heal", journal.parent, "--runs", tmp_path / "runs", env=home)
    assert alone.returncode == 2
    assert "heal --attach FILE" in alone.stderr
    file = staging.attach_file()
    healed = hashidrill("heal", journal.parent, "--attach", file, "--json", "--runs", tmp_path / "runs", env=home)
    assert healed.returncode == 0, healed.stderr
    [one] = json.loads(healed.stdout)["healed"]
    assert len(one["reverted"]) == 1
    assert one["left"] == []
    keys = json.loads(staging.ask("GET", "/v1/kv/?keys"))
    # a write that the run before had under way when it was killed may land after its own clean-up
    own = ("hashidrill/", f"hashidrill-once/kv-writes/{journal.parent.name}/")
    assert [key for key in keys if key.startswith(own)] == [], "nothing of its load"
    lines = [key for key in keys if key.startswith(f"hashidrill-audit/{journal.parent.name}/heal-")]
    told = [json.loads(staging.ask("GET", f"/v1/kv/{key}?raw")) for key in lines]
    assert [line["verb"] for line in told] == ["heal", "revert", "gone", "clean-up", "clean-up", "end"]
    assert told[1]["what"] == "consul.leader.transfer"
    assert (one["stuck"], one["refused"]) == ([], "")
    again = hashidrill("heal", journal.parent, "--attach", file, "--json", env=home)
    assert json.loads(again.stdout)["healed"] == []


SLOW = {"fault": "disk.latency", "on": "consul:leader", "with": {"op": "fsync", "delay": "300ms"}, "for": "6s"}


@pytest.mark.long
@pytest.mark.may_skip("an ordinary user is not let in as root")
@pytest.mark.needs("strace")
def test_the_disk_of_a_running_leader_is_slowed_over_ssh_and_is_quick_again(staging, tmp_path, home):
    """With TLS, ACLs and gossip encryption on, and a token that may do what `staging acl` says and no more."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user is not let in as root")
    path = experiment(tmp_path / "slow-leader.yaml", method=[SLOW], load=LOAD, expect=EXPECT, recovery="6s", servers=3)
    armed(staging, path, home)
    servers = SshServers(staging.folder, dict.fromkeys(staging.hosts, Here()))
    try:
        ssh = servers.settings(tmp_path / "notes", check_address=False)
        file = staging.attach_file(name="carried.yaml", interlocks=f"carriers: {json.dumps({'ssh': ssh})}\n")
        plan = hashidrill("run", path, "--attach", file, "--plan", env=home)
        assert plan.returncode == 0, plan.stderr
        assert not (tmp_path / "notes").exists()
        done = hashidrill("run", path, "--attach", file, "--json", "--runs", tmp_path / "runs", env=home)
        said = json.loads(done.stdout)
        assert said[0]["verdict"] == "PASS", f"{done.stderr}\n{said}"
    finally:
        servers.close()
    recording = Recording(Path(said[0]["recording"]))
    assert [window.proven for window in recording.faults] == [True]
    proof = next(entry for entry in read_journal(recording.path / "journal.jsonl") if entry.event == "fault.proven")
    assert proof.data["evidence"]["figures"]["measured_s"] >= 0.3
    assert len(recording.operations("kv-writes")) > 50
    assert not (tmp_path / "notes").exists()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text()
            assert not (text.startswith("Name:\tconsul") and "TracerPid:\t0\n" not in text), text
