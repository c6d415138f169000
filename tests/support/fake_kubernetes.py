"""A Kubernetes API server with Chaos Mesh in memory: it prunes, refuses, keeps finalizers, and acts its faults out.

It is not a mock: what is created changes the hosts of a FakeDatacenter, so a fault that does the wrong thing is seen by
its own observer. `controller` plants what goes wrong with the real one. `transport()` is for lightkube without a
network; `tests/contract` has it behind a real HTTP server.
"""

import copy
import json
import signal
import time
from dataclasses import replace
from email.utils import formatdate
from urllib.parse import parse_qs

import anyio
import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster as Server
from lightkube.config.models import User

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.capabilities import Toxic
from hashidrill.core.protocols.packets import Block
from hashidrill.kubernetes.client import Cluster
from hashidrill.staging.attach.product import attachables

NAMESPACE, SERVER = "consul", "https://10.73.0.80:6443"
RECORDS = "chaos-mesh/records"
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
SELECTOR = {
    "type": "object",
    "properties": {"pods": {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}}},
}
COMMON = {"mode": {"type": "string", "enum": ["one", "all", "fixed"]}, "selector": SELECTOR, "duration": TEXT}
SPECS = {
    "PodChaos": {
        "action": {"type": "string", "enum": ["pod-kill", "pod-failure", "container-kill"]},
        "containerNames": {"type": "array", "items": TEXT},
        "gracePeriod": {"type": "integer", "minimum": 0},
    },
    "NetworkChaos": {
        "action": {"type": "string", "enum": ["delay", "loss", "partition", "bandwidth"]},
        "direction": {"type": "string", "enum": ["to", "from", "both"]},
        "delay": {"type": "object", "properties": {"latency": TEXT, "jitter": TEXT}, "required": ["latency"]},
        "loss": {"type": "object", "properties": {"loss": TEXT}, "required": ["loss"]},
        "bandwidth": {"type": "object", "properties": {"rate": TEXT, "limit": NUMBER, "buffer": NUMBER}},
        "externalTargets": {"type": "array", "items": TEXT},
    },
    "StressChaos": {
        "stressors": {
            "type": "object",
            "properties": {
                "cpu": {"type": "object", "properties": {"workers": NUMBER, "load": NUMBER}},
                "memory": {"type": "object", "properties": {"workers": NUMBER, "size": TEXT}},
            },
        },
        "containerNames": {"type": "array", "items": TEXT},
    },
    "HTTPChaos": {"target": TEXT, "port": NUMBER, "abort": {"type": "boolean"}, "delay": TEXT, "path": TEXT},
    "IOChaos": {
        "action": {"type": "string", "enum": ["latency", "fault", "attrOverride", "mistake"]},
        "delay": TEXT,
        "percent": NUMBER,
        "volumePath": TEXT,
        "methods": {"type": "array", "items": TEXT},
        "containerNames": {"type": "array", "items": TEXT},
    },
    "TimeChaos": {
        "timeOffset": TEXT,
        "clockIds": {"type": "array", "items": TEXT},
        "containerNames": {"type": "array", "items": TEXT},
    },
    "PhysicalMachineChaos": {
        "action": {
            "type": "string",
            "enum": ["process", "network-delay", "disk-fill", "stress-cpu", "network-partition", "network-bandwidth"],
        },
        "address": {"type": "array", "items": TEXT},
        "disk-fill": {"type": "object", "properties": {"size": TEXT, "path": TEXT}},
        "stress-cpu": {"type": "object", "properties": {"load": NUMBER, "workers": NUMBER}},
        "network-partition": {
            "type": "object",
            "properties": {"device": TEXT, "direction": TEXT, "ip-address": TEXT},
        },
        "network-bandwidth": {
            "type": "object",
            "properties": {
                "device": TEXT,
                "rate": TEXT,
                "limit": {"type": "integer", "minimum": 1},
                "buffer": {"type": "integer", "minimum": 1},
            },
            "required": ["rate", "limit", "buffer"],
        },
        "process": {"type": "object", "properties": {"process": TEXT, "signal": NUMBER, "recoverCmd": TEXT}},
    },
}
REQUIRED = {
    "PodChaos": ["action", "mode", "selector"],
    "NetworkChaos": ["action", "mode", "selector"],
    "IOChaos": ["action", "mode", "selector", "volumePath"],
    "HTTPChaos": ["mode", "selector", "target"],
    "TimeChaos": ["mode", "selector", "timeOffset"],
    "StressChaos": ["mode", "selector"],
    "PhysicalMachineChaos": ["action", "mode"],
}


