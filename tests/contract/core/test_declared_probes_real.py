"""tcp, tls, dns, command and metrics probes on real sockets and processes of the loopback, lies included."""

import asyncio
import json
import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import dns.message
import dns.rcode
import dns.rrset
import pytest
import trustme

from hashidrill.core.probes.declared import ProbeContext
from hashidrill.core.protocols import registry
from hashidrill.core.util.syscalls import process_state
from polled import wait
from ports import free_ports

HOSTS = ProbeContext({"web": "127.0.0.1"}, {"the variable T": "s3cret-token"})


async def looked(kind, params, *, timeout_s=1.0):
    cls = registry.probe(kind)
    probe = cls("it", cls.Params.model_validate(params), HOSTS, timeout_s=timeout_s)
    samples = await probe.sample()
    await probe.aclose()
    return {one.signal.removeprefix("it."): one.text if one.value is None else one.value for one in samples}, samples


def asked(kind, params, **more):
    return asyncio.run(looked(kind, params, **more))[0]


# command


def python(code, **more):
    return {"command": [sys.executable, "-I", "-S", "-c", code], **more}


def test_a_command_is_its_exit_code_and_its_number():
    assert asked("command", python("raise SystemExit(3)", exit_code=3))["ok"] == 1
    seen = asked("command", python("print(' 4.5e1 ')", number=True), timeout_s=10)
    assert (seen["ok"], seen["value"]) == (1, 45)


COMMANDS = {
    "another exit code": python("raise SystemExit(1)", number=True),
    "it hangs": python("import time; time.sleep(60)", number=True),
    "it hangs once it has printed": python("import time; print(1, flush=True); time.sleep(60)", number=True),
    "it is killed": python("import os; os.kill(os.getpid(), 9)", number=True),
    "there is no such program": {"command": ["/no/such/program"], "number": True},
    "it prints for ever": python("while True: print('1' * 1000)", number=True),
    "NaN": python("print('nan')", number=True),
    "infinity": python("print('inf')", number=True),
    "nothing": python("", number=True),
    "two numbers": python("print(1, 2)", number=True),
    "a word": python("print('up')", number=True),
    "bytes": python("import os; os.write(1, bytes(range(256)))", number=True),
    "a number that was not asked for": python("print(1)"),
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", COMMANDS)
def test_a_command_that_says_nothing_gives_no_number(lie):
    timeout_s = 1.0 if "hangs" in lie or "for ever" in lie else 10.0
    seen = asked("command", COMMANDS[lie], timeout_s=timeout_s)
    assert isinstance(seen["value"], str)
    if "hangs" in lie or lie in {"it is killed", "it prints for ever", "there is no such program"}:
        assert isinstance(seen["ok"], str), "whether it would have been good is unknown"


def test_a_command_leaves_no_process_and_gets_no_secret_but_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", "not-for-it")
    marked = tmp_path / "pid"
    code = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "told = [str(child.pid), os.environ.get('CONSUL_HTTP_TOKEN', 'None'), os.environ['MY_T']];"
        f"open({str(marked)!r}, 'w').write(' '.join(told));"
        "import time; time.sleep(60)"
    )
    params = python(code, environment={"MY_T": {"env": "T"}})
    seen = asked("command", params, timeout_s=3)
    assert "no answer within" in seen["ok"]
    pid, others, own = marked.read_text().split()
    assert (others, own) == ("None", "s3cret-token")
    wait("the killed child to die, which takes a turn of the CPU", lambda: (process_state(int(pid)) or "X")[0] in "ZX")


# tcp and tls


async def serving(handler, use, **tls):
    writers = []

    async def handle(reader, writer):
        writers.append(writer)
        await handler(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, **tls)
    async with server:
        try:
            return await use(server.sockets[0].getsockname()[1])
        finally:
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(0.01)


async def hello(_reader, writer):
    writer.close()


async def silent(_reader, writer):
    await asyncio.sleep(5)
    writer.close()


async def garbage(_reader, writer):
    writer.write(b"SSH-2.0-OpenSSH\r\n" * 100)
    await writer.drain()
    await asyncio.sleep(1)
    writer.close()


async def ends(_reader, writer):
    writer.transport.abort()


async def ends_after_hello(reader, writer):
    await reader.read(64)
    writer.write(b"\x16\x03\x03\x00\x40")
    await writer.drain()
    writer.transport.abort()


