"""Reads an experiment of Chaos Toolkit: its actions become steps, its probes become ours, its hypothesis must hold.

Anything without an equivalent becomes `fill-in`, a kind that does not exist: `validate` and `run` refuse it until a
person replaces it. So an action that cannot be translated never yields an experiment that breaks nothing, and a probe
that cannot be translated never yields one that judges less.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from hashidrill.core.experiment.conditions import probe_namespaces
from hashidrill.core.units import shown
from hashidrill.kubernetes.interchange.document import (
    FILL_IN,
    ONCE_S,
    Document,
    Reading,
    Step,
    UnsupportedError,
    name_of,
    seconds,
)
from hashidrill.kubernetes.interchange.from_chaos_mesh import CLOUD_ONLY
from hashidrill.kubernetes.interchange.label_selectors import PRODUCTS, SAY_ON

MODULE = "hashidrill.faces.chaos_toolkit"
"""The action, the probe and the control that Chaos Toolkit calls."""
_SHORTEST_S, _LOOK_S, _LONGEST_LOOK_S = 10.0, 10.0, 60.0
_PROVIDERS = ("python", "process", "http")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PATH = re.compile(r"\$((?:\.[A-Za-z_][\w-]*|\[\d+\]|\['[\w-]+'\])+)")

_VERBS: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "stop": ("process.kill", {"signal": "TERM"}, ""),
    "kill": ("process.kill", {"signal": "KILL"}, ""),
    "restart": ("process.restart", {"signal": "TERM"}, ""),
    "pause": ("process.pause", {}, ""),
}
_FLAGS = {"": "stop", " -9": "kill", " -KILL": "kill", " -STOP": "pause"}
_SAME = {
    **{f"{tool} {verb} AGENT": fault for tool in ("systemctl", "docker", "podman") for verb, fault in _VERBS.items()},
    **{f"{tool}{flag} AGENT": _VERBS[verb] for tool in ("pkill", "killall") for flag, verb in _FLAGS.items()},
    "consul leave": ("consul.agent.stop", {}, ""),
    "consul operator raft transfer-leader": ("consul.leader.transfer", {}, "consul:leader"),
    "vault operator seal": ("vault.seal", {}, "vault:active"),
    "vault operator step-down": ("vault.step_down", {}, "vault:active"),
    "chaosk8s.pod.actions.terminate_pods": _VERBS["restart"],
    "chaosk8s.pod.actions.delete_pods": _VERBS["restart"],
    "chaosk8s.networking.actions.deny_all_ingress": ("network.partition", {"from": "all", "direction": "in"}, ""),
    "chaosk8s.networking.actions.deny_all_egress": ("network.partition", {"from": "all", "direction": "out"}, ""),
}
"""For what an action calls: the fault that does the same to an agent, its parameters, and its default target."""
_ONCE = ("process.restart", "consul.leader.transfer", "vault.step_down")
_IS_TRAFFIC = "it makes traffic and breaks nothing; write it under `load` or `clients`"
_IS_UNDO = "a fault ends by itself, after its `for`; here that is the end of the method"
_BREAK_NOTHING: Mapping[str, str] = {
    **dict.fromkeys(("ab", "chaosk6", "chaoslocust", "hey", "k6", "load", "locust", "vegeta", "wrk"), _IS_TRAFFIC),
    **dict.fromkeys(("systemctl start", "docker start", "docker unpause", "podman start", "podman unpause"), _IS_UNDO),
}
"""For the first words of what an action calls: why it breaks nothing."""
_PACKAGES: Mapping[str, str] = {
    "chaosk8s": "hashidrill calls no cluster here; `--on` names agents, and experiments with `attach` reach pods",
    "chaosprometheus": "write a `prometheus` probe with its query, and a condition on its value",
    "chaosconsul": "write an `http` probe of Consul's API, or one of the faults consul.*",
    "chaostoxi": "name the port: network.latency, network.bandwidth, network.timeout, or toxiproxy.toxic",
    "chaosistio": "tap.fail fails a client's attempts, and network.latency delays connections",
    **dict.fromkeys(("chaosaws", "chaosazure", "chaosgce", "chaosgcp", "chaosgcn", "chaosoci"), CLOUD_ONLY),
}
"""For the package of a function: why it has no equivalent, and what comes nearest."""
_NO_PYTHON = "hashidrill calls no function of an experiment; write a `command` probe, or name the fault"
_LEFT_OUT = {
    "controls": "hashidrill has no controls; the recording, --metrics and --notify say what happened",
    "rollbacks": "hashidrill reverts every fault by itself, and proves that it is gone",
}
_ALWAYS_LOST = (
    "its only verdict is the hypothesis; datacenter, load and the first two of expect are a start",
    "steady-state-hypothesis: checked once before and after the method; here every second, until the method's end",
)


class _NoEqualError(Exception):
    """Why something has no equivalent: a person must fill in its place."""


class _Variables:
    """`${name}` in texts: the current values of the configuration, and the places of secrets, which stay outside."""

    def __init__(self, document: Document, reading: Reading) -> None:
        self._reading = reading
        self._values: dict[str, Any] = {}
        self._secrets: dict[str, str] = {}
        self._said: dict[str, tuple[bool, str]] = {}
        """For each name: whether its value is known now, and a message about it."""
        given = document.part("configuration")
        for name in given.written():
            self._values[name] = value = given.value(name)
            if isinstance(value, Mapping):
                self._values[name], self._said[name] = self._of_variable(given.part(name))
        self._read_secrets(document.part("secrets"))

    def _of_variable(self, one: Document) -> tuple[Any, tuple[bool, str]]:
        key, kind = one.text("key"), one.value("type")
        value = os.environ.get(key, one.value("default"))
        one.settle()
        if kind != "env":
            return None, (False, f"{one.at}: only a value or an environment variable can be read before a run")
        if value is None:
            return None, (False, f"{one.at}: the variable {key} is not set; set it: the import writes its value")
        return value, (True, f"{one.at}: here the value of {key} at this import, {shown(value)}")

    def _read_secrets(self, given: Document) -> None:
        for name in given.written():
            value = given.value(name)
            kind = value.get("type") if isinstance(value, Mapping) else ""
            if kind == "env":
                self._secrets[name] = given.part(name).text("key", needed=True)
            elif isinstance(kind, str):
                self._said[name] = False, f"{given.place(name)}: a secret must be in a variable: `type: env`, `key`"
            else:
                self._read_secrets(given.part(name))
        given.settle()

    def into(self, value: Any) -> Any:
        """The value with its variables replaced. Raises UnsupportedError for an unknown variable."""
        if isinstance(value, Mapping):
            return {key: self.into(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.into(one) for one in value]
        if not isinstance(value, str):
            return value
        whole = _VARIABLE.fullmatch(value)
        return self._one(whole) if whole else _VARIABLE.sub(lambda match: str(self._one(match)), value)

    def _one(self, match: re.Match[str]) -> Any:
        name = match[1] or match[2]
        if name in self._secrets:
            raise _NoEqualError(f"it holds the secret {name}, which would be recorded; only a header may end with one")
        known, said = self._said.get(name, (True, ""))
        if not known:
            raise UnsupportedError(said)
        self._reading.lost += [said] if said else []
        return self._values.get(name, match[0])

    def header(self, text: str) -> Any:
        """A header: its text, or the place of its secret."""
        match = _VARIABLE.search(text)
        if match and match.end() == len(text) and (secret := self._secrets.get(match[1] or match[2])):
            return {"env": secret, **({"prefix": text[: match.start()]} if match.start() else {})}
        return str(self.into(text))


def read(document: Document, reading: Reading) -> None:
    """Raises UnsupportedError if this is not an experiment of Chaos Toolkit, or needs a value that is unknown now."""
    reading.title = document.text("title", needed=True)
    reading.why = document.text("description", needed=True)
    if document.value("method") is None:
        raise document.wrong("method", "it is missing; it must hold the actions")
    method, hypothesis = document.parts("method", by="name"), document.part("steady-state-hypothesis")
    asked = hypothesis.parts("probes", by="name")
    _around(document, reading)
    reading.own = _own(document, method, reading)
    if reading.own:
        for one in asked:
            if one.part("provider").value("module") != MODULE:
                one.lose_all(f"add it to `probes` of {reading.own}, which it runs")
        return
    named = {one.text("name"): one for one in [*asked, *method] if one.has("name")}
    course = _Course(reading, _Variables(document, reading), named)
    hypothesis.text("title")
    for one in asked:
        course.ask(one, hypothesis=True)
    for one in method:
        course.go(one)
    course.close(document, document.part("runtime").part("hypothesis").text("strategy", "default"))
    for one in reading.documents:
        one.lose_rest("hashidrill reads no such key here")


def _around(document: Document, reading: Reading) -> None:
    """Reads the parts besides the hypothesis and the method."""
    reading.tags += [tag for one in document.texts("tags") if (tag := name_of(one)) not in reading.tags]
    document.text("version")
    document.lose("it weighs results for a report", "contributions")
    document.lose("hashidrill reads no extensions", "extensions")
    for key, why in _LEFT_OUT.items():
        for one in document.parts(key, by="name"):
            if one.part("provider").value("module") != MODULE:
                one.lose_all(why)
            one.settle()


def _own(document: Document, method: list[Document], reading: Reading) -> str:
    """The hashidrill experiment that its only action runs; "" if there is no such action."""
    found = ""
    for provider in (one.part("provider") for one in method):
        if provider.value("module") == MODULE and provider.value("func") == "run":
            found = provider.part("arguments").text("experiment", needed=True)
        elif str(provider.value("path")).rpartition("/")[2] == "hashidrill":
            given = _words(provider, provider.value("arguments"))
            words = [word for word in given if not word.startswith("-")]
            if len(words) != 3 or words[1] != "run":
                raise provider.wrong("arguments", "only `run EXPERIMENT` can be read, with options without a value")
            found = words[2]
            options = [word for word in given if word not in words]
            reading.lost += [f"{provider.place('arguments')}: an experiment has no {word}" for word in options]
    if found and len(method) > 1:
        raise document.wrong("method", "it runs hashidrill and has other activities; import these without it")
    return found


def _words(provider: Document, given: Any) -> list[str]:
    """The words of a process: program and arguments. Raises UnsupportedError."""
    path = provider.text("path", needed=True)
    if isinstance(given, str):
        try:
            return [path, *shlex.split(given)]
        except ValueError as error:
            raise provider.wrong("arguments", f"{shown(given)} is not a command line: {error}") from None
    if isinstance(given, Mapping):
        given = [word for pair in given.items() for word in pair]
    if not isinstance(given or [], list):
        raise provider.wrong("arguments", f"expected text, a list, or keys and values, got {shown(given)}")
    return [path, *(str(word) for word in given or [] if word not in (None, ""))]


@dataclass
class _Course:
    """The method in time: the current time, and the faults that last to the method's end."""

    reading: Reading
    variables: _Variables
    named: Mapping[str, Document]
    at_s: float = 0.0
    names: set[str] = field(default_factory=set)
    open: list[Step] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    asked: list[Document] = field(default_factory=list)

    def go(self, one: Document) -> None:
        """Reads one activity of the method."""
        if name := one.text("ref"):
            if name not in self.named:
                raise one.wrong("ref", f"there is no activity {shown(name)}")
            one = self.named[name]
        pauses = one.part("pauses")
        self.at_s += self._seconds(pauses, "before")
        if one.choice("type", ("action", "probe")) == "action":
            self._act(one)
        else:
            self.ask(one, hypothesis=False)
        self.at_s += self._seconds(pauses, "after")

    def _seconds(self, given: Document, key: str) -> float:
        return _number(given, key, self.variables.into(given.value(key)))

    def _name(self, one: Document) -> str:
        name = base = name_of(one.text("name", needed=True))
        count = 1
        while name in {*self.names, "kv-writes", "secrets", *probe_namespaces()}:  # loads and products have those
            count += 1
            name = f"{base}-{count}"
        self.names.add(name)
        return name

    def _act(self, one: Document) -> None:
        provider, name = one.part("provider"), self._name(one)
        one.lose("here no step waits for the end of an action", "background")
        one.lose("a step has its own `for`", "timeout")
        kind = provider.choice("type", _PROVIDERS)
        try:
            said = self._said(provider, kind)
        except _NoEqualError as error:
            said = str(error)
        words = said.replace(".", " ", 1).split() if kind == "python" else said.split()
        nothing = _BREAK_NOTHING.get(words[0]) or _BREAK_NOTHING.get(" ".join(words[:2]))
        if said == "time.sleep":
            self.at_s += self._seconds(provider.part("arguments"), "secs")
        elif words[0] == "sleep" and len(words) == 2:
            self.at_s += _number(provider, "arguments", words[1])
        elif nothing:
            one.lose_all(f"{said[:120]}: {nothing}")
        elif said not in _SAME:
            why = _PACKAGES.get(words[0], _NO_PYTHON) if kind == "python" else "name the fault that does this"
            step = self._fault(one, name, FILL_IN, {}, FILL_IN)
            step.why = f"{one.at}: {said[:120]}: {why}; `hashidrill list faults`"
        else:
            self._fault(one, name, *_SAME[said])
            provider.lose(f"it is {said}; --on names the agents", "arguments")
        one.settle()

    def _said(self, provider: Document, kind: str) -> str:
        """What an action calls. AGENT stands for the unit, container or program of an agent."""
        if kind == "python":
            return f"{provider.text('module', needed=True)}.{provider.text('func', needed=True)}"
        if kind == "http":
            return f"{provider.text('method', 'GET')} {provider.text('url', needed=True)}"
        words = _words(provider, self.variables.into(provider.value("arguments")))
        words = [words[0].rpartition("/")[2], *words[1:]]
        words = words[words[0] == "sudo" :]
        of_agent = " ".join([*words[:-1], "AGENT"])
        return of_agent if of_agent in _SAME and any(one in words[-1] for one in PRODUCTS) else " ".join(words)

    def _fault(self, at: Document, name: str, kind: str, parameters: Mapping[str, Any], on: str) -> Step:
        on = self.reading.on or on
        if not on:
            raise UnsupportedError(f"{at.at}: {kind} does the same; {SAY_ON}")
        self.reading.add(self.at_s, ONCE_S, on, (kind, {**parameters}))
        step = self.reading.steps[-1]
        step.name = name
        if kind not in _ONCE:
            self.open.append(step)
        return step

    def ask(self, one: Document, *, hypothesis: bool) -> None:
        """Reads a probe; with `hypothesis`, its tolerance must hold."""
        if name := one.text("ref"):
            if name not in self.named or self.named[name].value("tolerance") != one.value("tolerance"):
                raise one.wrong("ref", f"{shown(name)} is not a probe with this tolerance; write its provider here")
            one.lose_all(f"it repeats {name}; here a probe measures every second")
            one.settle()
            return
        if one in self.asked:
            return
        self.asked.append(one)
        one.text("type")
        provider = one.part("provider")
        kind = provider.choice("type", _PROVIDERS)
        if hypothesis and one.value("tolerance") is None:
            raise one.wrong("tolerance", "it is missing; Chaos Toolkit refuses a probe of a hypothesis without one")
        tolerance = self.variables.into(one.value("tolerance"))
        name, before = self._name(one), len(self.reading.lost)
        make, why = {"python": _function, "process": _command, "http": _http}[kind], ""
        try:
            spec = make(provider, self, tolerance if hypothesis else None)
            spec |= self._timeout(provider if provider.has("timeout") else one)
        except _NoEqualError as error:
            del self.reading.lost[before:]
            spec, why = {"kind": FILL_IN}, f"{one.at}: {error}"
            if not hypothesis:
                one.lose_all(f"{error}; its answer decided nothing")
            one.settle()
        if hypothesis or not why:
            self.reading.probes[name] = (spec, why)
        if hypothesis:
            self.conditions.append(f"{name}.ok == 1")

    def _timeout(self, given: Document) -> dict[str, str]:
        wanted = self._seconds(given, "timeout")
        timeout_s = min(max(wanted or _LOOK_S, 0.01), _LONGEST_LOOK_S)
        if timeout_s != wanted:
            said = f"{wanted:g} s" if wanted else "as long as it takes"
            self.reading.lose(f"{given.place('timeout')}: it waits {said}; here {seconds(timeout_s)}")
        return {"timeout": seconds(timeout_s)}

    def close(self, document: Document, strategy: str) -> None:
        """Ends the method: faults still in force last until then, and the hypothesis must hold again."""
        reading = self.reading
        if not reading.steps:
            self._fault(document, "action", FILL_IN, {}, FILL_IN).why = "method: no action in it breaks anything"
        first_s = min(step.at_s for step in reading.steps)
        for step in self.open:
            if self.at_s - step.at_s < _SHORTEST_S:
                reading.lose(f"method.{step.name}: nothing there says how long it lasts; here {seconds(_SHORTEST_S)}")
            step.for_s = max(_SHORTEST_S, self.at_s - step.at_s)
        lasts_s = max(step.at_s + step.for_s for step in reading.steps)
        ends_s = max(self.at_s, lasts_s)
        reading.recovery_s = max(reading.recovery_s, ends_s - lasts_s + _SHORTEST_S)
        reading.require += self.conditions
        for condition in self.conditions:
            if strategy in {"continuously", "during-method-only"}:
                reading.expect.append({"signal_stays": {"condition": condition, "during": "run"}})
            else:
                within = {"within": seconds(ends_s - first_s), "since": "start"}
                reading.expect.append({"signal_recovers": {"condition": condition, **within}})
        if self.conditions:
            reading.lost.extend(_ALWAYS_LOST)


