"""Candidates that are commits: each one's configuration, or a program of the user's that each one is built to."""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import UsageError
from hashidrill.core.experiment.variants import varied
from hashidrill.core.protocols.registry import near
from hashidrill.core.util.checkout import check_out, git
from hashidrill.rollouts.bisect.beside import SUFFIX
from hashidrill.rollouts.bisect.candidates import Alike, RefusedError

if TYPE_CHECKING:
    from hashidrill.core.experiment.resolved import ResolvedExperiment

CHECKOUT = "{checkout}"
"""In the command of a client: the folder in which the commit was built."""
BUILD_WITHIN_S = 1800.0
_SHOWN = 10
_DONE = ".hashidrill-built"
_INTERPRETER = re.compile(r"\{python\}|(/\S*/)?(python[\d.]*|sh|bash|node|ruby|perl)")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True)
class Repository:
    """The repository that the command is called in. Its work tree, index and HEAD are left alone."""

    top: Path

    @classmethod
    def here(cls, folder: Path | None = None) -> Repository:
        """Raises UsageError where there is none."""
        return cls(Path(git("rev-parse", "--show-toplevel", folder=folder).decode().strip()))

    def between(self, revisions: str) -> list[str]:
        """BASE and the commits after it up to HEAD, oldest first; of a merge, its first parent. Raises UsageError."""
        base, dots, head = revisions.partition("..")
        if not dots or not base or head.startswith(".") or revisions.startswith("-"):
            raise UsageError(f"--git {revisions}: write two revisions, the good one first, like --git v1.4..HEAD")
        start = self._commit(base)
        end = self._commit(head or "HEAD")
        found = (
            git("rev-list", "--first-parent", "--reverse", f"{start}..{end}", "--", folder=self.top).decode().split()
        )
        if not found:
            raise UsageError(f"--git {revisions}: there is no commit after {base} up to {head or 'HEAD'}")
        parent = git("rev-parse", f"{found[0]}^", folder=self.top).decode().strip()
        if parent != start:
            raise UsageError(
                f"--git {revisions}: {base} is not on the first-parent line of {head or 'HEAD'}; start at"
                f" {parent[:_SHOWN]}, where its line begins"
            )
        return [start, *found]

    def _commit(self, revision: str) -> str:
        wanted = f"{revision}^{{commit}}"
        found = git("rev-parse", "--verify", "--quiet", "--end-of-options", wanted, folder=self.top)
        return found.decode().strip()

    def subject(self, commit: str) -> str:
        """The first line of its message."""
        return git("log", "-1", "--format=%s", commit, "--", folder=self.top).decode(errors="replace").strip()

    def extract(self, commit: str, into: Path) -> None:
        """Its files, without the repository."""
        check_out(commit, into, folder=self.top)


Shell = Callable[[str, Path], tuple[int, bytes, bytes]]
"""Runs a command line in a folder: its exit status, standard output and standard error."""


def shell(command: str, folder: Path) -> tuple[int, bytes, bytes]:
    """Runs in `sh`, as the user typed it. It may take half an hour."""
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            capture_output=True,
            check=False,
            timeout=BUILD_WITHIN_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return 124, b"", f"it took longer than {BUILD_WITHIN_S:g}s".encode()
    return done.returncode, done.stdout, done.stderr


@dataclass
class Commits:
    """What commits have in common as candidates: their order, their names for people, one checkout each."""

    given: ResolvedExperiment
    repository: Repository
    names: Sequence[str]
    work: Path
    """Where checkouts go, a folder a commit."""
    say: Callable[[str], None] = lambda _text: None
    run: Shell = shell

    def shown(self, name: str) -> str:
        return f"{name[:_SHOWN]} ({self.repository.subject(name)})"

    def made(self, name: str, command: str) -> tuple[Path, bytes]:
        """The checkout of a commit, in which `command` has run once, and what that printed. Raises RefusedError."""
        if not _COMMIT.fullmatch(name):
            raise RefusedError(f"{name!r} is no commit")
        folder = self.work / name
        # a search that was resumed builds nothing twice; what another command built here is another program
        done = folder.with_name(f"{name}.{hashlib.sha256(command.encode()).hexdigest()[:16]}{_DONE}")
        if done.exists():
            return folder, done.read_bytes()
        self.say(f"building {self.shown(name)}")
        for other in self.work.glob(f"{name}.*{_DONE}"):
            other.unlink()
        shutil.rmtree(folder, ignore_errors=True)  # of a build that was killed
        self.repository.extract(name, folder)
        code, output, error = self.run(command, folder)
        if code:
            last = (error or output).decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise RefusedError(f"`{command}` ended with exit status {code}: {last[0][:200]}")
        done.write_bytes(output)
        return folder, output


