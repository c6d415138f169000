"""What the audit says of Consul's config entries, shown on what a real agent would tell an Envoy.

What Envoy then does is Envoy's, and is taken from its documentation: see `source` of those rules.
"""

import httpx2
import pytest

from claims import Agent
from polled import wait
from ports import free_ports
from xds import OutlierDetection, RetryPolicy, endpoints, matched_methods, outlier_detection, resources, retry_policies

CALLER, PROXY = "web", "web-sidecar-proxy"
HTTP = {"Kind": "service-defaults", "Protocol": "http"}


class Mesh(Agent):
    """A Consul server with a mesh in which the proxy of `web` has the upstreams that `upstream` makes."""

    def put(self, path, document):
        answer = httpx2.put(f"{self.url}/v1/{path}", json=document, timeout=10)
        assert answer.status_code == 200, answer.text

    def write(self, **entry):
        self.put("config", entry)

    def service(self, name, port, status="passing"):
        check = {"CheckID": f"{name}-{port}", "TTL": "1h", "Status": status}
        connect = {"Native": True}
        self.put(
            "agent/service/register",
            {"Name": name, "ID": f"{name}-{port}", "Port": port, "Connect": connect, "Check": check},
        )

    def roots(self):
        answer = self.get("connect/ca/roots")
        return True if answer is not None and answer.status_code == 200 else None

    def told(self, kind, names):
        """The resources of those upstreams, once the proxy is told of all: {upstream: resource}."""

        def look():
            found = {name.partition(".")[0]: value for name, value in resources(self.grpc, PROXY, kind).items()}
            return found if set(names) <= set(found) else None

        return wait(f"the {kind} of {', '.join(names)}", look)


@pytest.fixture(scope="module")
def mesh(consul, tmp_path_factory):
    [grpc] = free_ports(1)
    folder = tmp_path_factory.mktemp("mesh")
    settings = {"server": True, "bootstrap_expect": 1, "connect": {"enabled": True}}
    agent = Mesh(consul, folder, "mesh", ports={"grpc": grpc}, **settings)
    agent.grpc = grpc
    try:
        wait("a leader", agent.leader)
        wait("the mesh's certificate authority", agent.roots)
        yield agent
    finally:
        agent.stop()


def call(mesh, *upstreams):
    """Registers the caller's proxy, with those upstreams."""
    mesh.put("agent/service/register", {"Name": CALLER, "Port": 8080})
    said = [{"DestinationName": name, "LocalBindPort": 9100 + number} for number, name in enumerate(upstreams)]
    proxy = {"DestinationServiceName": CALLER, "DestinationServiceID": CALLER, "Upstreams": said}
    sidecar = {"Kind": "connect-proxy", "Name": PROXY, "ID": PROXY, "Port": 21000, "Proxy": proxy}
    mesh.put("agent/service/register", sidecar)


ON = ["connect-failure", "5xx"]
ROUTES = {
    "plain": ({}, {}),
    "paper": ({}, {"NumRetries": 3}),
    "condition": ({}, {"RetryOn": ON}),
    "legacy": ({}, {"RetryOnConnectFailure": True}),
    "codes": ({}, {"RetryOnStatusCodes": [503]}),
    "both": ({}, {"NumRetries": 3, "RetryOn": ON}),
    "reads": ({"Methods": ["GET", "HEAD"]}, {"NumRetries": 3, "RetryOn": ON}),
}
"""Services with one route each: what it matches, and what it does."""


@pytest.fixture(scope="module")
def routes(mesh):
    """What the proxy of a caller is told of each of these services."""
    for name, (http, destination) in ROUTES.items():
        mesh.write(**HTTP, Name=name)
        match = {"HTTP": {"PathPrefix": "/", **http}}
        mesh.write(Kind="service-router", Name=name, Routes=[{"Match": match, "Destination": destination}])
    call(mesh, *ROUTES)
    return mesh.told("routes", ROUTES)


