"""Which datacenter is meant: a file of `kind: Attach`, and what it leaves to the environment.

    apiVersion: hashidrill/v1
    kind: Attach
    metadata: {name: staging-eu}
    datacenter:
      consul: {address: "https://consul.staging.example:8501", ca_file: ca.pem, token_file: /run/secrets/consul}
      nomad: {}                       # all of it from NOMAD_ADDR, NOMAD_TOKEN, ...

The file wins over the variables that the command lines of the products read. Relative paths are relative to the file.
A token is not written into the file: `token_file` names the file that holds it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.attached import KIND, inline, said_in
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import KIND as EXPERIMENT
from hashidrill.core.experiment.library import read_document, read_experiment
from hashidrill.core.experiment.model import API_VERSION, Name
from hashidrill.core.experiment.pydantic_messages import explain
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.registry import near
from hashidrill.staging.attach.beside import PLACE as PLACE_BESIDE
from hashidrill.staging.attach.beside import Beside, kubernetes_of
from hashidrill.staging.attach.login import Login
from hashidrill.staging.attach.logins import address_of, login_from, whole_url
from hashidrill.staging.attach.pods import (
    KUBERNETES,
    PLACE,
    KubernetesDatacenter,
    model_of_kubernetes,
    part_of_pods,
    selectors_of,
)
from hashidrill.staging.attach.product import Part, attachables
from hashidrill.staging.interlocks.settings import settings_of


class _Metadata(Strict):
    name: Name = Field(description="Name of the datacenter: it stands in reports, and is what an operator arms")
    title: str = Field(default="", max_length=120, description="One line for reports")


class AttachFile(Strict):
    """A file of `kind: Attach`."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion", description="Version of this format")
    kind: Literal["Attach"] = Field(description="Kind of document")
    metadata: _Metadata
    datacenter: dict[str, dict[str, Any] | None] = Field(
        min_length=1, description="The products, and how each is reached; `kubernetes` for those whose agents are pods"
    )
    services: Beside = Field(default=Beside(), description="What else stands there, by address")
    interlocks: dict[str, Any] = Field(default={}, description="What must hold before anything is touched")
    engine: dict[str, Any] = Field(default={}, description="Where loads run, if not on the runner's machine")
    carriers: dict[str, Any] = Field(default={}, description="How faults reach the hosts themselves")


@dataclass(frozen=True)
class AttachTarget:
    """The datacenter that is meant, and how each of its products is reached."""

    name: str
    title: str
    path: str
    logins: Mapping[str, Login]
    """By product."""
    interlocks: Mapping[str, Any] = field(default_factory=dict)
    """As written."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """As written: where loads run (hashidrill.staging.generators.settings)."""
    toxiproxy: str = ""
    """URL of the API of the estate's toxiproxy; "" where it has none."""
    carriers: Mapping[str, Any] = field(default_factory=dict)
    """As written: how faults reach hosts (hashidrill.staging.carriers)."""
    kubernetes: Mapping[str, Any] = field(default_factory=dict)
    """How the Kubernetes is reached whose Chaos Mesh injects (KubernetesPart, as plain data); empty without one.

    Where agents are its pods: in `pods` by product and role their labels, in `entrances` the products with an address
    of their own in the file, and in `found`, once they were looked for, by product, role and name what was found
    (backends/kubernetes/agents.py): `address`, `ready` and `phase`.
    """
    said: frozenset[str] = frozenset()
    """What whoever started the run said on the command line, like `breaks-quorum`."""
    undoing: bool = False
    """Whether faults are only taken back: then the file may name hosts that nobody knows any more."""

    def secrets(self) -> list[str]:
        """What must stand in no file, log, process table or answer of ours."""
        return [secret for login in self.logins.values() for secret in login.secrets]

    def saying(self, *said: str) -> AttachTarget:
        return replace(self, said=self.said | {*said})

    def handed_over(self) -> dict[str, Any]:
        """Plain data with the tokens in it: for the standard input of a process of ours, and for no file."""
        return {
            "name": self.name,
            "title": self.title,
            "path": self.path,
            "interlocks": dict(self.interlocks),
            "engine": dict(self.engine),
            "toxiproxy": self.toxiproxy,
            "carriers": dict(self.carriers),
            "kubernetes": dict(self.kubernetes),
            "said": sorted(self.said),
            "logins": {name: one.handed_over() for name, one in self.logins.items()},
        }

    @classmethod
    def received(cls, data: Mapping[str, Any]) -> AttachTarget:
        """What `handed_over` gave."""
        logins = {name: Login.received(one) for name, one in data["logins"].items()}
        return cls(**{**data, "logins": logins, "said": frozenset(data["said"])})


