"""Converts a file of Chaos Mesh or Litmus to an experiment, and reports the lost parts."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.documents import printable
from hashidrill.core.experiment.model import API_VERSION
from hashidrill.core.units import Size, shown
from hashidrill.kubernetes.interchange import from_chaos_mesh, from_litmus
from hashidrill.kubernetes.interchange.document import Document, Reading, Step, UnsupportedError, check_read
from hashidrill.kubernetes.interchange.label_selectors import PRODUCTS
from hashidrill.kubernetes.vocabulary import CHAOS_MESH

LITMUS = "litmuschaos.io"
_LARGEST = 1_000_000
_PARTS: dict[str, dict[str, Any]] = {
    "consul": {
        "datacenter": {"consul": {"servers": 3, "clients": 1}},
        "load": {"kv-writes": {"kind": "consul.kv.write", "rate": "50/s", "keys": 500, "value": "512B"}},
        "steady_state": {"for": "6s", "require": ["kv-writes.latency.p50 < 300ms", "kv-writes.errors < 0.1%"]},
        "recovery": {"for": "20s"},
        "expect": [
            {"writes_recover": {"load": "kv-writes", "p50_below": "300ms", "within": "15s"}},
            {"no_acknowledged_write_lost": {"load": "kv-writes"}},
        ],
    },
    "vault": {
        "datacenter": {"vault": {"servers": 3, "storage": "raft"}},
        "load": {"secrets": {"kind": "vault.kv.write", "rate": "20/s", "via": "vault:standbys"}},
        "steady_state": {"for": "5s", "require": ["secrets.latency.p50 < 300ms", "secrets.errors < 0.1%"]},
        "recovery": {"for": "20s"},
        "expect": [
            {"writes_recover": {"load": "secrets", "p50_below": "300ms", "within": "15s"}},
            {"no_acknowledged_write_lost": {"load": "secrets"}},
        ],
    },
}
"""Parts that no foreign file has: the datacenter, traffic, and the expectations. A starting point, not a judgement."""


@dataclass(frozen=True)
class Imported:
    """An experiment to write. `lost`: the parts of the file that it does not express."""

    name: str
    what: str
    steps: Sequence[Step]
    lost: Sequence[str]

    @property
    def text(self) -> str:
        product = "vault" if any(step.on.startswith("vault:") for step in self.steps) else "consul"
        parts = _PARTS[product]
        datacenter = dict(parts["datacenter"])
        if any(step.fault == "disk.full" for step in self.steps):
            datacenter["disk"] = {"size": str(Size(from_litmus.DISK_BYTES))}
        data = {
            "apiVersion": API_VERSION,
            "kind": "Experiment",
            "metadata": {
                "name": self.name,
                "title": f"Imported: {self.name}"[:120],
                "why": f"Imported from a {self.what}. What it did not say: {'; '.join(self.lost)}",
                "tags": ["imported"],
            },
            **parts,
            "datacenter": datacenter,
            "method": [step.as_data() for step in self.steps],
        }
        data["recovery"], data["expect"] = data.pop("recovery"), data.pop("expect")  # in the order of a run
        yaml = YAML()
        yaml.default_flow_style, yaml.width = False, 120
        out = io.StringIO()
        yaml.dump(data, out)
        return out.getvalue()


def imported(file: str, text: str, on: str = "", side: str = "") -> Imported:
    """`on`: the selector of all that it breaks; "" where the labels of the official charts are in it.
    `side`: who is on the other side of network faults, likewise.

    Raises UsageError if it is not such a file, UnsupportedError for what cannot be said. `validate` may still refuse
    the experiment: the caller checks it.
    """
    return of_documents(file, _documents(file, text), on, side)


def of_documents(file: str, found: Sequence[Any], on: str = "", side: str = "") -> Imported:
    """As `imported`, of documents that are read already."""
    reading = Reading(_checked(on), side)
    try:
        names, whats = _read(_objects(found, reading), reading)
        check_read(reading.documents)
    except UnsupportedError as error:
        raise UnsupportedError(f"{file}: {printable(str(error))}") from None
    if side and not any(step.with_.get("from") == side for step in reading.steps):
        raise UnsupportedError(f"{file}: --from {shown(side)}: none of its faults has another side")
    reading.lose("it has no proof of an effect and no verdict: datacenter, load and expect are a start; write your own")
    lost = tuple(dict.fromkeys(map(printable, reading.lost)))
    return Imported(_name(names[0]), " and a ".join(dict.fromkeys(whats)), reading.steps, lost)


def _read(objects: Sequence[Document], reading: Reading) -> tuple[list[str], list[str]]:
    """The names and kinds of the objects. All that is in a file begins at once."""
    names, whats, others = list[str](), list[str](), list[str]()
    for one in sorted(objects, key=lambda one: one.text("kind") != "ChaosExperiment"):  # its engine needs it
        (group, _, version), kind = one.text("apiVersion").partition("/"), one.text("kind")
        if group in {CHAOS_MESH.group, LITMUS} and version != CHAOS_MESH.version:
            raise UnsupportedError(f"{one.place('apiVersion')}: {shown(version)}: only {CHAOS_MESH.version} is read")
        if group == CHAOS_MESH.group and not (kind in from_chaos_mesh.BREAK_NOTHING and len(objects) > 1):
            from_chaos_mesh.read(kind, one, reading)
        elif group == LITMUS and kind == "ChaosEngine":
            from_litmus.read(one, reading)
        elif group == LITMUS and kind == "ChaosSchedule":
            raise one.wrong("kind", "a ChaosSchedule repeats a ChaosEngine; import its spec.engineTemplateSpec as one")
        else:
            if group == LITMUS and kind == "ChaosExperiment":
                from_litmus.defaults(one, reading)
            others.append(f"kind: {kind or 'none'} of {group or 'no group'} is not an experiment")
            one.lose_all(others[-1])
            continue
        metadata = one.part("metadata")
        names.append(metadata.text("name") or metadata.text("generateName") or kind)
        whats.append(f"{kind} of {group}")
        one.lose("the cluster writes it", "status")
        for part in (metadata.part("annotations"), metadata):
            part.lose_rest("an experiment has no place in a cluster")
    if not names:
        raise UnsupportedError(f"{'; '.join(others) or 'it has no objects'}; read are {CHAOS_MESH.group} and {LITMUS}")
    return names, whats


def _objects(found: Sequence[Any], reading: Reading) -> list[Document]:
    objects = list[Document]()
    for number, one in enumerate(found):
        document = Document(one, f"documents[{number}]" if len(found) > 1 else "", reading.all)
        if document.text("kind") == "List" and document.text("apiVersion") == "v1":
            document.lose("the cluster writes it", "metadata")
            objects += document.parts("items")
        else:
            objects.append(document)
    return objects


def _checked(on: str) -> str:
    product = on.partition(":")[0]
    if on and product not in {*PRODUCTS, "host"}:
        raise UsageError(f"--on {shown(on)}: an imported experiment has {' or '.join(PRODUCTS)}, like consul:leader")
    return on


def _documents(file: str, text: str) -> list[Any]:
    if len(text) > _LARGEST:
        raise UsageError(f"{file}: larger than {_LARGEST // 1_000_000} MB")
    try:
        found = [one for one in YAML(typ="safe", pure=True).load_all(text) if one is not None]
    except (YAMLError, ValueError, RecursionError) as error:
        told = " ".join(str(error).split())[:200]
        raise UsageError(f"{file}: not YAML: {told}") from None
    if not found:
        raise UsageError(f"{file}: it is empty")
    return found


def _name(written: str) -> str:
    parts = [part for part in re.split(r"[^a-z0-9]+", written.lower()) if part]
    name = "-".join(parts)[:50].strip("-")
    return name if name[:1].isalpha() else f"imported-{name}".strip("-")
