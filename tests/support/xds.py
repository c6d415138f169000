"""What Consul would tell an Envoy: asks an agent for a proxy's resources over xDS, as an Envoy does, and reads the few
fields that the tests look at. One stream, one request and the first answer to it.
"""

import socket
import struct
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.events

from hashidrill.products.consul.loads.streams import fields

_PATH = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
_TYPES = {
    "clusters": "envoy.config.cluster.v3.Cluster",
    "endpoints": "envoy.config.endpoint.v3.ClusterLoadAssignment",
    "routes": "envoy.config.route.v3.RouteConfiguration",
}
_PREFIX = struct.Struct(">?I")
_SILENCE_S = 20
_HEALTHY = 1


def resources(port, proxy, kind):
    """All resources of that kind for that proxy, by name. Raises AssertionError with what gRPC says instead."""
    type_url = f"type.googleapis.com/{_TYPES[kind]}".encode()
    # DeltaDiscoveryRequest: 1 node (1 id), 2 type_url; without names it is for all that there are
    answer = _first_answer(port, _text(1, _text(1, proxy.encode())) + _text(2, type_url))
    # DeltaDiscoveryResponse: 2 resources (2 an Any (2 value), 3 name)
    found = [dict(fields(each)) for number, each in fields(answer) if number == 2]
    return {each[3].decode(): dict(fields(each[2]))[2] for each in found}


def _text(number, content):
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def _first_answer(port, message):
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    client.increment_flow_control_window(1 << 24)
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", _PATH),
        (":authority", f"127.0.0.1:{port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    client.send_headers(1, headers)
    client.send_data(1, _PREFIX.pack(False, len(message)) + message)
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=_SILENCE_S) as connection:
        while True:
            connection.sendall(client.data_to_send())
            for event in client.receive_data(connection.recv(1 << 16)):
                assert not isinstance(event, (h2.events.TrailersReceived, h2.events.StreamReset)), event
                if isinstance(event, h2.events.DataReceived):
                    client.acknowledge_received_data(event.flow_controlled_length, 1)
                    received += event.data
            if len(received) >= _PREFIX.size:
                length = _PREFIX.unpack_from(received)[1]
                if len(received) >= _PREFIX.size + length:
                    return received[_PREFIX.size : _PREFIX.size + length]


def _below(message, *path):
    """The messages at a path of field numbers."""
    found = [message]
    for number in path:
        found = [value for each in found for at, value in fields(each) if at == number]
    return found


def _wrapped(message, number):
    """A UInt32Value; None where there is none, 0 where it is there and empty."""
    [found] = _below(message, number) or [None]
    return None if found is None else dict(fields(found)).get(1, 0)


@dataclass(frozen=True)
class RetryPolicy:
    retry_on: str
    num_retries: int | None


def retry_policies(route):
    """Of the routes of a RouteConfiguration in their order, None for one without.

    RouteConfiguration: 2 virtual_hosts; VirtualHost: 3 routes; Route: 2 route; RouteAction: 9 retry_policy.
    """
    found = []
    for action in _below(route, 2, 3, 2):
        [policy] = _below(action, 9) or [None]
        said = None
        if policy is not None:
            [retry_on] = _below(policy, 1) or [b""]
            said = RetryPolicy(retry_on.decode(), _wrapped(policy, 2))
        found.append(said)
    return found


def matched_methods(route):
    """Of the routes in their order, what their `:method` has to match; None for one that takes all.

    Route: 1 match; RouteMatch: 6 headers; HeaderMatcher: 1 name.
    """
    matches = [[header for header in _below(match, 6) if b":method" in header] for match in _below(route, 2, 3, 1)]
    return [b" ".join(headers) if headers else None for headers in matches]


@dataclass(frozen=True)
class OutlierDetection:
    consecutive_5xx: int | None
    max_ejection_percent: int | None
    enforcing_consecutive_5xx: int | None


def outlier_detection(cluster):
    """Cluster: 19 outlier_detection."""
    [found] = _below(cluster, 19)
    return OutlierDetection(_wrapped(found, 1), _wrapped(found, 4), _wrapped(found, 5))


def endpoints(assignment):
    """(port, whether it is healthy) of each.

    ClusterLoadAssignment: 2 endpoints (2 lb_endpoints: 1 endpoint (1 address (1 socket_address: 3 port)), 2 health).
    """
    found = _below(assignment, 2, 2)
    return {(dict(fields(_below(each, 1, 1, 1)[0]))[3], dict(fields(each)).get(2) == _HEALTHY) for each in found}
