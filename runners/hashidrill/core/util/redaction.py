"""Keeps secrets out of everything that a run writes: by their names, and by their values.

Redacts by name the values under `encrypt`, `acl.tokens`, `*password*`, `*secret*`, `*token*`, `private_key`, a header
like `X-Consul-Token`, an option like `--token` or a parameter like `?token=`. Redacts by value every secret found under
such a name in the experiment or in the environment, wherever that value occurs again: plain, URL-encoded, escaped for
JSON, or inside Base64. A value under 8 characters is replaced only under a secret's name: `consul` may be a password,
but is also a word that a report needs.

The names of loads, clients and probes do not count as secrets' names: a load `tokens` has a kind and a rate. Values
below these names are treated like all others.

A secret is replaced by `[redacted]`. A redactor never fails and never waits.
"""

import base64
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MARK = "[redacted]"
_MARKED = "[redacted"
SHORTEST = 8
"""A secret at least this long is searched for by value. Consul's and Vault's tokens have 26 characters and more."""

_SALT = os.urandom(16)
_SECRET_WORDS = {
    "token",
    "tokens",
    "secret",
    "secrets",
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "credential",
    "credentials",
    "authorization",
    "cookie",
    "apikey",
    "jwt",
    "bearer",
}
_SECRET_PAIRS = {
    ("private", "key"),
    ("private", "keys"),
    ("api", "key"),
    ("access", "key"),
    ("gossip", "key"),
    ("root", "key"),
    ("encryption", "key"),
    ("encrypt", "key"),
    ("signing", "key"),
    ("routing", "key"),
    ("unseal", "key"),
    ("unseal", "keys"),
    ("master", "key"),
    ("http", "auth"),
    ("consul", "license"),
    ("nomad", "license"),
    ("vault", "license"),
}
_SECRET_NAMES = {"encrypt", "hashidrill_notify", "hashidrill_maintenance"}
"""Includes webhook URLs: with the URL, anyone can post messages there."""
_ABOUT_SECRETS_ENDS = {
    "ttl",
    "type",
    "persistence",
    "path",
    "file",
    "files",
    "dir",
    "name",
    "names",
    "policy",
    "policies",
    "accessor",
    "period",
    "count",
    "bucket",
    "length",
    "size",
    "version",
    "enabled",
    "expiry",
    "address",
    "url",
    "engine",
    "host",
    "latency",
    "errors",
    "rate",
    "level",
    "lag",
}
_ABOUT_SECRETS_STARTS = {"enable", "disable", "max", "min", "num", "verify", "allow", "require", "no", "use"}
"""Parts of names that mention secrets but hold none: `token_ttl`, `tokens.latency`, `enable_token_replication`."""

_NAMING = {"load", "loads", "clients", "probes"}
"""Below these keys, the experiment's author chose the names, and each name holds a mapping."""

