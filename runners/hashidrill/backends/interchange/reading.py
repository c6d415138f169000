"""A file of Chaos Mesh or Litmus as an experiment of ours: its text, and what of the file is lost."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hashidrill.backends.chaos_mesh.vocabulary import CHAOS_MESH
from hashidrill.backends.interchange import from_chaos_mesh, from_litmus
from hashidrill.backends.interchange.steps import Reading, UnsupportedError, mapping
from hashidrill.backends.interchange.whom import PRODUCTS
from hashidrill.errors import UsageError
from hashidrill.experiment.model import API_VERSION
from hashidrill.units import shown

LITMUS = "litmuschaos.io"
_LARGEST = 1_000_000
_DISK = {"size": "256MB"}
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
"""What theirs never say: the datacenter, traffic, and what must hold. A start to work on, not a judgement."""


@dataclass(frozen=True)
class Imported:
    """An experiment to write. `lost`: what of their file it does not say."""

    name: str
    text: str
    lost: tuple[str, ...]


def imported(file: str, text: str, on: str = "", side: str = "") -> Imported:
    """`on`: the selector of ours for all that it breaks; "" where the labels of the official charts are in it.
    `side`: who is on the other side of network faults, likewise.

    Raises UsageError for what is no such file, UnsupportedError for what cannot be said. `validate` may still
    refuse it: whoever writes it checks it.
    """
    document = _document(file, text)
    group, _, _ = str(document.get("apiVersion", "")).partition("/")
    kind = str(document.get("kind", ""))
    spec = mapping(document.get("spec") or {}, f"{file}: spec")
    reading = Reading(_checked(on), side)
    try:
        _read(group, kind, spec, reading)
    except UnsupportedError as error:
        raise UnsupportedError(f"{file}: {error}") from None
    reading.lose("it has no proof of an effect and no verdict: datacenter, load and expect are a start; write your own")
    name = _name(str((document.get("metadata") or {}).get("name") or kind))
    return Imported(name, _text(name, f"{kind} of {group}", reading), tuple(reading.lost))


def _read(group: str, kind: str, spec: Mapping[str, Any], reading: Reading) -> None:
    if group == CHAOS_MESH.group:
        from_chaos_mesh.read(kind, spec, reading)
    elif group == LITMUS and kind == "ChaosEngine":
        from_litmus.read(spec, reading)
    else:
        raise UnsupportedError(
            f"kind: {kind} of {group or 'no group'} is no experiment; read are {CHAOS_MESH.group} and {LITMUS}"
        )


def _checked(on: str) -> str:
    product = on.partition(":")[0]
    if on and product not in {*PRODUCTS, "host"}:
        raise UsageError(f"--on {shown(on)}: an imported experiment has {' or '.join(PRODUCTS)}, like consul:leader")
    return on


def _document(file: str, text: str) -> Mapping[str, Any]:
    """Raises UsageError."""
    if len(text) > _LARGEST:
        raise UsageError(f"{file}: larger than {_LARGEST // 1_000_000} MB")
    try:
        found = [one for one in YAML(typ="safe", pure=True).load_all(text) if one is not None]
    except (YAMLError, ValueError, RecursionError) as error:
        told = " ".join(str(error).split())[:200]
        raise UsageError(f"{file}: not YAML: {told}") from None
    if len(found) != 1:
        raise UsageError(f"{file}: {len(found) or 'no'} documents; import them one by one")
    return mapping(found[0], file)


def _name(written: str) -> str:
    parts = [part for part in re.split(r"[^a-z0-9]+", written.lower()) if part]
    name = "-".join(parts)[:50].strip("-")
    return name if name[:1].isalpha() else f"imported-{name}".strip("-")


def _text(name: str, what: str, reading: Reading) -> str:
    product = "vault" if any(step.on.startswith("vault:") for step in reading.steps) else "consul"
    parts = _PARTS[product]
    datacenter = dict(parts["datacenter"])
    if any(step.fault == "disk.full" for step in reading.steps):
        datacenter["disk"] = _DISK
    data = {
        "apiVersion": API_VERSION, "kind": "Experiment",
        "metadata": {
            "name": name, "title": f"Imported: {name}"[:120],
            "why": f"Imported from a {what}. What it did not say: {'; '.join(reading.lost)}",
            "tags": ["imported"],
        },
        **parts, "datacenter": datacenter,
        "method": [step.as_data() for step in reading.steps],
    }  # fmt: skip
    data["recovery"], data["expect"] = data.pop("recovery"), data.pop("expect")  # in the order of a run
    yaml = YAML()
    yaml.default_flow_style, yaml.width = False, 120
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()
