"""What loads send to agents that want more than an address: TLS by the right name, a client certificate, a token."""

import asyncio
import ssl

import pytest
import trustme

from hashidrill.core.loads.http_client import HttpClient, opened
from hashidrill.core.util.tls import TlsFileError

pytestmark = pytest.mark.lie

TOKEN = "3f0c5b0e-1111-4a1c-9d53-2f8a4b7c0e11"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    ca, other = trustme.CA(), trustme.CA()
    for name, authority in (("ca", ca), ("other", other)):
        authority.cert_pem.write_to_path(folder / f"{name}.pem")
    for name, authority in (("server", ca), ("client", ca), ("stranger", other)):
        made = authority.issue_cert("server.dc1.consul")
        made.private_key_pem.write_to_path(folder / f"{name}-key.pem")
        made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return folder


def entrance(files, *, ca="ca", cert="client", server_name="server.dc1.consul", params=None):
    """As a login gives it."""
    tls = {
        "ca_file": str(files / f"{ca}.pem"),
        "ca_path": "",
        "server_name": server_name,
        "verify": True,
        "cert_file": str(files / f"{cert}.pem") if cert else "",
        "key_file": str(files / f"{cert}-key.pem") if cert else "",
    }
    return {"tls": tls, "headers": {"X-Consul-Token": TOKEN}, "params": params or {}}


async def asked(files, given, *, local_address=None):
    """(the answers to two requests, what the server read of each): it wants a certificate of its own CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem", files / "server-key.pem")
    context.load_verify_locations(files / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    read, connections = [], []

    async def serve(reader, writer):
        connections.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            read.append(head.decode())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def served(reader, writer):
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with HttpClient(entrances=opened({url: given}), local_address=local_address) as http:
        answers = [await http.request("GET", f"{url}/v1/kv/a?stale", timeout_s=5.0) for _ in range(2)]
    server.close()
    return answers, read, len(connections)


@pytest.mark.parametrize("local_address", [None, "127.0.0.1"])
def test_requests_go_over_tls_with_the_token_and_keep_their_connection(files, local_address):
    answers, read, connections = asyncio.run(asked(files, entrance(files), local_address=local_address))
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"ok")] * 2
    assert all(f"X-Consul-Token: {TOKEN}\r\n" in head for head in read)
    assert connections == 1


def test_a_namespace_goes_with_each_request_as_a_parameter(files):
    _, read, _ = asyncio.run(asked(files, entrance(files, params={"namespace": "a b"})))
    assert read[0].startswith("GET /v1/kv/a?stale&namespace=a+b HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ca": "other"}, "could not connect: TLS: "),
        ({"server_name": "server.dc2.consul"}, "could not connect: TLS: Hostname mismatch"),
    ],
)
def test_a_server_that_is_not_the_right_one_is_sent_nothing(files, wrong, said):
    answers, read, _ = asyncio.run(asked(files, entrance(files, **wrong)))
    assert read == []
    assert all(answer.status == 0 and answer.sent is False for answer in answers)
    assert said in answers[0].error
    assert TOKEN not in repr(answers)


@pytest.mark.parametrize("cert", ["", "stranger"])
def test_a_client_without_the_right_certificate_gets_no_answer_and_says_so(files, cert):
    answers, read, _ = asyncio.run(asked(files, entrance(files, cert=cert)))
    assert read == []
    assert all(answer.status == 0 and answer.error for answer in answers)


def test_a_file_that_cannot_be_used_is_named(files):
    with pytest.raises(TlsFileError, match=r"/gone\.pem: the CA certificate cannot be used: No such file"):
        opened({"https://h:1": entrance(files, ca="gone")})
