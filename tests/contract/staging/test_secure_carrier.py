"""Faults by jobs of a real Nomad with TLS and ACLs: the least token is enough, and is nowhere to be found."""

import os
import sys
from dataclasses import replace

import anyio
import pytest
from test_ssh_carrier import HOSTS, Staging

from carried_runner import VICTIM, Asked, Hosts, faults
from hashidrill.core.protocols.abc import Target
from hashidrill.products.nomad.rights import policy
from hashidrill.staging.attach.http import Login, Secret, Tls
from hashidrill.staging.attach.target import AttachTarget
from hashidrill.staging.carriers.open_carriers import carried, look
from hashidrill.staging.carriers.settings import CAPABILITIES, Carriers, carrier_rights
from hashidrill.testing.faults import check_fault
from nomad_boxes import Nomad
from secret_hunt import Hunt

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.nomad,
    pytest.mark.needs("datacenter", "ip", "nft", "strace", "nomad"),
    pytest.mark.may_skip("where these tests are an ordinary user's: tasks of Nomad that are root were seen as root"),
]
RIGHTS = carrier_rights(Carriers.model_validate({"nomad": {}}))


class Estate(Staging):
    """Two of three hosts have a client of Nomad, which wants certificates and tokens."""

    def __init__(self, folder, binary):
        super().__init__(folder)
        self.nomad = Nomad(binary, folder, self.boxes, HOSTS, secure=True)
        hosts = {
            name: replace(
                one,
                roles={**one.roles, "nomad": "server" if name == "consul-1" else "client"},
                urls={**one.urls, "nomad": f"https://{one.address}:4646"},
            )
            for name, one in self.estate.hosts.items()
        }
        self.estate = replace(self.estate, hosts=hosts)
        self.pids = {one.address: self.agents(one.urls["consul"])[0] for one in hosts.values()}

    def reached(self, token):
        """As with a token that may do no more than this one."""
        tls = Tls(**{f"{name}_file": self.nomad.pem(name) for name in ("ca", "cert", "key")})
        login = Login("nomad", self.nomad.url, tls, {"X-Nomad-Token": token}, token=Secret(token))
        settings = {"lease": "15s", "python": sys.executable, "notes": str(self.folder / "run")}
        return AttachTarget("staging", "", self.target.path, {"nomad": login}, carriers={"nomad": settings})

    def close(self):
        self.nomad.relay.close()
        super().close()


@pytest.fixture(scope="module")
def estate(binary, tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("tasks of Nomad that are root were seen as root alone")
    one = Estate(tmp_path_factory.mktemp("secure"), binary("nomad").path)
    yield one
    one.close()


def token_for(estate, rights):
    return estate.nomad.token(policy(rights, dict.fromkeys(rights, "a test")))


async def test_a_fault_is_carried_proven_and_reverted_with_the_least_token_which_is_nowhere(estate):
    token = token_for(estate, RIGHTS)
    hunt = Hunt({"the least token": token, "the management token": estate.nomad.management})
    target = estate.reached(token)
    async with carried(
        target, estate.estate, {"consul": Asked(estate.pids)}, deadline_s=120, tell=estate.told.append, run="run-1"
    ) as parts:
        hosts = Hosts(estate.estate, parts)
        fault = faults(hosts)["network.partition"]
        undo = fault.plan(Target(VICTIM, HOSTS[VICTIM], "consul"), fault_id="looked-at")
        await fault.apply(undo)
        for job in await anyio.to_thread.run_sync(estate.nomad.jobs):
            hunt.look("job", job, await anyio.to_thread.run_sync(estate.nomad.ask, f"/v1/job/{job}"))
        hunt.processes()
        hunt.files("task", *(estate.folder / f"nomad-{name}" / "data" / "alloc" for name in HOSTS))
        await fault.revert(undo)
        await check_fault(fault, Target(VICTIM, HOSTS[VICTIM], "consul"))
    assert (estate.tables(), estate.notes(), estate.nomad.jobs()) == ({}, [], [])
    for name in HOSTS:
        hunt.look("log", name, (estate.folder / f"nomad-{name}" / "log").read_bytes())
    hunt.look("output", "what was told", "\n".join(estate.told))
    assert hunt.found == set()
    assert {*hunt.looked} == {"job", "process", "task", "log", "output"}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_token_with_one_rule_less_is_refused_by_name_before_a_job_is_written(estate, capability):
    weak = token_for(estate, [right for right in RIGHTS if right.access != capability])
    offers = anyio.run(look, estate.reached(weak), estate.estate)
    assert all("the token of Nomad lacks" in one.said and capability in one.said for one in offers.values())
    assert estate.nomad.jobs() == []
