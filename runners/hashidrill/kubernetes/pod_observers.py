"""Proves the effect of an external fault by the agent's own API and the kubelet's report.

If an agent is silent, the cause may be this machine's network. So another agent of that product, if there is one, must
answer at the same time.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Protocol

import anyio

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import Evidence, Host, Hosts, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi, ApiAnswer, PodSeen, PodStatus
from hashidrill.core.units import Bandwidth
from hashidrill.core.util.wait import pause
from hashidrill.staging.attach.product import attachables

ANSWERS_S = 1.0
"""An agent answers if its reply comes within this time."""
TRIALS = 9
_GIVES_UP_S = 5.0
_SUCCESS = 200
_MEBIBYTE = 1 << 20
_TELLS_WITHIN_S = 2.0
"""How far off the time in an answer may be: it is in whole seconds, and the answer takes up to a second."""
LEAST_SKEW_S = 5.0
LEAST_MEMORY = 64 << 20
"""In bytes: an agent's memory changes by less than a quarter of this within seconds."""
OF_AGENT = "the agent's own API, called from this machine, while another agent answers"
OF_API = "the agent's own API, called from this machine"
OF_KUBELET = "the kubelet's report on the pod, read from the API server"
SHARED = "the API server, which also holds the object of the fault"


class Effect(Protocol):
    """The effect of a fault as an outside observer sees it."""

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """The state before the fault, for `look`. Raises FaultError if the effect could not be seen."""

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence: ...


async def answered_s(host: Host, agent: str, within_s: float) -> float | None:
    """The seconds until the agent's API answered with any status; None if it did not answer `within_s`."""
    began_s = anyio.current_time()
    try:
        path = attachables([agent])[agent].health
        await host.use(AgentApi).api("GET", path, agent=agent, timeout_s=within_s)
    except FaultError:
        return None
    return anyio.current_time() - began_s


async def another_answers(hosts: Hosts, undo: Undo) -> str:
    """The host of another agent of that product that answers: "" if none answers, `-` if there is no other agent."""
    agent = undo["agent"]
    others = [host for host in hosts.all_hosts() if host.name != undo["host"] and agent in host.roles]
    for host in others:
        if host.can(AgentApi) and await answered_s(host, agent, ANSWERS_S) is not None:
            return host.name
    return "" if others else "-"


@dataclass(frozen=True)
class Silent:
    """The agent does not answer: it is stopped, gone, or cut off from this machine."""

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        await _must_answer(hosts.host(target.host), target.agent)
        return {}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        host, agent = hosts.host(undo["host"]), undo["agent"]
        took = [await answered_s(host, agent, ANSWERS_S) for _ in range(2 if present else 1)]
        answers = any(one is not None for one in took)
        if not present:
            return Evidence(answers, f"{agent} answers", f"{agent} {'answers' if answers else 'does not answer'}")
        other = "" if answers else await another_answers(hosts, undo)
        measured = f"{agent} {'answers' if answers else 'does not answer'}"
        if not answers:
            measured += {"": ", and neither does any other", "-": ", and there is no other to ask"}.get(
                other, f", and the one on {other} does"
            )
        return Evidence(not answers and bool(other), f"{agent} does not answer, and another one does", measured)


