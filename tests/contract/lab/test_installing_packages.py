"""How apt-get and sudo are really called: fakes on PATH write down their arguments and what they were given."""

import os
import pty
import subprocess
import sys

import pytest

from hashidrill.core.util import commands
from hashidrill.lab.provision import packages

APT = """#!/bin/sh
echo "apt-get $* [$DEBIAN_FRONTEND]" >> "{record}"
case "$*" in *install*) printf '#!/bin/sh\\n' > "{folder}/nft"; chmod +x "{folder}/nft";; esac
"""
SUDO = """#!/bin/sh
echo "sudo $1 $2" >> "{record}"
[ "$1" != -n ] || shift
unset DEBIAN_FRONTEND
exec "$@"
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """`fakes()` puts both on PATH, without any nft. Returns the record."""
    folder, record = tmp_path / "bin", tmp_path / "record"
    folder.mkdir()

    def put():
        for name, text in (("apt-get", APT), ("sudo", SUDO), ("nsenter", "#!/bin/sh\n")):
            script = text.replace("{record}", str(record)).replace("{folder}", str(folder))
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        # env and printf's friends, without the system's own apt-get, sudo and nft
        tools = tmp_path / "tools"
        tools.mkdir()
        for name in ("env", "sh", "chmod", "true"):
            (tools / name).symlink_to(f"/bin/{name}")
        monkeypatch.setenv("PATH", f"{folder}:{tools}")
        return record

    monkeypatch.setattr(commands, "SYSTEM_FOLDERS", ())
    monkeypatch.delenv("HASHIDRILL_NO_INSTALL", raising=False)
    monkeypatch.delenv("DEBIAN_FRONTEND", raising=False)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(packages, "_permission", packages._Permission())
    return put


NFT = {"nft": "nftables"}
APT_LINE = "apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends nftables [noninteractive]"


def test_as_root_apt_get_is_called_once_and_asks_nothing(fakes, monkeypatch):
    record = fakes()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    said = []
    packages.allow_installing(True)
    packages.install_missing(NFT, "network faults", lambda line: said.append((line, record.exists())))
    assert record.read_text().splitlines() == [APT_LINE]
    assert said == [("installing with apt-get: nftables (for network faults)", False)]
    packages.install_missing(NFT, "network faults", pytest.fail)
    assert record.read_text().splitlines() == [APT_LINE]


def test_through_sudo_it_asks_nothing_either(fakes, monkeypatch):
    record = fakes()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    packages.allow_installing(True)
    packages.install_missing(NFT, "network faults", print)
    assert record.read_text().splitlines() == ["sudo -n true", "sudo -n env", APT_LINE]


ASKING = """
import sys
from hashidrill.lab.provision import packages
from hashidrill.core.errors import MachineError
from hashidrill.core.util import commands
commands.SYSTEM_FOLDERS = ()
packages.os.geteuid = lambda: int(sys.argv[1])
try:
    packages.install_missing({"nft": "nftables"}, "network faults", print)
except MachineError as error:
    sys.exit(str(error))
"""


@pytest.mark.lie
@pytest.mark.parametrize(("typed", "installs"), [(b"y\n", True), (b"n\n", False), (b"\n", False)])
def test_the_person_at_the_terminal_decides_even_where_input_and_output_are_captured(fakes, typed, installs, tmp_path):
    record = fakes()
    program = tmp_path / "asking.py"
    program.write_text(ASKING)
    pid, terminal = pty.fork()
    if pid == 0:  # a session of its own, whose terminal is ours; as under pytest, it is not its input and output
        os.set_inheritable(os.dup(0), True)  # while nobody holds a terminal, reading its other end fails
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment.pop("CI", None)
        os.execve(sys.executable, [sys.executable, "-S", str(program), "0"], environment)
    said = b""
    while b"[y/N] " not in said:
        said += os.read(terminal, 4096)
    os.write(terminal, typed)
    assert b"needs nftables (for network faults). Run `" in said
    assert (os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0) == installs
    assert record.exists() == installs
    os.close(terminal)


@pytest.mark.parametrize("uid", ["0", "1000"])
def test_without_a_terminal_root_installs_and_a_user_is_told_the_command(fakes, uid, tmp_path):
    record = fakes()
    program = tmp_path / "asking.py"
    program.write_text(ASKING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("CI", None)
    ended = subprocess.run(
        [sys.executable, "-S", program, uid],
        env=environment,
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    if uid == "0":
        assert ended.stdout == "installing with apt-get: nftables (for network faults)\n"
        assert record.read_text().splitlines() == [APT_LINE]
        return
    assert "there is no terminal to ask on" in ended.stderr
    assert ended.stderr.strip().endswith("apt-get install -y --no-install-recommends nftables")
    assert not record.exists()
