"""The attached datacenter: a file of `kind: Attach`, completed from the environment.

    apiVersion: hashidrill/v1
    kind: Attach
    metadata: {name: staging-eu}
    datacenter:
      consul: {address: "https://consul.staging.example:8501", ca_file: ca.pem, token_file: /run/secrets/consul}
      nomad: {}                       # all of it from NOMAD_ADDR, NOMAD_TOKEN, ...

The file wins over the variables of the products' command lines. Relative paths are relative to the file. The file
does not hold tokens: `token_file` names the file that does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, create_model
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hashidrill.core.errors import AttachError
from hashidrill.core.experiment.attached import KIND, inline, said_in
from hashidrill.core.experiment.documents import Document
from hashidrill.core.experiment.library import KIND as EXPERIMENT
from hashidrill.core.experiment.library import read_document, read_experiment
from hashidrill.core.experiment.model import API_VERSION, Name
from hashidrill.core.experiment.pydantic_messages import explain
from hashidrill.core.experiment.schema import DIALECT, Untitled
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.protocols.registry import near
from hashidrill.staging.attach.http import Login
from hashidrill.staging.attach.product import Attachable, Part, address_of, attachables, login_from, whole_url
from hashidrill.staging.carriers.settings import Carriers
from hashidrill.staging.interlocks.settings import InterlockSettings, settings_of

_USUAL = "~/.kube/config"
IN_CLUSTER = "in-cluster"
"""The context that means this pod's own service account, without a kubeconfig."""
PLACE = "services.kubernetes"


class ToxiproxyPart(Strict):
    """An estate's toxiproxy: faults may add toxics to its proxies."""

    address: str = Field(description="URL of its API, like http://toxiproxy.staging.example:8474")


class KubernetesPart(Strict):
    """The Kubernetes whose Chaos Mesh or Litmus injects faults into agents' pods; chaosd injects them into machines."""

    kubeconfig: str | None = Field(
        default=None, description="Kubeconfig file; default: KUBECONFIG, ~/.kube/config, or this pod's service account"
    )
    context: str | None = Field(default=None, description="Context in the kubeconfig; default: its current one")
    namespace: str | None = Field(
        default=None, description="Namespace of the agents' pods and of the faults; default: the context's"
    )
    chaosd: dict[str, str] = Field(
        default={}, description="URL of the chaosd on a machine, by host, like http://10.1.2.3:31767"
    )
    netem: bool = Field(
        default=False, description="Whether the kernels of the nodes have netem (`modprobe sch_netem` succeeds)"
    )
    lacks: list[str] = Field(
        default=[],
        description="Kinds of Chaos Mesh that cannot be injected there, like IOChaos if the daemon lacks toda",
    )
    litmus_account: str = Field(
        default="litmus-admin", description="ServiceAccount, in that namespace, under which Litmus experiments run"
    )
    drain: bool = Field(default=False, description="Whether nodes may be drained, which removes all their pods")


class Beside(Strict):
    """Further parts of the estate, besides its products."""

    toxiproxy: ToxiproxyPart | None = Field(default=None, description="The toxiproxy between its agents")
    kubernetes: KubernetesPart | None = Field(default=None, description="The Kubernetes that runs Chaos Mesh or Litmus")


def kubernetes_of(
    part: KubernetesPart | None, path: Path, environ: Mapping[str, str], *, place: str = PLACE
) -> dict[str, Any]:
    """The connection settings, as plain data; empty if the part is missing.

    `kubeconfig` is a complete path ("" for this pod's own account); a relative path is relative to the Attach file
    at `path`. If the kubeconfig can be read, `context`, `namespace` and `server` are the values that will be used:
    interlocks search them for `production`. `place` is for messages.
    """
    if part is None:
        return {}
    if part.context == IN_CLUSTER:
        part, file = part.model_copy(update={"context": None}), ""
    elif part.kubeconfig is not None:
        file = str(path.parent / Path(part.kubeconfig).expanduser())
    else:
        usual = os.path.expanduser(_USUAL)  # noqa: PTH111 - HOME may be unset
        named = environ.get("KUBECONFIG", "").partition(os.pathsep)[0].strip()
        file = named or (usual if os.path.exists(usual) else "")  # noqa: PTH110 - as above
    own = part.model_dump(include=set(KubernetesPart.model_fields))
    said = {**own, "kubeconfig": file, "server": "", "place": place}
    return said | _meant(file, part) if file else said


