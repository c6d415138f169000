"""Under sudo, a client under test is a process of the user who called it: on the real thing, in a real namespace."""

import asyncio
import os
import pwd
import tempfile
from pathlib import Path

import pytest

from hashidrill.core.experiment.model import ClientSpec
from hashidrill.core.loads.base import LoadContext
from hashidrill.core.loads.clients import ClientLoad
from hashidrill.core.util.wait import wait_until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has nobody else to run a client as"),
    pytest.mark.may_skip("as an ordinary user, clients are that user's anyway"),
    pytest.mark.needs("setpriv"),
]

NOBODY = pwd.getpwnam("nobody")
SAYS = "grep -E '^(Uid|Gid|CapEff|CapBnd|NoNewPrivs):' /proc/self/status > {file}; echo $HOME >> {file}"


def seen(*, service):
    """What the client was, in its own words."""

    async def main(file):
        command = ["sh", "-c", SAYS.format(file=file) + ("; sleep 60" if service else "")]
        kind = {"service": True} if service else {"rate": "5/s"}
        spec = ClientSpec.model_validate({"command": command, "via": "script", **kind})
        client = ClientLoad("mine", spec, LoadContext([], namespace="/proc/self/ns/net"))
        await client.prepare()
        running = asyncio.create_task(client.run(lambda _operation: None))

        async def said():
            text = file.read_text() if file.exists() else ""
            return (text.splitlines() if text.count("\n") == 6 else None), text

        try:
            return await wait_until("the client to say what it is", said, within_s=20)
        finally:
            running.cancel()
            await asyncio.wait([running])

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        *lines, home = asyncio.run(main(Path(folder) / "said"))
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}, home


@pytest.mark.lie
@pytest.mark.parametrize("service", [False, True])
def test_a_client_is_the_callers_after_it_entered_its_hosts_namespace_as_root(monkeypatch, service):
    monkeypatch.setenv("SUDO_UID", str(NOBODY.pw_uid))
    monkeypatch.setenv("SUDO_GID", str(NOBODY.pw_gid))
    status, home = seen(service=service)
    assert status["Uid"] == [str(NOBODY.pw_uid)] * 4
    assert status["Gid"] == [str(NOBODY.pw_gid)] * 4
    assert {int(status[name][0], 16) for name in ("CapEff", "CapBnd")} == {0}
    assert status["NoNewPrivs"] == ["1"]
    assert home == NOBODY.pw_dir


def test_without_sudo_it_is_roots_whose_files_it_may_need(monkeypatch):
    monkeypatch.delenv("SUDO_UID", raising=False)
    status, _ = seen(service=False)
    assert status["Uid"] == ["0"] * 4
