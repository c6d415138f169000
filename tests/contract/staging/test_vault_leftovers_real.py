"""What loads leave in a real Vault is taken away with all of its versions, and nothing else is.

One server in memory, on a loopback address: nothing is broken here. The loads end as those of a killed engine do,
without cleaning up after themselves.
"""

import json
import os
import subprocess
import time

import anyio
import httpx2
import pytest

from hashidrill.core.loads.base import LoadContext
from hashidrill.core.protocols.abc import Prepares
from hashidrill.lab.provision.products import VAULT_VERSION
from hashidrill.products.vault import leftovers as vault_leftovers
from hashidrill.products.vault import rights
from hashidrill.products.vault.leftovers import left_by
from hashidrill.products.vault.loads.kv import KvRead, KvWrite
from hashidrill.products.vault.rights import MOUNT
from hashidrill.staging.attach import leftovers
from hashidrill.staging.attach.http import Login, Wire
from ports import free_ports

pytestmark = [pytest.mark.vault, pytest.mark.needs(f"vault {VAULT_VERSION}")]
ROOT = "0e7bb9a2-6f0e-4b0c-9f10-7d4f2b1f6a55"
RUN = "20261123-0101-drill"
PATIENCE_S = 60.0


class Server:
    """Asked by its operator, with the root token."""

    def __init__(self, url):
        self.url = url

    def call(self, method, path, body=None):
        """What it answered; None for what is not there."""
        answer = httpx2.request(
            method,
            f"{self.url}/v1/{path}",
            content=None if body is None else json.dumps(body),
            headers={"X-Vault-Token": ROOT},
            trust_env=False,
        )
        if answer.status_code == 404:
            return None
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}

    def below(self, folder):
        """As it lists them: a secret whose versions are deleted is listed as well."""
        found = self.call("GET", f"{MOUNT}/metadata/{folder}?list=true")
        names = found["data"]["keys"] if found else []
        return [
            secret
            for name in names
            for secret in (self.below(f"{folder}{name}") if name.endswith("/") else [f"{folder}{name}"])
        ]

    def versions(self, key):
        return self.call("GET", f"{MOUNT}/metadata/{key}")["data"]["versions"]

    def put(self, key):
        self.call("POST", f"{MOUNT}/data/{key}", {"data": {"id": "of others"}})

    def login(self, allowed):
        """With a token that may do that and no more."""
        self.call("PUT", "sys/policies/acl/least", {"policy": rights.policy(allowed, dict.fromkeys(allowed, "x"))})
        made = self.call("POST", "auth/token/create", {"policies": ["least"], "no_default_policy": True})
        return Login("vault", self.url, headers={"X-Vault-Token": made["auth"]["client_token"]})

    def swept(self, *found, allowed=rights.SECRETS, within_s=PATIENCE_S):
        """((removed, kept), audit lines)."""
        told = []

        async def main():
            async with Wire(self.login(allowed)) as wire:
                return await leftovers.sweep(
                    dict.fromkeys(found, "vault.kv.write"),
                    {"vault": wire},
                    lambda verb, what="", where="", note="": told.append((verb, what, where, note)),
                    within_s=within_s,
                )

        return anyio.run(main), told


