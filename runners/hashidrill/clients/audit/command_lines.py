"""The program that a command line starts, behind shells, `env`, `sudo` and the like, or `docker run`.

Flags are read as the settings that they stand for: `-retry-max=5` is `retry_max = 5`. This module also reads systemd
units and environment files.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping as Variables
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hashidrill.clients.audit.tree import Comment, Entry, MalformedError, Mapping, Place, Scalar


def words(line: str) -> list[str]:
    """A command line as words; if its quotes do not match, split at spaces."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "su", "zsh"})
_STARTERS = frozenset({"catatonit", "dumb-init", "env", "nohup", "setsid", "tini"})
"""Wrappers that start the rest of their command line, after their own options without values."""
_WRAPPERS = frozenset(
    words(
        "cgexec chpst chroot chrt envconsul flock gosu ionice ip nice nsenter numactl prlimit runuser s6-setuidgid "
        "setpriv setuidgid stdbuf strace su-exec sudo systemd-cat systemd-run taskset time timeout unshare"
    )
)
"""Wrappers that start the rest of their command line after their own options and arguments, for instance a user."""
_AGENTS = {"consul": {"agent"}, "nomad": {"agent"}, "vault": {"agent", "proxy", "server"}}
"""For each program, its commands that run an agent."""
_BEFORE = frozenset({"!", "command", "do", "else", "exec", "if", "then", "until", "while", "{", "("})
"""Words that may precede a command in a shell."""
_CONTAINERS = frozenset({"docker", "nerdctl", "podman"})
_PLAIN_OPTIONS = frozenset(
    words(
        "detach disable-content-trust env-host init interactive no-healthcheck no-hosts oom-kill-disable privileged "
        "publish-all quiet read-only read-only-tmpfs replace rm rmi rootfs tty"
    )
)
"""Options of `docker run` and `podman run` without a value; -d, -i, -t, -P and -q have none either."""
_SHELL_COMMAND = re.compile(r"-[a-z]*c[a-z]*")
_SUBCOMMAND = re.compile(r"[a-z][a-z-]*")
_SEPARATOR = re.compile(r"\|\||&&|[;|&\n]")
VARIABLE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)$", re.DOTALL)
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SWITCHES = frozenset(
    words(
        "auto-reload-config bootstrap client dev disable-host-node-id disable-keyring-file enable-local-script-checks "
        "enable-script-checks log-json non-voting-server read-replica rejoin server syslog ui"
    )
)
"""Flags of agents without a value after a space; Consul's `-client` has one."""
_CONFIG_FLAGS = frozenset({"config", "config-dir", "config-file"})
_IN_BLOCKS = {
    "nomad": {
        "server": "server.enabled",
        "client": "client.enabled",
        "bootstrap-expect": "server.bootstrap_expect",
        "join": "server.server_join.start_join",
        "retry-join": "server.server_join.retry_join",
        "retry-max": "server.server_join.retry_max",
        "servers": "client.servers",
        "consul-address": "consul.address",
        "consul-client-auto-join": "consul.client_auto_join",
        "consul-server-auto-join": "consul.server_auto_join",
    },
    "consul": {"join": "start_join", "join-wan": "start_join_wan", "primary-gateway": "primary_gateways"},
    "consul-template": {
        f"{service}-retry{flag}": f"{service}.retry.{name}"
        for service in ("consul", "vault", "nomad")
        for flag, name in (("", "enabled"), ("-attempts", "attempts"), ("-max-backoff", "max_backoff"))
    },
}
"""The keys that flags stand for, if the key is not the flag's name."""


