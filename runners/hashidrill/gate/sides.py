"""Where the two sides come from: files, two revisions of a repository, or two versions of a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hashidrill.errors import UsageError
from hashidrill.gate.configuration import PRODUCTS, Configuration, Source, configuration, recognised, sources_of
from hashidrill.gate.data import shipped
from hashidrill.registry import near
from hashidrill.util.checkout import check_out, git


@dataclass(frozen=True)
class Side:
    """One side: its configuration, and its version where that was asked for."""

    name: str
    config: Configuration
    version: str | None = None


def sides(
    baseline: Sequence[Source],
    candidate: Sequence[Source],
    *,
    product: str | None = None,
    versions: tuple[str | None, str | None] = (None, None),
) -> tuple[Side, Side]:
    """Both sides, of one product: the one that is named, or the one that the files are for. Raises UsageError."""
    named = product_of(baseline, candidate, product)
    return (
        Side("baseline", configuration(named, baseline), versions[0]),
        Side("candidate", configuration(named, candidate), versions[1]),
    )


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
