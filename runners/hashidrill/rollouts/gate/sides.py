"""Where the two sides come from: files, two revisions of a repository, or two versions of a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hashidrill.core.errors import UsageError
from hashidrill.core.protocols.registry import near
from hashidrill.core.util.checkout import check_out, git
from hashidrill.rollouts.gate.configuration import (
    PRODUCTS,
    Configuration,
    Source,
    configurations,
    recognised,
    several,
    sources_of,
)
from hashidrill.rollouts.gate.data import shipped
from hashidrill.rollouts.gate.overlay import SECTIONS, role_of


@dataclass(frozen=True)
class Side:
    """One side: the configuration of the agents of each role, and its version where that was asked for."""

    name: str
    configs: Mapping[str, Configuration]
    version: str | None = None

    @property
    def sources(self) -> list[Source]:
        """Each file once."""
        return list({source.path: source for each in self.configs.values() for source in each.sources}.values())


def sides(
    baseline: Sequence[Source],
    candidate: Sequence[Source],
    *,
    product: str | None = None,
    versions: tuple[str | None, str | None] = (None, None),
    role: str | None = None,
) -> tuple[Side, Side]:
    """Both sides, of one product: the one that is named, or the one that the files are for.

    The agents of each role are compared, or those of the role that is named. Raises UsageError where nothing tells
    which agents of the two sides belong together.
    """
    named = product_of(baseline, candidate, product)
    if role is not None and role not in SECTIONS[named]:
        raise UsageError(f"--role {role}: {named.capitalize()} has {', '.join(SECTIONS[named])}")
    before, after = (_by_role(named, sources, role) for sources in (baseline, candidate))
    if len(before) == len(after) == 1:
        before = dict(zip(after, before.values(), strict=True))
    if before.keys() != after.keys():
        raise UsageError(
            f"the baseline has agents that are {' and '.join(before)}, and the candidate {' and '.join(after)}:"
            " choose whose configuration is compared with --role"
        )
    return Side("baseline", before, versions[0]), Side("candidate", after, versions[1])


def _by_role(product: str, sources: Sequence[Source], role: str | None) -> dict[str, Configuration]:
    """One agent, or one of each role; that of the role which is named, where there are several."""
    found = configurations(product, sources)
    if len(found) == 1:
        return {role or role_of(product, found[0].settings): found[0]}
    roles = [role_of(product, each.settings, alone=False) for each in found]
    chosen = [(its, each) for its, each in zip(roles, found, strict=True) if role in {None, its}]
    if not chosen or len(dict(chosen)) < len(chosen) or (role is None and "all" in roles):
        known = [each for each in ("server", "client") if roles.count(each) == 1]
        how = f"choose one with --role {' or --role '.join(known)}, or name" if known and role is None else "name"
        raise UsageError(
            f"{several(found)}, and their roles ({', '.join(roles)}) do not tell which of the other side's each"
            f" belongs to: {how} the files of one agent"
        )
    return dict(chosen)


def product_of(baseline: Sequence[Source], candidate: Sequence[Source], named: str | None) -> str:
    """Raises UsageError when nothing tells, or the two sides are for different products."""
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
        raise UsageError(f"{files}: nothing tells whose configuration this is; say so with --product consul")
    return told.pop()


def _told(sources: Sequence[Source]) -> str | None:
    """By what the files say; a part of a configuration by the one product whose keys we know it by."""
    if product := recognised(sources):
        return product
    said = {entry.key.lower() for source in sources for entry in source.body.entries}
    knowing = [product for product in PRODUCTS if said and said <= _top_level(product)]
    return knowing[0] if len(knowing) == 1 else None


def _top_level(product: str) -> set[str]:
    """The keys at the top that the gate's own tables name."""
    keys = [key for group in shipped("left_out.yaml")[product] for key in group["keys"]]
    keys += [key for group in shipped("keys.yaml")[product] for key in group["keys"]]
    return {key.partition(".")[0] for key in keys}


def from_git(revisions: str, paths: Sequence[str], into: Path) -> tuple[list[Source], list[Source]]:
    """Both sides from a repository: `BASE..HEAD`, and the paths in it. The working tree is left alone.

    Raises UsageError: no repository, no such revision, no such path in it, a link that leads out of it.
    """
    base, dots, head = revisions.partition("..")
    if not dots or not base:
        raise UsageError(f"--git {revisions}: write two revisions, like --git origin/main..HEAD")
    head = head.lstrip(".") or "HEAD"
    if base.startswith("-") or head.startswith("-"):  # git would take it for an option
        raise UsageError(f"--git {revisions}: what begins with a dash is no revision")
    if not paths:
        raise UsageError("--git needs --path: the file or directory in the repository that an agent reads")
    if "..." in revisions:  # since the branches parted, as in a pull request
        base = git("merge-base", base, head).decode().strip()
    return _files_at(base, paths, into / "baseline"), _files_at(head, paths, into / "candidate")


def _files_at(revision: str, paths: Sequence[str], into: Path) -> list[Source]:
    here = check_out(revision, into, paths=paths)
    for file in into.rglob("*"):
        # what a stranger's branch links to is read on this machine, and quoted in messages
        if file.is_symlink() and not file.resolve().is_relative_to(into.resolve()):
            raise UsageError(f"{file.relative_to(into)}: links to {file.readlink()}, outside of the repository")
    return sources_of([here / path for path in paths], top=here)
