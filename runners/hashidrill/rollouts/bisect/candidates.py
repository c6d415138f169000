"""The three lists that can be bisected (versions, changes between two configurations, commits), and the experiment that
tests each candidate.
"""

from __future__ import annotations

import contextlib
import copy
import filecmp
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

from hashidrill.core.errors import BinaryError, ExperimentError, UsageError
from hashidrill.core.experiment.loader import varied
from hashidrill.core.experiment.model import services_of
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.protocols.registry import near
from hashidrill.core.util.checkout import check_out, commit_of, git
from hashidrill.core.util.nested import Keys as Key
from hashidrill.core.util.nested import dotted, leaves, merge
from hashidrill.core.util.redaction import Redactor
from hashidrill.lab.sandbox.sandbox import scratch_folder
from hashidrill.rollouts.bisect.broken import SUFFIX
from hashidrill.rollouts.bisect.ordered import members_of
from hashidrill.rollouts.bisect.trials import hash_of_secret
from hashidrill.rollouts.gate.configuration import configuration, overlay, product_of, role_of, sources_of
from hashidrill.rollouts.gate.differences import Change, Differences, differences


class RefusedError(Exception):
    """A candidate cannot be run: its agent refuses the configuration, or its binary cannot be downloaded or built."""


@dataclass(frozen=True)
class Alike:
    """What is equal in two candidates although it should differ. `sure`: nothing else can differ between them."""

    why: str
    sure: bool = False


class Candidates(Protocol):
    @property
    def question(self) -> dict[str, Any]:
        """The facts that the answer depends on."""

    def shown(self, name: str) -> str:
        """The candidate's name for people."""

    def resolved(self, name: str) -> ResolvedExperiment:
        """The experiment with the candidate's configuration, as it runs. Raises RefusedError."""

    def alike(self, one: str, other: str) -> Alike | None:
        """What is known, before any run, to be equal in two resolved candidates."""


