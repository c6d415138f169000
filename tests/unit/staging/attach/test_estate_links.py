"""Which proxies of an estate's toxiproxy lead to which host, what we leave on them, and its populate file."""

import json

import httpx2
import pytest

from attached_estates import FakeEstate, attach_file
from fake_toxiproxy import API, FakeToxiproxy
from hashidrill.core.errors import AttachError, ExperimentError
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.protocols.capabilities import EstateLinks
from hashidrill.core.protocols.rights import Left
from hashidrill.staging.attach.datacenter import AttachedHost
from hashidrill.staging.attach.discovery import Estate, discover, populate
from hashidrill.staging.attach.http import Wire
from hashidrill.staging.attach.leftovers import sweep
from hashidrill.staging.attach.links import OURS, TOXICS, Link, hello_of_http, link_of
from hashidrill.staging.attach.login import Login
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.staging.runs.attach_limits import lacking, possible_kinds
from hashidrill.staging.runs.heal_attached import heal_attached
from virtual_time import run

pytestmark = pytest.mark.lie

BODY = '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n'
SERVICES = "services: {toxiproxy: {address: " + f'"{API}"' + "}}\n"


class There:
    """An estate of Consul with a toxiproxy in its links."""

    def __init__(self, folder, **upstreams):
        self.fake, self.toxiproxy = FakeEstate(), FakeToxiproxy(**upstreams)
        self.target = read_target(attach_file(folder, BODY + SERVICES), {})
        self.wires = {**self.fake.wires(self.target), "toxiproxy": self.toxiproxy.wire()}

    def estate(self):
        return run(discover(self.target, self.wires))

    def heal(self):
        """Without a recording, as on a machine that no run was started from."""

        async def look(_target, _stack):
            return await discover(self.target, self.wires), self.wires

        return run(heal_attached(self.target, [], [].append, look=look))


@pytest.fixture
def there(tmp_path):
    return There(tmp_path, to_leader="10.73.0.11:8500", to_rpc="consul-1:8300", to_web="web.example:80")


def test_each_host_has_the_proxies_that_lead_to_it(there):
    estate = there.estate()
    assert estate.hosts["consul-1"].links == {
        "to-leader": Link("10.73.0.90", 21000, "10.73.0.11", 8500),
        "to-rpc": Link("10.73.0.90", 21001, "consul-1", 8300),
    }
    assert estate.hosts["consul-2"].links == {}
    assert "toxiproxy: to-leader, to-rpc lead to its hosts; elsewhere: to-web" in estate.notes
    assert Estate.from_data(json.loads(json.dumps(estate.to_data()))).hosts == estate.hosts


def test_the_engine_gets_its_address(there):
    assert there.target.toxiproxy == API
    assert AttachTarget.received(json.loads(json.dumps(there.target.handed_over()))).toxiproxy == API


def test_a_host_behind_a_proxy_can_have_faults_in_it_and_no_other_can(there):
    estate = there.estate()
    able = {name for name, one in estate.hosts.items() if AttachedHost(one, there.target.logins).can(EstateLinks)}
    assert able == {"consul-1"}
    kinds = possible_kinds(there.target, estate)
    assert (kinds["network.latency"], kinds["network.reset"], kinds["toxiproxy.toxic"]) == ("", "", "")
    assert "no host has" in kinds["network.bandwidth"]


def test_an_experiment_says_which_of_its_steps_can_be_there(there, tmp_path):
    path = tmp_path / "x.yaml"

    def reasons(on):
        path.write_text(
            "apiVersion: hashidrill/v1\nkind: Experiment\nmetadata: {name: slow, title: Slow, why: because}\n"
            "datacenter: {consul: {servers: 3}}\n"
            "load: {kv-writes: {kind: consul.kv.write, rate: 5/s}}\nsteady_state: {require: ['raft.leader >= 0']}\n"
            f"method: [{{fault: network.latency, on: '{on}', with: {{delay: 200ms, port: 8500}}, for: 5s}}]\n"
            "expect: [{no_acknowledged_write_lost: {load: kv-writes}}]\n"
        )
        return lacking(read_experiment(path), there.target, there.estate(), path=path)

    assert reasons("host:consul-1") == []
    assert "its host lacks NetworkCanary, PacketFilter, Proxies" in reasons("consul:leader")[0], "it may move away"


def test_a_toxiproxy_that_does_not_answer_or_is_none_is_told(there):
    there.toxiproxy.proxies = ["not", "proxies"]
    with pytest.raises(AttachError, match=r"toxiproxy: http://10\.73\.0\.90:8474: GET /proxies: HTTP 200; is this the"):
        there.estate()


@pytest.mark.parametrize("address", ["10.0.0.1:8474", "http://", "ftp://x", "http://a:b@c:1"])
def test_an_address_that_cannot_be_is_told(tmp_path, address):
    text = BODY + f'services: {{toxiproxy: {{address: "{address}"}}}}\n'
    with pytest.raises(ExperimentError, match=r"services\.toxiproxy\.address"):
        read_target(attach_file(tmp_path, text), {})
    with pytest.raises(ExperimentError, match="toxi"):
        read_target(attach_file(tmp_path, BODY + "services: {toxiproxi: {}}\n"), {})


@pytest.mark.parametrize(
    ("upstream", "leads"),
    [
        ("10.73.0.11:8500", True),
        ("consul-1:8500", True),
        ("Consul-1.staging.example:8500", True),
        ("consul-10:8500", False),
        ("10.73.0.110:8500", False),
        ("", False),
        ("[::1]:8500", False),
    ],
)
def test_a_proxy_leads_to_the_host_that_its_upstream_names(upstream, leads):
    link = link_of({"listen": "0.0.0.0:1", "upstream": upstream, "enabled": True}, "proxy.example")
    assert link.leads_to("consul-1", "10.73.0.11") is leads
    assert link.host == "proxy.example"


