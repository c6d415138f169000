"""What is found in an attached datacenter, by reading alone; and each way in which it cannot be had, by its message.
Which proxies of an estate's toxiproxy lead to which host, what we leave on them, and its populate file.
"""

import json
import ssl
from dataclasses import replace

import anyio
import httpx2
import pytest

from attached_estates import TOKEN, FakeEstate, attach_file, certificate_error, consul_target, of_nomad, of_vault
from fake_toxiproxy import API, FakeToxiproxy
from hashidrill.core.errors import AttachError, ExperimentError
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.protocols.capabilities import EstateLinks
from hashidrill.core.protocols.rights import Left
from hashidrill.staging.attach.datacenter import AttachedHost
from hashidrill.staging.attach.discovery import Estate, discover, populate
from hashidrill.staging.attach.http import AgentTransport, Login, Place, Wire
from hashidrill.staging.attach.leftovers import sweep
from hashidrill.staging.attach.links import OURS, TOXICS, Link, hello_of_http, link_of
from hashidrill.staging.attach.target import AttachTarget, read_target
from hashidrill.staging.runs.attach_limits import lacking, possible_kinds
from hashidrill.staging.runs.heal_attached import heal_attached
from hashidrill.testing.fakes import FakeDatacenter
from virtual_time import run

pytestmark = pytest.mark.lie


@pytest.fixture
def target(tmp_path):
    return consul_target(tmp_path)


def test_consuls_hosts_have_their_roles_and_voters_and_the_leader(target):
    fake = FakeEstate(FakeDatacenter(servers=3, clients=2))
    fake.world.consul.meta["client-1"] = {"environment": "staging"}
    estate = run(fake.found(target))
    assert {name: dict(host.roles) for name, host in estate.hosts.items()} == {
        **{f"consul-{n}": {"consul": "server"} for n in (1, 2, 3)},
        **{f"client-{n}": {"consul": "client"} for n in (1, 2)},
    }
    assert estate.leaders == {"consul": "consul-1"}
    assert estate.voters == {"consul": ("consul-1", "consul-2", "consul-3")}
    assert estate.versions == {"consul": "1.22.2"}
    assert estate.hosts["client-1"].meta == {"consul.environment": "staging", "consul.datacenter": "drill"}
    assert estate.hosts["consul-2"].urls == {"consul": "http://10.73.0.12:8500"}
    assert estate.specs == {"consul": {"version": "1.22.2", "servers": 3, "clients": 2}}


def test_looking_writes_nothing(target):
    fake = FakeEstate()
    run(fake.found(target))
    assert {request.method for request in fake.asked} == {"GET"}
    assert all(request.headers["X-Consul-Token"] == TOKEN for request in fake.asked)


def test_an_estate_is_plain_data_without_a_token(target):
    estate = run(FakeEstate().found(target))
    text = json.dumps(estate.to_data())
    assert TOKEN not in text
    again = Estate.from_data(json.loads(text))
    assert again.hosts == estate.hosts
    assert [host.name for host in again.having("consul", "server")] == ["consul-1", "consul-2", "consul-3"]


def test_a_failed_member_is_there_and_said_to_be_failed_and_one_that_left_is_not(target):
    fake = FakeEstate(FakeDatacenter(servers=3, clients=2))
    fake.world.consul.answer(fake.world.hosts["client-2"], "PUT", "/v1/agent/leave", {}, b"")
    fake.world.hosts["consul-3"].process = None
    estate = run(fake.found(target))
    assert "client-2" not in estate.hosts
    assert "consul: consul-3 is failed" in estate.notes
    assert estate.hosts["consul-3"].meta["consul.status"] == "failed"


def test_without_operator_read_the_peers_stand_in_and_that_is_said(target):
    fake = FakeEstate()
    fake.weak = {"/v1/operator/raft/configuration"}
    estate = run(fake.found(target))
    assert estate.voters["consul"] == ("consul-1", "consul-2", "consul-3")
    assert estate.leaders["consul"] == "consul-1"
    assert any("all peers count as voters" in note and 'operator = "read"' in note for note in estate.notes)


def refused(fake, target):
    with pytest.raises(AttachError) as caught:
        run(fake.found(target))
    return str(caught.value)


def test_a_token_that_sees_only_some_nodes_is_refused_instead_of_missing_hosts(target):
    fake = FakeEstate()
    fake.filtered = True
    assert 'sees only 4 of Consul\'s nodes, so hosts would be missed; it needs node_prefix ""' in refused(fake, target)


def test_a_weak_token_is_told_with_the_rule_that_it_lacks_and_where_it_came_from(target, tmp_path):
    fake = FakeEstate()
    fake.weak = {"/v1/catalog/nodes"}
    said = refused(fake, target)
    assert f"the token from the file {tmp_path}/token is too weak: it needs node_prefix" in said
    assert TOKEN not in said


