"""The configuration of a gate's two sides: its files, its agents' roles, and the agents' resulting settings.

Reads the configuration as the agent does: HCL or JSON, a file or a directory, later settings over earlier ones. In a
directory, Consul, Nomad and Vault read `*.hcl` and `*.json` in lexical order, without subdirectories. Maps are merged
key by key, lists are joined; with Vault, a later file replaces a whole block (`Config.Merge` in vault 1.21).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from ruamel.yaml import YAML

from hashidrill.clients.audit import tree
from hashidrill.clients.audit.audited import HEAD, agents_in
from hashidrill.clients.audit.kinds import kind_of
from hashidrill.clients.audit.sources import read_configuration
from hashidrill.core.errors import UsageError
from hashidrill.core.protocols import registry
from hashidrill.core.protocols.registry import near
from hashidrill.core.util.checkout import check_out, commit_of, listed, merge_base
from hashidrill.core.util.nested import Keys as Key
from hashidrill.core.util.nested import leaves, merge
from hashidrill.core.util.redaction import Redactor
from hashidrill.lab.sandbox.sandbox import scratch_folder

SUFFIXES = (".hcl", ".json")
MAX_BYTES = 1024 * 1024
PRODUCTS = {"consul": "consul-agent", "nomad": "nomad-agent", "vault": "vault-server"}
"""The products whose configuration can be gated, and the kind of such a file in an audit."""
_REPLACED = {"vault"}
"""Products with which a later file replaces a block instead of adding to it."""


@dataclass(frozen=True)
class Source:
    """One file: its path for people (in a repository, relative to its root), the path of its copy, and its content."""

    shown: str
    path: Path
    text: str = field(repr=False)
    body: tree.Mapping = field(repr=False)


@dataclass(frozen=True)
class Place:
    """The place where a key is set last."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Configuration:
    """All files of one agent, merged: `settings` is plain data, `places` has the place of each key."""

    product: str
    settings: Mapping[str, Any]
    places: Mapping[str, Place]
    sources: Sequence[Source]

    def place(self, key: str) -> Place | None:
        """The place of a key, or of the nearest key above it."""
        while key:
            if key in self.places:
                return self.places[key]
            key = key.rpartition(".")[0]
        return None


def sources_of(paths: Sequence[Path], *, top: Path | None = None) -> list[Source]:
    """The files under these paths, in the order in which an agent reads them.

    `top`: messages name files relative to it. Raises UsageError if a path is missing or empty, or its HCL is bad.
    """
    files = [file for path in paths for file in _files(path, top)]
    return [_read(file, _shown(file, top)) for file in files]


def _files(path: Path, top: Path | None) -> list[Path]:
    shown = _shown(path, top)
    if not path.exists():
        raise UsageError(
            f"{shown}: there is no such file or directory; name the file or directory that the agent reads"
        )
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise UsageError(f"{shown}: no *.hcl or *.json in this directory; agents do not read its subdirectories")
    return found


def _shown(path: Path, top: Path | None) -> str:
    return str(path) if top is None else str(path.relative_to(top))


def _read(file: Path, shown: str) -> Source:
    try:
        if not file.is_file():  # reading a FIFO would wait for ever
            raise UsageError(f"{shown}: is not a regular file")
        data = file.read_bytes()
        text = data.decode().replace("\r\n", "\n")
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown}: is not UTF-8; save it as UTF-8") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{shown}: {len(data) // 1024} kB is too large for an agent's configuration")
    try:
        value = read_configuration(file.name, text)[0]
    except tree.MalformedError as error:
        raise UsageError(f"{shown}:{error.place.line}:{error.place.column}: {error.what}") from None
    if not isinstance(value, tree.Mapping):
        raise UsageError(f"{shown}:1:1: a configuration must be an object, not a list or a single value")
    return Source(shown, file, text, value)


def configurations(product: str, sources: Sequence[Source]) -> list[Configuration]:
    """The configuration of each agent of that product, from its part of these files, divided as in an audit."""
    parts = [sources] if product in _REPLACED else agents_in(sources, lambda source: source.body)
    return [_merged(product, part) for part in parts]


def configuration(product: str, sources: Sequence[Source]) -> Configuration:
    """The configuration of the agent that reads these files. Raises UsageError if they belong to several agents."""
    found = configurations(product, sources)
    if len(found) > 1:
        raise UsageError(f"{several(found)}: name the files of one agent")
    return found[0]


def several(found: Sequence[Configuration]) -> str:
    """For messages: the files that belong to different agents."""
    heads = [each.shown for one in found for each in one.sources if each.body.has(HEAD)]
    return f"{' and '.join(heads)} belong to {len(found)} agents, because each sets {HEAD}"