async def plain_http(reader, writer):
    await reader.read(64)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


def certificate(ca, *names, days=30.0):
    return ca.issue_cert(*names, not_after=datetime.now(UTC) + timedelta(days=days))


def of_tls(tmp_path, *, names=("web",), days=30.0, trusted=True, handler=hello, **tls):
    """What a tls probe says of a server with that certificate."""
    ca, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate(ca, *names, days=days).configure_cert(context)
    (ca if trusted else other).cert_pem.write_to_path(tmp_path / "ca.pem")
    served = {"ssl": context} if handler is hello else {}

    async def ask(port):
        params = {"address": f"web:{port}", "tls": {"ca_file": str(tmp_path / "ca.pem"), **tls}}
        return (await looked("tls", params))[0]

    return asyncio.run(serving(handler, ask, **served))


def test_a_port_that_is_open_and_a_certificate_that_is_good(tmp_path):
    async def ask(port):
        return (await looked("tcp", {"address": f"web:{port}"}))[0]

    assert asyncio.run(serving(hello, ask))["ok"] == 1
    seen = of_tls(tmp_path)
    assert seen["ok"] == 1
    assert 29.9 < seen["days_left"] < 30.1
    assert of_tls(tmp_path, names=("other",), server_name="other")["ok"] == 1
    assert of_tls(tmp_path, days=-3, verify=False)["days_left"] == pytest.approx(-3, abs=0.1)


TLS = {
    "another name": {"names": ("api",)},
    "a name that only begins like it": {"names": ("web.example.org",)},
    "a certificate of yesterday": {"days": -1},
    "an unknown issuer": {"trusted": False},
    "another server name": {"server_name": "api"},
    "silence": {"handler": silent},
    "another protocol": {"handler": garbage},
    "it closes at once": {"handler": ends},
    "it ends in the middle of the handshake": {"handler": ends_after_hello},
    "it speaks plain HTTP": {"handler": plain_http},
    "only a name that it has not as a wildcard": {"names": ("*.example.org",)},
    "a trusted certificate for an address only": {"names": ("127.0.0.1",)},
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", TLS)
def test_a_handshake_that_no_client_would_finish_is_none(lie, tmp_path):
    seen = of_tls(tmp_path, **TLS[lie])
    assert seen["ok"] == 0
    assert isinstance(seen["days_left"], str)
    assert seen["days_left"] != "not measured"


@pytest.mark.lie
@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_a_closed_port_serves_nobody(kind):
    async def port_of(port):
        return port

    port = asyncio.run(serving(hello, port_of))
    assert asked(kind, {"address": f"web:{port}"})["ok"] == 0


# dns

NAME = "web.service.consul."


class Dns(asyncio.DatagramProtocol):
    """A server that answers as `reply(question)` says: a message, bytes, several of them, or nothing."""

    def __init__(self, reply):
        self._reply = reply

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        said = self._reply(dns.message.from_wire(data))
        for each in said if isinstance(said, list) else [said]:
            if each is not None:
                self.transport.sendto(each if isinstance(each, bytes) else each.to_wire(), addr)


def reply_of(rcode=dns.rcode.NOERROR, *records, name=NAME, kind="A"):
    def reply(question):
        answer = dns.message.make_response(question)
        answer.set_rcode(rcode)
        if records:
            answer.answer.append(dns.rrset.from_text(name, 0, "IN", kind, *records))
        return answer

    return reply


def chained(question):
    answer = reply_of(dns.rcode.NOERROR, "node.consul.", kind="CNAME")(question)
    answer.answer.append(dns.rrset.from_text("node.consul.", 0, "IN", "A", "10.0.0.1"))
    return answer


def other_id(question):
    answer = reply_of(dns.rcode.NOERROR, "10.0.0.1")(question)
    answer.id ^= 1
    return answer


def other_question(question):
    return reply_of(dns.rcode.NOERROR, "10.0.0.1", name="api.service.consul.")(
        dns.message.make_query("api.service.consul.", "A", id=question.id)
    )


def of_dns(reply, **params):
    async def ask():
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: Dns(reply), local_addr=("127.0.0.1", 0)
        )
        server = f"web:{transport.get_extra_info('sockname')[1]}"
        try:
            return (await looked("dns", {"name": NAME, "server": server, **params}))[0]
        finally:
            transport.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("reply", "params", "expected"),
    [
        (reply_of(dns.rcode.NOERROR, "10.0.0.1", "10.0.0.2"), {"answers": ["10.0.0.2"]}, (1, 0, 2)),
        (chained, {}, (1, 0, 1)),
        (reply_of(dns.rcode.NXDOMAIN), {"expect": "nxdomain"}, (1, 3, 0)),
        (reply_of(), {"expect": "nodata"}, (1, 0, 0)),
        (reply_of(dns.rcode.NOERROR, "1 1 8300 node.consul.", kind="SRV"), {"type": "SRV"}, (1, 0, 1)),
    ],
)
def test_a_good_answer_of_a_dns_server(reply, params, expected):
    seen = of_dns(reply, **params)
    assert (seen["ok"], seen["rcode"], seen["answers"]) == expected


