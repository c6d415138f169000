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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from hashidrill.datacenter.attach.beside import Beside, kubernetes_of
from hashidrill.datacenter.attach.login import Login, Secret
from hashidrill.datacenter.attach.product import Attachable, Part, attachables
from hashidrill.datacenter.interlocks.settings import settings_of
from hashidrill.errors import AttachError
from hashidrill.experiment.attached import KIND, inline
from hashidrill.experiment.documents import Document
from hashidrill.experiment.explain import explain
from hashidrill.experiment.model import API_VERSION, Name
from hashidrill.experiment.reading import KIND as EXPERIMENT
from hashidrill.experiment.reading import read_document, read_experiment
from hashidrill.experiment.strict import Strict
from hashidrill.registry import near
from hashidrill.units import shown
from hashidrill.util.tls import Tls, TlsFileError

_FILES = ("token_file", "ca_file", "ca_path", "cert_file", "key_file")
_TRUE, _FALSE = {"1", "t", "true"}, {"0", "f", "false"}
"""As Go's strconv.ParseBool reads them, which the products' command lines use, in lower case."""


class _Metadata(Strict):
    name: Name = Field(description="Name of the datacenter: it stands in reports, and is what an operator arms")
    title: str = Field(default="", max_length=120, description="One line for reports")