def _merged(product: str, sources: Sequence[Source]) -> Configuration:
    settings: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for source in sources:
        said = plain(source.body, _Reading.of(product, source))
        if product in _REPLACED:
            gone = tuple(f"{key}." for key, value in said.items() if isinstance(value, Mapping))
            places = {key: place for key, place in places.items() if not (gone and key.startswith(gone))}
            settings |= said
        else:
            settings = joined(settings, said)
        places |= {key: Place(source.shown, at.line, at.column) for key, at in _places(source.body)}
    return Configuration(product, settings, places, tuple(sources))


def joined(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two files like Consul and Nomad: maps key by key, lists joined; otherwise the later value counts."""
    result = dict(earlier)
    for key, value in later.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = joined(below, value)
        elif isinstance(below, list) and isinstance(value, list):
            result[key] = [*below, *value]
        else:
            result[key] = value
    return result


@dataclass(frozen=True)
class _Reading:
    """The differences between the products: `unfolds` turns a list of one object into that object, `adds` joins
    repeated settings.

    Consul accepts a list of one config entry, but refuses the entry without the list. If its JSON has an object twice,
    the later one counts (as `consul validate` of 1.22.2 shows).
    """

    unfolds: bool = True
    adds: bool = True

    @classmethod
    def of(cls, product: str, source: Source) -> _Reading:
        consul = product == "consul"
        return cls(unfolds=not consul, adds=not (consul and source.path.suffix == ".json"))


def plain(body: tree.Mapping, reading: _Reading) -> dict[str, Any]:
    """An HCL or JSON body as plain data: labels of a block are keys."""
    found: dict[str, Any] = {}
    for entry in body.entries:
        value = _plain(entry.value, reading)
        for label in reversed(entry.labels):
            value = {label: value}
        if reading.adds and isinstance(value, Mapping) and isinstance(found.get(entry.key), Mapping):
            found[entry.key] = merge(found[entry.key], value)
        else:
            found[entry.key] = value
    return found


def _plain(value: tree.Value, reading: _Reading) -> Any:
    if isinstance(value, tree.Mapping):
        return plain(value, reading)
    if isinstance(value, tree.Sequence):
        if reading.unfolds and len(value.items) == 1 and isinstance(value.items[0], tree.Mapping):
            return plain(value.items[0], reading)
        return [_plain(item, reading) for item in value.items]
    return value.text if isinstance(value, tree.Expression) else value.value


def _places(body: tree.Mapping, above: str = "") -> Iterator[tuple[str, tree.Place]]:
    for entry in body.entries:
        key = ".".join([*([above] if above else []), entry.key, *entry.labels])
        yield key, entry.place
        value = entry.value
        if isinstance(value, tree.Sequence) and len(value.items) == 1:
            value = value.items[0]
        if isinstance(value, tree.Mapping):
            yield from _places(value, key)


def recognised(sources: Sequence[Source]) -> str | None:
    """The product of these files, by keys that only one product has; None if unknown."""
    whole = tree.Mapping(tuple(entry for source in sources for entry in source.body.entries), tree.Place(1, 1))
    kind = kind_of(whole)
    return next((product for product, its in PRODUCTS.items() if its == kind), None)


@cache
def shipped(name: str) -> Any:
    """`left_out.yaml`, `keys.yaml`: plain data."""
    return YAML(typ="safe").load(files("hashidrill.rollouts.gate").joinpath(name).read_text(encoding="utf-8"))


SECTIONS = {
    "consul": {"all": "config", "server": "server_config", "client": "client_config"},
    "nomad": {"all": "config", "server": "server_config", "client": "client_config"},
    "vault": {"all": "config", "server": "config"},
}
"""For each role, the section with its agents' configuration in the product's part of `datacenter:`."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    "consul": {"enable_debug": False, "telemetry": {"disable_hostname": False}},
    "nomad": {
        "enable_debug": False,
        "telemetry": {"disable_hostname": False},
        "server": {"heartbeat_grace": "10s", "min_heartbeat_ttl": "10s", "failover_heartbeat_ttl": "5m"},
    },
    "vault": {
        "listener": {"tcp": {"profiling": {"unauthenticated_pprof_access": False}}},
        "telemetry": {"disable_hostname": False},
        "storage": {
            "raft": {
                "performance_multiplier": 5,
                "autopilot_reconcile_interval": "10s",
                "autopilot_update_interval": "2s",
            }
        },
    },
}
"""The agents' defaults of keys that the datacenter under test sets to other values (`services.PRODUCT.agents`), from
the documentation of Consul 1.22, Nomad 1.10 and Vault 1.21.
"""