def _number(given: Document, key: str, value: Any) -> float:
    try:
        found = float(sum(value) if isinstance(value, list) else value or 0)
    except (TypeError, ValueError, OverflowError):
        found = -1.0
    if not 0 <= found <= 24 * 3600:
        raise given.wrong(key, f"{shown(value)} is not a number of seconds, at most a day")
    return found


def _function(provider: Document, course: _Course, tolerance: Any) -> dict[str, Any]:
    module, func = provider.text("module", needed=True), provider.text("func", needed=True)
    raise _NoEqualError(f"{module}.{func}: {_PACKAGES.get(module.partition('.')[0], _NO_PYTHON)}")


def _http(provider: Document, course: _Course, tolerance: Any) -> dict[str, Any]:
    into, method = course.variables.into, provider.text("method", "GET").upper()
    url, given = str(into(provider.text("url", needed=True))), into(provider.value("arguments"))
    if left := _VARIABLE.search(url):
        raise provider.wrong("url", f"neither configuration nor secrets has {left[0]}")
    if method not in {"GET", "HEAD", "POST", "PUT"}:
        raise _NoEqualError(f"an http probe cannot send {method}, which changes the service")
    headers = provider.part("headers")
    sent = {name: course.variables.header(headers.text(name)) for name in headers.written()}
    spec: dict[str, Any] = {"kind": "http", "url": url, "method": method, "redirects": 5, "headers": sent}
    if given and method == "GET":
        spec["url"] = f"{url}{'&' if '?' in url else '?'}{urlencode(given, doseq=True)}"
    elif given and sent.get("Content-Type") != "application/json":
        raise _NoEqualError(f"its arguments are not JSON; write the `body` of the {method}")
    elif given:
        spec["body"] = json.dumps(given)
    if provider.value("verify_tls") is False:
        spec["tls"] = {"verify": False}
    provider.lose("each measurement is one request", "max_retries")
    more = {} if tolerance is None else _of_answer(tolerance)
    if more and "status" not in more:
        course.reading.lose(f"{provider.at}: it accepts any status; here a good answer also needs 200 to 299")
    return {key: value for key, value in {**spec, **more}.items() if value not in ({}, "GET")}


