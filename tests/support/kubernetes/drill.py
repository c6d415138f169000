"""hashidrill as a user runs it, against Consul in the pods of a node with a Chaos Mesh."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path

from kubernetes import consul
from library_runs import OF_KUBERNETES

ATTACH = """\
apiVersion: hashidrill/v1
kind: Attach
metadata: {{name: drill}}
datacenter:
  kubernetes: {{kubeconfig: "{kubeconfig}", context: node-1, namespace: {namespace}, {more}consul: {consul}}}
"""
HASHIDRILL = str(Path(sys.executable).with_name("hashidrill"))
LACKS = "lacks: [IOChaos, HTTPChaos], "
"""Their injectors, toda and tproxy, are Rust and on no registry."""
KILLED, SKEWED, PARTITION = "consul-leader-pod-killed", "clock-skew-on-leader", "consul-server-partitioned"


class Drill:
    def __init__(self, node, pods, folder):
        self.node, self.pods, self.folder = node, pods, folder
        self.forwarded = self.file("forwarded.yaml", node.kubeconfig)
        self.inside = self.file("inside.yaml", node.inside)
        self.within = ["nsenter", "-t", str(node.pid), "--net", "--"]
        names = [name for name in OF_KUBERNETES if "vault" not in name and "nomad" not in name]
        self.cli("staging", "arm", *names, "--attach", str(self.forwarded), check=True)

    def file(self, name, path, *, consul="{}", more=LACKS):
        made = self.folder / name
        made.write_text(ATTACH.format(kubeconfig=path, namespace=self.pods.namespace, more=more, consul=consul))
        return made

    def cli(self, *args, within=(), check=False):
        done = subprocess.run(
            [*within, HASHIDRILL, *args],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def run(self, name, file, **more):
        return self.cli("run", f"kubernetes/{name}", "--attach", str(file), "--plain", **more)

    def addresses(self, label="app=consul"):
        items = self.node.get("-n", self.pods.namespace, "pods", "-l", label)["items"]
        return [one["status"]["podIP"] for one in items if one["status"].get("podIP")]

    def well(self):
        """Each server answers at its pod's address that one leads, by the right clock; and nothing takes memory."""
        hogs = self.node.enter(["sh", "-c", "cat /proc/[0-9]*/comm"]).stdout
        return "memStress" not in hogs and self.node.call_inside(lambda: all(map(in_time, self.addresses())))

    def left(self):
        kinds = "podchaos,networkchaos,stresschaos,timechaos"
        return self.node.get("-n", self.pods.namespace, kinds)["items"]

    def beside(self, product, part, *, kubeconfig):
        """An attach file with that product too: its part, like `{token_file: t}`, under the name of the product."""
        made = self.file(f"{product}-{kubeconfig.name}.yaml", kubeconfig)
        made.write_text(made.read_text().replace("consul: {}}", f"consul: {{}}, {product}: {part}}}"))
        return made

    def catalogue(self, product, label, port):
        """Registers pods that do not register themselves: interlocks look for each agent in Consul's catalog."""
        for pod in self.node.get("-n", self.pods.namespace, "pods", "-l", label)["items"]:
            address = pod["status"]["podIP"]
            service = {"Service": product, "Address": address, "Port": port}
            body = {"Node": pod["metadata"]["name"], "Address": address, "Service": service}
            self.node.call_inside(partial(_put, f"http://{self.addresses()[0]}:8500/v1/catalog/register", body))

    def settled(self):
        consul.wait_settled(self.node, self.pods.namespace)


def _put(url, body):
    asked = urllib.request.Request(url, json.dumps(body).encode(), method="PUT")
    urllib.request.urlopen(asked, timeout=5).read()


def in_time(address):
    try:
        with urllib.request.urlopen(f"http://{address}:8500/v1/status/leader", timeout=2) as answer:
            said = parsedate_to_datetime(answer.headers["date"]).timestamp()
            return len(answer.read()) > 2 and abs(said - time.time()) < 5
    except OSError:
        return False


def verdict(told):
    return re.search(r"\b(PASS|FAIL|INVALID)\b", told)[0]


def proven(done):
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-6000:]
    assert "PASS" in told
    assert ": proven in force" in told
    assert ": proven gone" in told
    return told