def role_of(product: str, settings: Mapping[str, Any], *, alone: bool = True) -> str:
    """The role of a configuration: `server = true` is for Consul's servers, `false` for its clients, neither for all.

    Nomad's configuration has a block for each role, and Vault has only servers. A configuration that is not `alone`
    belongs to one of several agents: then Consul's default decides, or the block that Nomad's configuration enables.
    """
    said = settings.get("server")
    if product == "consul" and (isinstance(said, bool) or not alone):
        return "server" if said else "client"
    if product == "nomad" and not alone:
        enabled = [
            role for role in ("server", "client") if _has(settings, (role, "enabled")) and settings[role]["enabled"]
        ]
        return enabled[0] if len(enabled) == 1 else "all"
    return "all"


def overlay(
    product: str,
    kept: Mapping[str, Any],
    other: Mapping[str, Any],
    written: Mapping[str, Any],
    *,
    role: str = "all",
    version: str | None = None,
) -> dict[str, Any]:
    """The overlay of `experiment.variants.varied` for an experiment whose part for this product is `written`.

    `kept` is this side's configuration, `other` the other side's. If either side sets a key, the experiment's own
    value for the key is removed: a key that only the other side sets gets the agents' default here, not the value of
    the experiment or the datacenter.
    """
    for path, value in leaves(_DEFAULTS.get(product, {})):
        if _has(other, path) and not _has(kept, path):
            kept = merge(kept, _nested(path, value))
    sections = SECTIONS[product]
    part: dict[str, Any] = {}
    for path in [path for side in (kept, other) for path, _ in leaves(side)]:
        for section in sections.values() if role == "all" else {sections["all"], sections[role]}:
            if _has(written.get(section), path):
                part = merge(part, _nested((section, *path), None))
    if kept:
        part = merge(part, {sections[role]: dict(kept)})
    if version is not None:
        part["version"] = version
    return {"datacenter": {product: part}} if part else {}


def _has(config: Any, path: Key) -> bool:
    for key in path:
        if not isinstance(config, Mapping) or key not in config:
            return False
        config = config[key]
    return True


