"""The programs of the node that are built with Go, from the pinned modules in `modules/`, into hashidrill's cache.

The first build of everything takes about 25 minutes on two cores. Run as a program, it builds what is missing; with
`here`, it only says by its exit code whether a node can run at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hashidrill.core.errors import BinaryError
from hashidrill.lab.provision import binaries
from hashidrill.lab.provision.build import find_go
from hashidrill.lab.provision.products import CHAOS_MESH_VERSION, KUBERNETES_VERSIONS, Product

MODULES = Path(__file__).parent / "modules"
KUBERNETES = dict(KUBERNETES_VERSIONS)["kube-apiserver"]
OPERATOR_VERSION = "0.0.0-20230718113617-6819a4be12e4"
LITMUS_GO_VERSION = "0.0.0-20230605073551-d73728198577"
_CHAOS_MESH = "github.com/chaos-mesh/chaos-mesh"
LITMUS_MODULES = "github.com/litmuschaos"


def _of_kubernetes(name: str, took: str) -> Product:
    return Product(
        name,
        None,
        "kubernetes",
        f"k8s.io/kubernetes/cmd/{name}",
        "version --client" if name == "kubectl" else "--version",
        r"^(?:Kubernetes|Client Version:) v(\S+)",
        stamp="k8s.io/component-base/version.gitVersion",
        stamp_as="v{version}",
        build_time=took,
        modules=MODULES,
    )


def _silent(name: str, module: str, package: str, took: str) -> Product:
    """Litmus's programs report no version."""
    return Product(name, None, module, package, "", "", build_time=took, modules=MODULES)


CHAOS_DAEMON = Product(
    "chaos-daemon",
    None,
    "chaos-mesh",
    f"{_CHAOS_MESH}/cmd/chaos-daemon",
    "--version",
    r'^Chaos-daemon Version: version\.Info\{GitVersion:"v([^"]+)"',
    stamp=f"{_CHAOS_MESH}/pkg/version.gitVersion",
    stamp_as="v{version}",
    cgo=True,  # its chaos-driver
    build_time="about 3 minutes",
    modules=MODULES,
)
_OPERATOR = _silent("chaos-operator", "litmus-operator", f"{LITMUS_MODULES}/chaos-operator", "about a minute")
_DEFINITIONS = Product(
    "litmus-definitions",
    None,
    "litmus-operator",
    f"{LITMUS_MODULES}/chaos-operator",
    "",
    r"^# litmus-definitions (\S+)$",
    files="deploy/[cr]*.yaml",  # chaos_crds.yaml, rbac.yaml
    build_time="some seconds",
    modules=MODULES,
)
_EXPERIMENTS = _silent("experiments", "litmus-go", f"{LITMUS_MODULES}/litmus-go/bin/experiment", "about 2 minutes")
_HELPERS = _silent("helpers", "litmus-go", f"{LITMUS_MODULES}/litmus-go/bin/helper", "some seconds")
Wanted = tuple[tuple[str | Product, str], ...]
"""Programs with their versions; by name, those that hashidrill itself builds."""

NODE: Wanted = (
    (_of_kubernetes("kubelet", "about 5 minutes"), KUBERNETES),
    *((name, dict(KUBERNETES_VERSIONS)[name]) for name in ("kube-apiserver", "etcd")),
    (_of_kubernetes("kube-controller-manager", "about a minute"), KUBERNETES),
    (_of_kubernetes("kube-scheduler", "some seconds"), KUBERNETES),
    (_of_kubernetes("kubectl", "about a minute"), KUBERNETES),
)
"""Kubelet first: the others share its objects in Go's build cache."""
CHAOS_MESH: Wanted = (
    ("chaos-controller-manager", CHAOS_MESH_VERSION),
    ("chaos-mesh-definitions", CHAOS_MESH_VERSION),
    (CHAOS_DAEMON, CHAOS_MESH_VERSION),
)
LITMUS: Wanted = (
    (_OPERATOR, OPERATOR_VERSION),
    (_DEFINITIONS, OPERATOR_VERSION),
    (_EXPERIMENTS, LITMUS_GO_VERSION),
    (_HELPERS, LITMUS_GO_VERSION),
)

Say = Callable[[str], None]


def programs(wanted: Wanted, say: Say = lambda _: None) -> dict[str, Path]:
    """These programs by name, built where they are missing. Raises BinaryError."""
    found = {}
    for product, version in wanted:
        if isinstance(product, str):
            found[product] = binaries.ensure(product, version, progress=say).path
        else:
            asked = _with_clock(product, version, say) if product is CHAOS_DAEMON else product
            found[product.name] = binaries.ensure_product(asked, version, progress=say).path
    return found


def all_here() -> bool:
    """Whether nothing has to be built."""
    return all(
        binaries.is_here(product)
        if isinstance(product, str)
        else (binaries.cache_folder(product.name, version) / product.name).is_file()
        for product, version in (*NODE, *CHAOS_MESH, *LITMUS)
    )


def _module_source(product: Product, version: str, package: str) -> Path:
    """The folder of a module in Go's module cache, fetched if missing. Raises BinaryError."""
    folder = MODULES / f"{product.module}-{version}"
    go = find_go()
    if go is None:
        raise BinaryError(
            f"{product.name} {version} is built with Go, and there is none; get it from https://go.dev/dl"
        )
    said = subprocess.run(
        [str(go.path), "mod", "download", "-json", package],
        cwd=folder,
        env=os.environ | {"GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode != 0:
        raise BinaryError(f"`go mod download {package}`: {(said.stderr or said.stdout).strip()[-500:]}")
    return Path(json.loads(said.stdout)["Dir"])


def _with_clock(product: Product, version: str, say: Say) -> Product:
    """Chaos Mesh's daemon with the objects of its fake clock, which it embeds and which its module lacks.

    Without them TimeChaos fails in every pod. A copy of the module gets them, compiled from its own C.
    """
    if (binaries.cache_folder(product.name, version) / product.name).is_file():
        return product
    say(f"compiling the fake clock of {product.name} {version}")
    source = _module_source(product, version, _CHAOS_MESH)
    folder = binaries.cache_root() / "node" / "modules"
    copy, module = folder / "chaos-mesh", folder / f"{product.module}-{version}"
    for each in (copy, module):
        shutil.rmtree(each, ignore_errors=True)
    shutil.copytree(source, copy, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("ui", "e2e-test"))
    shutil.copytree(MODULES / module.name, module)
    clock = copy / "pkg/time/fakeclock"
    for file in sorted(clock.glob("*.c")):
        command = [os.environ.get("CC") or "cc", "-c", "-fPIE", "-O2", "-o", str(file.with_suffix(".o")), str(file)]
        subprocess.run(command, check=True)
    with (module / "go.mod").open("a") as file:
        file.write(f"\nreplace {_CHAOS_MESH} => {copy}\n")
    return replace(product, modules=folder)


if __name__ == "__main__":
    if sys.argv[1:] == ["here"]:
        from kubernetes.node import why_not

        sys.exit(not (all_here() and not why_not()))
    for name, path in programs((*NODE, *CHAOS_MESH, *LITMUS), lambda line: print(line, flush=True)).items():
        print(f"{name}: {path}")
    sys.exit(0)
