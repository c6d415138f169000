"""The faults of the incidents in a datacenter of somebody else, by address alone, with the least token.

TLS, client certificates, ACLs and gossip encryption are on. Each fault is proven and reverts. A full listing of what is
in that Consul, and of the files of its agents, is afterwards as it was, but for the audit lines. Neither the token of
the run nor that of its operators is in any artefact, process, key or log.
"""

import json
import os
from pathlib import Path

import pytest

from attached_consul import Staging
from drills import environment, experiment
from estate_drills import Drills
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import SetsBack
from hashidrill.core.recording.reader import Recording
from polled import wait
from secret_hunt import Hunt
from toxiproxies import proxies_of

LOAD = {"kv-writes": {"kind": "consul.kv.write", "rate": "20/s", "keys": 20, "value": "64B", "via": "consul:servers"}}
NOTHING_LOST = [{"no_acknowledged_write_lost": {"load": "kv-writes"}}]
RECOVERS = [{"writes_recover": {"load": "kv-writes", "p50_below": "500ms", "within": "5s"}}]


def slow(on):
    return [{"fault": "disk.latency", "on": on, "with": {"op": "fsync", "delay": "300ms"}, "for": "6s"}]


METHODS = {
    "slow disk": (slow("consul:one-follower"), NOTHING_LOST),
    "slow leader": (slow("consul:leader"), [*NOTHING_LOST, *RECOVERS]),
    "network errors": (
        [{"fault": "network.reset", "on": "consul:leader", "with": {"port": 8501}, "for": "4s"}],
        NOTHING_LOST,
    ),
    "streaming enablement": (
        [
            {
                "fault": "consul.config",
                "on": "consul:clients",
                "with": {"set": {"use_streaming_backend": True}},
                "for": "5s",
            }
        ],
        [*NOTHING_LOST, *RECOVERS],
    ),
    "snapshot reset": (
        [
            {"fault": "consul.snapshot.save", "on": "consul:leader", "with": {"name": "before"}, "for": "1s"},
            {
                "fault": "consul.snapshot.restore",
                "on": "consul:leader",
                "with": {"snapshot": "before"},
                "at": "4s",
                "for": "2s",
            },
        ],
        [{"no_write_lost_but_rolled_back": {"load": "kv-writes", "snapshot": "before"}}],
    ),
}
OVER_SSH = {"slow disk", "slow leader", "streaming enablement"}
EACH_TIME = "streaming enablement"
"""The one of `-m long`: parts of the others are in other tests of that tier."""
CLIENTS_OF_FIVE = 2
LONG_POLLS = {"use_streaming_backend": False}

pytestmark = [pytest.mark.may_skip("an ordinary user is not let in as root"), pytest.mark.needs("strace")]


def of(consul, folder, **more):
    if os.geteuid() != 0:
        pytest.skip("an ordinary user is not let in as root")
    return Staging(consul.path, folder, of_clients=LONG_POLLS, **more)


@pytest.fixture(scope="module")
def estate(consul, tmp_path_factory):
    with of(consul, tmp_path_factory.mktemp("estate"), network=79).running() as there:
        yield there


@pytest.fixture
def drills(estate, tmp_path):
    return drills_in(estate, tmp_path)


def drills_in(estate, folder):
    (folder / "home").mkdir()
    return Drills(estate, folder, environment(HOME=folder / "home", XDG_STATE_HOME=folder / "state"))


def ran(drills, what, servers=3, **more):
    method, expect = METHODS[what]
    path = experiment(
        drills.folder / f"{what.replace(' ', '-')}.yaml",
        method=method,
        load=LOAD,
        expect=expect,
        servers=servers,
        clients=1,
        recovery="6s",
    )
    if any(isinstance(registry.fault(step["fault"]), SetsBack) for step in method):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"breaks_quorum": True}))
        return drills.run(path, "--breaks-quorum", **more)
    if what in OVER_SSH:
        with drills.over_ssh():
            return drills.run(path, **more)
    return drills.run(path, **more)


def checked(run, faults):
    """What holds of each of them."""
    assert run.done.returncode == 0, f"{run.done.stderr}\n{run.done.stdout}"
    assert run.said["verdict"] == "PASS"
    recording = Recording(Path(run.said["recording"]))
    assert [window.proven for window in recording.faults] == [True] * faults
    events = [entry.event for entry in run.journal]
    assert events.count("fault.gone") == faults
    assert len(recording.operations("kv-writes")) > 50
    assert run.changed == {}
    assert run.audited[0] == "begin"
    assert run.audited.count("apply") == run.audited.count("gone") == faults
    assert run.audited[-1] == "end"
    assert run.hunt.found == set()
    for kind in ("process", "artefact", "key", "log", "output"):
        assert run.hunt.looked[kind], f"no {kind} was looked at"


@pytest.mark.parametrize(
    "what", [pytest.param(one, marks=pytest.mark.long if one == EACH_TIME else pytest.mark.nightly) for one in METHODS]
)
def test_a_fault_of_the_incidents_is_proven_reverts_and_leaves_audit_lines_alone(what, drills, toxiproxy):
    if what != "network errors":
        run = ran(drills, what)
    else:
        with drills.through_links(toxiproxy.path) as url:
            before = proxies_of(url)
            run = ran(drills, what)
            assert proxies_of(url) == before
    checked(run, faults=len(METHODS[what][0]))
    measured = " ".join(each["measured"] for each in run.evidence())
    if what == "streaming enablement":
        assert "queries are answered by streaming" in measured
        [gone] = run.evidence("fault.gone")
        assert "queries are answered by blocking-query" in gone["measured"]


@pytest.mark.lie
@pytest.mark.nightly
def test_what_an_experiment_leaves_and_a_token_that_gets_out_are_seen_by_the_same_look(drills):
    """The look of the tests above, at what was left on purpose."""
    estate = drills.estate
    before = estate.dump()
    [note] = [estate.ask("PUT", "/v1/kv/left/behind", estate.management.encode())]
    assert note == b"true"
    estate.ask("PUT", "/v1/agent/service/register", b'{"Name": "left-service"}')
    (estate.conf("worker-1") / "left.json").write_text("{}")
    hunt = Hunt({"the management token": estate.management})
    try:
        after = estate.dump()
        changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        assert changed >= {"key left/behind", "files worker-1", "service stage-1/left-service"}
        hunt.keys(estate.listed("/v1/kv/?recurse"))
        assert hunt.found == {("left/behind", "the management token")}
    finally:
        estate.ask("DELETE", "/v1/kv/left/behind")
        estate.ask("PUT", "/v1/agent/service/deregister/left-service")
        (estate.conf("worker-1") / "left.json").unlink()
    wait("what was there before", lambda: estate.dump() == before, gap_s=0.5)


@pytest.mark.nightly
@pytest.mark.parametrize("what", METHODS)
def test_the_same_in_a_datacenter_of_five_servers(what, consul, toxiproxy, tmp_path, five):
    drills = drills_in(five, tmp_path)
    if what != "network errors":
        run = ran(drills, what, servers=5)
    else:
        with drills.through_links(toxiproxy.path):
            run = ran(drills, what, servers=5)
    on_each = CLIENTS_OF_FIVE if what == "streaming enablement" else 1  # on all clients, one after the other
    checked(run, faults=on_each * len(METHODS[what][0]))


@pytest.fixture(scope="module")
def five(consul, tmp_path_factory):
    with of(consul, tmp_path_factory.mktemp("five"), network=80, servers=5, clients=CLIENTS_OF_FIVE).running() as there:
        yield there