@dataclass(frozen=True)
class Command:
    """One command. `variables`: the known environment variables; `supervised`: whether its container is restarted."""

    words: list[str]
    variables: Variables[str, str] = field(default_factory=dict)
    container: bool = False
    supervised: bool = False
    mounts: Variables[str, str] = field(default_factory=dict)
    """Maps paths in the container to the host's directories."""

    @property
    def program(self) -> str:
        return _base(self.words[0])

    def starts(self, product: str) -> bool:
        """Whether this is an agent: `consul agent`, `nomad agent`, `vault server` and the like."""
        return self.program == product and bool(set(self.words[1:2]) & _AGENTS[product])

    @property
    def flags(self) -> list[tuple[str, str | bool]]:
        """Flags, parsed like Go parses them: with one dash or two, the value after = or as the next word."""
        found: list[tuple[str, str | bool]] = []
        for index, word in enumerate(self.words[1:], 1):
            name, equals, value = word.lstrip("-").partition("=")
            if not word.startswith("-") or not name:
                continue
            after = self.words[index + 1] if index + 1 < len(self.words) else "-"
            switch = name in _SWITCHES and (self.program, name) != ("consul", "client")
            found.append((name, value if equals else True if switch or after.startswith("-") else after))
        return found

    def settings(self, place: Place) -> Mapping:
        """The settings of its flags, as if they were in a file, all at `place`."""
        entries = []
        for name, said in self.flags:
            *blocks, key = _IN_BLOCKS.get(self.program, {}).get(name, name).split(".")
            entry = Entry(key, (), Scalar(said, place), place)
            for block in reversed(blocks):
                entry = Entry(block, (), Mapping((entry,), place), place)
            entries.append(entry)
        return Mapping(tuple(entries), place)

    @property
    def configured_by(self) -> list[str]:
        """The files and directories that it reads, as paths on the host."""
        paths = [str(said).rstrip("/") for name, said in self.flags if name in _CONFIG_FLAGS]
        for index, path in enumerate(paths):
            for inside, host in self.mounts.items():
                if path == inside or path.startswith(f"{inside}/"):
                    paths[index] = host + path.removeprefix(inside)
        return paths

    @property
    def unknown(self) -> bool:
        """Whether it contains an unknown variable, which may hold any flag."""
        return any(word.startswith("$") for word in self.words)


def commands_in(line: Sequence[str], variables: Variables[str, str] | None = None) -> list[Command]:
    """A command line's commands: the command itself, or what it runs by a shell, wrapper, init or container."""
    said = dict(variables or {})
    rest = _unwrapped(line, said)
    if not rest:
        return []
    if _base(rest[0]) in _CONTAINERS and "run" in rest:
        return _in_container(rest[rest.index("run") + 1 :], said)
    if _base(rest[0]) in _SHELLS:
        for index, word in enumerate(rest[1:-1], 1):
            if _SHELL_COMMAND.fullmatch(word):
                parts = _SEPARATOR.split(rest[index + 1])
                return [command for part in parts for command in commands_in(words(part.strip()), said)]
            if not word.startswith(("-", "+")) and _base(rest[0]) != "su":
                break
    return [Command(rest, said)]


def _unwrapped(line: Sequence[str], said: dict[str, str]) -> list[str]:
    """The command without its wrappers; adds the variables that the wrappers set to `said`."""
    rest = list(line)
    while rest:
        name = _base(rest[0])
        if found := VARIABLE.match(rest[0]):
            said[found["name"]] = found["value"]
            rest = rest[1:]
        elif name in _WRAPPERS and (at := _wrapped(rest)):
            rest = rest[at:]
        elif rest[0] in _BEFORE or name in _STARTERS:
            rest = rest[1:]
            while rest and rest[0].startswith("-"):
                rest = rest[1:]
        else:
            break
    return rest


def _wrapped(line: Sequence[str]) -> int:
    """The index at which the wrapped command begins; 0 for an unknown wrapper."""
    for index, word in enumerate(line[1:], 1):
        name, after = _base(word), line[index + 1] if index + 1 < len(line) else "-"
        if name in _AGENTS and _SUBCOMMAND.fullmatch(after) and after not in _AGENTS:
            return index
        if name in {*_SHELLS, *_STARTERS, *_CONTAINERS} or (name == "consul-template" and after[:2] != "--"):
            return index
    return 0


def _in_container(line: Sequence[str], variables: Variables[str, str]) -> list[Command]:
    given: list[tuple[str, str]] = []
    rest = list(line)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        name = name.lstrip("-")
        if not equals and name not in _PLAIN_OPTIONS and not set(name) <= set("ditPq") and rest:
            value = rest.pop(0)
        given.append((name, value))
    if not rest:
        return []
    options = dict(given)
    said = dict(value.partition("=")[::2] for name, value in given if name in {"e", "env"} and "=" in value)
    started = of_image(rest[0], rest[1:], options.get("entrypoint", ""))
    mounts = {}
    for name, value in given:
        if name in {"v", "volume"} and value.count(":"):
            host, inside, *_ = value.split(":")
            mounts[inside.rstrip("/")] = host.rstrip("/")
        elif name == "mount":
            parts = dict(part.partition("=")[::2] for part in value.split(","))
            inside = parts.get("target") or parts.get("dst") or parts.get("destination") or ""
            mounts[inside] = parts.get("source") or parts.get("src") or ""
    supervised = options.get("restart", "no") != "no"
    return [
        replace(each, container=True, supervised=supervised, mounts=mounts)
        for each in commands_in(started, {**variables, **said})
    ]