@dataclass(frozen=True)
class Slow:
    """Each answer of the agent takes at least `by_s` longer."""

    by_s: float
    of: ClassVar[str] = "answer"

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if an answer takes over half of the delay before the fault: the delay would not show."""
        took = await self._times(hosts.host(target.host), target.agent)
        if not took or max(took) > self.by_s / 2:
            slowest = f"{max(took) * 1000:.0f}ms" if took else "no answer"
            raise FaultError(
                f"{target.agent} on {target.host} takes {slowest} for one {self.of} before the fault: a delay of"
                f" {self.by_s * 1000:.0f}ms would not show; use a delay of more than twice that time"
            )
        return {"typical_s": statistics.median(took)}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        took = await self._times(hosts.host(undo["host"]), undo["agent"])
        typical_s = float(undo.get("prior", {}).get("typical_s", 0.0))
        asked = (
            f"each {self.of} of {undo['agent']} takes {self.by_s * 1000:.0f}ms {'more' if present else 'less again'}"
        )
        if len(took) < TRIALS:
            return Evidence(False, asked, f"{TRIALS - len(took)} of {TRIALS} requests got no answer")
        quickest, slowest = min(took), max(took)
        ok = quickest >= typical_s + 0.9 * self.by_s if present else slowest < typical_s + self.by_s / 2
        measured = f"{quickest * 1000:.0f} to {slowest * 1000:.0f}ms, {typical_s * 1000:.0f}ms before"
        figures = {"quickest_s": quickest, "slowest_s": slowest, "asked_s": self.by_s, "own_s": typical_s}
        return Evidence(ok, asked, measured, figures)

    async def _times(self, host: Host, agent: str) -> Sequence[float]:
        within_s = _GIVES_UP_S + 3 * self.by_s
        took = [await self._took_s(host, agent, within_s) for _ in range(TRIALS)]
        return [one for one in took if one is not None]

    async def _took_s(self, host: Host, agent: str, within_s: float) -> float | None:
        return await answered_s(host, agent, within_s)


@dataclass(frozen=True)
class SlowWrites(Slow):
    """Each write through the agent takes at least `by_s` longer, because the leader waits for its own disk first."""

    of: ClassVar[str] = "write"

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        if not attachables([target.agent])[target.agent].writes_nothing:
            raise FaultError(f"{target.agent}: it has no known write that changes nothing: a delay would not show")
        return await super().before(hosts, target)

    async def _took_s(self, host: Host, agent: str, within_s: float) -> float | None:
        path, began_s = attachables([agent])[agent].writes_nothing, anyio.current_time()
        try:
            answer = await host.use(AgentApi).api("DELETE", path, agent=agent, timeout_s=within_s)
        except FaultError:
            return None
        return anyio.current_time() - began_s if answer.status == _SUCCESS else None


@dataclass(frozen=True)
class Skewed:
    """The agent's clock is wrong by `by_s` more than before, as the Date header of its answers shows."""

    by_s: float

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        skew_s, why = await self._skew(hosts.host(target.host), target.agent)
        if skew_s is None:
            raise FaultError(f"{target.agent} on {target.host}: {why}: a wrong clock would not show")
        return {"skew_s": skew_s}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        skew_s, why = await self._skew(hosts.host(undo["host"]), undo["agent"])
        before_s = float(undo.get("prior", {}).get("skew_s", 0.0))
        asked = f"its clock is {self.by_s if present else 0:+g}s from what it was"
        if skew_s is None:
            return Evidence(False, asked, why)
        moved_s = skew_s - before_s
        ok = abs(moved_s - (self.by_s if present else 0.0)) <= _TELLS_WITHIN_S
        return Evidence(ok, asked, f"{moved_s:+.1f}s", {"moved_s": moved_s, "asked_s": self.by_s})

    async def _skew(self, host: Host, agent: str) -> tuple[float | None, str]:
        """How far its clock is ahead of ours (s), to a second plus the answer's time; or why that is unknown."""
        began = time.time()
        try:
            path = attachables([agent])[agent].health
            answer = await host.use(AgentApi).api("GET", path, agent=agent, timeout_s=ANSWERS_S)
            said = parsedate_to_datetime(answer.headers["date"]).timestamp()
        except FaultError as error:
            return None, str(error)
        except (KeyError, ValueError):
            return None, "its answers have no Date header"
        return said + 0.5 - (began + time.time()) / 2, ""


@dataclass(frozen=True)
class Replaced:
    """A new pod of the same name replaced the pod; afterwards the new pod is ready."""

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        pod = await ready_pod(hosts.host(target.host))
        if pod.owner != "StatefulSet":
            raise FaultError(
                f"the pod {pod.name} belongs to {f'a {pod.owner}' if pod.owner else 'no controller'}: only a"
                " StatefulSet brings a pod back under its name, which proves its return"
            )
        return {"uid": pod.uid}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        pod, before = await _pod_now(hosts, undo), undo.get("prior", {}).get("uid", "")
        other = pod is None or pod.uid != before
        if present:
            measured = "there is no such pod" if pod is None else f"the pod has the uid {pod.uid}"
            return Evidence(other, f"the pod {before} is gone", measured)
        ready = pod is not None and pod.ready
        return Evidence(ready, "the pod is ready", "there is no such pod" if pod is None else _shown(pod))