def _of_answer(tolerance: Any) -> dict[str, Any]:
    """The parameters of an http probe that judge an answer. Raises _NoEqualError."""
    statuses = tolerance if isinstance(tolerance, list) else [tolerance]
    if statuses and all(_is_whole(one) for one in statuses):
        return {"status": statuses}
    if not isinstance(tolerance, Mapping):
        raise _NoEqualError(f"an answer, which has a status, never meets the tolerance {shown(tolerance)}")
    kind, target = tolerance.get("type"), tolerance.get("target")
    if kind == "regex" and target == "body" and isinstance(tolerance.get("pattern"), str):
        return {"regex": tolerance["pattern"]}
    if kind != "jsonpath":
        raise _NoEqualError(f"no http probe can express the tolerance {shown(dict(tolerance))}")
    path = str(tolerance.get("path", "")).strip()
    in_body = path if target == "body" else path.replace(".body", "", 1) if path.startswith("$.body.") else ""
    match, expect = _PATH.fullmatch(in_body), tolerance.get("expect")
    one = expect[0] if isinstance(expect, list) and len(expect) == 1 else expect
    if not match or isinstance(one, list | Mapping) or tolerance.get("count", 1) != 1:
        raise _NoEqualError(f"{path}: an http probe reads one value in the body, at a place like $.data.items[0]")
    equals = {"equals": one if isinstance(one, str) else json.dumps(one)} if "expect" in tolerance else {}
    return {"json": ".".join(re.findall(r"[\w-]+", match[1])), **equals}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _command(provider: Document, course: _Course, tolerance: Any) -> dict[str, Any]:
    given = course.variables.into(provider.value("arguments"))
    command = _words(provider, given)
    if isinstance(given, str):  # Chaos Toolkit passes it to a shell
        command = ["sh", "-c", f"{command[0]} {given}"]
    code = tolerance[0] if isinstance(tolerance, list) and len(tolerance) == 1 else tolerance
    if code is not None and not _is_whole(code):
        raise _NoEqualError(f"a command probe expects an exit code, not {shown(tolerance)}")
    return {"kind": "command", "command": command, **({"exit_code": code} if code else {})}
