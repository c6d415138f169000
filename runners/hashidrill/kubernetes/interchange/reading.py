"""Converts a file of Chaos Mesh, Litmus or Chaos Toolkit to an experiment, and reports the lost parts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.documents import printable
from hashidrill.core.experiment.model import API_VERSION
from hashidrill.core.units import Size, shown
from hashidrill.kubernetes.interchange import from_chaos_mesh, from_chaos_toolkit, from_litmus
from hashidrill.kubernetes.interchange.document import (
    FILL_IN,
    Document,
    Reading,
    UnsupportedError,
    as_yaml,
    check_read,
    name_of,
    seconds,
)
from hashidrill.kubernetes.interchange.label_selectors import PRODUCTS
from hashidrill.kubernetes.vocabulary import CHAOS_MESH

LITMUS = "litmuschaos.io"
_NO_VERDICT = "it has no proof of an effect and no verdict: datacenter, load and expect are a start; write your own"
_LARGEST = 1_000_000
_IN_ARGO = ": import each ChaosEngine of its templates, in `raw.data`, as a file"
_HOLDERS = {
    (LITMUS, "ChaosExperiment"): ": it has defaults; put the ChaosEngine that names it into the same file",
    ("argoproj.io", "Workflow"): _IN_ARGO,
    ("argoproj.io", "CronWorkflow"): _IN_ARGO,
}
"""Kinds of objects that only contain experiments, or parts of experiments, and the advice for each."""
_DATACENTERS: dict[str, dict[str, Any]] = {
    "consul": {"consul": {"servers": 3, "clients": 1}},
    "vault": {"vault": {"servers": 3, "storage": "raft"}},
}
_LOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "consul": ("kv-writes", {"kind": "consul.kv.write", "rate": "50/s", "keys": 500, "value": "512B"}),
    "vault": ("secrets", {"kind": "vault.kv.write", "rate": "20/s", "via": "vault:standbys"}),
}
"""Parts that no foreign file has: the datacenter, traffic, and the expectations. They are only a starting point."""


@dataclass(frozen=True)
class Imported:
    """An experiment to write. `lost`: the parts of the file that it does not express."""

    name: str
    what: str
    reading: Reading
    lost: Sequence[str]

    @property
    def to_fill(self) -> Sequence[str]:
        """The places that a person must fill in before the experiment can run, each with its reason."""
        marked = [why for _, why in self.reading.probes.values()] + [step.why for step in self.reading.steps]
        return [why for why in marked if why]

    @property
    def filled(self) -> str:
        """The text with harmless kinds at the places to fill in, so that `validate` finds all other errors."""
        text = re.sub(rf"(?m)^( +)kind: {FILL_IN}$", r"\1kind: tcp\n\1address: consul-1:8300", self.text)
        text = re.sub(rf"(?m)^  fault: {FILL_IN}$", "  fault: noop", text)
        return re.sub(rf"(?m)^  on: {FILL_IN}$", "  on: consul:leader", text)

    @property
    def text(self) -> str:
        reading = self.reading
        product = "vault" if any(step.on.startswith("vault:") for step in reading.steps) else "consul"
        load, traffic = _LOADS[product]
        full = any(step.fault == "disk.full" for step in reading.steps)
        disk: dict[str, Any] = {"disk": {"size": str(Size(from_litmus.DISK_BYTES))}} if full else {}
        healthy = [f"{load}.latency.p50 < 300ms", f"{load}.errors < 0.1%"]
        probes = CommentedMap({name: spec for name, (spec, _) in reading.probes.items()})
        method = CommentedSeq(step.as_data() for step in reading.steps)
        for name, (_, why) in reading.probes.items():
            _mark(probes, name, why, indent=2)
        for number, step in enumerate(reading.steps):
            _mark(method, number, step.why, indent=0)
        said = f"{reading.why}\n" if reading.why else ""
        data: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "Experiment",
            "metadata": {
                "name": self.name,
                "title": (reading.title or f"Imported: {self.name}")[:120],
                "why": f"{said}Imported from {self.what}. Lost or changed: {'; '.join(self.lost)}",
                "tags": reading.tags,
            },
            "datacenter": {**_DATACENTERS[product], **disk},
            "load": {load: traffic},
            "steady_state": {"for": "6s", "require": [*healthy, *reading.require]},
            **({"probes": probes} if probes else {}),
            "method": method,
            "recovery": {"for": seconds(reading.recovery_s)},
            "expect": [
                {"writes_recover": {"load": load, "p50_below": "300ms", "within": "15s"}},
                {"no_acknowledged_write_lost": {"load": load}},
                *reading.expect,
            ],
        }
        return as_yaml(data)


def _mark(place: Any, key: Any, why: str, *, indent: int) -> None:
    if why:
        place.yaml_set_comment_before_after_key(key, before=f"FILL IN: {printable(why)}", indent=indent)


def imported(file: str, text: str, on: str = "", side: str = "") -> Imported:
    """Imports a file. `on`: the selector of all its faults; "" if the file has the labels of the official charts.
    `side`: the other side of network faults, likewise.

    Raises UsageError if it is not such a file, UnsupportedError for what cannot be expressed. `validate` may still
    refuse the experiment: the caller checks it.
    """
    return of_documents(file, _documents(file, text), on, side)


def of_documents(file: str, found: Sequence[Any], on: str = "", side: str = "") -> Imported:
    """Like `imported`, for documents that are already parsed."""
    reading = Reading(_checked(on), side)
    try:
        if len(found) == 1 and is_chaos_toolkit(found[0]):
            from_chaos_toolkit.read(Document(found[0], "", reading.all), reading)
            names, whats = [reading.title], ["an experiment of Chaos Toolkit"]
        else:
            names, whats = _read(_objects(found, reading), reading)
            check_read(reading.documents)
            reading.lose(_NO_VERDICT)
    except UnsupportedError as error:
        place = re.split(r"[:,] ", str(error), maxsplit=1)[0]
        line = max((one.line(place) for one in reading.documents), default=0)
        raise UnsupportedError(f"{file}:{f'{line}:' if line else ''} {printable(str(error))}") from None
    if side and not any(step.with_.get("from") == side for step in reading.steps):
        raise UnsupportedError(f"{file}: --from {shown(side)}: none of its faults has another side")
    lost = tuple(dict.fromkeys(map(printable, reading.lost)))
    return Imported(name_of(names[0]), " and ".join(dict.fromkeys(whats)), reading, lost)


def is_chaos_toolkit(found: Any) -> bool:
    """Whether it is an experiment of Chaos Toolkit: no other format has such keys at the top."""
    return isinstance(found, Mapping) and "kind" not in found and bool({"method", "steady-state-hypothesis"} & {*found})


def _read(objects: Sequence[Document], reading: Reading) -> tuple[list[str], list[str]]:
    """The names and kinds of the objects. All objects of a file begin at the same time."""
    names, whats, others = list[str](), list[str](), list[str]()
    has_engine = any(one.text("kind") == "ChaosEngine" for one in objects)
    for one in sorted(objects, key=lambda one: one.text("kind") != "ChaosExperiment"):  # its engine needs it
        (group, _, version), kind = one.text("apiVersion").partition("/"), one.text("kind")
        if group in {CHAOS_MESH.group, LITMUS} and version != CHAOS_MESH.version:
            raise UnsupportedError(f"{one.place('apiVersion')}: {shown(version)}: only {CHAOS_MESH.version} is read")
        if group == CHAOS_MESH.group and not (kind in from_chaos_mesh.BREAK_NOTHING and len(objects) > 1):
            from_chaos_mesh.read(kind, one, reading)
        elif group == LITMUS and kind == "ChaosEngine":
            from_litmus.read(one, reading)
        elif group == LITMUS and kind == "ChaosExperiment" and has_engine:
            from_litmus.defaults(one, reading)
            continue
        elif group == LITMUS and kind == "ChaosSchedule":
            raise one.wrong("kind", "a ChaosSchedule repeats a ChaosEngine; import its spec.engineTemplateSpec as one")
        else:
            hint = _HOLDERS.get((group, kind), "")
            others.append(f"kind: {kind or 'none'} of {group or 'no group'} is not an experiment{hint}")
            one.lose_all(others[-1])
            continue
        metadata = one.part("metadata")
        names.append(metadata.text("name") or metadata.text("generateName") or kind)
        whats.append(f"a {kind} of {group}")
        one.lose("the cluster writes it", "status")
        for part in (metadata.part("annotations"), metadata):
            part.lose_rest("an experiment has no place in a cluster")
    from_litmus.unused(reading)
    if not names:
        read = f"{CHAOS_MESH.group}, {LITMUS}, and experiments of Chaos Toolkit, which have a `method`"
        raise UnsupportedError(f"{'; '.join(dict.fromkeys(others)) or 'it has no objects'}; hashidrill reads {read}")
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
        if text.lstrip().startswith("{"):
            text = text.replace("\t", "  ")  # JSON may be indented with tabs, and has no other tabs
        found = [one for one in YAML(pure=True).load_all(text) if one is not None]  # pure: values know their lines
    except (YAMLError, ValueError, RecursionError) as error:
        told = " ".join(str(error).split())[:200]
        raise UsageError(f"{file}: not YAML or JSON: {told}") from None
    if not found:
        raise UsageError(f"{file}: it is empty")
    return found
