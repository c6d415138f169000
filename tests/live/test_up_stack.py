"""The full stack, `hashidrill lab up --stack`: the vendors' own commands, as a person types them, and all three UIs."""

import json
import os
import stat
from pathlib import Path

import httpx2
import pytest

from full_stack import AGENTS, FLAGS, Stack
from hashidrill.lab.provision.products import VAULT_VERSION
from ordinary_user import ordinary_user

pytestmark = [
    pytest.mark.live,
    pytest.mark.nomad,
    pytest.mark.vault,
    pytest.mark.needs("datacenter", "nomad", f"vault {VAULT_VERSION}", "consul 1.22.2"),
]


@pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already")
@pytest.mark.may_skip("as an ordinary user, everything else runs without any right too")
@pytest.mark.needs("setpriv")
def test_an_ordinary_user_has_the_full_stack_uses_it_and_leaves_nothing(binary):
    with ordinary_user(*(binary(name) for name in ("consul", "nomad", "vault"))) as user:
        done = user("lab", "up", "--json", *FLAGS, "--expose", "0")
        assert done.returncode == 0, done.stderr
        try:
            one = json.loads(done.stdout)
            stack = Stack(user)
            stack.use()
            the_vendors_commands_just_work(stack)
            every_ui_is_served(one)
            its_tokens_are_for_its_user_alone(one, user.home / "state")
        finally:
            down = user("lab", "down")
        assert (down.returncode, down.stdout) == (0, "default is down; nothing is left\n"), down.stderr


def the_vendors_commands_just_work(stack):
    members = stack.shell("consul-1", "consul", "members").splitlines()
    assert sum(" alive " in line for line in members) == AGENTS["consul"]
    nodes = stack.shell("node-1", "nomad", "node", "status").splitlines()
    assert sum(" ready" in line for line in nodes) == 2
    assert stack.shell("client-1", "nomad", "server", "members").count(" alive ") == 3
    node = json.loads(stack.shell("node-1", "nomad", "node", "status", "-self", "-json"))
    assert "os.cgroups.version" not in node["Attributes"], "it would make cgroups, which it may not"
    for host in ("vault-1", "vault-3", "consul-2"):
        status = json.loads(stack.shell(host, "vault", "status", "-format=json"))
        assert (status["initialized"], status["sealed"]) == (True, False)
    peers = json.loads(stack.shell("vault-2", "vault", "operator", "raft", "list-peers", "-format=json"))
    assert {one["node_id"] for one in peers["data"]["config"]["servers"]} == {"vault-1", "vault-2", "vault-3"}
    stack.shell("vault-1", "vault", "secrets", "enable", "-path=secret", "-version=2", "kv")


def every_ui_is_served(one):
    """Or is said to be none: Nomad and Vault that were built here answer with a page that says so."""
    assert set(one["urls"]) == set(AGENTS)
    for product, url in one["urls"].items():
        assert url.startswith("http://127.0.0.1:"), url
        answer = httpx2.get(url, trust_env=False, follow_redirects=True, timeout=20)
        assert answer.status_code == 200, product
        assert product in answer.text.lower(), answer.text[:200]
        assert ("not available in this binary" in answer.text) == (product in one["without_ui"])


def its_tokens_are_for_its_user_alone(one, state):
    """And in nothing that is printed."""
    [written] = state.rglob("default.json")
    kept = json.loads(written.read_text())
    token = kept["environments"]["vault-1"]["VAULT_TOKEN"]
    assert token
    assert token not in json.dumps(one)
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(written.parent.stat().st_mode) == 0o700
    keys = Path(one["root"]) / "services/vault/keys.json"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.parent.stat().st_mode) == 0o700