def test_an_unknown_token_and_no_token_are_two_messages(tmp_path):
    target = consul_target(tmp_path)
    (tmp_path / "token").write_text("99999999-0000-0000-0000-000000000000")
    assert "/token is not known there (ACL not found)" in refused(FakeEstate(), consul_target_again(tmp_path))
    anonymous = read_target(attach_file(tmp_path, '  consul: {address: "http://10.73.0.11:8500"}\n'), {})
    assert "refused without a token" in refused(FakeEstate(), anonymous)
    assert target.logins["consul"].token


def consul_target_again(folder):
    """The token file as it stands now."""
    return read_target(folder / "staging.yaml", {})


def test_an_address_that_does_not_answer_is_told(target):
    fake = FakeEstate()
    fake.silent = {"10.73.0.11"}
    said = refused(fake, target)
    assert "http://10.73.0.11:8500: GET /v1/agent/members: connection refused; is the address right" in said


def test_a_certificate_that_is_not_accepted_is_told_as_such(target):
    def answer(request):
        raise httpx2.ConnectError("TLS", request=request) from certificate_error()

    wire = Wire(target.logins["consul"], transport=httpx2.MockTransport(answer))
    with pytest.raises(AttachError, match=r"its certificate is not accepted: self-signed.*set ca_file, server_name"):
        run(discover(target, {"consul": wire}))


def test_a_server_that_wants_a_client_certificate_is_told_as_such(target):
    """TLS 1.3 says so only when the answer is read, and httpx2 lets that error through as it is."""

    def answer(_request):
        error = ssl.SSLError(1, "tlsv13 alert certificate required")
        error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
        raise error

    wire = Wire(target.logins["consul"], transport=httpx2.MockTransport(answer))
    with pytest.raises(AttachError, match="TLS failed: it wants a client certificate; set ca_file"):
        run(discover(target, {"consul": wire}))

    async def probed():
        place = Place("https://h:9", target.logins["consul"])
        transport = AgentTransport(lambda *_: place, lambda _: httpx2.MockTransport(answer))
        async with httpx2.AsyncClient(transport=transport) as client:
            await client.get("http://10.73.0.11:8500/v1/status/leader")

    with pytest.raises(httpx2.ReadError, match="it wants a client certificate"):
        run(probed())


def test_plain_http_to_a_tls_port_and_something_that_is_no_consul_are_told(target):
    def told(answer):
        wire = Wire(target.logins["consul"], transport=httpx2.MockTransport(lambda _: answer))
        with pytest.raises(AttachError) as caught:
            run(discover(target, {"consul": wire}))
        return str(caught.value)

    plain = httpx2.Response(400, text="Client sent an HTTP request to an HTTPS server.")
    assert "speaks TLS: write its address as https://10.73.0.11:8500" in told(plain)
    assert "HTTP 404 not found; is this consul?" in told(httpx2.Response(404, text="not found"))
    assert "is this consul?" in told(httpx2.Response(200, text="<html>"))
    assert "expected a list; is this consul?" in told(httpx2.Response(200, json={"a": 1}))


@pytest.mark.parametrize(
    ("undoing", "leaderless_s", "found"), [(True, 20, True), (True, 60, False), (False, 20, False)]
)
def test_heal_waits_for_an_election_and_nothing_else_does(target, undoing, leaderless_s, found):
    fake = FakeEstate(FakeDatacenter(servers=3))

    async def whole():
        began_s = anyio.current_time()

        def answer(request):
            if anyio.current_time() - began_s < leaderless_s:
                return httpx2.Response(500, text="No cluster leader")
            return fake.transport("consul").handler(request)

        wire = Wire(target.logins["consul"], transport=httpx2.MockTransport(answer))
        try:
            return (await discover(replace(target, undoing=undoing), {"consul": wire})).leaders["consul"]
        except AttachError as error:
            return str(error)

    told = run(whole())
    assert told == "consul-1" if found else "HTTP 500 No cluster leader" in told


BOTH = """\
  consul: {address: "http://10.73.0.11:8500", token_file: token}
  nomad: {address: "https://10.73.0.21:4646"}
  vault: {address: "https://10.73.0.51:8200", agents: {vault-2: "https://127.0.0.1:9002"}}
"""


