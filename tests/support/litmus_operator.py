"""A stand-in for Litmus's operator, its runner and its experiments, against a real API server without nodes.

Litmus's runner is in no module, and its experiments need pods that run. This one does to engines, pods and ChaosResults
what they do, in their order, and to the agent what can be done here: it stops its process, or replaces its pod.
"""

import os
import signal

import anyio

from hashidrill.core.protocols.capabilities import Processes

GROUP = "/apis/litmuschaos.io/v1alpha1"
FINALIZER = "chaosengine.litmuschaos.io/finalizer"
MERGE = "merge-patch"


class Operator:
    """`mode`: `works`, `passes` (a Pass of 100 and no effect) or `away`. `host`: that whose agent is hit."""

    def __init__(self, plane, namespace, host) -> None:
        self.plane, self.host, self.mode = plane, host, "works"
        self.engines = f"{GROUP}/namespaces/{namespace}/chaosengines"
        self.results = f"{GROUP}/namespaces/{namespace}/chaosresults"
        self.pods = f"/api/v1/namespaces/{namespace}/pods"

    async def run(self) -> None:
        while True:
            await anyio.sleep(0.2)
            if self.mode != "away":
                for engine in (await self._asked("GET", self.engines))["items"]:
                    await self.reconcile(engine)

    async def reconcile(self, engine) -> None:
        metadata, spec = engine["metadata"], engine["spec"]
        where = f"{self.engines}/{metadata['name']}"
        if metadata.get("deletionTimestamp") or spec.get("engineState") == "stop":
            await self._end(engine)
            change = {"metadata": {"finalizers": None}, "status": {"engineStatus": "stopped"}}
            if metadata.get("finalizers"):
                await self.plane.ask("PATCH", where, change, patch=MERGE)
        elif not metadata.get("finalizers"):
            change = {
                "metadata": {"finalizers": [FINALIZER]},
                "status": {"engineStatus": "initialized", "experiments": []},
            }
            await self.plane.ask("PATCH", where, change, patch=MERGE)
        elif not engine.get("status", {}).get("experiments"):
            [step] = spec["experiments"]
            await self._begin(engine, step)
            said = [{"name": step["name"], "status": "Running", "verdict": "Awaited"}]
            await self.plane.ask("PATCH", where, {"status": {"experiments": said}}, patch=MERGE)

    async def _begin(self, engine, step) -> None:
        name, uid = engine["metadata"]["name"], engine["metadata"]["uid"]
        await self.make_pod(f"{name}-runner", labels={"chaosUID": uid})
        passes = self.mode == "passes"
        said = {
            "phase": "Completed" if passes else "Running",
            "verdict": "Pass" if passes else "Awaited",
            "probeSuccessPercentage": "100" if passes else "Awaited",
        }
        target = {"name": self.host.name, "kind": "pod", "chaosStatus": "injected"}
        result = {
            "apiVersion": "litmuschaos.io/v1alpha1",
            "kind": "ChaosResult",
            "metadata": {"name": f"{name}-{step['name']}", "labels": {"chaosUID": uid}},
            "spec": {"engine": name, "experiment": step["name"]},
            "status": {"experimentStatus": said, "history": {"targets": [target]}},
        }
        await self.plane.ask("POST", self.results, result)
        if passes:
            return
        [pod] = [one["names"] for one in engine["spec"]["selectors"]["pods"]]
        assert pod == self.host.name, pod
        if step["name"] == "pod-delete":
            await self.plane.ask("DELETE", f"{self.pods}/{pod}")
            await self.make_pod(pod, ready=True)
        elif step["name"] == "container-kill":
            await self.ready(pod, restarts=1)
        else:
            await self.signal(signal.SIGSTOP)

    async def _end(self, engine) -> None:
        if self.mode != "passes":
            await self.signal(signal.SIGCONT)
        selector = f"{self.pods}?labelSelector=chaosUID%3D{engine['metadata']['uid']}"
        for pod in (await self._asked("GET", selector))["items"]:
            await self.plane.ask("DELETE", f"{self.pods}/{pod['metadata']['name']}")

    async def signal(self, number) -> None:
        if (process := await self.host.use(Processes).agent_process("consul")) is not None:
            os.kill(process.pid, number)

    async def make_pod(self, name, *, labels=None, ready=False) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "consul", "uid": "set", "controller": True}
        made = {
            "metadata": {"name": name, "labels": labels or {}, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "consul", "image": "consul"}]},
        }
        said = await self.plane.ask("POST", self.pods, made)
        assert said.status_code in {201, 409}, said.text[:300]
        if ready:
            await self.ready(name, restarts=0)

    async def ready(self, name, *, restarts) -> None:
        container = {"name": "consul", "restartCount": restarts, "image": "consul", "imageID": "", "ready": True}
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [container],
        }
        said = await self.plane.ask("PATCH", f"{self.pods}/{name}/status", {"status": status}, patch=MERGE)
        assert said.status_code == 200, said.text[:300]

    async def _asked(self, method, path):
        said = await self.plane.ask(method, path)
        assert said.status_code == 200, said.text[:300]
        return said.json()
