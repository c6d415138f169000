"""The binaries that hashidrill runs: how each reports its version, its vendor's releases, and how Go builds it.

A new product needs an entry in `PRODUCTS`; to build it, a wrapper module in `modules/NAME-VERSION` is needed too.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hashidrill.core.errors import BinaryError
from hashidrill.core.protocols.registry import near

VERSION_TIMEOUT_S = 20.0
"""`consul version` takes 0.1 s; a machine that is busy building takes longer."""


class WayError(Exception):
    """One way to get a binary failed; the error's text is the reason, for the user."""


@dataclass(frozen=True)
class Release:
    """Where a vendor publishes a product. `archive` and `checksums` are paths under the base URL."""

    variable: str
    default_base: str
    archive: str
    checksums: str

    @property
    def base(self) -> str:
        return (os.environ.get(self.variable) or self.default_base).rstrip("/")


HASHICORP = Release(
    variable="HASHIDRILL_RELEASES_URL",
    default_base="https://releases.hashicorp.com",
    archive="{name}/{version}/{name}_{version}_linux_{arch}.zip",
    checksums="{name}/{version}/{name}_{version}_SHA256SUMS",
)
TOXIPROXY = Release(
    variable="HASHIDRILL_TOXIPROXY_RELEASES_URL",
    default_base="https://github.com/Shopify/toxiproxy/releases/download",
    archive="v{version}/{name}-linux-{arch}",
    checksums="v{version}/checksums.txt",
)


@dataclass(frozen=True)
class Product:
    """One binary. `says` finds the version in the output of `NAME version_argument`; if `says` is empty, the binary
    reports no version, and only its record names one. Without a `release`, hashidrill builds the binary.

    `stamp` is the Go variable that the vendor's own release sets to the version, in the form of `stamp_as`; without
    a stamp, toxiproxy reports "git".
    """

    name: str
    release: Release | None
    module: str
    package: str
    version_argument: str
    says: str
    stamp: str = ""
    stamp_as: str = "{version}"
    cgo: bool = False
    files: str = ""
    """If set, this is not a program but these files of the module, concatenated under a line with the version."""
    build_time: str = "about 4 minutes"
    tags: str = ""
    """Build tags that leave out parts that a test datacenter does not need."""
    modules: Path | None = None
    """The folder of its wrapper module NAME-VERSION; None: `modules/` of this package."""
    ui_in_releases_only: bool = False
    """Only the vendor's own binary has a UI, because the module does not contain it."""

    @property
    def variable(self) -> str:
        """The environment variable that may hold an explicit path, such as HASHIDRILL_TOXIPROXY_SERVER."""
        return f"HASHIDRILL_{self.name.upper().replace('-', '_')}"


_TOXIPROXY_MODULE = "github.com/Shopify/toxiproxy/v2"
PRODUCTS = {
    product.name: product
    for product in (
        Product("consul", HASHICORP, "consul", "github.com/hashicorp/consul", "version", r"^Consul v(\S+)"),
        *(
            Product(
                name,
                TOXIPROXY,
                "toxiproxy",
                f"{_TOXIPROXY_MODULE}/cmd/{command}",
                "-version",
                rf"^{name} version (\S+)",
                stamp=f"{_TOXIPROXY_MODULE}.Version",
                build_time="about 30 seconds",
            )
            for name, command in (("toxiproxy-server", "server"), ("toxiproxy-cli", "cli"))
        ),
        Product(
            "bbolt",
            None,
            "bbolt",
            "go.etcd.io/bbolt/cmd/bbolt",
            "version",
            r"^bbolt Version: (\S+)",
            build_time="some seconds",
        ),
        Product(
            "consul-template",
            HASHICORP,
            "consul-template",
            "github.com/hashicorp/consul-template",
            "-version",
            r"^consul-template v(\S+)",
            build_time="about 2 minutes",
        ),
        Product(
            "nomad",
            HASHICORP,
            "nomad",
            "github.com/hashicorp/nomad",
            "version",
            r"^Nomad v(\S+)",
            cgo=True,  # libcontainer, under the exec driver
            build_time="about 8 minutes",
            ui_in_releases_only=True,
        ),
        Product(
            "vault",
            HASHICORP,
            "vault",
            "github.com/hashicorp/vault",
            "version",
            r"^Vault v([^\s,]+)",
            build_time="about 15 minutes",
            ui_in_releases_only=True,
        ),
        *(
            Product(
                name,
                None,
                "prometheus",
                f"github.com/prometheus/prometheus/cmd/{name}",
                "--version",
                rf"^{name}, version (\S+)",
                stamp="github.com/prometheus/common/version.Version",
                tags="remove_all_sd,enable_consul_sd",  # the clients of cloud providers are half of the build
                build_time="about 5 minutes",
            )
            for name in ("prometheus", "promtool")
        ),
        Product(
            "alertmanager",
            None,
            "alertmanager",
            "github.com/prometheus/alertmanager/cmd/alertmanager",
            "--version",
            r"^alertmanager, version (\S+)",
            stamp="github.com/prometheus/common/version.Version",
            build_time="about 2 minutes",
        ),
        Product(
            "etcd",
            None,
            "etcd",
            "go.etcd.io/etcd/server/v3",
            "--version",
            r"^etcd Version: (\S+)",
            build_time="about a minute",
        ),
        Product(
            "kube-apiserver",
            None,
            "kubernetes",
            "k8s.io/kubernetes/cmd/kube-apiserver",
            "--version",
            r"^Kubernetes v(\S+)",
            stamp="k8s.io/component-base/version.gitVersion",
            stamp_as="v{version}",
            build_time="about 3 minutes",
        ),
        Product(
            "chaos-controller-manager",
            None,
            "chaos-mesh",
            "github.com/chaos-mesh/chaos-mesh/cmd/chaos-controller-manager",
            "--version",
            r'^Controller manager Version: version\.Info\{GitVersion:"v([^"]+)"',
            stamp="github.com/chaos-mesh/chaos-mesh/pkg/version.gitVersion",
            stamp_as="v{version}",
            build_time="about 3 minutes",
        ),
        Product(
            "chaos-mesh-definitions",
            None,
            "chaos-mesh",
            "github.com/chaos-mesh/chaos-mesh",
            "",
            r"^# chaos-mesh-definitions (\S+)$",
            files="config/crd/bases/*.yaml",
            build_time="some seconds",
        ),
        Product(
            "chaosd",
            None,
            "chaosd",
            "github.com/chaos-mesh/chaosd/cmd",
            "version",
            r'^Chaosd Version: version\.Info\{GitVersion:"v([^"]+)"',
            stamp="github.com/chaos-mesh/chaosd/pkg/version.gitVersion",
            stamp_as="v{version}",
            cgo=True,  # its SQLite
            build_time="about 3 minutes",
        ),
    )
}