def test_agents_of_several_products_at_one_address_are_one_host(tmp_path):
    fake = FakeEstate(FakeDatacenter(servers=1, clients=1))
    fake.answers = {**of_nomad(), **of_vault()}
    estate = run(fake.found(read_target(attach_file(tmp_path, BOTH), {})))
    assert dict(estate.hosts["client-1"].roles) == {"consul": "client", "nomad": "client"}
    assert estate.hosts["client-1"].urls["nomad"] == "https://10.73.0.31:4646"
    assert "node-2" not in estate.hosts
    assert estate.leaders == {"consul": "consul-1", "nomad": "nomad-1", "vault": "vault-1"}
    assert estate.voters["vault"] == ("vault-1", "vault-2", "vault-3")
    assert [host.name for host in estate.having("vault")] == ["vault-1", "vault-2", "vault-3"]
    assert estate.hosts["vault-2"].urls["vault"] == "https://127.0.0.1:9002"
    assert any(
        "vault-3 is in Raft's configuration but not in the active server's list" in note for note in estate.notes
    )
    assert estate.versions == {"consul": "1.22.2", "nomad": "1.10.5", "vault": "1.21.0"}
    assert estate.specs["vault"] == {"version": "1.21.0", "servers": 3, "storage": "raft", "unseal": "never"}


def test_servers_of_vaults_own_chart_are_one_host_each_though_raft_knows_them_by_names(tmp_path):
    """Raft has `vault-0.vault-internal`, and they hear of each other by the addresses of their pods."""
    fake = FakeEstate(FakeDatacenter(servers=1, clients=1))
    nodes = [
        {"hostname": f"vault-{n}", "api_address": f"http://10.73.0.5{n}:8200", "active_node": n == 1} for n in (0, 1)
    ]
    servers = [{"node_id": f"id-{n}", "address": f"vault-{n}.vault-internal:8201", "voter": True} for n in (0, 1, 2)]
    fake.answers = of_vault() | {
        ("vault", "/v1/sys/ha-status"): {"nodes": nodes},
        ("vault", "/v1/sys/storage/raft/configuration"): {"data": {"config": {"servers": servers}}},
    }
    estate = run(fake.found(read_target(attach_file(tmp_path, '  vault: {address: "http://10.73.0.51:8200"}\n'), {})))
    assert {name: host.address for name, host in estate.hosts.items()} == {
        "id-0": "10.73.0.50",
        "id-1": "10.73.0.51",
        "id-2": "vault-2.vault-internal",
    }
    assert estate.leaders == {"vault": "id-1"}
    assert estate.voters["vault"] == ("id-0", "id-1", "id-2")
    assert [note for note in estate.notes if "active server's list" in note] == [
        "vault: id-2 is in Raft's configuration but not in the active server's list: sealed, or down"
    ]


def test_every_product_that_cannot_be_attached_is_in_the_one_message(tmp_path):
    fake = FakeEstate(FakeDatacenter(servers=1, clients=1))
    fake.answers = of_nomad()
    fake.silent = {"10.73.0.11"}
    said = refused(fake, read_target(attach_file(tmp_path, BOTH), {}))
    assert "staging cannot be attached:" in said
    assert "  consul: http://10.73.0.11:8500" in said
    assert "  vault: https://10.73.0.51:8200: GET /v1/sys/seal-status: HTTP 404" in said
    assert "  nomad:" not in said


def test_hosts_that_cannot_be_told_apart_are_refused(target):
    fake = FakeEstate()
    fake.world.hosts["consul-2"].address = fake.world.hosts["consul-3"].address
    assert "consul-3 and consul-2 both have the address 10.73.0.13" in refused(fake, target)


def test_an_agents_url_for_a_host_that_is_not_there_is_a_mistake(tmp_path):
    body = '  consul: {address: "http://10.73.0.11:8500", token_file: token, agents: {consul-9: "http://x:1"}}\n'
    target = read_target(attach_file(tmp_path, body), {})
    said = refused(FakeEstate(), target)
    assert "agents: there is no 'consul-9'; consul knows client-1, consul-1, consul-2, consul-3" in said
    to_heal = replace(target, undoing=True)  # a fault may have taken it out of the membership
    assert "consul-9" not in run(FakeEstate().found(to_heal)).hosts


async def test_what_asks_an_agent_by_its_address_is_sent_to_its_url_with_the_login_and_to_nobody_else(tmp_path):
    body = (
        '  consul: {address: "https://lb:8501", token_file: token, namespace: n, agents: {consul-1: "https://h:9"}}\n'
    )
    login = read_target(attach_file(tmp_path, body), {}).logins["consul"]
    seen = []

    def answer(request):
        seen.append((str(request.url), request.headers["X-Consul-Token"], request.headers["Host"]))
        return httpx2.Response(200, json="x")

    def place_of(address, port):
        return Place(login.url_of("consul-1", address), login) if (address, port) == ("10.73.0.11", 8500) else None

    transport = AgentTransport(place_of, lambda _: httpx2.MockTransport(answer))
    async with httpx2.AsyncClient(transport=transport) as client:
        await client.get("http://10.73.0.11:8500/v1/status/leader", params={"stale": ""})
        with pytest.raises(httpx2.ConnectError, match=r"192\.0\.2\.1 is not an agent of the attached datacenter"):
            await client.get("http://192.0.2.1:8500/v1/status/leader")
    await transport.close()
    assert seen == [("https://h:9/v1/status/leader?stale=", TOKEN, "h:9")]


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
