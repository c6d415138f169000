"""Commands that a real machine would have, for people on a host of the local datacenter: systemctl, journalctl, sudo.

Agents here are not systemd units: the host's init starts them. `furnish` puts small stand-ins into a folder of the
host, which belongs first on a person's PATH there; `environment` says where the host's agents keep their data.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import hashidrill
from hashidrill.lab.local.hosts import LocalHost

FOLDER = "bin"
"""In the host's own folder, next to its data and its logs."""
COMMANDS = ("systemctl", "journalctl")
_SUDO = '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n'
"""People here already have all rights."""


def furnish(host: LocalHost, socket: Path) -> Path:
    """Writes the stand-ins of one host. Returns the folder that belongs on the PATH. Raises OSError."""
    folder = host.logs.parent / FOLDER
    folder.mkdir(mode=0o755, exist_ok=True)
    source = str(Path(hashidrill.__file__).parents[1])
    for name in COMMANDS:
        _program(
            folder / name,
            f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {source!r})\n"
            f"from hashidrill.lab.local.inside.{name} import main\n"
            f"sys.exit(main(sys.argv[1:], socket={str(socket)!r}, logs={str(host.logs)!r}))\n",
        )
    _program(folder / "sudo", _SUDO)
    return folder


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def environment(host: LocalHost) -> Mapping[str, str]:
    """`AGENT_DATA`, `AGENT_CONFIG` and `AGENT_LOG` for each agent of the host, such as `CONSUL_DATA`."""
    told: dict[str, str] = {}
    for agent in host.roles:
        name = agent.upper()
        told |= {
            f"{name}_DATA": str(host.data / agent),
            f"{name}_CONFIG": str(host.config_file(agent)),
            f"{name}_LOG": str(host.logs / f"{agent}.log"),
        }
    return told
