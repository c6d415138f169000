"""A Kubernetes API server with Litmus in memory: operator, runner and experiments act on the hosts of a FakeDatacenter.

Its definition of a ChaosEngine keeps unknown fields, as the real one does. `controller` plants what goes wrong.
"""

import copy
import json
from dataclasses import replace

from fake_kubernetes import NAMESPACE, TEXT, FakeKubernetes

FINALIZER = "chaosengine.litmuschaos.io/finalizer"
ENV = {"type": "array", "items": {"type": "object", "properties": {"name": TEXT, "value": TEXT}, "required": ["name"]}}
KEPT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
POD = {"type": "object", "properties": {"names": TEXT, "namespace": TEXT}, "required": ["names", "namespace"]}
STEP = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "spec": {
            "type": "object",
            "properties": {
                "probe": {"type": "array"},
                "components": {**KEPT, "properties": {"env": ENV, "nodeSelector": KEPT}},
            },
        },
    },
}
ENGINE = {
    **KEPT,
    "required": [],
    "properties": {
        "engineState": {"type": "string", "pattern": "^(active|stop)$"},
        "jobCleanUpPolicy": {"type": "string", "pattern": "^(delete|retain)$"},
        "chaosServiceAccount": TEXT,
        "appinfo": {"type": "object", "properties": {"appns": TEXT, "applabel": TEXT, "appkind": TEXT}},
        "selectors": {"type": "object", "properties": {"pods": {"type": "array", "items": POD}}},
        "components": {"type": "object", "properties": {"runner": {**KEPT, "properties": {"image": TEXT}}}},
        "experiments": {"type": "array", "items": STEP},
    },
}
HUB = {
    "pod-delete": ["FORCE"],
    "container-kill": ["SIGNAL"],
    "pod-network-latency": ["NETWORK_LATENCY", "JITTER", "NETWORK_INTERFACE"],
    "pod-network-loss": ["NETWORK_PACKET_LOSS_PERCENTAGE", "NETWORK_INTERFACE"],
    "pod-network-corruption": ["NETWORK_PACKET_CORRUPTION_PERCENTAGE", "NETWORK_INTERFACE"],
    "pod-network-duplication": ["NETWORK_PACKET_DUPLICATION_PERCENTAGE", "NETWORK_INTERFACE"],
    "pod-http-latency": ["LATENCY"],
    "pod-http-reset-peer": ["RESET_TIMEOUT"],
    "pod-http-status-code": ["STATUS_CODE", "MODIFY_RESPONSE_BODY"],
    "pod-http-modify-header": ["HEADERS_MAP", "HEADER_MODE"],
    "pod-http-modify-body": ["RESPONSE_BODY", "CONTENT_TYPE"],
    "pod-cpu-hog": ["CPU_CORES", "CPU_LOAD"],
    "pod-memory-hog": ["MEMORY_CONSUMPTION", "NUMBER_OF_WORKERS"],
    "pod-io-stress": ["FILESYSTEM_UTILIZATION_PERCENTAGE", "NUMBER_OF_WORKERS", "VOLUME_MOUNT_PATH"],
    "node-drain": ["TARGET_NODE"],
    "disk-fill": ["FILL_PERCENTAGE", "EPHEMERAL_STORAGE_MEBIBYTES"],
    "pod-dns-error": ["TARGET_HOSTNAMES"],
}
"""What a ChaosExperiment of that name lists of its environment, beside what all of them read."""
_OF_HTTP = ["TARGET_SERVICE_PORT", "PROXY_PORT", "TOXICITY"]
SEEN = {
    "pod-delete": "replaced",
    "container-kill": "restarted",
    "pod-network-latency": "slow",
    "pod-network-loss": "silent",
    "pod-network-corruption": "silent",
    "pod-network-duplication": "slow",
    "pod-http-latency": "slow",
    "pod-http-reset-peer": "silent",
    "pod-http-status-code": "answers",
    "pod-http-modify-header": "answers",
    "pod-http-modify-body": "answers",
    "pod-cpu-hog": "slow and used",
    "pod-memory-hog": "restarted and used",
    "pod-io-stress": "slow",
    "disk-fill": "replaced",
    "pod-dns-error": "silent",
    "node-drain": "",
}
"""What an agent shows of each here."""