_TELLING = re.compile(
    "token|secret|passw|passphrase|credential|key|auth|jwt|bearer|cookie|encrypt|license", re.IGNORECASE
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD = re.compile(r"[^a-z0-9]+")

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_VAULT = re.compile(r"\b(?:hv[sbr]\.[A-Za-z0-9_-]{20,}|[sbr]\.[A-Za-z0-9]{24,})")
_USER_INFO = re.compile(r"(?<=://)([^/\s:@\"']*):([^/\s@\"']+)@")
_HEADER = re.compile(
    r"(?P<name>\b(?:x-[a-z-]{0,40}token|(?:proxy-)?authorization|(?:set-)?cookie|x-api-key)\b\\*[\"']?\s*[:=]\s*\\*[\"']?"
    r"(?!(?:(?:bearer|basic|token)\s+)?\[redacted)(?:(?:bearer|basic|token)\s+)?)(?P<value>[^\s\"'\\,;\])}]+)",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(?<![\w.-])[-.]*+(?P<name>[A-Za-z_][\w.-]*+)(?:=|\s*=\s*(?=\\*[\"'])|\\*[\"']\s*[:=]\s*)")
"""A name, and the characters between the name and its value: `token=`, `token = "`, `"token": `, `\"token\": `."""
_QUOTED = re.compile(r"(?P<open>\\*[\"'])(?P<value>(?:(?!(?P=open)).)*)", re.DOTALL)
_BARE = re.compile(r"(?P<value>[^\s,;&\"'\\})\]]+)")
_LINE = re.compile(r"^[ \t{-]*+[\"']?(?P<name>[\w.-]++)[\"']?[ \t]*:[ \t]+(?P<value>\S.*)$", re.MULTILINE)
_OPTION = re.compile(r"^--?(?P<name>[A-Za-z][\w-]*)$")
_OPTION_IN_TEXT = re.compile(r"(?P<name>(?<![\w-])--?[A-Za-z][\w-]*\s+)(?P<value>[^\s\"'-][^\s\"']*)")


def is_secret_name(name: str) -> bool:
    """Whether this key, option, header or variable holds a secret."""
    words = [word for word in _NO_WORD.split(_CAMEL.sub("_", name).lower()) if word]
    if not words:
        return False
    if words == ["secret", "id"] or words[-2:] == ["secret", "id"] or "_".join(words) in _SECRET_NAMES:
        return True
    if words[-1] in _ABOUT_SECRETS_ENDS or words[-1] == "id" or words[0] in _ABOUT_SECRETS_STARTS:
        return False
    return not _SECRET_WORDS.isdisjoint(words) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


def fingerprint(secret: str) -> str:
    """A salted, one-way digest that distinguishes a value from others within this process."""
    return f"[redacted {hashlib.sha256(_SALT + secret.encode(errors='surrogatepass')).hexdigest()[:8]}]"


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for an agent under test, without the user's tokens."""
    return {name: value for name, value in environment.items() if not is_secret_name(name) or name.endswith("_LICENSE")}


class Redactor:
    """Knows the secrets of one run. Without secrets, it still redacts by name."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._remembered: dict[str, str] = {}
        self.know(*secrets)

    @property
    def secrets(self) -> list[str]:
        """The secrets that are searched for by value, to pass only to other processes of this run."""
        return sorted(self._secrets)

    def know(self, *secrets: str) -> None:
        """Searches for these secrets from now on, except those too short to distinguish from words."""
        bare = {secret.strip() for secret in secrets}  # a block of YAML ends with a newline
        new = {secret for secret in bare if len(secret) >= SHORTEST and secret not in MARK} - self._secrets
        if not new:
            return
        self._secrets |= new
        variants = {variant for secret in self._secrets for variant in _variants(secret)}
        longest_first = sorted(variants, key=lambda variant: (-len(variant), variant))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._remembered.clear()

    def learn(self, value: Any) -> None:
        """Learns every secret under a secret's name in this structure."""
        self.know(*_found(value, secret=False))

    def learn_environment(self, environment: Mapping[str, str]) -> None:
        """Learns the values of CONSUL_HTTP_TOKEN, VAULT_TOKEN, AWS_SECRET_ACCESS_KEY and all similar names."""
        for name, value in environment.items():
            if is_secret_name(name):
                self.know(value, *(value.partition(":")[2:] if ":" in value else ()))

    def known(self, text: str) -> str:
        """The text without any secret that is known by its value."""
        return text if self._pattern is None else self._pattern.sub(MARK, text)

    def text(self, text: str) -> str:
        """The text without secrets: by value, and by the names of headers, parameters, options and fields in it."""
        if not text:
            return text
        if (done := self._remembered.get(text)) is not None:
            return done
        done = by_shape(self.known(text))
        if len(text) < 500:  # the same error may occur thousands of times
            if len(self._remembered) >= 4096:
                self._remembered.clear()
            self._remembered[text] = done
        return done

    def data(self, value: Any) -> Any:
        """A copy of a JSON-able structure without secrets."""
        return self._data(value, secret=False)

    def clean(self, value: Any) -> Any:
        """`learn`, then `data`."""
        self.learn(value)
        return self.data(value)

    def yaml(self, text: str) -> str:
        """A YAML document without secrets, with its comments and layout. Remembers the secrets that it finds."""
        try:
            root = YAML().compose(io.StringIO(text))
            nodes = list(_scalars(root, secret=False)) if root is not None else []
        except (YAMLError, ValueError, RecursionError):
            return self.text(text)
        self.know(*(secret for node, is_secret in nodes for secret in _of_scalar(node.value, secret=is_secret)))
        spans: dict[tuple[int, int], str] = {}
        for node, is_secret in nodes:
            new = MARK if is_secret and _is_a_value(node.value) else self.text(node.value)
            if new != node.value:
                spans[node.start_mark.index, node.end_mark.index] = json.dumps(new, ensure_ascii=False)
        for (start, end), new in sorted(spans.items(), reverse=True):
            kept = text[start:end]
            text = text[:start] + new + kept[len(kept.rstrip()) :] + text[end:]
        return self.known(text)

    def masked(self, text: str) -> str:
        """A text of the same length with stars for each secret, for excerpts with a caret; it may be invalid YAML."""
        spans = {match.span("value") for match in _LINE.finditer(text) if is_secret_name(match["name"])}
        self.know(*(text[start:end].strip("\"' ,}") for start, end in spans))
        spans |= set(_named(text))
        if self._pattern is not None:
            spans |= {match.span() for match in self._pattern.finditer(text)}
        characters = list(text)
        for start, end in spans:
            characters[start:end] = ["*" if not character.isspace() else character for character in text[start:end]]
        return "".join(characters)

    def file(self, source: Path, target: Path) -> None:
        """Copies a text file without secrets; only its owner may read the copy. Raises OSError."""
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as copy:
            text = source.read_bytes().decode("utf-8", "surrogateescape")
            copy.write(self.text(text).encode("utf-8", "surrogateescape"))

    def _data(self, value: Any, *, secret: bool, names: bool = False) -> Any:
        """`names`: whether the keys of this mapping are names that the author chose."""
        if isinstance(value, str):
            return (MARK if _is_a_value(value) else value) if secret else self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(key) if isinstance(key, str) else key: self._data(
                    below,
                    secret=secret or _tells(key, names=names, nested=isinstance(below, Mapping)),
                    names=str(key) in _NAMING,
                )
                for key, below in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._data(item, secret=secret or told) for item, told in _items(value)]
        if secret and isinstance(value, (int, float)) and not isinstance(value, bool):
            return MARK
        return value


def by_shape(text: str) -> str:
    """The text without secrets that are recognized by a header, parameter, option or field, or by their own form."""
    if "PRIVATE KEY" in text:
        text = _PEM.sub(MARK, text)
    if "." in text:
        text = _VAULT.sub(MARK, text)
    if "://" in text:
        text = _USER_INFO.sub(rf"\1:{MARK}@", text)
    if _TELLING.search(text) is None:  # most texts: nothing below could match
        return text
    if ":" in text or "=" in text:
        text = _HEADER.sub(lambda match: match["name"] + MARK, text)
        text = _without(text, _named(text))
    if "-" in text:
        text = _OPTION_IN_TEXT.sub(_option, text)
    return text


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    pieces, past = [], 0
    for start, end in spans:
        pieces += [text[past:start], MARK]
        past = end
    return "".join([*pieces, text[past:]])


def _named(text: str) -> Iterator[tuple[int, int]]:
    past = 0
    for match in _NAMED.finditer(text):
        if match.end() < past or not is_secret_name(match["name"].rpartition(".")[2]):
            continue
        value = _QUOTED.match(text, match.end()) or _BARE.match(text, match.end())
        if value is not None and _is_a_value(value["value"]):
            past = value.end("value")
            yield value.span("value")


def _option(match: re.Match[str]) -> str:
    secret = is_secret_name(match["name"].strip()) and match["value"] != MARK
    return match["name"] + MARK if secret else match[0]


def _is_a_value(value: str) -> bool:
    bare = value.strip("\\\"' ")
    return bool(bare) and not bare.startswith(_MARKED) and bare not in {"null", "~", "true", "false"}


def _tells(key: Any, *, names: bool, nested: bool) -> bool:
    """Whether this key holds a secret. `nested`: its value is a mapping."""
    return is_secret_name(str(key)) and not (names and nested)


def _found(value: Any, *, secret: bool, names: bool = False) -> Iterator[str]:
    if isinstance(value, str):
        yield from _of_scalar(value, secret=secret)
    elif isinstance(value, Mapping):
        for key, below in value.items():
            told = _tells(key, names=names, nested=isinstance(below, Mapping))
            yield from _found(below, secret=secret or told, names=str(key) in _NAMING)
    elif isinstance(value, (list, tuple)):
        for item, told in _items(value):
            yield from _found(item, secret=secret or told)
    elif secret and isinstance(value, int) and not isinstance(value, bool):
        yield str(value)


def _of_scalar(value: str, *, secret: bool) -> Iterator[str]:
    """The secrets in one string: the whole string, or the parts after a secret's name."""
    if secret:
        if _is_a_value(value):
            yield value
        return
    for match in _HEADER.finditer(value):
        yield match["value"]
    for start, end in _named(value):
        yield value[start:end]
    for match in _OPTION_IN_TEXT.finditer(value):
        if is_secret_name(match["name"].strip()):
            yield match["value"]
    for match in _USER_INFO.finditer(value):
        yield match[2]
    for pattern in (_VAULT, _PEM):
        for match in pattern.finditer(value):
            yield match[0]


def _items(values: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Each item, and whether it is a secret, because the item before it is an option like `--token`."""
    told = False
    for item in values:
        yield item, told
        option = _OPTION.match(item) if isinstance(item, str) else None
        told = option is not None and is_secret_name(option["name"])


def _scalars(node: Node, *, secret: bool, names: bool = False) -> Iterator[tuple[ScalarNode, bool]]:
    if isinstance(node, ScalarNode):
        no_text = node.tag in {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:null"}
        yield node, secret and not no_text
    elif isinstance(node, MappingNode):
        for key, below in node.value:
            name = ""
            if isinstance(key, ScalarNode):
                name = str(key.value)
                yield key, False
            told = _tells(name, names=names, nested=isinstance(below, MappingNode))
            yield from _scalars(below, secret=secret or told, names=name in _NAMING)
    elif isinstance(node, SequenceNode):
        told = False
        for item in node.value:
            yield from _scalars(item, secret=secret or told)
            option = _OPTION.match(str(item.value)) if isinstance(item, ScalarNode) else None
            told = option is not None and is_secret_name(option["name"])


def _variants(secret: str) -> Iterator[str]:
    yield secret
    encoded = secret.encode(errors="surrogatepass")
    for quoted in (quote(encoded), quote(encoded, safe=""), quote_plus(encoded)):
        yield quoted
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)
    for ascii_only in (True, False):
        escaped = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield json.dumps(escaped)[1:-1]
    for offset in range(3):
        text = base64.b64encode(bytes(offset) + encoded).decode()
        # without the characters that depend on the text around the secret
        core = text[(0, 2, 3)[offset] : 8 * (offset + len(encoded)) // 6]
        yield core
        yield core.replace("+", "-").replace("/", "_")