def definition(kind):
    """In the shape of the real one, with the fields that these tests need."""
    spec = {"type": "object", "properties": {**COMMON, **SPECS[kind]}, "required": REQUIRED[kind]}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}.chaos-mesh.org"},
        "spec": {"group": "chaos-mesh.org", "versions": [{"name": "v1alpha1", "served": True, "schema": schema}]},
    }


def a_pod(name, address, owner, labels=None, ports=None):
    """With all that the API always has of one."""
    keeper = {"apiVersion": "apps/v1", "kind": owner, "name": "consul", "uid": "set", "controller": True}
    container = {"name": "consul", "restartCount": 0, "image": "consul", "imageID": "", "ready": True}
    ready = [{"type": "Ready", "status": "True"}]
    listens = [{"name": each, "containerPort": port} for each, port in (ports or {}).items()]
    return {
        "metadata": {
            "name": name,
            "uid": f"{name}-1",
            "namespace": NAMESPACE,
            "ownerReferences": [keeper],
            "labels": dict(labels or {}),
        },
        "spec": {"containers": [{"name": "consul", "ports": listens}]},
        "status": {"podIP": address, "phase": "Running", "conditions": ready, "containerStatuses": [container]},
    }


class FakeKubernetes:
    """`controller`: `works`, `absent`, `old-crd`, `fails`, `lies` (AllInjected, no effect) or `stuck` (at deletion)."""

    def __init__(self, world=None, *, pods=(), owner="StatefulSet"):
        self.world = world
        self.definitions = {kind.lower(): definition(kind) for kind in SPECS}
        self.objects = {}
        self.controller = "works"
        self.refuses = {}
        """(method, resource) to an HTTP status."""
        self.says = ""
        """In place of the words with which a role is lacking."""
        self.silent_s = 0.0
        self.busy = []
        """What it says to the next requests instead of an answer: Retry-After of each, None for no such header."""
        self.token = ""
        """What a request must bring, if anything."""
        self.asked = []
        self.pods = {}
        self.namespaces = {NAMESPACE}
        self.slow_s = {}
        """By host: how much longer its agent takes for an answer."""
        self.slow_writes_s = {}
        """The same, for what it commits."""
        self.skew_s = {}
        """By host: how wrong the clock is that its agent reads."""
        self.cores, self.memory = {}, {}
        """By pod: the CPU that its container uses, and its memory in bytes beside the agent's own."""
        self.bytes_per_s = {}
        """By host: how much it may send."""
        self.cgroup = 1
        """The version of the node's cgroups."""
        for host in pods:
            labels = {"app": "consul", "component": world.hosts[host].roles["consul"]}
            self.pods[host] = a_pod(host, world.hosts[host].address, owner, labels, {"http": 8500, "server": 8300})

    # the API

    def answer(self, method, path, query, body, token=""):
        """(HTTP status, JSON)."""
        parts = [part for part in path.split("/") if part]
        if self.token and token != f"Bearer {self.token}":
            return self._no(401, "Unauthorized")
        at = parts.index("namespaces") + 2 if "namespaces" in parts else -2
        at = -2 if at == len(parts) else at
        resource, name = parts[at], "".join(parts[at:][1:])
        self.asked.append((method, resource, name))
        if (method, resource) in self.refuses:
            said = self.says or f"{resource} is forbidden: User cannot {method}"
            return self._no(self.refuses[method, resource], said)
        if resource == "namespaces":
            return (200, {"metadata": {"name": name}}) if name in self.namespaces else self._missing(resource, name)
        if resource in {"customresourcedefinitions", "pods"}:
            there = "namespaces" not in parts or parts[at - 1] in self.namespaces
            return self._read(resource, name, labels_in(query), there=there)
        if resource not in self.definitions:
            return self._no(404, "the server could not find the requested resource")
        return self._of_chaos(method, resource, name, query, body)

    def reviewed(self, asked):
        """RBAC knows what is refused by a lacking role, and nothing of admission, quotas and namespaces that end."""
        about = asked["spec"]["resourceAttributes"]
        method = {"create": "POST", "delete": "DELETE", "patch": "PATCH"}.get(about["verb"], "GET")
        lacks = self.refuses.get((method, about["resource"])) == 403 and not self.says
        return {**asked, "status": {"allowed": not lacks}}

    def _read(self, resource, name, labels=None, *, there=True):
        if resource == "pods" and not name:
            meant = [
                pod
                for pod in self.pods.values()
                if there and (labels or {}).items() <= pod["metadata"].get("labels", {}).items()
            ]
            return 200, {"kind": "PodList", "metadata": {}, "items": copy.deepcopy(meant)}
        of_kind = self.definitions.get(name.partition(".")[0])
        found = self.pods.get(name) if resource == "pods" else of_kind
        return (200, found) if found else self._missing(resource, name)

    def _of_chaos(self, method, resource, name, query, body):
        if method == "POST":
            return self._created(resource, json.loads(body))
        if not name:
            wanted = labels_in(query)
            items = [
                one
                for (plural, _), one in self.objects.items()
                if plural == resource and wanted.items() <= one["metadata"].get("labels", {}).items()
            ]
            return 200, {"kind": "List", "metadata": {}, "items": copy.deepcopy(items)}
        if (resource, name) not in self.objects:
            return self._missing(resource, name)
        if method == "DELETE":
            self._delete(resource, name)
            return 200, {"kind": "Status", "status": "Success"}
        return 200, copy.deepcopy(self.objects[resource, name])

    def _created(self, resource, made):
        name = made["metadata"]["name"]
        if (resource, name) in self.objects:
            return self._no(409, f"{resource} {name} already exists", reason="AlreadyExists")
        schema = self.definitions[resource]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        if missing := [field for field in schema["required"] if field not in made["spec"]]:
            return self._no(422, f"spec.{missing[0]}: Required value", reason="Invalid")
        made["spec"] = pruned(made["spec"], schema)
        made["metadata"] |= {"namespace": NAMESPACE, "uid": f"uid-{len(self.asked)}"}
        self.objects[resource, name] = made
        self._reconcile(made)
        return 201, copy.deepcopy(made)

    def _no(self, code, message, reason="", kind=""):
        return code, {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "message": message,
            "reason": reason,
            "details": {"kind": kind} if kind else None,
        }

    def _missing(self, resource, name):
        return self._no(404, f'{resource} "{name}" not found', reason="NotFound", kind=resource)

    # the controller

    def _reconcile(self, made):
        if self.controller == "absent":
            return
        made["metadata"]["finalizers"] = [RECORDS]
        if self.controller == "old-crd":
            return
        conditions = {"Selected": True, "AllInjected": False, "AllRecovered": True, "Paused": False}
        record = {"id": "one", "phase": "Not Injected", "events": []}
        if self.controller == "fails":
            record["events"].append({"type": "Failed", "operation": "Apply", "message": "Failed to apply chaos: no"})
        else:
            conditions |= {"AllInjected": True, "AllRecovered": False}
            if self.controller != "lies":
                self._act(made, back=False)
        made["status"] = {
            "conditions": [{"type": name, "status": str(value)} for name, value in conditions.items()],
            "experiment": {"desiredPhase": "Run", "containerRecords": [record]},
        }

    def left(self):
        """What stays that was not there before a run."""
        return list(self.objects)

    def expire(self):
        """The durations of all objects are over: the controller recovers by itself, and keeps the objects."""
        for made in self.objects.values():
            if "duration" in made["spec"]:
                self._act(made, back=True)

    def _delete(self, resource, name):
        made = self.objects[resource, name]
        if made["metadata"].get("finalizers") and self.controller == "stuck":
            made["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
            return
        if made["metadata"].get("finalizers") and self.controller == "works":
            self._act(made, back=True)
        del self.objects[resource, name]

    def _act(self, made, *, back):
        """What the fault does to the hosts, or what its end does."""
        kind, spec = made["kind"], made["spec"]
        if kind == "PhysicalMachineChaos":
            for url in spec["address"]:
                self._on_machine(self._host_at(url), spec["action"], spec[spec["action"]], back=back)
            return
        for pod in spec["selector"]["pods"][NAMESPACE]:
            self._on_pod(pod, kind, spec, back=back)

    def _host_at(self, url):
        address = url.removeprefix("http://").partition(":")[0]
        return next(host for host in self.world.hosts.values() if host.address == address)

    def _on_machine(self, host, action, what, *, back):
        """As chaosd acts, which takes what does not fit, and says that all went well."""
        if action == "process":
            self._signalled(host, what, back=back)
        elif action == "disk-fill":
            size = int(what["size"].removesuffix("c"))
            host.ballast = {} if back or size > 256_000_000 else {"chaosd": size}
        elif action == "stress-cpu":
            loops, workers = host.cpus, what["workers"] * what["load"] / 100
            host.limits = (
                {} if back else {"chaosd": loops * max(loops / (loops + what["workers"]), 1 - workers / loops)}
            )
        elif action == "network-partition":
            chain = {"to": "output", "from": "input"}[what["direction"]]
            cut = [] if back else [Block(chain, tuple(what["ip-address"].split(",")))]
            host.rules.set("chaosd", cut)
        else:
            rate = float(what["rate"].removesuffix("bps")) / 8 / 1000  # as tc reads it
            host.egress = [] if back else [Toxic("bandwidth", {"rate": rate})]

    def _signalled(self, host, process, *, back):
        if process["process"] != "consul":
            return
        if process["signal"] == signal.SIGSTOP and host.process is not None:
            host.process = replace(host.process, state="S" if back else "T")
        elif process["signal"] != signal.SIGSTOP:
            host.process = self.world.new_process() if back else None

    def _on_pod(self, name, kind, spec, *, back):
        pod, host = self.pods[name], self.world.hosts[name]
        if "bandwidth" in spec or "stressors" in spec:
            self._narrow_or_stress(name, spec, back=back)
        elif kind in {"NetworkChaos", "HTTPChaos"} and "delay" in spec:
            delay = spec["delay"] if kind == "HTTPChaos" else spec["delay"]["latency"]
            self.slow_s[name] = 0.0 if back else float(delay.removesuffix("ms")) / 1000
        elif kind in {"IOChaos", "TimeChaos"}:
            of, key = (self.slow_writes_s, "delay") if kind == "IOChaos" else (self.skew_s, "timeOffset")
            of[name] = 0.0 if back else float(spec[key].removesuffix("ms")) / 1000
        elif kind in {"HTTPChaos", "NetworkChaos"} and host.process is not None:
            host.process = replace(host.process, state="S" if back else "T")
        elif spec.get("action") == "pod-failure":
            host.process = self.world.new_process() if back else None
            self.ready(name, ready=back)
        elif spec.get("action") == "pod-kill" and not back:
            pod["metadata"]["uid"] += "-next"
        elif spec.get("action") == "container-kill" and not back:
            for one in pod["status"]["containerStatuses"]:
                one["restartCount"] += one["name"] in spec["containerNames"]

    def _narrow_or_stress(self, name, spec, *, back):
        self.bytes_per_s[name] = 0 if back else float(spec.get("bandwidth", {}).get("rate", "0bps").removesuffix("bps"))
        cpu, memory = (spec.get("stressors", {}).get(each, {}) for each in ("cpu", "memory"))
        self.cores[name] = 0.0 if back else cpu.get("workers", 0) * cpu.get("load", 0) / 100
        self.memory[name] = 0 if back else int(memory.get("size", "0B").removesuffix("B"))

    def ready(self, name, *, ready):
        self.pods[name]["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]

    # for lightkube

    def transport(self):
        async def handle(request):
            if self.silent_s:
                await anyio.sleep(self.silent_s)
            if self.busy:
                self.asked.append((request.method, "busy", ""))
                after = self.busy.pop(0)
                # an API server's filter of requests in flight answers in plain text
                said = "Too many requests, please try again later.\n"
                return httpx2.Response(429, text=said, headers={} if after is None else {"Retry-After": after})
            query = parse_qs(request.url.query.decode())
            token = request.headers.get("authorization", "")
            if request.url.path.endswith("/selfsubjectaccessreviews"):
                return httpx2.Response(201, json=self.reviewed(json.loads(request.content)))
            code, data = self.answer(request.method, request.url.path, query, request.content, token)
            return httpx2.Response(code, json=data)

        return httpx2.MockTransport(handle)

    def cluster(self, settings=None):
        """As `cluster_of` gives it, without a kubeconfig."""
        namespace = (settings or {}).get("namespace") or NAMESPACE
        found = KubeConfig.from_one(
            cluster=Server(server=SERVER), user=User(token="t"), context_name="staging", namespace=namespace
        )
        client = AsyncClient(found, transport=self.transport(), trust_env=False)
        made = Cluster(client, namespace, "staging", SERVER)
        made.unrouted, made.run = self.unrouted, self.run
        return made

    async def run(self, pod, container, command):
        """What `cat` prints in the agent's container of the files that are there."""
        self.asked += [("POST", "pods/exec", ""), ("GET", "pods/exec", pod)]
        assert container == "consul"
        assert command[0] == "cat"
        cpu_s = anyio.current_time() * (0.05 + self.cores.get(pod, 0.0))
        memory = 30_000_000 + self.memory.get(pod, 0)
        shown = {
            "/sys/fs/cgroup/cpu.stat": (2, f"usage_usec {round(cpu_s * 1e6)}\nuser_usec 1\n"),
            "/sys/fs/cgroup/memory.stat": (2, f"anon {memory}\nfile 9999999999\n"),
            "/sys/fs/cgroup/cpuacct/cpuacct.usage": (1, f"{round(cpu_s * 1e9)}\n"),
            "/sys/fs/cgroup/memory/memory.stat": (1, f"cache 9999999999\nrss 1\ntotal_rss {memory}\n"),
        }
        return "".join(text for path, (of, text) in shown.items() if path in command and of == self.cgroup)

    async def unrouted(self, login, url):
        """Why this machine reaches no pod; it does."""
        return ""


def labels_in(query):
    return dict(one.split("=", 1) for one in query.get("labelSelector", [""])[0].split(",") if one)


def pruned(value, schema):
    """As an API server drops what its schema does not know."""
    if isinstance(value, dict) and "properties" in schema:
        known, keeps = schema["properties"], schema.get("x-kubernetes-preserve-unknown-fields")
        return {name: pruned(one, known.get(name, {})) for name, one in value.items() if keeps or name in known}
    return value


class TimedApi:
    """The API of a fake host's agent, which takes some time for an answer: what the network adds too."""

    def __init__(self, host, kubernetes):
        self.host, self.kubernetes, self.own_s = host, kubernetes, 0.002
        self.cut_off = False
        """Our own network is broken: no agent is reached."""
        self.says_time = True

    async def api(self, method, path, *, agent, timeout_s=5.0, **others):
        product = attachables([agent])[agent]
        if "/pprof/" in path:  # its token may not read profiles
            return replace(
                await self.host.api("GET", product.health, agent=agent), status=403, body=b"Permission denied"
            )
        writes = (method, path) == ("DELETE", product.writes_nothing)
        assert writes or path in {product.health, product.large}
        took_s = self.own_s + self.kubernetes.slow_s.get(self.host.name, 0.0)
        took_s += self.kubernetes.slow_writes_s.get(self.host.name, 0.0) if writes else 0.0
        await anyio.sleep(min(took_s, timeout_s))
        if took_s > timeout_s or self.cut_off:
            raise FaultError(f"{self.host.name}: no answer in time")
        answer = await self.host.api("GET", product.health, agent=agent)
        if path == product.large:
            answer = replace(answer, body=b"x" * 20_000)
            await anyio.sleep(20_000 / (self.kubernetes.bytes_per_s.get(self.host.name) or 1e9))
        said = formatdate(time.time() + self.kubernetes.skew_s.get(self.host.name, 0.0), usegmt=True)
        return replace(answer, headers={**answer.headers, "date": said} if self.says_time else answer.headers)
