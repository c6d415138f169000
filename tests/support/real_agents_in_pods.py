"""Inside of a sandbox: a real Consul at the addresses of pods that a real API server holds. One JSON line a case.

No node runs these pods: they are made by hand, and so is what a kubelet would say of them.

python real_agents_in_pods.py CONSUL ROOT VERSION NAME=PATH...
"""

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from control_plane import NAMESPACE, USER, ControlPlane, grant
from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.datacenter import Disk
from hashidrill.core.experiment.library import experiment_name, list_experiments
from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.core.protocols.rights import Right
from hashidrill.core.units import Size
from hashidrill.faces.cli.doctor_attach import examined
from hashidrill.kubernetes.attach_capabilities import located, look
from hashidrill.lab.local.datacenter import LocalDatacenter
from hashidrill.products.consul.model import Consul
from hashidrill.staging.attach.datacenter import AttachedDatacenter, attach
from hashidrill.staging.attach.discovery import troubles
from hashidrill.staging.attach.target import read_target
from hashidrill.staging.runs.launch_attached import Attached
from told_cases import play

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CHART = {"app": "consul", "component": "server"}
FILE = """\
apiVersion: hashidrill/v1
kind: Attach
metadata: {{name: staging}}
datacenter:
  kubernetes:
    {{kubeconfig: kubeconfig, context: {context}, namespace: {namespace}, netem: true, drain: true, consul: {consul}}}
"""
MERGE = "merge-patch"


class World:
    """Three servers that are pods, named as the chart names them and not as Consul does."""

    def __init__(self, datacenter, plane) -> None:
        self.datacenter, self.plane = datacenter, plane
        self.pods = {f"consul-server-{n}": host.address for n, host in enumerate(datacenter.hosts.values())}

    async def pod(self, name, address, labels=None):
        """Made, scheduled nowhere, and ready: as its kubelet would say it."""
        ports = [{"name": "http", "containerPort": 8500}, {"name": "server", "containerPort": 8300}]
        made = {
            "metadata": {"name": name, "labels": labels or CHART},
            "spec": {"containers": [{"name": "consul", "image": "hashicorp/consul:1.22.2", "ports": ports}]},
        }
        said = await self.plane.ask("POST", PODS, made)
        assert said.status_code == 201, said.text[:600]
        await self.says(name, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})
        await self.ready(name, ready=True)

    async def says(self, name, status):
        said = await self.plane.ask("PATCH", f"{PODS}/{name}/status", {"status": status}, patch=MERGE)
        assert said.status_code == 200, said.text[:600]

    async def ready(self, name, *, ready):
        await self.says(name, {"conditions": [{"type": "Ready", "status": str(ready)}]})

    async def gone(self, name):
        await self.plane.ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")

    def file(self, *, context="sandbox", namespace=NAMESPACE, consul="{}"):
        path = self.plane.folder / "staging.yaml"
        path.write_text(FILE.format(context=context, namespace=namespace, consul=consul))
        return path

    async def attached(self, **said):
        """What commands have of it: through a kubeconfig, over TLS, as a user with a role."""
        target = await located(read_target(self.file(**said), {}))
        async with AsyncExitStack() as stack:
            estate, wires = await attach(target, stack)
            spec = DatacenterSpec.model_validate(estate.as_datacenter())
            [leader] = await AttachedDatacenter(spec, target, estate, wires).select("consul:leader")
        return Attached(target, estate, await look(target, estate)), leader.host

    async def refused(self, **said):
        try:
            await self.attached(**said)
        except AttachError as error:
            return str(error)
        return ""

    async def tidy(self):
        """As before the case."""
        listed = (await self.plane.ask("GET", PODS)).json()["items"]
        for pod in listed:
            await self.gone(pod["metadata"]["name"])
        for name, address in self.pods.items():
            await self.pod(name, address)


async def servers_are_found_by_their_labels(world):
    found, leader = await world.attached()
    at = {address: name for name, address in world.pods.items()}
    return {
        "troubles": troubles(found.target, found.estate),
        "said": {name: offer.said for name, offer in found.offers.items()},
        "expected": {name: f"pod {at[host.address]} in {NAMESPACE}" for name, host in found.estate.hosts.items()},
        "leader": [leader, found.estate.leaders["consul"]],
    }


async def experiments_on_pods_are_planned(world):
    found, _ = await world.attached()
    planned = {}
    for path in list_experiments():
        name = experiment_name(path)
        if name.startswith("kubernetes/") and "vault" not in name and "nomad" not in name:
            plan = found.plan(found.over(path))
            planned[name] = [[one.what, list(one.hosts)] for one in plan.actions if one.verb == "apply"]
    looked = examined(found.target, found.estate, {}, found.offers)
    can = [name for name, why in looked.experiments.items() if name.startswith("kubernetes/") and not why]
    return {"planned": planned, "can": can, "hosts": sorted(found.estate.hosts)}


async def what_is_wrong_is_told(world):
    told = {
        "context": await world.refused(context="sandbx"),
        "namespace": await world.refused(namespace="consull"),
        "labels": await world.refused(consul="{servers: {app: hashi}}"),
    }
    await world.ready("consul-server-1", ready=False)
    found, _ = await world.attached()
    told["unready"] = " ".join(troubles(found.target, found.estate))
    await world.ready("consul-server-1", ready=True)
    await world.pod("other-server-0", "10.73.0.99")
    found, _ = await world.attached()
    told["mixed"] = " ".join(troubles(found.target, found.estate))
    await world.gone("other-server-0")
    await world.says("consul-server-2", {"podIP": "10.99.0.1", "podIPs": [{"ip": "10.99.0.1"}]})
    found, _ = await world.attached()
    told["elsewhere"] = " ".join(troubles(found.target, found.estate))
    return told


async def a_pod_that_has_the_name_of_a_host_means_nothing(world):
    await world.pod("consul-1", "10.73.0.98", {"app": "web"})
    found, _ = await world.attached()
    return {"said": found.offers["consul-1"].said, "troubles": troubles(found.target, found.estate)}


async def without_its_role_nothing_is_seen(world):
    await grant(world.plane, [Right("kubernetes", "pods", access="get")])
    told = await world.refused()
    await grant(world.plane, RIGHTS)
    return {"told": told}


RIGHTS = [Right("kubernetes", "pods", access="list")]
CASES = (
    servers_are_found_by_their_labels,
    experiments_on_pods_are_planned,
    what_is_wrong_is_told,
    a_pod_that_has_the_name_of_a_host_means_nothing,
    without_its_role_nothing_is_seen,
)


async def main() -> None:
    consul, root, version, *named = sys.argv[1:]
    spec = DatacenterSpec(
        consul=Consul(version=version, clients=0, config={"performance": {"raft_multiplier": 1}}),
        disk=Disk(size=Size("128MB")),
    )
    datacenter = LocalDatacenter(spec, Path(root), {"consul": Path(consul)}, frozenset())
    plane = ControlPlane(Path(root) / "plane", dict(one.split("=", 1) for one in named), Path(root))
    for name in ("etcd", "kube-apiserver"):
        plane.begin(name)
    await plane.server_ready()
    await plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    plane.kubeconfig(USER)
    await grant(plane, RIGHTS)
    await datacenter.start()
    await datacenter.wait_ready()
    world = World(datacenter, plane)
    await world.tidy()
    await play(world, CASES)
    plane.stop()


if __name__ == "__main__":
    anyio.run(main)
