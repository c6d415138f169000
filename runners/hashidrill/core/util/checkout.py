"""The files of a Git revision in a folder, as a checkout has them; work tree, index and HEAD stay unchanged."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hashidrill.core.errors import UsageError


def check_out(revision: str, into: Path, *, folder: Path | None = None, paths: Sequence[str] = ()) -> Path:
    """Writes what `revision` has at `paths`, or all of it, below `into`; returns the place of `folder` in it.

    `paths` are relative to `folder`, the current directory, as Git reads them. `git archive` would leave out files
    marked `export-ignore`, and Python unpacks its tar safely only since 3.11.4, which is younger than that of Debian
    12.

    Raises UsageError, with Git's own words: no repository, no such revision, or a path that the revision does not
    have.
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
    listed = ("ls-tree", "-r", "-z", "--name-only", "--full-name", revision, "--", path)
    if not (found := git(*listed, folder=folder)):
        raise UsageError(f"git: {revision} has no file at {path}")
    return found


def git(
    *words: str, folder: Path | None = None, environment: Mapping[str, str] | None = None, given: bytes = b""
) -> bytes:
    """Runs git in `folder`, with `given` as its standard input, and returns its output. Raises UsageError with git's
    words.
    """
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
        shallow = "; a shallow clone lacks it: fetch it, as with `fetch-depth: 0`" if "valid" in said else ""
        missing = said or f"there is no revision {words[-1].removesuffix('^{commit}')}"
        raise UsageError(f"git {words[0]}: {missing}{shallow}")
    return done.stdout
