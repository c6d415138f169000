"""Writes the files of a Git revision to a folder, like a checkout; work tree, index and HEAD stay unchanged."""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hashidrill.core.errors import UsageError


def check_out(revision: str, into: Path, *, folder: Path | None = None, paths: Sequence[str] = ()) -> Path:
    """Writes the files of `revision` at `paths` (default: all) below `into`; returns the place of `folder` in it.

    `paths` are relative to `folder` (by default the current directory), as for Git. `git archive` would leave out files
    marked `export-ignore`, and Python unpacks its tar safely only since 3.11.4, which is newer than Debian 12's Python.

    Raises UsageError, with Git's own message, if there is no repository, no such revision, or a path that the revision
    does not have.
    """
    into.mkdir(parents=True, exist_ok=True)
    here = git("rev-parse", "--show-prefix", folder=folder).decode(errors="surrogateescape").rstrip("\n")
    where = git("rev-parse", "--absolute-git-dir", folder=folder).decode(errors="surrogateescape").rstrip("\n")
    names = [_names(revision, path, folder) for path in paths]
    with tempfile.TemporaryDirectory(prefix="hashidrill-index-") as own:
        index = {"GIT_INDEX_FILE": f"{own}/index", "GIT_DIR": where, "GIT_WORK_TREE": str(into.absolute())}
        git("read-tree", revision, folder=into, environment=index)
        if paths:
            git("checkout-index", "--force", "-z", "--stdin", folder=into, environment=index, given=b"".join(names))
        else:
            git("checkout-index", "--force", "--all", folder=into, environment=index)
    return into / here


def _names(revision: str, path: str, folder: Path | None) -> bytes:
    if not (found := listed(revision, path, folder=folder)):
        raise UsageError(f"git: {revision} has no file at {path}")
    return found


def listed(revision: str, path: str, *, folder: Path | None = None) -> bytes:
    """The files that a revision has at or below a path, as paths from its top folder, each ended by a zero byte."""
    return git("ls-tree", "-r", "-z", "--name-only", "--full-name", revision, "--", path, folder=folder)


def git(
    *words: str, folder: Path | None = None, environment: Mapping[str, str] | None = None, given: bytes = b""
) -> bytes:
    """Runs git in `folder` with `given` as standard input; returns its output. Raises UsageError with its message."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            input=given,
            capture_output=True,
            check=False,
            env={**os.environ, **(environment or {})},
        )
    except OSError as error:
        raise UsageError(f"--git needs git: {error.strerror}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise UsageError(f"git {words[0]}: {said or 'it failed without a message'}")
    return done.stdout


def commit_of(revision: str, *, folder: Path | None = None) -> str:
    """The hash of the commit that a user names. Raises UsageError if there is no such commit."""
    if revision.startswith("-"):  # git would read it as an option
        raise UsageError(f"--git {revision}: a revision cannot begin with a dash")
    try:
        found = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", folder=folder)
    except UsageError:
        raise UsageError(f"git: there is no revision {revision}{_if_shallow(folder)}") from None
    return found.decode().strip()


def merge_base(one: str, other: str, *, folder: Path | None = None) -> str:
    """The hash of the last common commit. Raises UsageError if a revision is unknown or there is none in common."""
    first, second = commit_of(one, folder=folder), commit_of(other, folder=folder)
    try:
        return git("merge-base", first, second, folder=folder).decode().strip()
    except UsageError:
        raise UsageError(
            f"git: {one} and {other} have no common ancestor{_if_shallow(folder)};"
            f" compare the two revisions directly, with two dots: --git {one}..{other}"
        ) from None


def _if_shallow(folder: Path | None) -> str:
    shallow = git("rev-parse", "--is-shallow-repository", folder=folder).strip() == b"true"
    return "; this clone is shallow and may lack it: fetch it, as with `fetch-depth: 0`" if shallow else ""