DNS = {
    "no such name": (reply_of(dns.rcode.NXDOMAIN), {}, 3),
    "no record of this type": (reply_of(), {}, 0),
    "SERVFAIL": (reply_of(dns.rcode.SERVFAIL), {}, 2),
    "SERVFAIL is not NXDOMAIN": (reply_of(dns.rcode.SERVFAIL), {"expect": "nxdomain"}, 2),
    "no data is not NXDOMAIN": (reply_of(), {"expect": "nxdomain"}, 0),
    "REFUSED": (reply_of(dns.rcode.REFUSED), {}, 5),
    "another address": (reply_of(dns.rcode.NOERROR, "10.0.0.9"), {"answers": ["10.0.0.1"]}, 0),
    "the answer for another name": (reply_of(dns.rcode.NOERROR, "10.0.0.1", name="api.service.consul."), {}, 0),
    "an answer although there should be none": (reply_of(dns.rcode.NOERROR, "10.0.0.1"), {"expect": "nxdomain"}, 0),
    "another question": (other_question, {}, None),
    "another id": (other_id, {}, None),
    "garbage": (lambda _: b"\x00\x01garbage", {}, None),
    "silence": (lambda _: None, {}, None),
    "CNAMEs in a circle": (reply_of(dns.rcode.NOERROR, NAME, kind="CNAME"), {}, None),
}


@pytest.mark.lie
@pytest.mark.parametrize("lie", DNS)
def test_an_answer_that_is_not_the_one_expected_is_no_good_one(lie):
    reply, params, rcode = DNS[lie]
    seen = of_dns(reply, **params)
    assert seen["ok"] != 1
    if rcode is None:
        assert isinstance(seen["rcode"], str)
        assert seen["rcode"] != "not measured"
    else:
        assert seen["rcode"] == rcode


# metrics


@pytest.mark.lie
@pytest.mark.needs("consul 1.10.3", "consul 1.22.2")
@pytest.mark.parametrize(
    ("version", "named"), [("1.10.3", "consul_consul_state_nodes"), ("1.22.2", "consul_state_nodes")]
)
def test_a_metric_that_a_version_of_consul_renamed_is_missing_under_its_other_name(version, named, binary, tmp_path):
    names = ("http", "dns", "serf_lan", "serf_wan", "server", "grpc")
    ports = dict(zip(names, free_ports(len(names), ["127.0.0.1"]), strict=True))
    config = {"telemetry": {"prometheus_retention_time": "60s", "disable_hostname": True}, "ports": ports}
    (tmp_path / "agent.json").write_text(json.dumps(config))
    page = f"http://127.0.0.1:{ports['http']}/v1/agent/metrics?format=prometheus"
    command = [
        binary("consul", version).path,
        "agent",
        "-dev",
        "-bind",
        "127.0.0.1",
        "-config-file",
        tmp_path / "agent.json",
    ]

    def exists(series):
        return asked("metrics", {"url": page, "source": "page", "series": [series]}, timeout_s=5)["ok"]

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
        try:
            ends_s = time.monotonic() + 40
            while exists('consul_raft_commitTime{quantile="0.5"}') != 1:
                assert time.monotonic() < ends_s, "it leads by now"
                time.sleep(0.3)
            found = {name for name in ("consul_consul_state_nodes", "consul_state_nodes") if exists(name) == 1}
        finally:
            agent.terminate()
    assert found == {named}
