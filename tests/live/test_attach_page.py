"""playbooks/attach-to-staging.md from nothing to the first fault: each of its commands, in order, as it is written.

The datacenter is a real Consul of somebody else, with TLS, client certificates, ACLs and gossip encryption. What its
operators alone may do, to arm and to stop, is done with a file that has their token, as the page says.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from attached_consul import Staging
from docs_pages import ROOT
from drills import environment

pytestmark = pytest.mark.long

PAGE = ROOT / "playbooks" / "attach-to-staging.md"
_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(hashidrill [^`]*--attach staging\.yaml[^`]*)`")
OF_OPERATORS = ("hashidrill staging arm ", "hashidrill staging disarm ", "hashidrill staging stop ")
"""The token of the runs may not do these: `Give the right to arm ... to people`."""
PATIENCE_S = 150


def commands():
    """Those in blocks, each on a separate line; and after them those that stand in the text."""
    text = PAGE.read_text()
    lines = [line.removeprefix("$ ") for body in _BLOCK.findall(text) for line in body.splitlines() if line.strip()]
    return [*lines, *dict.fromkeys(_INLINE.findall(text))]


class Desk:
    """A folder of somebody who has read the page, and what is on their PATH."""

    def __init__(self, folder, estate, consul):
        self.folder, self.estate = folder, estate
        bin_ = folder / "bin"
        bin_.mkdir()
        main = "import sys; from hashidrill.faces.cli import main; sys.argv[0] = 'hashidrill'; main()"
        secret = "import json, sys; print(json.load(sys.stdin)['SecretID'])"
        for name, words in {
            "hashidrill": f'{sys.executable} -c "{main}"',
            "consul": str(consul),
            "jq": f'{sys.executable} -c "{secret}"',
        }.items():
            (bin_ / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (bin_ / name).chmod(0o755)
        pem = {name: str(estate.folder / f"{name}.pem") for name in ("ca", "cert", "key")}
        self.env = environment(
            PATH=f"{bin_}:{os.environ['PATH']}",
            HOME=folder,
            XDG_STATE_HOME=folder / "state",
            CONSUL_HTTP_ADDR=estate.url("stage-1"),
            CONSUL_CACERT=pem["ca"],
            CONSUL_CLIENT_CERT=pem["cert"],
            CONSUL_CLIENT_KEY=pem["key"],
        )
        for name, token in (("staging", "consul.token"), ("operator", "operator.token")):
            (folder / f"{name}.yaml").write_text(
                "apiVersion: hashidrill/v1\nkind: Attach\nmetadata: {name: staging-eu}\ndatacenter:\n"
                f"  consul: {{token_file: {token}}}\n"
            )
        (folder / "operator.token").write_text(estate.management)

    def type(self, command):
        """As it is written on the page. Consul's own command line is used by whoever administers ACLs."""
        env = dict(self.env)
        if command.startswith("consul "):
            env["CONSUL_HTTP_TOKEN"] = self.estate.management
        if command.startswith(OF_OPERATORS):
            command = command.replace("staging.yaml", "operator.yaml")
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture(scope="module")
def estate(consul, tmp_path_factory):
    with Staging(consul.path, tmp_path_factory.mktemp("staging"), network=82).running() as there:
        yield there


def test_each_command_of_the_page_works_as_written_and_leads_to_the_first_fault(estate, consul, tmp_path):
    desk, said = Desk(tmp_path, estate, consul.path), {}
    for command in commands():
        done = said[command] = desk.type(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr, command
    wanted = ("staging acl", "doctor", "staging arm", "run", "staging stop", "staging disarm", "heal")
    assert [each for each in wanted if not any(command.startswith(f"hashidrill {each}") for command in said)] == []
    [run] = [done for command, done in said.items() if command.startswith("hashidrill run") and "--plan" not in command]
    assert "PASS" in run.stdout
    [plan] = [done for command, done in said.items() if "--plan" in command]
    assert "The interlocks let it run." in plan.stdout
    lines = json.loads(estate.ask("GET", "/v1/kv/hashidrill-audit/?keys"))
    assert lines
    keys = json.loads(estate.ask("GET", "/v1/kv/?keys"))
    kept = [f"hashidrill-interlocks/{name}" for name in ("anchor", "taken-back")]
    assert [key for key in keys if key not in lines] == [*kept, "ready"], "disarmed, released, and nothing of the loads"