@pytest.fixture(scope="module")
def server(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vault-leftovers")
    [port] = free_ports(1)
    one, log = Server(f"http://127.0.0.1:{port}"), folder / "log"
    command = [
        str(binary("vault").path),
        "server",
        "-dev",
        "-dev-no-store-token",
        f"-dev-root-token-id={ROOT}",
        f"-dev-listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "HOME": str(folder)})
    try:
        ends = time.monotonic() + PATIENCE_S
        while True:
            assert process.poll() is None and time.monotonic() < ends, log.read_text()[-3000:]  # noqa: PT018 - one state
            try:
                one.call("POST", f"sys/mounts/{MOUNT}", {"type": "kv", "options": {"version": "2"}})
                break
            except (httpx2.HTTPError, AssertionError):
                time.sleep(0.2)
        while True:  # an engine that was just made is upgraded for a moment
            try:
                one.put("ready")
                break
            except AssertionError:
                assert time.monotonic() < ends, log.read_text()[-3000:]
                time.sleep(0.2)
        yield one
    finally:
        process.kill()
        process.wait()


def offered(server, load, run_id, *, name="secrets"):
    """What the load wrote by the time that its process was killed."""
    wanted = {KvWrite: {"rate": "100/s", "keys": 3, "once": "50%"}, KvRead: {"rate": "10/s", "keys": 4}}[load]
    written = []

    async def main():
        context = LoadContext(
            [server.url], run_id=run_id, access={"VAULT_TOKEN": server.login(rights.SECRETS).headers["X-Vault-Token"]}
        )
        one = load(name, load.Params.model_validate(wanted), context)
        if isinstance(one, Prepares):
            await one.prepare()
        if load is KvWrite:

            def emit(operation):
                written.append(operation)
                if sum(each.outcome == "ok" for each in written) >= 30:
                    killed.cancel()

            with anyio.fail_after(PATIENCE_S), anyio.CancelScope() as killed:
                await one.run(emit)

    anyio.run(main)
    return load.leaves(name, None, run_id)


@pytest.mark.parametrize("load", [KvWrite, KvRead])
def test_all_secrets_of_a_killed_load_are_gone_with_their_versions_and_those_of_others_stay(server, load):
    name = f"of-{load.__name__}"
    [left] = offered(server, load, RUN, name=name)
    others = [f"{name}/{RUN}-2/once/0", f"{name}/another/turn/1", f"{name}-2/{RUN}/once/0"]
    for key in others:
        server.put(key)
    before = server.below(left.name)
    assert len(before) >= 4
    if load is KvWrite:
        assert max(len(server.versions(key)) for key in before if "/turn/" in key) > 1
        server.call("DELETE", f"{MOUNT}/data/{before[0]}")  # what its own reader would not see any more
    ([removed], kept), told = server.swept(left)
    count = int(removed.removeprefix(f"{left}: "))
    assert count >= len(before), "and what was on its way as its load was killed"
    assert (kept, told) == ([], [("clean-up", "vault.kv.write", str(left), f"{count} removed")])
    assert server.below(left.name) == []
    assert all(server.call("GET", f"{MOUNT}/data/{key}?version=1") is None for key in before)
    assert [key for key in others if server.versions(key)] == others
    assert server.swept(left) == (([], []), []), "a second time there is nothing to say"


def test_a_token_that_may_not_delete_leaves_them_and_says_so(server):
    left = left_by("kept", RUN)
    server.put(f"{left.name}once/0")
    allowed = [each for each in rights.SECRETS if (each.name, each.access) != (f"{MOUNT}/metadata/*", "delete")]
    (removed, [why]), [(verb, *_)] = server.swept(left, allowed=allowed, within_s=2)
    assert (removed, verb) == ([], "left")
    assert why.startswith(f"{left}: {left}: DELETE: HTTP 403")
    assert server.below(left.name) == [f"{left.name}once/0"]
    assert server.swept(left)[0] == ([f"{left}: 1"], [])


@pytest.mark.lie
def test_secrets_whose_newest_version_alone_is_deleted_do_not_count_as_gone(server, monkeypatch):
    """Planted: a removal that deletes what readers see. Vault keeps the versions, and lists the secret."""
    left = left_by("lied", RUN)
    server.put(f"{left.name}once/0")

    async def newest_alone(wire, key, left):
        assert (await wire.request("DELETE", f"/v1/{MOUNT}/data/{key}")).status == 204

    with monkeypatch.context() as planted:
        planted.setattr(vault_leftovers, "_delete", newest_alone)
        (removed, [why]), _ = server.swept(left, within_s=3)
    assert removed == []
    assert "it was still there when its time was over" in why
    assert server.call("GET", f"{MOUNT}/data/{left.name}once/0") is None, "a reader sees nothing"
    assert server.swept(left)[0] == ([f"{left}: 1"], [])