def _nested(path: Key, value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


@dataclass(frozen=True)
class Side:
    """One side: the configuration of the agents of each role, and the version if the user named one."""

    name: str
    configs: Mapping[str, Configuration]
    version: str | None = None

    @property
    def sources(self) -> list[Source]:
        return list({source.path: source for each in self.configs.values() for source in each.sources}.values())


def sides(
    baseline: Sequence[Source],
    candidate: Sequence[Source],
    *,
    product: str | None = None,
    versions: tuple[str | None, str | None] = (None, None),
    role: str | None = None,
) -> tuple[Side, Side]:
    """Both sides of one product: the named product, or the one that the files are for.

    The agents of each role are compared, or only the named role's agents. Raises UsageError if the agents of the two
    sides cannot be matched.
    """
    named = product_of(baseline, candidate, product)
    if role is not None and role not in SECTIONS[named]:
        raise UsageError(f"--role {role}: {named.capitalize()} has {', '.join(SECTIONS[named])}")
    before, after = (_by_role(named, sources, role) for sources in (baseline, candidate))
    if len(before) == len(after) == 1:
        before = dict(zip(after, before.values(), strict=True))
    if before.keys() != after.keys():
        raise UsageError(
            f"the baseline's agents are {' and '.join(before)}, the candidate's {' and '.join(after)}:"
            " choose one role with --role"
        )
    return Side("baseline", before, versions[0]), Side("candidate", after, versions[1])


def _by_role(product: str, sources: Sequence[Source], role: str | None) -> dict[str, Configuration]:
    """The configuration of the only agent, or of one agent per role; of several agents, only of the named role's."""
    found = configurations(product, sources)
    if len(found) == 1:
        return {role or role_of(product, found[0].settings): found[0]}
    roles = [role_of(product, each.settings, alone=False) for each in found]
    chosen = [(its, each) for its, each in zip(roles, found, strict=True) if role in {None, its}]
    if not chosen or len(dict(chosen)) < len(chosen) or (role is None and "all" in roles):
        known = [each for each in ("server", "client") if roles.count(each) == 1]
        how = f"choose one with --role {' or --role '.join(known)}, or name" if known and role is None else "name"
        raise UsageError(
            f"{several(found)}, and their roles ({', '.join(roles)}) do not match them with the other side's agents:"
            f" {how} the files of one agent"
        )
    return dict(chosen)


def product_of(baseline: Sequence[Source], candidate: Sequence[Source], named: str | None) -> str:
    """Raises UsageError if it is unknown, or the two sides are for different products."""
    if named is not None:
        if named not in PRODUCTS:
            raise UsageError(f"there is no product {named!r} to gate: {near(named, PRODUCTS)}")
        return named
    found = [_told(side) for side in (baseline, candidate) if side]
    if not found:
        return "consul"
    told = {product for product in found if product}
    if len(told) > 1:
        raise UsageError(f"the baseline is for {found[0]} and the candidate for {found[1]}: nothing to compare")
    if not told:
        files = ", ".join(source.shown for source in [*baseline, *candidate])
        raise UsageError(f"{files}: no key shows which product this configures; name it, as in --product consul")
    return told.pop()


def _told(sources: Sequence[Source]) -> str | None:
    """The product of the files, or None; a partial configuration belongs to the only product that has its keys."""
    if product := recognised(sources):
        return product
    said = {entry.key.lower() for source in sources for entry in source.body.entries}
    knowing = [product for product in PRODUCTS if said and said <= _top_level(product)]
    return knowing[0] if len(knowing) == 1 else None


def _top_level(product: str) -> set[str]:
    keys = [key for group in shipped("left_out.yaml")[product] for key in group["keys"]]
    keys += [key for group in shipped("keys.yaml")[product] for key in group["keys"]]
    return {key.partition(".")[0] for key in keys}


def from_git(revisions: str, paths: Sequence[str], into: Path) -> tuple[list[Source], list[Source]]:
    """Both sides from a repository: `BASE..HEAD`, and the paths in it. Does not touch the working tree.

    Raises UsageError if the repository, a revision or a path is missing, or if a link leads out of the repository.
    """
    base, head, apart = _two(revisions)
    if not paths:
        raise UsageError("--git needs --path: the file or directory in the repository that an agent reads")
    old = merge_base(base, head) if apart else commit_of(base)
    new = commit_of(head)
    for path in paths:
        lacking = [not listed(commit, path) for commit in (old, new)]
        if any(lacking):
            raise UsageError(_absent(path, git_names(revisions), lacking))
    return _files_at(old, paths, into / "baseline"), _files_at(new, paths, into / "candidate")


def git_names(revisions: str) -> tuple[str, str]:
    """The two sides of `BASE..HEAD`, or of `BASE...HEAD`, for people."""
    base, head, apart = _two(revisions)
    return f"the merge base of {base} and {head}" if apart else base, head


def _two(revisions: str) -> tuple[str, str, bool]:
    """BASE, HEAD, and whether the merge base is meant, as for a pull request (`BASE...HEAD`)."""
    base, dots, head = revisions.partition("..")
    if not dots or not base:
        raise UsageError(f"--git {revisions}: write two revisions, like --git origin/main..HEAD")
    return base, head.lstrip(".") or "HEAD", "..." in revisions


def _absent(path: str, names: tuple[str, str], lacking: Sequence[bool]) -> str:
    if all(lacking):
        return f"git: neither {names[0]} nor {names[1]} has a file at {path}; --path starts at the current directory"
    if lacking[0]:
        return (
            f"git: the baseline, {names[0]}, has no file at {path}, but the candidate, {names[1]}, does: a first"
            " configuration cannot be compared with an earlier one. To compare it with the agents' defaults, make a"
            f" copy with only its role and addresses: hashidrill gate --baseline COPY --candidate {path}"
        )
    return (
        f"git: the candidate, {names[1]}, has no file at {path}, but the baseline, {names[0]}, does: a removed"
        " configuration cannot be compared; if it was moved, name both places with --baseline and --candidate"
    )


def _files_at(revision: str, paths: Sequence[str], into: Path) -> list[Source]:
    here = check_out(revision, into, paths=paths)
    for file in into.rglob("*"):
        # the target of a stranger's link would be read on this machine and quoted in messages
        if file.is_symlink() and not file.resolve().is_relative_to(into.resolve()):
            raise UsageError(f"{file.relative_to(into)}: links to {file.readlink()}, outside of the repository")
    return sources_of([here / path for path in paths], top=here)


class Refusal(Protocol):
    """The protocol of the entry points of `hashidrill.refusals`, by product."""

    def __call__(self, binary: Path, files: Sequence[Path], settings: Mapping[str, Any], work: Path) -> str: ...


def refusal_of(product: str) -> Refusal:
    found: Refusal = registry.plugin("hashidrill.refusals", product)
    return found


def check_taken(
    side: str, config: Configuration, version: str, binary: Path, *, ask: Callable[[str], Refusal] = refusal_of
) -> None:
    """Raises UsageError with the agent's words for a configuration that it refuses. `side`: baseline or candidate."""
    if not config.sources:
        return
    with scratch_folder() as work:
        words = ask(config.product)(binary, [source.path for source in config.sources], config.settings, work)
        for source in config.sources:
            words = words.replace(str(source.path.absolute()), source.shown).replace(str(source.path), source.shown)
    if words:
        redact = Redactor()
        redact.learn(config.settings)
        told = "\n".join(f"  {line}" for line in redact.text(words).splitlines())
        raise UsageError(f"{config.product.capitalize()} {version} refuses the {side} configuration:\n{told}")
