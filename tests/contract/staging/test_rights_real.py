"""Policies on real agents with ACLs on: with the policy nothing is missing, with one rule less it is named.

One agent of each product, on loopback addresses, without any sandbox: nothing is broken here.
"""

import datetime as dt
import json
import os
import subprocess
import time
import uuid
from contextlib import contextmanager
from functools import partial

import anyio
import httpx2
import pytest

from hashidrill.core.errors import FaultError, InterlockError
from hashidrill.core.experiment.library import find_experiment
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.rights import reasons, rights_of, together
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.protocols.rights import of_service
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.wait import beside
from hashidrill.products.nomad.rights import STATE
from hashidrill.staging.interlocks import anchor, lock, operate, stop
from hashidrill.staging.interlocks.audit import Audit
from hashidrill.staging.interlocks.kv import Kv
from hashidrill.staging.interlocks.settings import InterlockSettings, interlock_rights
from ports import free_ports

pytestmark = pytest.mark.lie

ROOT_TOKEN = "5f0a1c52-9a0b-4f3e-8a44-0f5a3c1b2d77"
NAMES = {
    "consul": ["raft/slow-leader-disk", "state/snapshot-reset", "config/streaming-moderate", "locks/lock-storm"],
    "nomad": ["nomad/drain-under-load", "nomad/slow-leader-disk"],
    "vault": [],
}


class Real:
    """A real agent, asked with a token."""

    def __init__(self, url, header, token):
        self.url, self.headers = url, {header: token}

    async def request(self, method, path, *, params=None, body=None, timeout_s=5.0):
        try:
            async with httpx2.AsyncClient(trust_env=False, timeout=timeout_s) as client:
                answer = await client.request(
                    method, self.url + path, params=params, content=body, headers=self.headers
                )
        except httpx2.HTTPError as error:
            raise FaultError(str(error)) from None
        return ApiAnswer(answer.status_code, answer.content, {k.lower(): v for k, v in answer.headers.items()})

    def call(self, method, path, body=None):
        """For the test itself. Raises AssertionError for what is no success."""
        content = None if body is None else json.dumps(body)
        answer = httpx2.request(method, self.url + path, content=content, headers=self.headers, trust_env=False)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def as_(self, token):
        return Real(self.url, next(iter(self.headers)), token)


@contextmanager
def running(command, ready, folder, env=None):
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env={**os.environ, **(env or {})})
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                if found := ready():
                    break
            except (AssertionError, httpx2.HTTPError, ValueError):
                pass
            assert process.poll() is None, (folder / "agent.log").read_text()[-2000:]
            assert time.monotonic() < deadline, (folder / "agent.log").read_text()[-2000:]
            time.sleep(0.2)
        yield found
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def consul(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("consul-acl")
    http, serf, rpc = free_ports(3)
    ports = {"http": http, "serf_lan": serf, "server": rpc, "dns": -1, "grpc": -1, "grpc_tls": -1, "serf_wan": -1}
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"initial_management": ROOT_TOKEN, "agent": ROOT_TOKEN}}
    config = folder / "config.json"
    config.write_text(json.dumps({"ports": ports, "acl": acl, "performance": {"raft_multiplier": 1}}))
    command = [
        binary("consul", "1.22.2").path,
        "agent",
        "-server",
        "-bootstrap-expect=1",
        "-bind=127.0.0.1",
        "-node=consul-1",
        f"-config-file={config}",
        f"-data-dir={folder / 'data'}",
    ]
    real = Real(f"http://127.0.0.1:{http}", "X-Consul-Token", ROOT_TOKEN)
    ready = lambda: real.call("PUT", "/v1/kv/ready", "yes") and real.call("GET", "/v1/acl/token/self") and real  # noqa: E731
    with running(command, ready, folder) as found:
        yield found