def of_image(image: str, arguments: Sequence[str], entrypoint: str = "") -> list[str]:
    """The command that a container starts: HashiCorp's images run their program with the container's arguments."""
    program = _base(image).partition("@")[0].partition(":")[0].removesuffix("-enterprise")
    if entrypoint or (program in {*_AGENTS, "consul-template"} and _base([*arguments, ""][0]) not in _OTHERS):
        return [entrypoint or program, *arguments]
    return list(arguments) or [program]


_OTHERS = frozenset({*_AGENTS, *_SHELLS, *_STARTERS, "consul-template"})


def expanded(line: Sequence[str], variables: Variables[str, str]) -> list[str]:
    """Inserts known variables as systemd does: the value of `$A` is split into words, that of `${A}` is not."""
    found: list[str] = []
    for word in line:
        alone = word.removeprefix("$")
        if alone != word and alone in variables:
            found += words(variables[alone])
        else:
            found.append(_REFERENCE.sub(lambda name: variables.get(name[1] or name[2], name[0]), word))
    return found


def _base(word: str) -> str:
    return word.rpartition("/")[2]


_SECTION = re.compile(r"\[(?P<name>[^\[\]]+)\]\s*$")


@dataclass(frozen=True)
class Setting:
    """`Key=value` in a section; continued lines are joined."""

    section: str
    key: str
    value: str
    place: Place
    path: str = ""
    """The drop-in that has the setting; "" if it is in the unit itself."""


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    place: Place
    path: str = ""


@dataclass(frozen=True)
class Unit:
    """A unit and its drop-ins, which override it. `partial`: it is only a drop-in, whose unit is not audited."""

    settings: tuple[Setting, ...]
    comments: list[Comment] = field(default_factory=list)
    partial: bool = False

    def all(self, key: str) -> list[Setting]:
        """All values of a list setting; an empty value removes the earlier ones."""
        found: list[Setting] = []
        for each in self.settings:
            if each.key == key:
                found = [*found, each] if each.value else []
        return found

    def last(self, key: str) -> str:
        """The last value; "" if the setting is missing or removed."""
        found = [each.value for each in self.settings if each.key == key]
        return found[-1] if found else ""

    def variables(self) -> list[Variable]:
        """The variables of all effective `Environment=` lines; if a variable is set twice, the last value counts."""
        found = {}
        for setting in self.all("Environment"):
            for word in words(setting.value):
                name, equals, value = word.partition("=")
                if equals:
                    found[name] = Variable(name, value, setting.place, setting.path)
        unset = {word for setting in self.all("UnsetEnvironment") for word in words(setting.value)}
        return [each for each in found.values() if not {each.name, f"{each.name}={each.value}"} & unset]

    def commands(self, variables: Variables[str, str]) -> list[tuple[Command, Setting]]:
        """The commands of each effective `ExecStart=`, without systemd's prefixes. `variables`: the known variables.

        Splits a line into words before it expands variables; a quoted part is one word, as in a shell.
        """
        return [
            (command, each)
            for each in self.all("ExecStart")
            for found in commands_in(words(each.value.lstrip("@-:+!")))
            for command in [replace(found, words=expanded(found.words, variables))]
        ]

    def with_dropins(self, dropins: Sequence[tuple[str, Unit]]) -> Unit:
        """The unit merged with its drop-ins: (path, drop-in), in the order in which systemd reads them."""
        more = [replace(each, path=path) for path, dropin in dropins for each in dropin.settings]
        return replace(self, settings=(*self.settings, *more))


def read_unit(text: str) -> Unit:
    """Raises MalformedError for a line that is neither section, setting nor comment."""
    settings, comments, section = [], [], ""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        bare = line.strip()
        if not bare:
            continue
        if bare[0] in "#;":
            comments.append(Comment(bare[1:].strip(), number, trailing=False))
        elif header := _SECTION.match(bare):
            section = header["name"]
        else:
            key, equals, value = bare.partition("=")
            if not equals or not section:
                raise MalformedError(Place(number, 1), "a unit has [Section] lines, each followed by Key=value lines")
            while value.endswith("\\"):
                value = value[:-1].rstrip() + " " + next(lines, (0, ""))[1].strip()
            settings.append(Setting(section, key.strip(), value.strip(), Place(number, 1)))
    return Unit(tuple(settings), comments)


def read_environment(text: str) -> tuple[list[Variable], list[Comment]]:
    """Parses a file like `EnvironmentFile=`. Ignores lines that set nothing, because systemd warns about them."""
    variables, comments = [], []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith(("#", ";")):
            comments.append(Comment(bare[1:].strip(), number, trailing=False))
        elif found := VARIABLE.match(bare):
            variables.append(Variable(found["name"], found["value"].strip().strip("\"'"), Place(number, 1)))
    return variables, comments