class AttachFile(Strict):
    """A file of `kind: Attach`."""

    api_version: Literal["hashidrill/v1"] = Field(alias="apiVersion", description="Version of this format")
    kind: Literal["Attach"] = Field(description="Kind of document")
    metadata: _Metadata
    datacenter: dict[str, dict[str, Any] | None] = Field(
        min_length=1, description="The products, and how each is reached"
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
    """As written: where loads run (hashidrill.generators.settings)."""
    toxiproxy: str = ""
    """URL of the API of the estate's toxiproxy; "" where it has none."""
    carriers: Mapping[str, Any] = field(default_factory=dict)
    """As written: how faults reach hosts (hashidrill.carriers)."""
    kubernetes: Mapping[str, Any] = field(default_factory=dict)
    """How the Kubernetes is reached whose Chaos Mesh injects (KubernetesPart, as plain data); empty without one."""
    said: frozenset[str] = frozenset()
    """What whoever started the run said on the command line, like `breaks-quorum`."""

    def secrets(self) -> list[str]:
        """What must stand in no file, log, process table or answer of ours."""
        return [secret for login in self.logins.values() for secret in login.secrets]

    def saying(self, *said: str) -> AttachTarget:
        return replace(self, said=self.said | {*said})

    def handed_over(self) -> dict[str, Any]:
        """Plain data with the tokens in it: for the standard input of a process of ours, and for no file."""
        return {
            "name": self.name, "title": self.title, "path": self.path, "interlocks": dict(self.interlocks),
            "engine": dict(self.engine),
            "toxiproxy": self.toxiproxy,
            "carriers": dict(self.carriers),
            "kubernetes": dict(self.kubernetes),
            "said": sorted(self.said), "logins": {name: one.handed_over() for name, one in self.logins.items()},
        }  # fmt: skip

    @classmethod
    def received(cls, data: Mapping[str, Any]) -> AttachTarget:
        """What `handed_over` gave."""
        logins = {name: Login.received(one) for name, one in data["logins"].items()}
        return cls(**{**data, "logins": logins, "said": frozenset(data["said"])})


def read_target(path: Path, environ: Mapping[str, str] | None = None) -> AttachTarget:
    """Raises ExperimentError for the file (with line, column and caret), AttachError for a variable or a token."""
    environ = os.environ if environ is None else environ
    path, model, parts = _read(path)
    known = attachables()
    logins = {name: _login(known[name], part, environ, path) for name, part in parts.items()}
    beside = model.services.toxiproxy
    toxiproxy = "" if beside is None else _whole("toxiproxy", 8474, beside.address, "services.toxiproxy.address")
    return AttachTarget(
        model.metadata.name,
        model.metadata.title,
        str(path),
        logins,
        model.interlocks,
        model.engine,
        toxiproxy,
        model.carriers,
        kubernetes_of(model.services.kubernetes, path, environ),
    )


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
    where, model, parts = _read(path)
    settings_of(model.interlocks, str(where))
    known = attachables()
    written = {name: part.model_dump() for name, part in parts.items()}
    return LeftOut(
        tuple(name for name, part in written.items() if not part.get("address")),
        tuple(
            variable
            for name, part in written.items()
            for key, variable in known[name].variables.items()
            if key == "http_auth" or (key == "token" and not part.get("token_file"))
        ),
    )


def check_file(path: Path) -> None:
    """What can be told of such a file without the environment, the files that it names, and anybody at the other end.

    Raises ExperimentError, and InterlockError for settings of the interlocks that cannot be.
    """
    where, model, _ = _read(path)
    settings_of(model.interlocks, str(where))


def _read(path: Path) -> tuple[Path, AttachFile, dict[str, Part]]:
    """(the file that says it, its model, the part of each product). Raises ExperimentError."""
    path, document = _document(path)
    known = attachables()
    model = _checked(document)
    parts: dict[str, Part] = {}
    for name, written in model.datacenter.items():
        if name not in known:
            document.problem(("datacenter", name), f"cannot be attached: {near(name, known)}", key=True)
            continue
        _refuse_tokens(document, name, written or {})
        part = _part(document, known[name], ("datacenter", name), written or {})
        if part is not None:
            parts[name] = part
    document.raise_problems()
    return path, model, parts


def _document(path: Path) -> tuple[Path, Document]:
    """The file; of an experiment, what it says under `datacenter.attach`: such a file's path, or what stands in one."""
    document = read_document(path)
    if not isinstance(document.data, dict) or document.data.get("kind") != EXPERIMENT:
        return path, document
    written = inline(read_experiment(path))
    if written is None:
        return path, document
    if isinstance(written, str):
        there = path.parent / Path(written).expanduser()
        return there, read_document(there)
    head = {"apiVersion": API_VERSION, "kind": KIND}
    return path, Document(f"{path} (datacenter.attach)", json.dumps({**head, **written}, indent=2))


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


def _part(document: Document, product: Attachable, loc: tuple[str, ...], written: Any) -> Part | None:
    part: Part = _validated(document, product.Part, written, loc)
    return part


def _refuse_tokens(document: Document, name: str, written: Mapping[str, Any]) -> None:
    for key in written:
        if key in {"token", "http_auth"}:
            text = "a token does not belong into this file; name the file that holds it in token_file"
            document.problem(("datacenter", name, key), text, key=True)
    document.raise_problems()


def login_of_environment(product: Attachable, environ: Mapping[str, str]) -> Login:
    """As the product's own command line logs in, with nothing written in a file. Raises AttachError."""
    return _login(product, product.Part(), environ, Path())


def _login(product: Attachable, part: Part, environ: Mapping[str, str], path: Path) -> Login:
    """Raises AttachError."""
    said = {key: environ[variable] for key, variable in product.variables.items() if environ.get(variable, "").strip()}
    from_file = {key: value for key, value in part.model_dump(exclude={"agents"}).items() if value is not None}
    for key in _FILES:
        if key in from_file:
            from_file[key] = str(path.parent / Path(from_file[key]).expanduser())
    if "token_file" in from_file:
        said.pop("token", None)
    said |= {key: value if isinstance(value, str) else str(value).lower() for key, value in from_file.items()}
    token, came_from = _token(product, said, environ)
    named = {key: said.get(key, "") for key in ("ca_file", "ca_path", "cert_file", "key_file", "server_name")}
    tls = Tls(**named, verify=_verifies(product, said))
    address = _url(product, said)
    headers = dict(product.headers(said))
    if token:
        headers[product.token_header] = token.reveal()
    try:
        tls.context()  # so that a file that cannot be used is told before anything is asked
    except TlsFileError as error:
        raise AttachError(str(error)) from None
    return Login(
        product.name, address, tls, headers, product.params(said), token, came_from,
        {
            host: _whole(product.name, product.port, url, f"datacenter.{product.name}.agents.{host}")
            for host, url in part.agents.items()
        },
        ", ".join(f"{key} {said[key]}" for key in ("namespace", "partition", "region") if key in said),
    )  # fmt: skip


def _token(product: Attachable, said: Mapping[str, str], environ: Mapping[str, str]) -> tuple[Secret, str]:
    """A file goes before a variable, as in Consul's own command line."""
    if "token_file" in said:
        file = Path(said["token_file"]).expanduser()
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise AttachError(f"{file}: the token of {product.name} cannot be read: {why}") from None
        if not token or len(token.split()) > 1:
            raise AttachError(f"{file}: expected the token of {product.name} and nothing else")
        return Secret(token), f"the file {file}"
    if "token" in said:
        return Secret(said["token"].strip()), f"the variable {product.variables['token']}"
    return product.fallback_token(environ)


def _verifies(product: Attachable, said: Mapping[str, str]) -> bool:
    if "verify" in said:
        return _bool(said["verify"], product.variables.get("verify", "verify"))
    if "skip_verify" in said:
        return not _bool(said["skip_verify"], product.variables["skip_verify"])
    return True


def _bool(text: str, where: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise AttachError(f"{where}: expected true or false, got {shown(text)}")


def _url(product: Attachable, said: Mapping[str, str]) -> str:
    written = said.get("address", product.default_address)
    if "://" not in written:
        secure = "ssl" in said and _bool(said["ssl"], product.variables["ssl"])
        written = f"{'https' if secure else 'http'}://{written}"
    return _whole(product.name, product.port, written, f"the address of {product.name}")


def _whole(name: str, port: int, url: str, what: str) -> str:
    """A URL without a path, and with a port. Raises AttachError."""
    hint = f"like https://{name}.staging.example:{port}"
    try:
        parts = urlsplit(url.strip())
        given = parts.port
    except ValueError as error:
        raise AttachError(f"{what}: {shown(url)}: {error}; write a URL {hint}") from None
    if parts.scheme not in {"http", "https"}:
        raise AttachError(f"{what}: {shown(url)} has not the scheme http or https; write a URL {hint}")
    if not parts.hostname or parts.username is not None:
        raise AttachError(f"{what}: expected a URL {hint}, without a name or password in it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{given or (443 if parts.scheme == 'https' else 80)}"