@dataclass(frozen=True)
class Restarted:
    """The container restarted; afterwards its pod is ready."""

    container: str

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        pod = await ready_pod(hosts.host(target.host))
        if self.container not in pod.containers:
            there = ", ".join(pod.containers) or "none"
            raise FaultError(f"the pod {pod.name} has no container {self.container}; it has: {there}")
        return {"uid": pod.uid, "restarts": pod.containers[self.container]}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        pod, before = await _pod_now(hosts, undo), undo.get("prior", {})
        if not present:
            ready = pod is not None and pod.ready
            return Evidence(ready, "the pod is ready", "there is no such pod" if pod is None else _shown(pod))
        asked = f"the container {self.container} restarted in the same pod"
        if pod is None or pod.uid != before.get("uid"):
            return Evidence(False, asked, "the pod is another one")
        now = pod.containers.get(self.container, 0)
        return Evidence(
            now > int(before.get("restarts", now)), asked, f"{now} restarts, {before.get('restarts')} before"
        )


@dataclass(frozen=True)
class Failed:
    """The kubelet reports the pod as not ready, and the agent does not answer."""

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        pod = await ready_pod(hosts.host(target.host))
        return {**await Silent().before(hosts, target), "uid": pod.uid}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        pod, agent = await _pod_now(hosts, undo), await Silent().look(hosts, undo, present=present)
        told = "there is no such pod" if pod is None else _shown(pod)
        there = pod is not None and pod.uid == undo.get("prior", {}).get("uid", "")
        ready = pod is not None and pod.ready
        asked = f"the pod is {'not ' if present else ''}ready, and {agent.asked}"
        ok = agent.ok and (there and not ready if present else ready)
        return Evidence(ok, asked, f"{told}; {agent.measured}")


async def ready_pod(host: Host) -> PodSeen:
    """Raises FaultError if no pod is ready, because the fault would change nothing."""
    pod = await host.use(PodStatus).pod()
    if pod is None:
        raise FaultError(f"{host.name}: its pod is gone")
    if not pod.ready:
        raise FaultError(f"the pod {pod.name} is not ready before the fault; find out why")
    return pod


async def _pod_now(hosts: Hosts, undo: Undo) -> PodSeen | None:
    return await hosts.host(undo["host"]).use(PodStatus).pod()


async def _must_answer(host: Host, agent: str) -> None:
    try:
        await host.use(AgentApi).api("GET", attachables([agent])[agent].health, agent=agent, timeout_s=ANSWERS_S)
    except FaultError as error:
        raise FaultError(
            f"{agent} on {host.name} does not answer even before the fault, so its silence would not show: {error}"
        ) from None


def _shown(pod: PodSeen) -> str:
    restarts = ", ".join(f"{name} {count}" for name, count in pod.containers.items())
    return f"the pod is {'ready' if pod.ready else 'not ready'} (restarts: {restarts or 'none'})"


_WATCHED_S, _TIMES = 2.0, 5
_TRANSFERS = 3
_LEAST, _MOST = 0.7, 4.0
"""The measured time as a share of the time at `rate`: the agent sends to others meanwhile, too."""
OF_CGROUP = "the files of its cgroup, read inside of the container through the API server"