BBOLT_VERSION = "1.4.3"
VAULT_VERSION = "1.21.0"

DEFAULT_VERSIONS = (
    ("consul", "1.22.2"),
    ("consul", "1.10.3"),
    ("toxiproxy-server", "2.12.0"),
    ("toxiproxy-cli", "2.12.0"),
    ("bbolt", BBOLT_VERSION),
    ("nomad", "1.10.5"),
    ("vault", VAULT_VERSION),
)
"""The versions that shipped experiments use, the most used first."""

CHAOS_MESH_VERSION = "0.9.1-0.20260902003049-47411975a8cb"
"""A commit, because Chaos Mesh has no tags for its module."""
KUBERNETES_VERSIONS = (
    ("etcd", "3.5.21"),
    ("kube-apiserver", "1.34.4"),
    ("chaos-controller-manager", CHAOS_MESH_VERSION),
    ("chaos-mesh-definitions", CHAOS_MESH_VERSION),
    ("chaosd", "1.4.0"),
)
"""For `hashidrill lab up --kubernetes`: a control plane with Chaos Mesh and without nodes."""

PROMETHEUS_VERSION = "3.16.0"
ALERTMANAGER_VERSION = "0.31.1"
"""The last version that its Go module can build: later versions embed a UI that is not in the module."""
WATCHING_VERSIONS = (
    ("prometheus", PROMETHEUS_VERSION),
    ("promtool", PROMETHEUS_VERSION),
    ("alertmanager", ALERTMANAGER_VERSION),
)
"""For `datacenter.prometheus`, and for tests of alerting rules."""

AUDITED_VERSIONS = (("consul-template", "0.41.0"),)
"""Versions for tests of the audit's claims only."""


def product_named(name: str) -> Product:
    """Raises BinaryError with similar names."""
    if name not in PRODUCTS:
        raise BinaryError(f"hashidrill does not know a binary {name!r}: {near(name, PRODUCTS)}")
    return PRODUCTS[name]


def reported_version(product: Product, path: Path) -> str:
    """The version that the binary reports, with pre-release and edition (`1.22.2+ent`). Raises WayError."""
    if product.files:
        return _written_version(product, path)
    command = [str(path), *product.version_argument.split()]
    try:
        run = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except PermissionError:
        raise WayError(
            f"{path} cannot be executed (is it executable, and its file system not mounted noexec?)"
        ) from None
    except OSError as error:
        raise WayError(f"{path} cannot be executed: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise WayError(f"`{' '.join(command)}` did not end within {VERSION_TIMEOUT_S:g} s") from None
    printed = (run.stdout + run.stderr).decode(errors="replace").strip()
    match = re.search(product.says, printed, re.MULTILINE)
    if match is None:
        first = printed.splitlines()[0][:120] if printed else "nothing"
        raise WayError(f"`{' '.join(command)}` prints no version; exit code {run.returncode}, it printed: {first}")
    return match[1]


def _written_version(product: Product, path: Path) -> str:
    try:
        with path.open(errors="replace") as file:
            first = file.readline(200).strip()
    except OSError as error:
        raise WayError(f"{path} cannot be read: {error.strerror}") from None
    match = re.search(product.says, first)
    if match is None:
        raise WayError(f"the first line of {path} does not name a version of {product.name}: {first[:120]!r}")
    return match[1]


def check_version(product: Product, version: str, path: Path) -> None:
    """Raises WayError, with both versions, unless the binary reports exactly the requested one."""
    found = reported_version(product, path) if product.says else version
    if found != version:
        raise WayError(f"{path} is {product.name} {found}, not {version}")


NEED_ROOT = "exec, java and docker need a Nomad client that runs as root, and no agent here does"
"""Why Nomad has only one task driver here, for `doctor` and for a datacenter that names another driver."""