def swept(there, run_id="run-1"):
    return run(sweep({Left("toxiproxy", TOXICS, f"{OURS}{run_id}-"): "toxiproxy"}, there.wires, lambda *_, **__: None))


def test_what_a_dead_run_left_is_removed_by_the_name_of_the_run_alone(there):
    for name in ("hashidrill-run-1-0-slow-0", "hashidrill-run-1-1-cut-0", "hashidrill-run-10-0-slow-0", "of-ben"):
        there.toxiproxy.put("to-leader", name, latency=100)
    there.toxiproxy.put("to-web", "hashidrill-run-1-0-slow-0", latency=100)
    assert swept(there)[0] == ["toxics beginning with hashidrill-run-1-: 3"]
    assert set(there.toxiproxy.toxics("to-leader")) == {"hashidrill-run-10-0-slow-0", "of-ben"}
    assert there.toxiproxy.toxics("to-web") == {}
    assert swept(there) == ([], [])


def test_what_it_will_not_remove_is_told(there):
    there.toxiproxy.put("to-leader", "hashidrill-run-1-0-slow-0", latency=100)
    there.toxiproxy.refuses = "DELETE"
    assert "was not removed: HTTP 500 it is on fire" in swept(there)[1][0]


@pytest.mark.parametrize(("status", "body"), [(500, {"error": "it is on fire"}), (200, ["no", "proxies"])])
def test_an_answer_that_lists_no_proxies_is_no_proof_that_nothing_is_left(there, status, body):
    def answer(_request):
        return httpx2.Response(status, json=body)

    there.wires["toxiproxy"] = Wire(Login("toxiproxy", API), transport=httpx2.MockTransport(answer))
    removed, kept = swept(there)
    assert removed == []
    assert f"GET /proxies: HTTP {status}; is this the API of toxiproxy?" in kept[0]


GONE = "hashidrill-20261122-101500-slow-ab12-0-network.latency-consul-1-0"
"""A toxic of a run that nobody has the recording of."""


def test_a_toxic_that_nobody_has_the_recording_of_is_removed_by_heal(there):
    """A toxic has no lease: it would slow the estate down for ever."""
    for proxy in ("to-leader", "to-web"):
        there.toxiproxy.put(proxy, GONE, latency=100)
    for name in ("of-ben", "hashidrill-by-hand"):
        there.toxiproxy.put("to-leader", name, latency=100)
    [done] = there.heal()
    assert (done.cleaned, done.left) == ([f"the toxic {GONE} from to-leader"], [])
    assert set(there.toxiproxy.toxics("to-leader")) == {"of-ben", "hashidrill-by-hand"}
    assert set(there.toxiproxy.toxics("to-web")) == {GONE}, "it leads elsewhere: a run of others may have put it there"
    kv = there.fake.world.consul.kv.entries
    lines = [json.loads(entry.value) for key, entry in kv.items() if key.startswith("hashidrill-audit/heal/")]
    assert [(line["verb"], line["where"]) for line in lines] == [("clean-up", "to-leader")]
    assert "hashidrill-interlocks/lock" not in kv
    assert there.heal() == []


def test_toxics_stay_while_a_run_goes_on_that_they_may_belong_to(there):
    there.toxiproxy.put("to-leader", GONE, latency=100)
    consul, lock = there.fake.world.consul, "hashidrill-interlocks/lock"
    session = consul.make_session("consul-1", "hashidrill", lock)
    value = json.dumps({"held_by": "ben", "run": "run-9", "experiment": "slow", "since": "12:00"}).encode()
    consul.answer(there.fake.world.hosts["consul-1"], "PUT", f"/v1/kv/{lock}", {"acquire": session}, value)
    [done] = there.heal()
    assert "another game day holds hashidrill-interlocks/lock: ben, with slow (run-9)" in done.left[0]
    assert set(there.toxiproxy.toxics("to-leader")) == {GONE}


def test_a_populate_file_has_a_proxy_for_each_port_that_others_connect_to(there):
    proxies = populate(there.estate(), listen="0.0.0.0", first_port=21000)
    [leader] = [one for one in proxies if one["name"] == "consul-1-consul-8500"]
    assert (leader["upstream"], leader["enabled"]) == ("10.73.0.11:8500", True)
    assert [one["listen"] for one in proxies] == [f"0.0.0.0:{21000 + number}" for number in range(7)]
    assert len(proxies) == 7
    assert len({one["name"] for one in proxies}) == len({one["listen"] for one in proxies}) == 7
    assert {one["upstream"] for one in proxies} >= {"10.73.0.12:8300", "10.73.0.31:8500"}
    mine = There.__new__(There)
    mine.fake, mine.toxiproxy, mine.target = there.fake, FakeToxiproxy(), there.target
    mine.toxiproxy.proxies = {one["name"]: {**one, "toxics": []} for one in proxies}
    mine.wires = {**there.fake.wires(there.target), "toxiproxy": mine.toxiproxy.wire()}
    assert all(host.links for host in mine.estate().hosts.values()), "what is planned leads to the hosts"


def test_a_hello_over_tls_is_the_first_message_of_a_handshake():
    assert hello_of_http("https://10.73.0.11:8501", "/v1/status/leader")[:3] == b"\x16\x03\x01"
    assert hello_of_http("http://10.73.0.11:8500", "/v1/status/leader").startswith(b"GET /v1/status/leader HTTP/1.0")