def read_target(path: Path, environ: Mapping[str, str] | None = None) -> AttachTarget:
    """Raises ExperimentError for the file (with line, column and caret), AttachError for a variable or a token."""
    environ = os.environ if environ is None else environ
    path, model, parts, pods = _read(path)
    known = attachables()
    logins = {name: login_from(known[name], part, environ, path) for name, part in parts.items()}
    beside = model.services.toxiproxy
    toxiproxy = "" if beside is None else _toxiproxy_at(beside.address)
    return AttachTarget(
        model.metadata.name,
        model.metadata.title,
        str(path),
        logins | {name: login_from(known[name], part, environ, path, of_pod=True) for name, part in pods.parts.items()},
        model.interlocks,
        model.engine,
        toxiproxy,
        model.carriers,
        pods.connection(path, environ) or kubernetes_of(model.services.kubernetes, path, environ),
    )


@dataclass(frozen=True)
class _Pods:
    """What the file says under `datacenter.kubernetes`."""

    said: KubernetesDatacenter | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)
    selectors: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)

    def connection(self, path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
        """As AttachTarget.kubernetes has it; empty where the file says nothing there."""
        if self.said is None:
            return {}
        selectors = {name: {role: dict(one) for role, one in of.items()} for name, of in self.selectors.items()}
        entrances = [name for name, part in self.parts.items() if part.address is not None]
        connection = kubernetes_of(self.said, path, environ, place=PLACE)
        return {**connection, "pods": selectors, "entrances": entrances}


def written_in(path: Path) -> AttachFile:
    """What a file says by itself: no token, no other file and nobody is asked. Raises ExperimentError."""
    return _read(path)[1]


@dataclass(frozen=True)
class LeftOut:
    """What a file leaves to the environment of whoever attaches."""

    addresses: tuple[str, ...]
    """Products whose address it does not say."""
    secrets: tuple[str, ...]
    """Variables with tokens and passwords that are read then."""


def left_out(path: Path) -> LeftOut:
    """Raises ExperimentError, and InterlockError for settings of the interlocks that cannot be."""
    where, model, parts, pods = _read(path)
    settings_of(model.interlocks, str(where))
    known = attachables()
    written = {name: part.model_dump() for name, part in {**parts, **pods.parts}.items()}
    return LeftOut(
        tuple(name for name, part in written.items() if not part.get("address") and name not in pods.parts),
        tuple(
            variable
            for name, part in written.items()
            for key, variable in known[name].variables.items()
            if key == "http_auth" or (key == "token" and not part.get("token_file"))
        ),
    )


def check_file(path: Path) -> tuple[str, AttachFile, frozenset[str]]:
    """What can be told of such a file without the environment, the files that it names, and anybody at the other end.

    Returns the file that says it, and which products are attached: hashidrill.staging.runs.attachable looks at the
    rest. Raises ExperimentError, and InterlockError for settings of the interlocks that cannot be.
    """
    where, model, parts, pods = _read(path)
    settings_of(model.interlocks, str(where))
    return str(where), model, frozenset({**parts, **pods.parts})


def _read(path: Path) -> tuple[Path, AttachFile, dict[str, Part], _Pods]:
    """(the file that says it, its model, the part of each product, those whose agents are pods).

    Raises ExperimentError.
    """
    path, document = _document(path)
    known = attachables()
    model = _checked(document)
    parts: dict[str, Part] = {}
    for name, written in model.datacenter.items():
        if name == KUBERNETES:
            continue
        if name not in known:
            document.problem(("datacenter", name), f"cannot be attached: {near(name, [*known, KUBERNETES])}", key=True)
            continue
        parts[name] = _part(document, known[name].Part, ("datacenter", name), written or {})
    if (toxiproxy := model.services.toxiproxy) is not None:
        _check_url(document, ("services", "toxiproxy", "address"), partial(_toxiproxy_at, toxiproxy.address))
    if (kubernetes := model.services.kubernetes) is not None:
        _check_urls(document, (*PLACE_BESIDE.split("."), "chaosd"), "chaosd", 31767, kubernetes.chaosd)
    pods = _of_pods(document, model, parts) if KUBERNETES in model.datacenter else _Pods()
    document.raise_problems()
    return path, model, parts, pods


def _of_pods(document: Document, model: AttachFile, others: Mapping[str, Part]) -> _Pods:
    """Raises ExperimentError."""
    at = ("datacenter", KUBERNETES)
    written = model.datacenter[KUBERNETES] or {}
    said: KubernetesDatacenter = _validated(document, model_of_kubernetes(), written, at)
    parts: dict[str, Part] = {}
    selectors: dict[str, dict[str, dict[str, str]]] = {}
    for name, product in attachables().items():
        if name not in written:
            continue
        part = parts[name] = _part(document, part_of_pods(name), (*at, name), written[name] or {})
        selectors[name] = selectors_of(product, part)
        if "server" not in selectors[name]:
            text = f"there is no official chart of {name}: write the labels of its servers' pods under `servers`"
            document.problem((*at, name), text)
        if name in others:
            document.problem((*at, name), f"datacenter.{name} names it too: keep one of them")
    if not parts:
        document.problem(at, f"names no product, like `consul: {{}}`; there are: {', '.join(attachables())}")
    if model.services.kubernetes is not None:
        text = f"{PLACE} says which Kubernetes it is: write these keys there"
        document.problem(("services", "kubernetes"), text)
    return _Pods(said, parts, selectors)


def _document(path: Path) -> tuple[Path, Document]:
    """The file; of an experiment, what it says under `datacenter.attach`: such a file's path, or what stands in one."""
    document = read_document(path)
    if not isinstance(document.data, dict) or document.data.get("kind") != EXPERIMENT:
        return path, document
    experiment = read_experiment(path)
    written = inline(experiment)
    if written is None:
        return path, document
    if isinstance(written, str):
        there = path.parent / Path(written).expanduser()
        return there, read_document(there)
    head = {"apiVersion": API_VERSION, "kind": KIND}
    return path, Document(f"{path} ({said_in(experiment)})", json.dumps({**head, **written}, indent=2))


def _checked(document: Document) -> AttachFile:
    """Raises ExperimentError."""
    data = document.data
    if not isinstance(data, dict) or data.get("kind") != KIND:
        place = ("kind",) if isinstance(data, dict) else ()
        text = f"not a datacenter to attach: it begins with `apiVersion: {API_VERSION}` and `kind: {KIND}`"
        document.problem(place, text)
        document.raise_problems()
    model: AttachFile = _validated(document, AttachFile, data, ())
    return model


def _validated(document: Document, model: Any, data: Any, loc: tuple[str, ...]) -> Any:
    """Raises ExperimentError with every problem."""
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False):
            at = tuple(error["loc"])
            key = error["type"] == "extra_forbidden"
            document.problem((*loc, *(at[:-1] if error["type"] == "missing" else at)), explain(error, model), key=key)
        document.raise_problems()
        raise AssertionError("pydantic refused the document without saying why") from None