def test_num_retries_without_a_condition_names_nothing_to_retry_on(routes):
    """HD111: the policy says three, and on nothing. Each of the three kinds of condition is passed on beside it."""
    assert retry_policies(routes["paper"])[0] == RetryPolicy(retry_on="", num_retries=3)
    assert retry_policies(routes["both"])[0] == RetryPolicy(retry_on="connect-failure,5xx", num_retries=3)
    assert retry_policies(routes["legacy"])[0].retry_on == "connect-failure"
    assert retry_policies(routes["codes"])[0].retry_on == "retriable-status-codes"
    assert retry_policies(routes["plain"])[0] is None


def test_a_condition_without_num_retries_leaves_the_number_to_envoy(routes):
    """HD112: no number is passed on, so that Envoy's own default holds."""
    assert retry_policies(routes["condition"])[0] == RetryPolicy(retry_on="connect-failure,5xx", num_retries=None)
    assert retry_policies(routes["legacy"])[0].num_retries is None
    assert retry_policies(routes["both"])[0].num_retries == 3


def test_a_route_without_methods_retries_all_of_them(routes):
    """HD113: the retry policy is the same, the match is not."""
    assert matched_methods(routes["both"])[0] is None
    assert b"GET|HEAD" in matched_methods(routes["reads"])[0]
    assert retry_policies(routes["reads"])[0] == retry_policies(routes["both"])[0]
    # what is not matched falls to the route that Consul adds, and that one retries nothing
    assert matched_methods(routes["reads"])[-1] is None
    assert retry_policies(routes["reads"])[-1] is None


def test_without_failover_a_proxy_has_no_healthy_endpoint_left(mesh):
    """HD114: the instances of two services have failed; one resolver has a Failover, to one that is well."""
    mesh.service("alone", 8101, "critical")
    mesh.service("covered", 8102, "critical")
    mesh.service("standby", 8103)
    mesh.write(Kind="service-resolver", Name="alone", ConnectTimeout="5s")
    mesh.write(Kind="service-resolver", Name="covered", ConnectTimeout="5s", Failover={"*": {"Service": "standby"}})
    call(mesh, "alone", "covered")

    def targets(name):
        return set(mesh.get(f"discovery-chain/{name}").json()["Chain"]["Targets"])

    assert targets("alone") == {"alone.default.default.dc1"}
    assert targets("covered") == {"covered.default.default.dc1", "standby.default.default.dc1"}
    wait("the endpoints of both", lambda: len(passing(mesh, "alone")) + len(passing(mesh, "covered")) >= 3)
    assert passing(mesh, "alone") == {8101: False}
    assert passing(mesh, "covered") == {8102: False, 8103: True}


def passing(mesh, upstream):
    """{port: whether it is healthy} of all endpoints of an upstream, those of its failover included."""
    found = resources(mesh.grpc, PROXY, "endpoints")
    own = [value for name, value in found.items() if name.rpartition("~")[2].startswith(f"{upstream}.default.")]
    return dict(pair for assignment in own for pair in endpoints(assignment))


def test_a_passive_health_check_of_zero_reaches_envoy_as_zero(mesh):
    """HD115: nothing is enforced, or nothing may be ejected; with neither said, Envoy's defaults hold."""
    checks = {
        "default": {"MaxFailures": 5},
        "unenforced": {"MaxFailures": 5, "EnforcingConsecutive5xx": 0},
        "unejected": {"MaxFailures": 5, "MaxEjectionPercent": 0},
        "as_fixed": {"MaxFailures": 5, "MaxEjectionPercent": 50},
    }
    overrides = [{"Name": name, "PassiveHealthCheck": check} for name, check in checks.items()]
    mesh.write(Kind="service-defaults", Name=CALLER, UpstreamConfig={"Overrides": overrides})
    call(mesh, *checks)
    told = {
        name: outlier_detection(cluster) for name, cluster in mesh.told("clusters", checks).items() if name in checks
    }
    assert told == {
        "default": OutlierDetection(5, None, None),
        "unenforced": OutlierDetection(5, None, 0),
        "unejected": OutlierDetection(5, 0, None),
        "as_fixed": OutlierDetection(5, 50, None),
    }