def _meant(file: str, part: KubernetesPart) -> dict[str, str | None]:
    """The context that will be used, its namespace and its server; {} for a file that the client will refuse."""
    try:
        written = YAML(typ="safe", pure=True).load(Path(file).read_text())
        name = part.context or written["current-context"]
        context = next(one["context"] for one in written["contexts"] if one["name"] == name)
        cluster = next(one["cluster"] for one in written["clusters"] if one["name"] == context["cluster"])
    except (OSError, ValueError, LookupError, TypeError, StopIteration, YAMLError):
        return {}
    namespace = part.namespace or context.get("namespace") or "default"
    return {"context": str(name), "namespace": str(namespace), "server": str(cluster.get("server", ""))}


KUBERNETES = "kubernetes"
"""The key of Kubernetes under `datacenter:`, where the other keys are products."""
PODS_PLACE = f"datacenter.{KUBERNETES}"
_ROLES = ("server", "client")
_SAYS = "Labels that only the pods of its {} have"


class KubernetesDatacenter(KubernetesPart):
    """A datacenter whose agents are pods: each product is found by the labels of its pods."""

    context: str = Field(
        description="Context in the kubeconfig; `in-cluster` uses this pod's service account, without a kubeconfig"
    )
    namespace: str = Field(description="Namespace of the agents' pods and of the faults")


class Selectors(Part):
    """The labels that select the pods of a product's agents."""

    servers: dict[str, str] | None = Field(default=None, min_length=1, description=_SAYS.format("servers"))
    clients: dict[str, str] | None = Field(default=None, min_length=1, description=_SAYS.format("clients"))


@cache
def part_of_pods(name: str) -> type[Part]:
    """The part of a product whose agents are pods: the usual login, and its selectors."""
    own = {key: (field.annotation, field) for key, field in Selectors.model_fields.items() if key.endswith("s")}
    fields: Any = {key: own[key] for key in ("servers", "clients")}
    found: type[Part] = create_model(f"{name.title()}Pods", __base__=attachables([name])[name].Part, **fields)
    return found


@cache
def model_of_kubernetes() -> type[KubernetesDatacenter]:
    """The model of an Attach file, with a part for each product that can be attached."""
    fields: Any = {
        name: (dict[str, Any] | None, Field(default=None, description=f"{name.title()}, by the labels of its pods"))
        for name in attachables()
    }
    found: type[KubernetesDatacenter] = create_model(
        "KubernetesDatacenter", __base__=KubernetesDatacenter, __doc__=KubernetesDatacenter.__doc__, **fields
    )
    return found


def selectors_of(product: Attachable, part: Part) -> dict[str, dict[str, str]]:
    """For each role with any, the labels of its pods: from the file, otherwise those of the official chart."""
    said = {role: getattr(part, f"{role}s", None) for role in _ROLES}
    return {role: dict(labels) for role in _ROLES if (labels := said[role] or product.pods.get(role))}


def shown(labels: Mapping[str, str]) -> str:
    """The selector in the form of `kubectl get pods -l`."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


class _Metadata(Strict):
    name: Name = Field(description="Name of the datacenter: reports show it, and an operator arms it")
    title: str = Field(default="", max_length=120, description="One line for reports")


class AttachFile(Strict):
    """A file of `kind: Attach`."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion", description="Version of this format")
    kind: Literal["Attach"] = Field(description="Kind of document")
    metadata: _Metadata
    datacenter: dict[str, dict[str, Any] | None] = Field(
        min_length=1, description="The products, and how each is reached; `kubernetes` for those whose agents are pods"
    )
    services: Beside = Field(default=Beside(), description="Other parts of the estate, by address")
    interlocks: dict[str, Any] = Field(default={}, description="Conditions for touching anything there")
    engine: dict[str, Any] = Field(default={}, description="Where loads run, if not on the runner's machine")
    carriers: dict[str, Any] = Field(default={}, description="How faults reach the hosts themselves")