@pytest.fixture(scope="module")
def nomad(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nomad-acl")
    http, serf, rpc = free_ports(3)
    config = folder / "config.json"
    config.write_text(
        json.dumps(
            {
                "ports": {"http": http, "serf": serf, "rpc": rpc},
                "acl": {"enabled": True},
                "data_dir": str(folder / "data"),
                "bind_addr": "127.0.0.1",
                "server": {"enabled": True, "bootstrap_expect": 1},
                "name": "nomad-1",
                "advertise": {"http": "127.0.0.1", "rpc": "127.0.0.1", "serf": "127.0.0.1"},
            }
        )
    )
    real = Real(f"http://127.0.0.1:{http}", "X-Nomad-Token", ROOT_TOKEN)

    def ready():
        return real.call("POST", "/v1/acl/bootstrap", {"BootstrapSecret": ROOT_TOKEN}) and real

    with running([binary("nomad").path, "agent", f"-config={config}"], ready, folder) as found:
        yield found


@pytest.fixture(scope="module")
def vault(binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vault-acl")
    [port] = free_ports(1)
    command = [
        binary("vault").path,
        "server",
        "-dev",
        "-dev-no-store-token",
        f"-dev-root-token-id={ROOT_TOKEN}",
        f"-dev-listen-address=127.0.0.1:{port}",
    ]
    real = Real(f"http://127.0.0.1:{port}", "X-Vault-Token", ROOT_TOKEN)
    with running(command, lambda: real.call("GET", "/v1/sys/seal-status")["sealed"] is False and real, folder) as found:
        yield found


def consul_token(agent, rules):
    name = f"p-{uuid.uuid4()}"
    agent.call("PUT", "/v1/acl/policy", {"Name": name, "Rules": rules})
    return agent.as_(agent.call("PUT", "/v1/acl/token", {"Policies": [{"Name": name}]})["SecretID"])


def nomad_token(agent, rules):
    name = f"p-{uuid.uuid4()}"
    agent.call("POST", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})
    token = {"Name": name, "Type": "client", "Policies": [name]}
    return agent.as_(agent.call("POST", "/v1/acl/token", token)["SecretID"])


def vault_token(agent, rules):
    name = f"p-{uuid.uuid4()}"
    agent.call("PUT", f"/v1/sys/policies/acl/{name}", {"policy": rules})
    return agent.as_(agent.call("POST", "/v1/auth/token/create", {"policies": [name]})["auth"]["client_token"])


def needed(product, names):
    guards = {"interlocks": interlock_rights(InterlockSettings())}
    return together(rights_of(resolve(find_experiment(name)).experiment, guards) for name in names)


def all_of(product):
    """All that the kinds of a product need, where no experiment says it."""
    cls = registry.services()[product]
    faults = [registry.fault(kind) for kind in registry.fault_kinds() if registry.product_of(kind) == product]
    loads = [registry.load(kind) for kind in registry.load_kinds() if kind.startswith(f"{product}.")]
    rights = [right for fault in faults for right in _asked(fault)]
    rights += [right for load in loads for right in load.rights("load", None)]
    return {right: ["x"] for right in [*rights, *cls(cls.Spec()).rights()]}


def _asked(fault):
    return fault.rights(fault.__new__(fault))


def check_each(product, agent, token_of, wanted, strip=()):
    """With the whole policy nothing is missing; with one right less, that one is."""
    cls = registry.services()[product]
    service = cls(cls.Spec())
    rights = [right for right in of_service(product, wanted) if right not in strip]
    whole = token_of(agent, service.policy(rights, reasons(wanted)))
    assert anyio.run(service.lacking, whole, rights) == []
    assert anyio.run(service.lacking, agent, [*rights, *strip]) == [], "a management token may do everything"
    for left_out in rights:
        others = [right for right in rights if right != left_out]
        weak = token_of(agent, service.policy(others, reasons(wanted)))
        missing = anyio.run(service.lacking, weak, rights)
        if left_out in missing:
            assert missing == [left_out]
        else:
            stronger = [r for r in others if (r.resource, r.name) == (left_out.resource, left_out.name)]
            kind = left_out.resource.removesuffix("_prefix")
            wider = [r for r in others if r.resource == f"{kind}_prefix" and left_out.name.startswith(r.name)]
            assert stronger or wider, f"without {left_out} it is not missed"
            assert missing == []
    return whole


@pytest.mark.needs("consul 1.22.2")
def test_consul_says_which_rule_a_policy_lacks(consul):
    check_each("consul", consul, consul_token, needed("consul", NAMES["consul"]))


@pytest.mark.needs("consul 1.22.2")
def test_interlocks_work_with_their_rights_alone_and_not_with_one_less(consul):
    """The lock, the stop button and the audit lines, on a real Consul, with the policy that is printed for them."""
    rights = list(interlock_rights(InterlockSettings()))
    service = registry.services()["consul"]
    policy = partial(service(service.Spec()).policy, why=dict.fromkeys(rights, "for interlocks"))

    async def play(calls, run):
        settings, kv = InterlockSettings(), Kv(calls)
        holder = lock.Holder("ana@desk", run, "slow-leader-disk", "now")
        await stop.check_released(kv, settings.stop.key)
        await lock.check_free(kv, settings.lock.key)
        await kv.get(settings.arming.key)
        assert await anchor.read(kv) is None
        assert not await operate.taken_back(kv, dt.datetime.now(dt.UTC))
        async with lock.held(kv, settings.lock.key, 10, holder, print):
            with pytest.raises(InterlockError, match=r"already locked: .*ana@desk"):
                await lock.check_free(kv, settings.lock.key)
            audit = Audit(
                kv,
                settings.audit.prefix,
                run,
                "x",
                "ana",
                now=lambda: dt.datetime.now(dt.UTC),
                tell=print,
                redactor=Redactor(),
            )
            async with beside(audit.keep):
                await audit.prune(1)
                if not await audit.written(audit.note("begin"), 3):
                    raise InterlockError("the token may not write audit lines")
            await audit.finish()
        await lock.check_free(kv, settings.lock.key)

    weak = consul_token(consul, policy(rights))
    anyio.run(play, weak, "run-1")
    anyio.run(play, weak, "run-2")
    left = consul.call("GET", "/v1/kv/hashidrill?keys")
    assert left == ["hashidrill-audit/run-2/0001"]
    assert consul.call("GET", "/v1/session/list") == []
    with pytest.raises(InterlockError, match="the token may not write the key hashidrill-interlocks/armed"):
        anyio.run(Kv(weak).put, InterlockSettings().arming.key, "mine")
    for left_out in rights:
        if left_out.resource != "service_prefix":  # a list of services is shorter then, and not refused
            others = [right for right in rights if right != left_out]
            with pytest.raises(InterlockError, match="the token may not "):
                anyio.run(play, consul_token(consul, policy(others)), "run-3")


@pytest.mark.nomad
@pytest.mark.needs("nomad")
def test_nomad_says_which_rule_a_policy_lacks(nomad):
    wanted = all_of("nomad")
    assert STATE in wanted
    check_each("nomad", nomad, nomad_token, wanted, strip=[STATE])


@pytest.mark.vault
@pytest.mark.needs("vault")
def test_vault_says_which_rule_a_policy_lacks(vault):
    check_each("vault", vault, vault_token, all_of("vault"))