@dataclass
class Programs(Commits):
    """A program, built at each commit, that a client of the experiment runs."""

    build: str = ""
    clients: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The command of each client that runs it, with `{checkout}` for the folder of the build."""
    duet: bool = False
    """Whether the good end runs beside each candidate, with the same load."""

    @property
    def question(self) -> dict[str, Any]:
        return {
            "commits": list(self.names),
            "build": self.build,
            "clients": {k: list(v) for k, v in self.clients.items()},
            "duet": self.duet,
        }

    def resolved(self, name: str) -> ResolvedExperiment:
        clients = self._built(name)
        if self.duet:
            written = dict(self.given.data["clients"])
            for client, layer in self._built(self.names[0]).items():
                clients[client + SUFFIX] = {**written[client], **layer}
        return varied(self.given, {"clients": clients}, name="candidate", source=f"--client at {name[:_SHOWN]}")

    def alike(self, one: str, other: str) -> Alike | None:
        """Which programs are the same at both, byte by byte."""
        same = []
        for command in self.clients.values():
            if (program := _program(command)) is not None:
                first, second = (self.work / name / program for name in (one, other))
                if first.is_file() and second.is_file() and filecmp.cmp(first, second, shallow=False):
                    same.append(program)
        if not same:
            return None
        programs = " and ".join(same)
        return Alike(f"{programs}: the same at both commits, byte by byte; does the build use what is committed?")

    def _built(self, name: str) -> dict[str, dict[str, Any]]:
        """What the clients run at this commit. Raises RefusedError, also for a build that did not make it."""
        folder, _ = self.made(name, self.build)
        for command in self.clients.values():
            program = _program(command)
            if program is None:
                continue
            if not (folder / program).is_file():
                raise RefusedError(f"`{self.build}` made no {program}, which a client runs")
            if command[0].startswith(CHECKOUT) and not os.access(folder / program, os.X_OK):
                raise RefusedError(f"`{self.build}` made {program}, which is not executable")
        return {
            client: {"command": [word.replace(CHECKOUT, str(folder.absolute())) for word in command]}
            for client, command in self.clients.items()
        }


@dataclass
class Produced(Commits):
    """The configuration at each commit: what a command prints there, or the files at `paths` after it has run."""

    configured: Callable[[Sequence[Path], Sequence[Sequence[Path]]], ResolvedExperiment] = field(kw_only=True)
    """The experiment with the configuration in these files; those of both ends. Raises RefusedError, UsageError."""
    command: str = ""
    paths: Sequence[str] = ()

    @property
    def question(self) -> dict[str, Any]:
        return {"commits": list(self.names), "command": self.command, "paths": list(self.paths)}

    def resolved(self, name: str) -> ResolvedExperiment:
        files = self._files(name)
        try:
            return self.configured(files, list(self._ends()))
        except UsageError as error:
            raise RefusedError(str(error)) from None

    def _ends(self) -> Iterator[list[Path]]:
        for end in (self.names[0], self.names[-1]):
            with contextlib.suppress(RefusedError):  # said where that end is run
                yield self._files(end)

    def _files(self, name: str) -> list[Path]:
        """The configuration at a commit. Raises RefusedError."""
        folder, printed = self.made(name, self.command or ":")
        files = [folder / path for path in self.paths]
        if not files and not printed.strip():
            raise RefusedError(f"`{self.command}` printed nothing")
        _check_links(files, folder)
        if not files:
            kind = "json" if printed.lstrip().startswith(b"{") else "hcl"
            files = [folder.with_name(f"{name}.{kind}")]
            files[0].write_bytes(printed)
        return files

    def alike(self, one: str, other: str) -> Alike | None:
        """Whether both have the same configuration: most commits of a repository change other files."""
        same = self.resolved(one).data == self.resolved(other).data
        return Alike("the configuration is the same at both commits", sure=True) if same else None


def _check_links(paths: Sequence[Path], folder: Path) -> None:
    """Raises RefusedError for a link that leads out of the checkout: every commit would have the same there."""
    for path in paths:
        for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
            if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
                raise RefusedError(f"{file.relative_to(folder)}: links to {file.readlink()}, outside of the repository")


def _program(command: Sequence[str]) -> str | None:
    """The file in the checkout that this command runs; None where nothing tells which one it is."""
    first = next((word for word in command[:2] if word.startswith(f"{CHECKOUT}/")), None)
    if first is None or (first != command[0] and not _INTERPRETER.fullmatch(command[0])):
        return None
    return first.removeprefix(f"{CHECKOUT}/")


def clients_of(written: Sequence[str], given: ResolvedExperiment) -> dict[str, list[str]]:
    """`--client NAME=COMMAND`, each as a list of words. Raises UsageError."""
    known = given.experiment.clients
    found = {}
    for each in written:
        name, equals, command = each.partition("=")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"--client {each}: {error}") from None
        if not equals or not words:
            raise UsageError(f"--client {each}: write NAME=COMMAND, like --client 'ingest={CHECKOUT}/ingest {{url}}'")
        if name not in known:
            raise UsageError(f"--client {name}: {given.name} has no such client: {near(name, known)}")
        if not any(CHECKOUT in word for word in words):
            raise UsageError(
                f"--client {name}: its command does not name {CHECKOUT}, so every commit would run the same program"
            )
        found[name] = words
    if not found:
        raise UsageError("--build needs --client: the client that runs what was built, as NAME=COMMAND")
    return found
