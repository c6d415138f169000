"""How a host behind others is reached over SSH, and reached again. Nobody connects: asyncssh is asked in its place."""

import anyio
import asyncssh
import pytest

from hashidrill.core.errors import AttachError, FaultError, UnreachedError
from hashidrill.staging.carriers.settings import SshSettings
from hashidrill.staging.carriers.ssh import shell
from virtual_time import ran

pytestmark = pytest.mark.lie


class Process:
    """A program that was started; `stdin` keeps what it was told."""

    def __init__(self):
        self.stdin, self.told = self, b""

    def write(self, said):
        self.told += said

    async def drain(self):
        pass


class Connection:
    """`cuts`: it is gone when the next program is started."""

    def __init__(self, to):
        self.to, self.closed, self.cuts, self.refuses, self.started = to, False, False, "", []

    async def create_process(self, command, *, encoding):
        if self.cuts:
            self.closed = True
        if self.closed:
            raise asyncssh.ConnectionLost("Connection lost")
        if self.refuses:
            raise asyncssh.ChannelOpenError(4, self.refuses)
        self.started.append(Process())
        return self.started[-1]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.closed = True

    async def run(self, _command, *, check):
        return type("Done", (), {"stdout": "0\n10.0.0.9 4242 10.0.0.1 22\n"})

    def is_closed(self):
        return self.closed


class Network:
    """What asyncssh was asked for, in order; `refuses` raises for a host."""

    def __init__(self):
        self.asked, self.made, self.refuses = [], [], {}

    async def connect(self, host, port, **options):
        if host in self.refuses:
            raise self.refuses[host]
        self.asked.append((host, port, options))
        self.made.append(Connection(host))
        return self.made[-1]


@pytest.fixture
def network(monkeypatch):
    one = Network()
    monkeypatch.setattr(asyncssh, "connect", one.connect)
    return one


@pytest.fixture
def settings(tmp_path):
    """`settings(jump=...)`: with a key of its own, hosts' keys of its own, and no SSH agent."""
    (tmp_path / "known").write_text("")
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "key"))

    def made(**more):
        return SshSettings(
            user="ops", key_file=str(tmp_path / "key"), known_hosts=str(tmp_path / "known"), agent=False, **more
        )

    return made


@ran
async def entered(settings, play=None):
    async with shell(settings, "staging.yaml", "consul-1", "10.0.0.1") as one:
        if play is not None:
            await play(one)


def test_a_jump_host_is_checked_and_logged_in_to_as_the_hosts_are(network, settings, monkeypatch):
    """With no other key than the file's, none of the SSH agent, and no other known hosts."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nonexistent/agent")
    entered(settings(jump="ana@bastion.example:2222, [fd00::1]:22,inner"))
    said = [(host, port, options["username"], options["tunnel"]) for host, port, options in network.asked]
    assert said == [
        ("bastion.example", 2222, "ana", None),
        ("fd00::1", 22, "ops", network.made[0]),
        ("inner", 22, "ops", network.made[1]),
        ("10.0.0.1", 22, "ops", network.made[2]),
    ]
    last = {key: value for key, value in network.asked[-1][2].items() if key not in {"username", "tunnel"}}
    for _, _, options in network.asked:
        assert {key: options[key] for key in last} == last
    assert last["known_hosts"].endswith("/known")
    assert (len(last["client_keys"]), last["agent_path"], last["config"]) == (1, None, None)
    assert all(one.closed for one in network.made)


def test_a_jump_host_that_refuses_is_named(network, settings):
    network.refuses["bastion.example"] = asyncssh.HostKeyNotVerifiable("unknown")
    with pytest.raises(AttachError, match=r"the jump host ops@bastion\.example: its host key is not in .*/known"):
        entered(settings(jump="ops@bastion.example"))
    assert network.made == []


def test_what_may_answer_in_a_moment_is_told_from_what_refuses(network, settings, monkeypatch):
    """Heal waits for the one, and not for the other."""
    for error, unreached in (
        (OSError(111, "Connection refused"), True),
        (TimeoutError(), True),
        (asyncssh.ConnectionLost("gone"), True),
        (asyncssh.PermissionDenied("no"), False),
        (asyncssh.HostKeyNotVerifiable("no"), False),
    ):
        network.refuses["10.0.0.1"] = error
        with pytest.raises(AttachError) as refused:
            entered(settings())
        assert isinstance(refused.value, UnreachedError) is unreached, error
    network.refuses.clear()
    monkeypatch.setattr(Connection, "run", _cut)
    with pytest.raises(UnreachedError, match=r"consul-1 .*: SSH failed: Connection lost"):
        entered(settings())


async def _cut(*_args, **_more):
    raise asyncssh.ConnectionLost("Connection lost")


def test_a_lost_connection_is_made_again_and_one_that_is_there_is_not(network, settings):
    async def play(one):
        await one.again()
        assert len(network.made) == 2
        network.made[1].closed = True
        await one.again()
        assert [made.to for made in network.made[2:]] == ["bastion.example", "10.0.0.1"]
        assert network.asked[3][2]["tunnel"] is network.made[2], "the connection to the jump host is a new one too"
        network.made[3].closed = True
        network.refuses["bastion.example"] = OSError(111, "Connection refused")
        with pytest.raises(FaultError, match=r"the jump host bastion\.example: cannot be reached: Connection refused"):
            await one.again()

    entered(settings(jump="bastion.example"), play)
    assert all(one.closed for one in network.made)


def test_a_program_is_started_over_another_connection_where_the_first_is_lost(network, settings):
    """Else one cut ends each later fault, and each look at what is there, of a run that goes on."""

    async def play(one):
        network.made[0].closed = True
        await one.start("first")
        network.made[1].cuts = True  # this is noticed only as the program starts
        await one.start("second")
        async with anyio.create_task_group() as tasks:
            network.made[2].closed = True
            tasks.start_soon(one.start, "third")
            tasks.start_soon(one.start, "fourth")

    entered(settings(), play)
    told = [[process.told.partition(b"\n")[2] for process in made.started] for made in network.made]
    assert told == [[], [b"first"], [b"second"], [b"third", b"fourth"]]


def test_a_program_that_cannot_be_started_says_so_and_tries_once(network, settings):
    async def play(one):
        network.made[0].refuses = "no more channels"
        with pytest.raises(FaultError, match="no program could be started: no more channels"):
            await one.start("x")
        assert len(network.made) == 1, "the connection is there: another would be refused as well"
        network.made[0].closed = True
        network.refuses["10.0.0.1"] = OSError(111, "Connection refused")
        with pytest.raises(FaultError, match=r"consul-1 .*: cannot be reached: Connection refused"):
            await one.start("x")

    entered(settings(), play)
