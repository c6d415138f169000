"""One Consul in pods for each file of tests, and Chaos Mesh beside it."""

from __future__ import annotations

from functools import partial

import pytest

from kubernetes import chaos_mesh, consul
from kubernetes.drill import Drill


@pytest.fixture(scope="module")
def drill(kubernetes_node, binary, tmp_path_factory):
    injector = partial(chaos_mesh.install, kubernetes_node)
    pods = consul.install(kubernetes_node, binary("consul", "1.22.2").path, meanwhile=injector)
    yield Drill(kubernetes_node, pods, tmp_path_factory.mktemp("pods"))
    consul.remove(kubernetes_node, pods.namespace)


@pytest.fixture(autouse=True)
def settled(drill):
    drill.settled()