class Listed(Candidates, Protocol):
    @property
    def names(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Versions:
    """Versions of one product, from a good one to a bad one."""

    given: ResolvedExperiment
    product: str
    names: Sequence[str]
    ensure: Callable[[str, str], object]
    """Gets a binary of a version. Raises BinaryError."""

    @classmethod
    def of(
        cls,
        given: ResolvedExperiment,
        names: Sequence[str],
        *,
        product: str | None,
        ensure: Callable[[str, str], object],
    ) -> Versions:
        """Raises UsageError for fewer than two versions, a duplicate, or an unknown product."""
        if len(names) < 2:
            raise UsageError("--versions needs two or more, the good one first, the bad one last, like 1.10.3 1.22.2")
        twice = sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise UsageError(f"--versions: {', '.join(twice)} is listed more than once")
        built = {each.name: [b.name for b in each.binaries()] for each in services_of(given.experiment.datacenter)}
        products = [name for name, binaries in built.items() if name in binaries]
        if product is None and len(products) != 1:
            raise UsageError(f"{given.name} runs {' and '.join(products) or 'no product'}: say which with --product")
        if product is not None and product not in products:
            raise UsageError(f"--product {product}: {given.name} does not run it; it runs {', '.join(products)}")
        return cls(given, product or products[0], tuple(names), ensure)

    @property
    def question(self) -> dict[str, Any]:
        return {"product": self.product, "versions": list(self.names)}

    def shown(self, name: str) -> str:
        return f"{self.product} {name}"

    def resolved(self, name: str) -> ResolvedExperiment:
        try:
            self.ensure(self.product, name)
        except BinaryError as error:
            raise RefusedError(str(error).splitlines()[0]) from None
        layer = {"datacenter": {self.product: {"version": name}}}
        return varied(self.given, layer, name="candidate", source=f"--versions {name}")

    def alike(self, one: str, other: str) -> Alike | None:  # noqa: ARG002 - two versions always differ
        return None


_ROLE = "server"
"""The key for the role of an agent (server or client). The experiment's agents do not get it; validation needs it."""

Refusal = Callable[[Path, Path, Mapping[str, Any]], str]
"""Maps (file, working folder, settings) to the agent's refusal; "" if the agent accepts them."""


@dataclass(frozen=True)
class ChangedKeys:
    """The changes between two configurations, in the order of their keys, so that a block's changes are neighbours."""

    given: ResolvedExperiment
    found: Differences
    settings: Mapping[str, Any]
    """The whole bad configuration."""
    refusal: Refusal
    source: str
    """The name of a candidate's configuration in messages."""

    @classmethod
    def of(
        cls,
        given: ResolvedExperiment,
        good: Sequence[Path],
        bad: Sequence[Path],
        *,
        product: str | None,
        refusal: Callable[[str], Refusal],
    ) -> ChangedKeys:
        """Raises UsageError if a file cannot be read, nothing changed, or the experiment lacks such agents."""
        ends = sources_of(good), sources_of(bad)
        named = product_of(*ends, product)
        if named not in given.experiment.datacenter.services:
            raise UsageError(f"{given.path}: {given.name} has no {named.capitalize()}, which these files configure")
        before, after = (configuration(named, end) for end in ends)
        found = differences(before, after)
        if not found.changes:
            left = sorted(each.shown for each in found.left_out if each.differs)
            what = f"; keys that differ are left out: {', '.join(left)} (`hashidrill gate` says why)" if left else ""
            raise UsageError(
                f"{_names(good)} and {_names(bad)} configure an experiment's agents alike: nothing to search{what}"
            )
        return cls(given, found, after.settings, refusal(named), f"{_names(good)} with changes")

    @property
    def changes(self) -> list[Change]:
        """The changes, ordered by key, so that changes that need each other are mostly neighbours."""
        return sorted(self.found.changes, key=lambda change: change.key)

    @property
    def question(self) -> dict[str, Any]:
        """The facts that the answer depends on, without secret values, because others may read the log."""
        return {
            "product": self.found.product,
            "good": hash_of_secret(self.found.kept[0]),
            "bad": hash_of_secret(self.found.kept[1]),
            "changes": [change.key for change in self.changes],
            "role": role_of(self.found.product, self.settings),
        }

    def shown(self, name: str) -> str:
        members = members_of(name)
        if not members:
            return "good, unchanged"
        if len(members) == len(self.changes):
            return "bad, all changes"
        keys = [self.changes[number].key for number in members]
        return f"{len(keys)} of {len(self.changes)} changes ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"

    def resolved(self, name: str) -> ResolvedExperiment:
        """The experiment with that configuration. Raises RefusedError with the agent's words."""
        every = merge(*self.found.kept)
        making = _Making(self.given, self.found.product, self.refusal, self.source)
        return making.resolved(self.kept(members_of(name)), every, self.settings)

    def alike(self, one: str, other: str) -> Alike | None:  # noqa: ARG002 - two sets of changes always differ
        return None

    def kept(self, members: Sequence[int]) -> dict[str, Any]:
        settings: dict[str, Any] = copy.deepcopy(dict(self.found.kept[0]))
        paths = {dotted(path): path for end in self.found.kept for path, _ in leaves(end)}
        chosen = [self.changes[number] for number in members]
        for change in chosen:
            _take(settings, paths[change.key])
        for change in chosen:
            if change.candidate is not None:
                _put(settings, paths[change.key], change.candidate)
        return settings


def configured(
    given: ResolvedExperiment,
    files: Sequence[Path],
    *,
    product: str | None,
    refusal: Callable[[str], Refusal],
    ends: Sequence[Sequence[Path]] = (),
) -> ResolvedExperiment:
    """The experiment with the configuration in these files. Raises UsageError, RefusedError.

    `ends`: the files of the two ends of a search. If an end sets a key, the experiment's own value does not apply.
    """
    sources = sources_of(files)
    named = product_of(sources, sources, product)
    whole = configuration(named, sources)
    kept = differences(whole, whole).kept[0]
    every: Mapping[str, Any] = kept
    for end in ends:
        with contextlib.suppress(UsageError):  # running that end reports the error
            there = configuration(named, sources_of(end))
            every = merge(differences(there, there).kept[0], every)
    return _Making(given, named, refusal(named), _names(files)).resolved(kept, every, whole.settings)


@dataclass(frozen=True)
class _Making:
    """Makes experiments in which one product's agents get a configuration."""

    given: ResolvedExperiment
    product: str
    refusal: Refusal
    source: str

    def resolved(
        self, kept: Mapping[str, Any], every: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> ResolvedExperiment:
        """`every` has all candidates' keys, `settings` one candidate's whole configuration. Raises RefusedError."""
        self._check(kept, settings)
        written = dict(self.given.data.get("datacenter") or {}).get(self.product) or {}
        layer = overlay(self.product, kept, every, written, role=role_of(self.product, settings))
        try:
            return varied(self.given, layer, name="candidate", source=self.source)
        except ExperimentError as error:
            raise RefusedError(str(error)) from None

    def _check(self, kept: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        whole = dict(kept) | ({_ROLE: settings[_ROLE]} if isinstance(settings.get(_ROLE), bool) else {})
        with scratch_folder() as work:
            file = work / "candidate.json"
            file.write_text(json.dumps(whole))
            words = self.refusal(file, work, whole)
        if words:
            redact = Redactor()
            redact.learn(whole)
            raise RefusedError(redact.text(words.replace(str(file), "candidate")))


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _take(settings: dict[str, Any], path: Key) -> None:
    """Removes a key, and blocks that become empty."""
    at: Any = settings
    above = []
    for name in path[:-1]:
        if not isinstance(at, dict) or name not in at:
            return
        above.append((at, name))
        at = at[name]
    if isinstance(at, dict):
        at.pop(path[-1], None)
    for block, name in reversed(above):
        if block[name] == {}:
            del block[name]


def _put(settings: dict[str, Any], path: Key, value: Any) -> None:
    at = settings
    for name in path[:-1]:
        if not isinstance(at.get(name), dict):
            at[name] = {}
        at = at[name]
    at[path[-1]] = value


CHECKOUT = "{checkout}"
"""A placeholder in a client's command: the folder in which the commit was built."""
BUILD_WITHIN_S = 1800.0
_SHOWN = 10
_DONE = ".hashidrill-built"
_INTERPRETER = re.compile(r"\{python\}|(/\S*/)?(python[\d.]*|sh|bash|node|ruby|perl)")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_PIN = re.compile(rf"\b{_COMMIT.pattern}\b")


@dataclass(frozen=True)
class Repository:
    """The git repository in which hashidrill runs. Its work tree, index and HEAD stay untouched."""

    top: Path

    @classmethod
    def here(cls, folder: Path | None = None) -> Repository:
        """Raises UsageError outside of a repository."""
        return cls(Path(git("rev-parse", "--show-toplevel", folder=folder).decode().strip()))

    def between(self, revisions: str) -> list[str]:
        """BASE and the later commits up to HEAD, oldest first, along first parents. Raises UsageError."""
        base, dots, head = revisions.partition("..")
        if not dots or not base or head.startswith(".") or revisions.startswith("-"):
            raise UsageError(f"--git {revisions}: write two revisions, the good one first, like --git v1.4..HEAD")
        start = commit_of(base, folder=self.top)
        end = commit_of(head or "HEAD", folder=self.top)
        found = (
            git("rev-list", "--first-parent", "--reverse", f"{start}..{end}", "--", folder=self.top).decode().split()
        )
        if not found:
            raise UsageError(f"--git {revisions}: there is no commit after {base} up to {head or 'HEAD'}")
        parent = git("rev-parse", f"{found[0]}^", folder=self.top).decode().strip()
        if parent != start:
            raise UsageError(
                f"--git {revisions}: {base} is not on the first-parent line of {head or 'HEAD'}; start at"
                f" {parent[:_SHOWN]}, where that line begins"
            )
        return [start, *found]

    def subject(self, commit: str) -> str:
        return git("log", "-1", "--format=%s", commit, "--", folder=self.top).decode(errors="replace").strip()

    def pins(self, before: str, after: str) -> list[tuple[str, str, str]]:
        """(line without its commit, old commit, new commit) of each dependency whose pinned commit changed.

        A submodule is pinned by its commit, other dependencies by a line that names a commit.
        """
        shown = git("diff", "--unified=0", "--no-color", "--no-ext-diff", before, after, "--", folder=self.top)
        found: dict[str, dict[str, str]] = {}
        for line in shown.decode(errors="replace").splitlines():
            if line[:1] in {"-", "+"} and (commit := _PIN.search(line)):
                found.setdefault(_PIN.sub("COMMIT", line[1:]).strip(), {})[line[0]] = commit[0]
        return [(line, each["-"], each["+"]) for line, each in found.items() if len(each) == 2]

    def pinned(self, commit: str, folder: str) -> str:
        """The dependency's commit that `commit` pins for `folder`; "" if it pins none. Raises UsageError.

        The pin is a submodule there, or else a line that contains the folder's last name and a commit.
        """
        entry = git("ls-tree", commit, "--", folder, folder=self.top).decode(errors="replace").split()
        if entry[1:2] == ["commit"]:
            return entry[2]
        named = re.compile(rf"(?<![\w-]){re.escape(Path(folder).name)}(?![\w-])")
        lines = ""
        with contextlib.suppress(UsageError):  # git's exit status if no line matches
            lines = git("grep", "-hIE", "[0-9a-f]{40}", commit, "--", folder=self.top).decode(errors="replace")
        found = {each[0] for line in lines.splitlines() if named.search(line) for each in _PIN.finditer(line)}
        if len(found) > 1:
            raise UsageError(f"{self.top} pins {folder} to several commits at {commit[:_SHOWN]}")
        return found.pop() if found else ""

    def extract(self, commit: str, into: Path) -> None:
        check_out(commit, into, folder=self.top)


@dataclass(frozen=True)
class Dependency:
    """A separate repository whose files are in `folder` of the program's checkout."""

    folder: str
    repository: Repository

    @classmethod
    def of(cls, written: str, clones: Path, say: Callable[[str], None]) -> Dependency:
        """`FOLDER=REPOSITORY`, where REPOSITORY is a path or a URL for `git clone`. Raises UsageError."""
        folder, equals, source = written.partition("=")
        place = Path(folder)
        if not (equals and source and place.name) or place.is_absolute() or ".." in place.parts:
            raise UsageError(
                f"--descend {written}: write FOLDER=REPOSITORY, the folder relative to the checkout, like --descend"
                " third_party/m3x=../m3x"
            )
        own = Path(source).expanduser()
        if not (own / ".git").exists():
            own = clones / place.as_posix().replace("/", "-")
            if not own.exists():
                say(f"cloning {source}")
                git("clone", "--quiet", "--no-checkout", "--", source, str(own))
        return cls(place.as_posix(), Repository.here(own))


@dataclass(frozen=True)
class Tree:
    """A program with its dependencies: one of these repositories is searched, the others are at pinned commits."""

    program: Repository
    dependencies: Sequence[Dependency] = ()
    """Each dependency comes after the repository that pins it."""
    at: Mapping[str, str] = field(default_factory=dict)
    """Folder -> commit, for repositories that were searched before; the program's folder is ""."""
    searched: str = ""

    def commits(self, candidate: str) -> dict[str, tuple[str, str]]:
        """Folder -> (commit, folder of the repository that pins it), for this candidate. Raises UsageError."""
        at = {**self.at, self.searched: candidate}
        found = {"": (at[""], "")}
        repositories = {"": self.program}
        for each in self.dependencies:
            for above, repository in reversed(repositories.items()):
                inner = each.folder.removeprefix(f"{above}/")
                if pin := repository.pinned(found[above][0], inner):
                    found[each.folder] = (at.get(each.folder, pin), above)
                    break
            else:
                raise UsageError(f"nothing pins {each.folder}: neither a submodule nor a line with its name and commit")
            repositories[each.folder] = each.repository
        return found

    def extract(self, candidate: str, into: Path) -> None:
        commits = self.commits(candidate)
        self.program.extract(commits[""][0], into)
        for each in self.dependencies:
            each.repository.extract(commits[each.folder][0], into / each.folder)

    def moved(self, last_good: str, first_bad: str) -> list[tuple[Dependency, str, str]]:
        """(dependency, old commit, new commit) of each dependency whose pin `first_bad` changes."""
        before, after = self.commits(last_good), self.commits(first_bad)
        return [
            (each, before[each.folder][0], after[each.folder][0])
            for each in self.dependencies
            if before[each.folder][0] != after[each.folder][0] and after[each.folder][1] == self.searched
        ]


Shell = Callable[[str, Path], tuple[int, bytes, bytes]]
"""Runs a command line in a folder: its exit status, standard output and standard error."""


def shell(command: str, folder: Path) -> tuple[int, bytes, bytes]:
    """Runs the command in `sh`, as the user typed it. It may take half an hour."""
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
    """What all kinds of commits as candidates share: their order, their names for people, a checkout of each."""

    given: ResolvedExperiment
    repository: Repository
    names: Sequence[str]
    work: Path
    """The folder of checkouts, one subfolder for each commit."""
    say: Callable[[str], None] = lambda _text: None
    run: Shell = shell
    tree: Tree | None = None
    """The program and its dependencies, if it is built together with them."""

    def below(self, dependency: Dependency, old: str, new: str, *, first_bad: str) -> Self:
        """A dependency's commits, with those above it at `first_bad`. Raises UsageError unless `old` precedes `new`."""
        assert self.tree is not None
        at = {**self.tree.at, self.tree.searched: first_bad}
        return replace(
            self,
            repository=dependency.repository,
            names=dependency.repository.between(f"{old}..{new}"),
            work=self.work / dependency.folder.replace("/", "-"),
            tree=replace(self.tree, at=at, searched=dependency.folder),
        )

    def shown(self, name: str) -> str:
        return f"{name[:_SHOWN]} ({self.repository.subject(name)})"

    def made(self, name: str, command: str) -> tuple[Path, bytes]:
        """The checkout of a commit, in which `command` has run once, and the command's output. Raises RefusedError."""
        if not _COMMIT.fullmatch(name):
            raise RefusedError(f"{name!r} is not a commit")
        folder = self.work / name
        # a resumed search builds nothing twice; another command, or other dependencies, make another program
        made_of = command if self.tree is None else f"{command} {self.tree}"
        done = folder.with_name(f"{name}.{hashlib.sha256(made_of.encode()).hexdigest()[:16]}{_DONE}")
        if done.exists():
            return folder, done.read_bytes()
        self.say(f"building {self.shown(name)}")
        for other in self.work.glob(f"{name}.*{_DONE}"):
            other.unlink()
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed build
        try:
            (self.tree or self.repository).extract(name, folder)
        except UsageError as unpinned:
            raise RefusedError(str(unpinned)) from None
        code, output, error = self.run(command, folder)
        if code:
            last = (error or output).decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
            raise RefusedError(f"`{command}` ended with exit status {code}: {last[0][:200]}")
        done.write_bytes(output)
        return folder, output


@dataclass
class Programs(Commits):
    """A program, built at each commit, that a client of the experiment runs."""

    build: str = ""
    clients: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The command of each client that runs the program, with `{checkout}` for the folder of the build."""
    duet: bool = False
    """Whether the good end runs at the same time as each candidate, with the same load."""

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
        """The programs that are the same at both commits, byte by byte."""
        same = []
        for command in self.clients.values():
            if (program := _program(command)) is not None:
                first, second = (self.work / name / program for name in (one, other))
                if first.is_file() and second.is_file() and filecmp.cmp(first, second, shallow=False):
                    same.append(program)
        if not same:
            return None
        programs = " and ".join(same)
        return Alike(f"{programs}: the same at both commits, byte by byte; does the build use the committed files?")

    def _built(self, name: str) -> dict[str, dict[str, Any]]:
        """The clients' commands with the build of this commit. Raises RefusedError, also if a program is missing."""
        folder, _ = self.made(name, self.build)
        for command in self.clients.values():
            program = _program(command)
            if program is None:
                continue
            if not (folder / program).is_file():
                raise RefusedError(f"`{self.build}` did not make {program}, which a client runs")
            if command[0].startswith(CHECKOUT) and not os.access(folder / program, os.X_OK):
                raise RefusedError(f"`{self.build}` made {program}, which is not executable")
        return {
            client: {"command": [word.replace(CHECKOUT, str(folder.absolute())) for word in command]}
            for client, command in self.clients.items()
        }


@dataclass
class Produced(Commits):
    """The configuration at each commit: the output of a command, or the files at `paths` after it has run."""

    configured: Callable[[Sequence[Path], Sequence[Sequence[Path]]], ResolvedExperiment] = field(kw_only=True)
    """Maps (files, both ends' files) to the experiment with that configuration. Raises RefusedError, UsageError."""
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
            with contextlib.suppress(RefusedError):  # running that end reports the error
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
        """Whether both commits have the same configuration, because most commits of a repository change other files."""
        same = self.resolved(one).data == self.resolved(other).data
        return Alike("the configuration is the same at both commits", sure=True) if same else None


Built = Programs | Produced


def _check_links(paths: Sequence[Path], folder: Path) -> None:
    """Raises RefusedError for a link that leads out of the checkout: all commits would read the same file."""
    for path in paths:
        for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
            if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
                raise RefusedError(f"{file.relative_to(folder)}: links to {file.readlink()}, outside of the repository")


def _program(command: Sequence[str]) -> str | None:
    """The file in the checkout that this command runs; None if unknown."""
    first = next((word for word in command[:2] if word.startswith(f"{CHECKOUT}/")), None)
    if first is None or (first != command[0] and not _INTERPRETER.fullmatch(command[0])):
        return None
    return first.removeprefix(f"{CHECKOUT}/")


def clients_of(written: Sequence[str], given: ResolvedExperiment) -> dict[str, list[str]]:
    """Parses `--client NAME=COMMAND`: each client's command as a list of words. Raises UsageError."""
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