@dataclass(frozen=True)
class Uses:
    """The container uses that much more CPU or memory than before: half proves it; under a quarter proves it gone."""

    container: str
    cores: float = 0.0
    size: float = 0.0
    """In bytes. Either `cores` or `size` is 0."""

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if the container already uses as much CPU as would prove the fault."""
        cores, size = await self._now(hosts, target.host)
        if self.cores and cores > self.cores / 2:
            raise FaultError(
                f"the container {self.container} on {target.host} uses {cores:.2f} cores before the fault:"
                f" {self.cores:g} more would not show; use more than twice its own cores"
            )
        return {"cores": cores, "bytes": size}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        what = f"{self.cores:g} cores" if self.cores else f"{self.size / _MEBIBYTE:.0f} MiB"
        asked = f"the container {self.container} uses {what if present else 'no'} more than before"
        try:
            cores, size = await self._now(hosts, undo["host"])
        except FaultError as error:
            return Evidence(False, asked, str(error))
        prior = undo.get("prior", {})
        if self.cores:
            own, now, wanted, measured = float(prior.get("cores", 0)), cores, self.cores, f"{cores:.2f} cores"
            measured += f", {own:.2f} before"
        else:
            own, now, wanted = float(prior.get("bytes", 0)), size, self.size
            measured = f"{size / _MEBIBYTE:.0f} MiB, {own / _MEBIBYTE:.0f} before"
        more = now - own
        ok = more >= wanted / 2 if present else more < wanted / 4
        return Evidence(ok, asked, measured, {"more": more, "asked": wanted})

    async def _now(self, hosts: Hosts, host: str) -> tuple[float, float]:
        """(cores, most bytes) over two seconds."""
        pod, began_s = hosts.host(host).use(PodStatus), anyio.current_time()
        first = last = await pod.used(self.container)
        most, first_s = first.memory_bytes, (began_s + anyio.current_time()) / 2
        last_s = first_s
        for _ in range(_TIMES if self.size else 1):
            await pause(_WATCHED_S / (_TIMES if self.size else 1))
            began_s = anyio.current_time()
            last = await pod.used(self.container)
            last_s = (began_s + anyio.current_time()) / 2
            most = max(most, last.memory_bytes)
        return (last.cpu_s - first.cpu_s) / (last_s - first_s), float(most)


@dataclass(frozen=True)
class NarrowAnswers:
    """The agent sends its answers at `rate` bytes per second, after a burst of `burst` bytes."""

    rate: float
    burst: int

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if the answers take half a second before the fault."""
        if not attachables([target.agent])[target.agent].large:
            raise FaultError(f"{target.agent}: hashidrill knows no large answer of it: a narrow link would not show")
        took_s, sent = await self._sent(hosts.host(target.host), target.agent)
        if took_s > 0.5:
            raise FaultError(
                f"{target.agent} on {target.host} takes {took_s:.1f}s for {sent} bytes before the fault:"
                f" {Bandwidth(self.rate)} would not show"
            )
        return {"typical_s": took_s}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        asked = f"{undo['agent']} sends {'at' if present else 'faster than'} {Bandwidth(self.rate)}"
        try:
            took_s, sent = await self._sent(hosts.host(undo["host"]), undo["agent"])
        except FaultError as error:
            return Evidence(False, asked, str(error))
        wanted_s = (sent - self.burst) / self.rate
        ok = _LEAST * wanted_s <= took_s <= _MOST * wanted_s if present else took_s < 0.5 * wanted_s
        rate = Bandwidth(round(sent / took_s))
        figures = {"asked_bytes_per_s": self.rate, "measured_bytes_per_s": float(rate)}
        return Evidence(ok, asked, f"{sent} bytes in {took_s:.2f}s: {rate}", figures)

    async def _sent(self, host: Host, agent: str) -> tuple[float, int]:
        """(seconds, bytes) of answers, one after the other, that take a second at `rate`. Raises FaultError.

        The quickest of up to three transfers, because a busy machine slows some; one clearly unlimited is enough.
        """
        quickest = await self._transfer(host, agent)
        for _ in range(_TRANSFERS - 1):
            if quickest[0] < 0.5 * (quickest[1] - self.burst) / self.rate:
                break
            quickest = min(quickest, await self._transfer(host, agent))
        return quickest

    async def _transfer(self, host: Host, agent: str) -> tuple[float, int]:
        path, began_s, sent = attachables([agent])[agent].large, anyio.current_time(), 0
        while sent < self.rate + self.burst:
            answer = await host.use(AgentApi).api(
                "GET", path, agent=agent, headers={"accept-encoding": "identity"}, timeout_s=_GIVES_UP_S
            )
            if answer.status != _SUCCESS or not answer.body:
                raise FaultError(f"{host.name}: GET {path} answers HTTP {answer.status} of {len(answer.body)} bytes")
            sent += len(answer.body)
        return anyio.current_time() - began_s, sent


OF_ANSWERS = "the agent's own answers to this machine"
_TRIALS = 3


@dataclass(frozen=True)
class Changed:
    """Each answer has something that no answer had before."""

    what: str
    """Such as `the status 503`."""
    has: Callable[[ApiAnswer], bool]

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if an answer already has it, or if there is no answer."""
        if self.has(await _asked(hosts, target.host, target.agent)):
            raise FaultError(
                f"{target.agent} on {target.host} already answers with {self.what}: the fault would not show"
            )
        return {}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        asked = f"{'each' if present else 'no'} answer has {self.what}"
        having = 0
        for _ in range(_TRIALS):
            try:
                having += self.has(await _asked(hosts, undo["host"], undo["agent"]))
            except FaultError as error:
                return Evidence(False, asked, str(error))
        measured = f"{having} of {_TRIALS} answers have it"
        return Evidence(having == (_TRIALS if present else 0), asked, measured, {"having": having, "asked": _TRIALS})


async def _asked(hosts: Hosts, host: str, agent: str) -> ApiAnswer:
    path = attachables([agent])[agent].health
    return await hosts.host(host).use(AgentApi).api("GET", path, agent=agent, timeout_s=ANSWERS_S)