@dataclass(frozen=True)
class AttachTarget:
    """The attached datacenter, and the login of each of its products."""

    name: str
    title: str
    path: str
    logins: Mapping[str, Login]
    """The logins by product."""
    interlocks: Mapping[str, Any] = field(default_factory=dict)
    """The section as written in the file."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Where loads run, as written in the file (hashidrill.staging.generators.settings)."""
    toxiproxy: str = ""
    """URL of the API of the estate's toxiproxy; "" if the estate has none."""
    carriers: Mapping[str, Any] = field(default_factory=dict)
    """How faults reach hosts, as written in the file (hashidrill.staging.carriers)."""
    kubernetes: Mapping[str, Any] = field(default_factory=dict)
    """How to reach the Kubernetes whose Chaos Mesh injects (KubernetesPart, as plain data); empty without one.

    If the datacenter's agents are pods: `pods` has their labels by product and role, and `entrances` names the products
    with an address in the file. After discovery, `found` has `address`, `ready` and `phase` by product, role and name.
    """
    said: frozenset[str] = frozenset()
    """Options of the command line, like `breaks-quorum`."""
    undoing: bool = False
    """Whether faults are only being reverted: then the file may name hosts that have vanished."""

    def secrets(self) -> list[str]:
        """Values that must not appear in any file, log, process table or answer."""
        return [secret for login in self.logins.values() for secret in login.secrets]

    def saying(self, *said: str) -> AttachTarget:
        return replace(self, said=self.said | {*said})

    def handed_over(self) -> dict[str, Any]:
        """Plain data with the tokens in it: only for the standard input of a child process, never for a file."""
        plain = {key: dict(value) if isinstance(value, Mapping) else value for key, value in vars(self).items()}
        logins = {name: one.handed_over() for name, one in self.logins.items()}
        return {**plain, "said": sorted(self.said), "logins": logins}

    @classmethod
    def received(cls, data: Mapping[str, Any]) -> AttachTarget:
        """The reverse of `handed_over`."""
        logins = {name: Login.received(one) for name, one in data["logins"].items()}
        return cls(**{**data, "logins": logins, "said": frozenset(data["said"])})