def _part(document: Document, model: type[Part], loc: tuple[str, ...], written: Mapping[str, Any]) -> Part:
    """Raises ExperimentError."""
    _refuse_tokens(document, loc, written)
    part: Part = _validated(document, model, written, loc)
    product = attachables()[loc[-1]]
    if part.address is not None:
        _check_url(document, (*loc, "address"), lambda: address_of(product, part.address or ""))
    _check_urls(document, (*loc, "agents"), product.name, product.port, part.agents)
    return part


def _toxiproxy_at(url: str) -> str:
    """Raises AttachError."""
    return whole_url("toxiproxy", 8474, url, "the address of toxiproxy")


def _check_urls(document: Document, loc: tuple[str, ...], name: str, port: int, urls: Mapping[str, str]) -> None:
    for host, url in urls.items():
        _check_url(document, (*loc, host), partial(whole_url, name, port, url, host))


def _check_url(document: Document, loc: tuple[str, ...], read: Callable[[], str]) -> None:
    """Notes what is wrong with an address now, and not when it is first asked."""
    try:
        read()
    except AttachError as error:
        document.problem(loc, str(error))


def _refuse_tokens(document: Document, loc: tuple[str, ...], written: Mapping[str, Any]) -> None:
    for key in written:
        if key in {"token", "http_auth"}:
            text = "a token does not belong into this file; name the file that holds it in token_file"
            document.problem((*loc, key), text, key=True)
    document.raise_problems()
