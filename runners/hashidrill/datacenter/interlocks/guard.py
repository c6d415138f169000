"""All interlocks of one run together: what they read beforehand, and what they hold while the run goes on.

`check` only reads, in this order, and the first reason refuses: production, arming, stop button, lock, blast radius,
rights. `held` checks again, because minutes may have passed, and then takes the lock: nothing of a run is written
before that. In the end the lock is released, and the audit lines are all that is left.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from hashidrill.datacenter.interlocks import arming, blast_radius, lock, production, stop
from hashidrill.datacenter.interlocks.audit import Audit, Post
from hashidrill.datacenter.interlocks.blast_radius import Disturbed, Group, Limits, Window, groups_of
from hashidrill.datacenter.interlocks.kv import Calls, Kv
from hashidrill.datacenter.interlocks.production import DenyList, Named
from hashidrill.datacenter.interlocks.settings import InterlockSettings
from hashidrill.errors import FaultError, InterlockError, RevertError
from hashidrill.rights import Right
from hashidrill.util.redaction import Redactor
from hashidrill.util.tasks import beside
from hashidrill.util.wait import pause

if TYPE_CHECKING:
    from hashidrill.datacenter.interlocks.lock import Lock
    from hashidrill.service import Calls as ProductCalls

CONSUL = "consul"
AUDIT_NAME = "audit.jsonl"
_WRITTEN_WITHIN_S = 5.0
_MOVED_WITHIN_S = 60.0
"""How long a fault that follows a role may take to leave the host where it was."""
_LOOK_EVERY_S = 0.1

Lacking = Callable[["ProductCalls", Iterable[Right]], Awaitable[Sequence[Right]]]
Down = Callable[[], Awaitable[frozenset[str]]]
"""The hosts of servers that do not answer now."""


@dataclass(frozen=True)
class Subject:
    """One run as interlocks judge it."""

    datacenter: str
    """The name in the attach file: what is armed."""
    attach_file: str
    experiment: str
    run: str
    who: str
    names: Sequence[Named] = ()
    metas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    voters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    windows: Sequence[Window] = ()
    loads: Mapping[str, str] = field(default_factory=dict)
    """The kind of each load, by its name."""
    rights: Mapping[Right, Sequence[str]] = field(default_factory=dict)
    """What is needed, and by whom."""
    needs_s: float = 0.0
    """How long the run takes at most."""
    may_break_quorum: bool = False
    """The experiment says so."""
    breaks_quorum: bool = False
    """The command says so."""


class Guard:
    """The interlocks of one datacenter. `calls` are requests to each of its products, by name."""

    def __init__(
        self, settings: InterlockSettings, calls: Mapping[str, Calls], *, lacking: Mapping[str, Lacking],
        down: Down, now: Callable[[], dt.datetime], redactor: Redactor, folder: Path, post: Post | None = None,
    ) -> None:  # fmt: skip
        """`folder` is where a relative arming file is. Raises InterlockError without a Consul to hold on to."""
        if CONSUL not in calls:
            raise InterlockError(
                "the lock, the stop button and the audit are kept in Consul, and the attach file names none: add it"
                " under `datacenter`"
            )
        self.settings, self.consul, self.now = settings, calls[CONSUL], now
        self._calls, self._lacking, self._down = calls, lacking, down
        self._redactor, self._folder, self._post = redactor, folder, post
        self._kv = Kv(self.consul)

    async def check(self, subject: Subject) -> None:
        """Reads, and raises InterlockError for the first reason not to run."""
        names = [*subject.names, *await self._tags()]
        written = self.settings.production
        deny = DenyList.of(written.words, written.names, written.not_production)
        production.check(deny, names, subject.metas, f"{subject.attach_file}: {subject.datacenter}")
        await self._armed(subject)
        await stop.check_released(self._kv, self.settings.stop.key)
        await lock.check_free(self._kv, self.settings.lock.key)
        blast_radius.check(
            subject.windows, await self.groups(subject), breaks_quorum=_both(subject), said=_missing(subject)
        )
        await self._check_rights(subject)

    @asynccontextmanager
    async def held(
        self, subject: Subject, tell: Callable[[str], None], recording: Path | None = None
    ) -> AsyncIterator[Held]:
        """Around the whole run, whose audit lines go into `recording` too.

        Raises InterlockError where it must not be, before anything was written.
        """
        await self.check(subject)
        until = (await self._armed(subject)).until
        holder = lock.Holder(subject.who, subject.run, subject.experiment, _shown(self.now()))
        settings, written = self.settings, self.settings.audit
        tell = _clean(tell, self._redactor)
        async with lock.held(self._kv, settings.lock.key, settings.lock.ttl, holder, tell) as locked:
            audit = Audit(
                self._kv, written.prefix, subject.run, subject.experiment, subject.who, now=self.now, tell=tell,
                redactor=self._redactor, file=recording and recording / AUDIT_NAME, webhook=written.webhook,
                post=self._post,
            )  # fmt: skip
            try:
                async with beside(audit.keep):
                    await audit.prune(written.runs)
                    await _begin(audit, subject)
                    yield Held(self, subject, audit, locked=locked, until=until, tell=tell)
            finally:
                audit.note("end", subject.experiment)
                await audit.finish()

    async def armed_now(self, subject: Subject) -> str:
        """Why it is not armed any more; "" while it is. Raises SilentError where that cannot be seen."""
        where, text = await self._arming()
        try:
            found = arming.read(text, where, self.settings.arming.public_key)
            arming.check(found, replace(self._wanted(subject), needs_s=0.0), where)
        except InterlockError as error:
            return str(error)
        return ""

    async def _armed(self, subject: Subject) -> arming.Arming:
        where, text = await self._arming()
        found = arming.read(text, where, self.settings.arming.public_key)
        skew_s = float(self.settings.arming.clock_skew)
        arming.check_clocks(self.now(), self._kv.date, skew_s, "Consul")
        arming.check(found, self._wanted(subject), where)
        return found

    def _wanted(self, subject: Subject) -> arming.Wanted:
        said = self.settings.arming
        return arming.Wanted(
            subject.experiment, subject.datacenter, self.now(), subject.needs_s, float(said.longest),
            float(said.clock_skew),
        )  # fmt: skip

    async def _arming(self) -> tuple[str, str | None]:
        """(where it is, what stands there)."""
        said = self.settings.arming
        if said.file is None:
            entry = await self._kv.get(said.key)
            return f"Consul's key {said.key}", None if entry is None else entry.value
        path = self._folder / said.file
        try:
            return str(path), await anyio.Path(path).read_text(errors="replace")
        except FileNotFoundError:
            return str(path), None
        except OSError as error:
            raise InterlockError(f"not armed: {path} cannot be read: {error.strerror}") from None

    async def _tags(self) -> list[Named]:
        """The names and tags of all services that Consul lists."""
        try:
            answer = await self.consul.request("GET", "/v1/catalog/services")
            found = answer.json() if answer.status == 200 else None
        except FaultError as error:
            raise InterlockError(f"Consul did not list its services: {error}") from None
        if not isinstance(found, dict):
            raise InterlockError(f"Consul did not list its services: HTTP {answer.status}; its token may not read them")
        names = [Named("service", str(name)) for name in found]
        return [*names, *(Named("tag", str(tag)) for tags in found.values() for tag in tags or ())]

    async def groups(self, subject: Subject) -> list[Group]:
        """Who is there, and who is down now."""
        written = self.settings.blast_radius
        limits = Limits(written.servers, float(written.clients))
        return groups_of(subject.roles, subject.voters, await self._down(), limits)

    async def _check_rights(self, subject: Subject) -> None:
        missing = [
            f"{service}: {right} (for {', '.join(subject.rights[right])})"
            for service, lacking in self._lacking.items()
            if service in self._calls
            for right in await lacking(self._calls[service], subject.rights)
        ]
        if missing:
            services = " and ".join(dict.fromkeys(text.partition(":")[0] for text in missing))
            raise InterlockError(
                f"the token is too weak for {subject.experiment}; it lacks {'; '.join(missing)}; `hashidrill acl"
                f" {services.split(' ')[0]} {subject.experiment}` prints the policy"
            )


class Held:
    """Interlocks that said yes, for as long as a run goes on."""

    def __init__(
        self, guard: Guard, subject: Subject, audit: Audit, *, locked: Lock, until: dt.datetime,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._guard, self._subject, self._audit, self._lock = guard, subject, audit, locked
        self._until, self._tell = until, tell
        self._disturbed = Disturbed((), breaks_quorum=_both(subject))

    async def stopped(self) -> str:
        """Returns why the run must stop, once it must."""
        settings = self._guard.settings.stop
        within_s = float(settings.within)
        why = await stop.watch(
            Kv(self._guard.consul, within_s=within_s / 2), settings.key, within_s, self._lock,
            disarmed=lambda: self._guard.armed_now(self._subject), until=self._until, now=self._guard.now,
            tell=self._tell,
        )  # fmt: skip
        self._audit.note("stop", self._subject.experiment, note=why)
        return why

    async def mine(self) -> bool:
        """Whether the lock was never lost, and no other run holds it now. Raises FaultError: that cannot be seen."""
        if self._lock.lost.is_set():
            return False
        key = self._guard.settings.lock.key
        try:
            return not await lock.held_by_others(Kv(self._guard.consul), key, self._subject.run)
        except InterlockError as error:
            raise FaultError(str(error)) from None

    def note(self, verb: str, what: str = "", where: str = "", note: str = "") -> None:
        """An audit line. It waits for nothing and raises nothing."""
        self._audit.note(verb, what, where, note=note)

    @asynccontextmanager
    async def admits(self, acting: Any) -> AsyncIterator[None]:
        """Around one fault (hashidrill.engine.run_state.Acting). Raises InterlockError: then nothing is applied.

        It neither refuses nor delays a revert.
        """
        planned = next((one for one in self._subject.windows if one.step == acting.step), None)
        at_a_time = planned.at_a_time if planned is not None else None
        host = acting.target.host
        window = Window(acting.step, f"{acting.kind} on {host}", frozenset({host}), 0.0, acting.for_s, 1, at_a_time)
        await self._has_room(acting.fault_id, window)
        self._disturbed.begins(acting.fault_id, window)
        try:
            line = self._audit.note("apply", acting.kind, host, lasts_s=acting.for_s)
            if not await self._audit.written(line, _WRITTEN_WITHIN_S) and self._disturbed.only(acting.fault_id):
                raise InterlockError(
                    f"{window.label}: nothing was applied: Consul did not take the audit line within"
                    f" {_WRITTEN_WITHIN_S:g}s"
                )
            try:
                yield
            except RevertError as error:
                self._audit.note("stuck", acting.kind, host, note=str(error))
                raise
            self._audit.note("gone", acting.kind, host)
        finally:
            self._disturbed.ended(acting.fault_id)

    async def _has_room(self, fault_id: str, window: Window) -> None:
        """Returns once it may be applied: one that follows a role waits until it has left the host before."""
        self._disturbed.groups = await self._guard.groups(self._subject)
        with anyio.move_on_after(_MOVED_WITHIN_S):
            while self._disturbed.trouble(fault_id, window) and self._disturbed.has_step(window.step):
                await pause(_LOOK_EVERY_S)
        if trouble := self._disturbed.trouble(fault_id, window):
            raise InterlockError(
                f"{window.label}: nothing was applied: the method {trouble}; {_missing(self._subject)}"
            )


async def _begin(audit: Audit, subject: Subject) -> None:
    """Raises InterlockError where the first line cannot be written: there would be no trace of the rest."""
    line = audit.note("begin", subject.experiment, lasts_s=subject.needs_s)
    for name, kind in subject.loads.items():
        audit.note("load", kind, note=name)
    if not await audit.written(line, _WRITTEN_WITHIN_S):
        raise InterlockError(
            f"Consul did not take the first audit line within {_WRITTEN_WITHIN_S:g}s: nothing was begun"
        )


def _both(subject: Subject) -> bool:
    return subject.may_break_quorum and subject.breaks_quorum


def _missing(subject: Subject) -> str:
    """What has to be said for a broken quorum to be allowed, and was not."""
    wanted = []
    if not subject.may_break_quorum:
        wanted.append("the experiment must say `breaks_quorum: true`")
    if not subject.breaks_quorum:
        wanted.append("the command must say --breaks-quorum")
    return f"if that is what you want, {' and '.join(wanted)}" if wanted else "both allow it"


def _clean(tell: Callable[[str], None], redactor: Redactor) -> Callable[[str], None]:
    return lambda text: tell(redactor.text(text))


def _shown(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
