"""How a product is logged in to: what an Attach file says, and what it leaves to the variables of its command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from hashidrill.core.errors import AttachError
from hashidrill.core.units import shown
from hashidrill.core.util.tls import Tls, TlsFileError
from hashidrill.staging.attach.login import Login, Secret
from hashidrill.staging.attach.product import Attachable, Part

_FILES = ("token_file", "ca_file", "ca_path", "cert_file", "key_file")
_TRUE, _FALSE = {"1", "t", "true"}, {"0", "f", "false"}
"""As Go's strconv.ParseBool reads them, which the products' command lines use, in lower case."""


def login_of_environment(product: Attachable, environ: Mapping[str, str]) -> Login:
    """As the product's own command line logs in, with nothing written in a file. Raises AttachError."""
    return login_from(product, product.Part(), environ, Path())


def login_from(
    product: Attachable, part: Part, environ: Mapping[str, str], path: Path, *, of_pod: bool = False
) -> Login:
    """Of a product's part in the file at `path`.

    `of_pod`: where the file gives no address, that of a pod will be its, and never that of a variable: then "".

    Raises AttachError.
    """
    said = {key: environ[variable] for key, variable in product.variables.items() if environ.get(variable, "").strip()}
    if of_pod:
        said.pop("address", None)
    no_keys = {"agents", "servers", "clients"}
    from_file = {key: value for key, value in part.model_dump(exclude=no_keys).items() if value is not None}
    for key in _FILES:
        if key in from_file:
            from_file[key] = str(path.parent / Path(from_file[key]).expanduser())
    if "token_file" in from_file:
        said.pop("token", None)
    said |= {key: value if isinstance(value, str) else str(value).lower() for key, value in from_file.items()}
    token, came_from = _token(product, said, environ)
    named = {key: said.get(key, "") for key in ("ca_file", "ca_path", "cert_file", "key_file", "server_name")}
    tls = Tls(**named, verify=_verifies(product, said))
    address = "" if of_pod and "address" not in said else _url(product, said)
    headers = dict(product.headers(said))
    if token:
        headers[product.token_header] = token.reveal()
    try:
        tls.context()  # so that a file that cannot be used is told before anything is asked
    except TlsFileError as error:
        raise AttachError(str(error)) from None
    return Login(
        product.name,
        address,
        tls,
        headers,
        product.params(said),
        token,
        came_from,
        {
            host: whole_url(product.name, product.port, url, f"datacenter.{product.name}.agents.{host}")
            for host, url in part.agents.items()
        },
        ", ".join(f"{key} {said[key]}" for key in ("namespace", "partition", "region") if key in said),
    )


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
    secure = "ssl" in said and _bool(said["ssl"], product.variables["ssl"])
    return address_of(product, said.get("address", product.default_address), secure=secure)


def address_of(product: Attachable, written: str, *, secure: bool = False) -> str:
    """The URL of a product, written with or without its scheme. Raises AttachError."""
    whole = written if "://" in written else f"{'https' if secure else 'http'}://{written}"
    return whole_url(product.name, product.port, whole, f"the address of {product.name}")


def whole_url(name: str, port: int, url: str, what: str) -> str:
    """A URL without a path, and with a port. Raises AttachError."""
    hint = f"like https://{name}.staging.example:{port}"
    try:
        parts = urlsplit(url.strip())
        given = parts.port
    except ValueError as error:
        raise AttachError(f"{what}: {shown(url)}: {error}; write a URL {hint}") from None
    if parts.scheme not in {"http", "https"}:
        raise AttachError(f"{what}: {shown(url)} must start with http:// or https://; write a URL {hint}")
    if not parts.hostname or parts.username is not None or given == 0:
        raise AttachError(f"{what}: expected a URL {hint}, without a name or password in it")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise AttachError(f"{what}: {shown(url)} has a path, which would be left out; write a URL {hint}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{given or (443 if parts.scheme == 'https' else 80)}"