class FakeLitmus(FakeKubernetes):
    """`controller`: `works`, `absent`, `old-crd`, `no-runner`, `skips`, `fails`, `passes` (no effect) or `stuck`."""

    def __init__(self, world=None, *, pods=(), owner="StatefulSet"):
        super().__init__(world, pods=pods, owner=owner)
        for plural, spec in (("chaosengines", ENGINE), ("chaosexperiments", KEPT), ("chaosresults", KEPT)):
            self.definitions[plural] = defined(plural, {"required": [], **spec})
        for name, env in HUB.items():
            listed = [{"name": one} for one in (*env, *(_OF_HTTP if "-http-" in name else ()))]
            self.objects["chaosexperiments", name] = {
                "kind": "ChaosExperiment",
                "metadata": {"name": name},
                "spec": {"definition": {"env": listed}},
            }
        self.chaos_pods = {}
        self.cordoned = set()
        for name, pod in self.pods.items():
            pod["spec"] = {"nodeName": f"node-of-{name}", "containers": [{"name": "consul"}]}
        self.changed = {}
        """By host: what its answers become."""

    def left(self):
        """What stays that was not there before a run."""
        engines = [key for key in self.objects if key[0] != "chaosexperiments"]
        return [*engines, *self.chaos_pods]

    def answer(self, method, path, query, body, token=""):
        labels = query.get("labelSelector", [""])
        if path.endswith("/pods") and "chaosUID=" in labels[0]:
            self.asked.append((method, "pods", ""))
            uid = labels[0].partition("=")[2]
            items = [one for one in self.chaos_pods.values() if one["metadata"]["labels"]["chaosUID"] == uid]
            return 200, {"kind": "PodList", "metadata": {}, "items": copy.deepcopy(items)}
        if "/nodes/" in path:
            name = path.rpartition("/")[2]
            self.asked.append((method, "nodes", name))
            spec = {"unschedulable": True} if name in self.cordoned else {}
            labels = {"kubernetes.io/hostname": f"host-of-{name}"}
            return 200, {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}
        return super().answer(method, path, query, body, token)

    def _of_chaos(self, method, resource, name, query, body):
        if method != "PATCH":
            return super()._of_chaos(method, resource, name, query, body)
        if (resource, name) not in self.objects:
            return self._missing(resource, name)
        made = self.objects[resource, name]
        made["spec"] |= json.loads(body)["spec"]
        if made["spec"]["engineState"] == "stop":
            self._stop(made)
        return 200, copy.deepcopy(made)

    # operator, runner and experiment

    def _reconcile(self, made):
        if made["kind"] != "ChaosEngine":
            super()._reconcile(made)
            return
        if self.controller == "absent":
            return
        made["metadata"]["finalizers"] = [FINALIZER]
        if self.controller == "old-crd":
            return
        made["status"] = {"engineStatus": "initialized", "experiments": []}
        if self.controller == "no-runner":
            return
        [step] = made["spec"]["experiments"]
        state = "Skipped" if self.controller == "skips" else "Running"
        made["status"]["experiments"] = [{"name": step["name"], "status": state, "verdict": "Awaited"}]
        if state == "Running":
            self._run(made, step)

    def _run(self, made, step):
        uid, name = made["metadata"]["uid"], f"{made['metadata']['name']}-{step['name']}"
        self.chaos_pods[name] = {"metadata": {"name": f"{name}-x", "labels": {"chaosUID": uid}, "uid": name}}
        said = {"phase": "Running", "verdict": "Awaited", "probeSuccessPercentage": "Awaited"}
        if self.controller == "fails":
            why = {"errorCode": "CHAOS_INJECT_ERROR", "reason": "failed to inject: no"}
            said = {"phase": "Error", "verdict": "Error", "errorOutput": why, "probeSuccessPercentage": "0"}
        elif self.controller == "passes":
            said = {"phase": "Completed", "verdict": "Pass", "probeSuccessPercentage": "100"}
        else:
            self._hit(made, back=False)
        targets = [{"name": "consul-1", "kind": "pod", "chaosStatus": "injected"}]
        self.objects["chaosresults", name] = {
            "kind": "ChaosResult",
            "metadata": {"name": name, "labels": {"chaosUID": uid}},
            "spec": {"engine": made["metadata"]["name"]},
            "status": {"experimentStatus": said, "history": {"targets": targets}},
        }

    def _stop(self, made):
        """As the operator ends what runs; `stuck` has died by then."""
        if self.controller in {"stuck", "absent"}:
            return
        if self.controller in {"works", "lasts"}:
            self._hit(made, back=True)
        uid = made["metadata"]["uid"]
        mine = [name for name, one in self.chaos_pods.items() if one["metadata"]["labels"]["chaosUID"] == uid]
        for name in mine:
            if "status" not in self.chaos_pods[name]:  # a helper that has ended stays
                del self.chaos_pods[name]

    def _delete(self, resource, name):
        made = self.objects[resource, name]
        if resource == "chaosengines":
            self._stop(made)
            if made["metadata"].get("finalizers") and self.controller == "stuck":
                made["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
                return
        elif resource != "chaosresults":
            super()._delete(resource, name)
            return
        del self.objects[resource, name]

    def expire(self):
        """All experiments came to their own end; engines and results stay, and say that all is well."""
        for (resource, _), made in self.objects.items():
            if resource == "chaosengines":
                self._hit(made, back=True)
            elif resource == "chaosresults":
                made["status"]["experimentStatus"] = {
                    "phase": "Completed",
                    "verdict": "Pass",
                    "probeSuccessPercentage": "100",
                }
        self.chaos_pods.clear()

    def _hit(self, made, *, back):
        [step] = made["spec"]["experiments"]
        env = {one["name"]: one["value"] for one in step["spec"]["components"]["env"]}
        if step["name"] == "node-drain":
            self._drain(env["TARGET_NODE"], back=back)
        for pod in made["spec"].get("selectors", {}).get("pods", ()):
            assert pod["namespace"] == NAMESPACE
            self._show(pod["names"], SEEN[step["name"]], env, back=back)

    def _drain(self, node, *, back):
        (self.cordoned.discard if back else self.cordoned.add)(node)
        for pod in self.pods.values():
            if pod["spec"]["nodeName"] == node and not back:
                pod["metadata"]["uid"] += "-next"
                pod["spec"]["nodeName"] = "another-node"

    def _show(self, name, seen, env, *, back):
        pod, host = self.pods[name], self.world.hosts[name]
        seen, _, used = seen.partition(" and ")
        if used:
            self.cores[name] = 0.0 if back else int(env.get("CPU_CORES", 0)) * float(env.get("CPU_LOAD", 0)) / 100
            self.memory[name] = 0 if back else int(env.get("MEMORY_CONSUMPTION", 0)) << 20
        if seen == "slow":
            asked = env.get("NETWORK_LATENCY") or env.get("LATENCY") or "400"
            self.slow_s[name] = 0.0 if back else float(asked) / 1000
        elif seen == "silent" and host.process is not None:
            host.process = replace(host.process, state="S" if back else "T")
        elif seen == "answers":
            self.changed[name] = {} if back else env
        elif seen == "replaced" and not back:
            pod["metadata"]["uid"] += "-next"
        elif seen == "restarted" and not back:
            for one in pod["status"]["containerStatuses"]:
                one["restartCount"] += one["name"] == env["TARGET_CONTAINER"]

    def shown(self, host, answer):
        """What the agent of a host answers, as Litmus's proxy lets it through."""
        env = self.changed.get(host, {})
        if "STATUS_CODE" in env:
            return replace(answer, status=int(env["STATUS_CODE"]))
        if "RESPONSE_BODY" in env:
            return replace(answer, body=env["RESPONSE_BODY"].encode())
        more = {name.lower(): value for name, value in json.loads(env.get("HEADERS_MAP", "{}")).items()}
        return replace(answer, headers={**answer.headers, **more})


def defined(plural, spec):
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": copy.deepcopy(spec), "status": KEPT}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.litmuschaos.io"},
        "spec": {"group": "litmuschaos.io", "versions": [{"name": "v1alpha1", "served": True, "schema": schema}]},
    }
