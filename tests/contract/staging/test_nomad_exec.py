"""Programs by Nomad's exec, over real WebSockets: a server that frames as Nomad 1.10.5 does, and runs programs."""

import asyncio
import base64
import contextlib
import json
import ssl
import sys
from contextlib import asynccontextmanager

import pytest
import trustme
from aiohttp import web

from hashidrill.core.errors import FaultError
from hashidrill.staging.attach.http import Login, Tls
from hashidrill.staging.carriers.nomad import ExecSession, dialler
from hashidrill.staging.carriers.shell import OBSERVERS, STARTER, handed, program

TOKEN = "8f3e7c2a-nomad-token"


class Served:
    """Nomad's exec endpoint. `refuses`: what it closes the connection with; `cuts`: whether it is gone at once."""

    def __init__(self, *, refuses="", cuts=False):
        self.refuses, self.cuts = refuses, cuts
        self.asked, self.certificates = [], []

    async def exec(self, request):
        self.asked.append(request)
        self.certificates.append(request.get_extra_info("peercert"))
        if request.headers["X-Nomad-Token"] != TOKEN:
            raise web.HTTPForbidden(text="Permission denied")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.refuses:
            await socket.close(code=1008, message=self.refuses.encode())
            return socket
        child = await asyncio.create_subprocess_exec(
            *json.loads(request.query["command"]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        if self.cuts:
            child.kill()
            await child.wait()
            request.transport.abort()
            return socket
        reading = asyncio.create_task(self._fed(socket, child))
        await asyncio.gather(self._told(socket, child.stdout, "stdout"), self._told(socket, child.stderr, "stderr"))
        await socket.send_json({"exited": True, "result": {"exit_code": await child.wait()}})
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await socket.close()
        return socket

    async def _fed(self, socket, child):
        async for message in socket:
            said = json.loads(message.data)["stdin"]
            if said.get("close"):
                child.stdin.close()
            else:
                child.stdin.write(base64.b64decode(said["data"]))
                await child.stdin.drain()

    async def _told(self, socket, pipe, name):
        while said := await pipe.read(1000):
            await socket.send_json({name: {"data": base64.b64encode(said).decode()}})
        await socket.send_json({name: {"close": True}})

    @asynccontextmanager
    async def session(self, *command, tls=None, served_with=None, token=TOKEN):
        """`tls`: the login's; `served_with`: the server's SSL context."""
        app = web.Application()
        app.router.add_get("/v1/client/allocation/{id}/exec", self.exec)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=served_with)
        await site.start()
        port = runner.addresses[0][1]
        login = Login(
            "nomad",
            f"http{'s' if served_with else ''}://127.0.0.1:{port}",
            tls or Tls(),
            headers={"X-Nomad-Token": token},
            params={"namespace": "drills"},
        )
        try:
            async with dialler(login) as dial:
                yield ExecSession(await dial("alloc-1", command), "client-1")
        finally:
            await runner.cleanup()


async def test_observers_answer_and_end_with_their_input():
    served = Served()
    async with served.session(sys.executable, "-c", STARTER) as session:
        await session.send(handed(program({"data": "", "listens": False}, OBSERVERS)))
        assert json.loads(await session.receive())["event"] == "ready"
        await session.send(b'{"id": 1, "op": "state", "reference": "1@1"}\n')
        assert json.loads(await session.receive()) == {"id": 1, "state": ""}
        closing = asyncio.create_task(session.close())
        assert await session.receive() == b""
        await closing
        assert await session.ended() == "it ended with exit code 0"
    [request] = served.asked
    assert (request.headers["X-Nomad-Token"], request.query["namespace"], request.query["tty"]) == (
        TOKEN,
        "drills",
        "false",
    )
    assert TOKEN not in str(request.url)


async def test_what_a_program_says_to_its_errors_is_why_it_ended():
    async with Served().session(sys.executable, "-c", "import sys; sys.exit('no such thing')") as session:
        assert await session.receive() == b""
        assert await session.ended() == "it ended with exit code 1: no such thing"
        await session.close()


async def test_an_exec_that_nomad_does_not_allow_is_said_with_what_to_do():
    async with Served(refuses="Permission denied").session("true") as session:
        with pytest.raises(FaultError, match="lacks alloc-exec or alloc-node-exec, or the client says"):
            await session.receive()
        await session.close()


async def test_a_connection_that_is_cut_ends_the_program_for_us():
    async with Served(cuts=True).session("sleep", "1000") as session:
        with contextlib.suppress(FaultError):
            assert await session.receive() == b""
        assert await session.ended() == "the connection was lost"
        with pytest.raises(FaultError, match="client-1: the connection was lost"):
            await session.send(b"{}\n")
        await session.close()


async def test_nobody_there_is_said():
    async with dialler(Login("nomad", "http://127.0.0.1:1")) as dial:
        with pytest.raises(FaultError, match="Nomad's exec is not available: "):
            await dial("alloc-1", ["true"])


NAME = "client.global.nomad"


class Authority:
    """A Nomad that takes nobody without a certificate of its own CA, and whose own is for `NAME` alone."""

    def __init__(self, folder):
        self.folder = folder
        ca, other = trustme.CA(), trustme.CA()
        ca.cert_pem.write_to_path(folder / "ca.pem")
        other.cert_pem.write_to_path(folder / "other.pem")
        ours = ca.issue_cert("ana@staging.example")
        ours.private_key_pem.write_to_path(folder / "key.pem")
        ours.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.verify_mode = ssl.CERT_REQUIRED
        ca.configure_trust(self.context)
        ca.issue_cert(NAME).configure_cert(self.context)

    def tls(self, **changed):
        files = {"ca_file": "ca.pem", "cert_file": "cert.pem", "key_file": "key.pem"}
        said = {key: str(self.folder / name) for key, name in files.items()} | {"server_name": NAME} | changed
        return Tls(**{key: str(self.folder / text) if text.endswith(".pem") else text for key, text in said.items()})


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def exec_once(authority, tls, **more):
    """How a program ended; and the server that was asked."""
    served = Served()

    async def main():
        async with served.session("true", tls=tls, served_with=authority.context, **more) as session:
            assert await session.receive() == b""
            said = await session.ended()
            await session.close()
            return said

    return asyncio.run(main()), served


def test_an_exec_goes_over_tls_with_the_certificates_and_the_token_of_the_login(authority):
    said, served = exec_once(authority, authority.tls())
    assert said == "it ended with exit code 0"
    [request], [certificate] = served.asked, served.certificates
    assert request.scheme == "https"
    assert certificate["subjectAltName"] == (("email", "ana@staging.example"),)
    assert request.headers["X-Nomad-Token"] == TOKEN


REFUSED = {
    "another CA": {"ca_file": "other.pem"},
    "no certificate of ours": {"cert_file": "", "key_file": ""},
    "another name": {"server_name": "server.global.nomad"},
    "no name": {"server_name": ""},
}


@pytest.mark.lie
@pytest.mark.parametrize("case", REFUSED)
def test_an_exec_whose_tls_is_wrong_is_a_message_and_sends_no_token(authority, case):
    with pytest.raises(FaultError, match=r"exec is not available: .*(certificate|SSL|closed|reset|disconnected)"):
        exec_once(authority, authority.tls(**REFUSED[case]))


def test_an_exec_with_a_token_that_may_not_is_said_with_what_it_lacks(authority):
    with pytest.raises(FaultError, match="lacks alloc-exec or alloc-node-exec"):
        exec_once(authority, authority.tls(), token="00000000-weak")