def read_target(path: Path, environ: Mapping[str, str] | None = None) -> AttachTarget:
    """Reads the file. Raises ExperimentError (with line, column and caret), AttachError for a variable or a token."""
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
    said: KubernetesDatacenter | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)
    selectors: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)

    def connection(self, path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
        """The connection in the form of AttachTarget.kubernetes; empty if the file says nothing about it."""
        if self.said is None:
            return {}
        selectors = {name: {role: dict(one) for role, one in of.items()} for name, of in self.selectors.items()}
        entrances = [name for name, part in self.parts.items() if part.address is not None]
        connection = kubernetes_of(self.said, path, environ, place=PODS_PLACE)
        return {**connection, "pods": selectors, "entrances": entrances}


def written_in(path: Path) -> AttachFile:
    """The content of the file, without reading tokens or sending requests. Raises ExperimentError."""
    return _read(path)[1]


@dataclass(frozen=True)
class LeftOut:
    """The settings that a file leaves to the user's environment."""

    addresses: tuple[str, ...]
    """Products without an address in the file."""
    secrets: tuple[str, ...]
    """Variables with tokens and passwords, which are read from the environment."""


def left_out(path: Path) -> LeftOut:
    """Raises ExperimentError, and InterlockError if the interlocks' settings are invalid."""
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
    """(the file, its content, the attached products). Reads no variables, and sends no requests.

    Raises ExperimentError, InterlockError.
    """
    where, model, parts, pods = _read(path)
    settings_of(model.interlocks, str(where))
    return str(where), model, frozenset({**parts, **pods.parts})


def _read(path: Path) -> tuple[Path, AttachFile, dict[str, Part], _Pods]:
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
        _check_urls(document, ("services", "kubernetes", "chaosd"), "chaosd", 31767, kubernetes.chaosd)
    pods = _of_pods(document, model, parts) if KUBERNETES in model.datacenter else _Pods()
    document.raise_problems()
    return path, model, parts, pods


def _of_pods(document: Document, model: AttachFile, others: Mapping[str, Part]) -> _Pods:
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
            document.problem((*at, name), f"datacenter.{name} describes it too: keep one of the two")
    if not parts:
        document.problem(at, f"must name a product, like `consul: {{}}`; there are: {', '.join(attachables())}")
    if model.services.kubernetes is not None:
        text = f"{PODS_PLACE} already describes the Kubernetes: write these keys there"
        document.problem(("services", "kubernetes"), text)
    return _Pods(said, parts, selectors)


def _document(path: Path) -> tuple[Path, Document]:
    """The Attach file. An experiment has its path, or its content, in `datacenter.attach`."""
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
    data = document.data
    if not isinstance(data, dict) or data.get("kind") != KIND:
        place = ("kind",) if isinstance(data, dict) else ()
        text = f"not an Attach file: such a file begins with `apiVersion: {API_VERSION}` and `kind: {KIND}`"
        document.problem(place, text)
        document.raise_problems()
    model: AttachFile = _validated(document, AttachFile, data, ())
    return model


def _validated(document: Document, model: Any, data: Any, loc: tuple[str, ...]) -> Any:
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
    _refuse_tokens(document, loc, written)
    part: Part = _validated(document, model, written, loc)
    product = attachables()[loc[-1]]
    if part.address is not None:
        _check_url(document, (*loc, "address"), lambda: address_of(product, part.address or ""))
    _check_urls(document, (*loc, "agents"), product.name, product.port, part.agents)
    return part


def _toxiproxy_at(url: str) -> str:
    return whole_url("toxiproxy", 8474, url, "the address of toxiproxy")


def _check_urls(document: Document, loc: tuple[str, ...], name: str, port: int, urls: Mapping[str, str]) -> None:
    for host, url in urls.items():
        _check_url(document, (*loc, host), partial(whole_url, name, port, url, host))


def _check_url(document: Document, loc: tuple[str, ...], read: Callable[[], str]) -> None:
    """Notes an invalid address now rather than at the first request."""
    try:
        read()
    except AttachError as error:
        document.problem(loc, str(error))


def _refuse_tokens(document: Document, loc: tuple[str, ...], written: Mapping[str, Any]) -> None:
    for key in written:
        if key in {"token", "http_auth"}:
            text = "a token must not be in this file; name the file that holds it in token_file"
            document.problem((*loc, key), text, key=True)
    document.raise_problems()


Schema = dict[str, Any]


def attach_schema() -> Schema:
    """The schema, draft 2020-12. It accepts what `read_target` accepts: a product's part may be empty."""
    definitions: Schema = {}
    schema = _schema(AttachFile, definitions)
    products = {}
    for name, product in attachables().items():
        definitions[f"{name}-part"] = _schema(product.Part, definitions)
        products[name] = {"anyOf": [{"$ref": f"#/$defs/{name}-part"}, {"type": "null"}]}
    pods = _schema_of_pods(definitions)
    written = schema["properties"]
    for key, model in (("interlocks", InterlockSettings), ("carriers", Carriers)):
        definitions[key] = _schema(model, definitions)
        written[key] = {"$ref": f"#/$defs/{key}", "description": written[key]["description"]}
    for key in ("additionalProperties", "propertyNames"):
        written["datacenter"].pop(key, None)
    written["datacenter"] |= {"properties": {**products, KUBERNETES: pods}, "additionalProperties": False}
    head = {"$schema": DIALECT, "title": "hashidrill attach", "description": schema.pop("description", "")}
    return head | {key: value for key, value in schema.items() if key != "title"} | {"$defs": definitions}


def _schema(model: type[BaseModel], definitions: Schema) -> Schema:
    """The schema of a model; what it refers to is added to the definitions."""
    schema = model.model_json_schema(by_alias=True, schema_generator=Untitled)
    definitions |= schema.pop("$defs", {})
    return schema


def _schema_of_pods(definitions: Schema) -> Schema:
    """The schema of the part for products whose agents are pods; each product may have a part."""
    schema = _schema(model_of_kubernetes(), definitions)
    for name in attachables():
        definitions[f"{name}-pods"] = _schema(part_of_pods(name), definitions)
        kept = {"description": schema["properties"][name]["description"]}
        schema["properties"][name] = kept | {"anyOf": [{"$ref": f"#/$defs/{name}-pods"}, {"type": "null"}]}
    schema["anyOf"] = [{"required": [name]} for name in attachables()]
    definitions[KUBERNETES] = schema
    return {"$ref": f"#/$defs/{KUBERNETES}"}


def schema_text() -> str:
    """The schema as the text of experiments/schema-attach.json."""
    return json.dumps(attach_schema(), indent=2) + "\n"
