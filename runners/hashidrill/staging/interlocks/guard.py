"""All interlocks of one run: the checks before it, and the lock and watches during it.

`check` only reads. It checks production, arming, stop button, lock, blast radius and rights, in this order, and the
first reason to refuse ends it. `held` checks again, because minutes may have passed, and takes the lock before the
run's first write. At the end it releases the lock, and only the audit lines remain.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio

from hashidrill.core.errors import FaultError, InterlockError, RevertError
from hashidrill.core.protocols.rights import Right
from hashidrill.core.protocols.service import Calls
from hashidrill.core.recording.journal import UNSIGNED, LineKey
from hashidrill.core.recording.signed_runs import AUDIT_NAME
from hashidrill.core.util.redaction import Redactor
from hashidrill.core.util.wait import beside, pause
from hashidrill.staging.interlocks import anchor, arming, blast_radius, lock, operate, production, stop
from hashidrill.staging.interlocks.audit import Audit, Post
from hashidrill.staging.interlocks.blast_radius import Disturbed, Group, Limits, Window, groups_of
from hashidrill.staging.interlocks.kv import Entry, Kv, SilentError
from hashidrill.staging.interlocks.lock import Lock
from hashidrill.staging.interlocks.production import DenyList, Named
from hashidrill.staging.interlocks.settings import InterlockSettings

CONSUL = "consul"
_WRITTEN_WITHIN_S = 5.0
_MOVED_WITHIN_S = 60.0
"""How long a fault that follows a role may take to leave the host where it was."""
_LOOK_EVERY_S = 0.1
_SEEN_WITHIN_S = 30.0
"""How long to wait for Consul right before and after a fault that resets state: it may be electing a leader."""

Lacking = Callable[["Calls", Iterable[Right]], Awaitable[Sequence[Right]]]
Down = Callable[[], Awaitable[frozenset[str]]]
"""The hosts of servers that do not answer now."""


@dataclass(frozen=True)
class Elsewhere:
    """An agent of a product other than Consul, at an address where that Consul has no agent."""

    product: str
    host: str
    address: str


@dataclass(frozen=True)
class Subject:
    """The facts about one run that interlocks check."""

    datacenter: str
    """The name in the attach file."""
    attach_file: str
    experiment: str
    digest: str
    """The digest of its content (hashidrill.staging.attach.plan), which is armed."""
    run: str
    who: str
    names: Sequence[Named] = ()
    metas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    voters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    windows: Sequence[Window] = ()
    loads: Mapping[str, str] = field(default_factory=dict)
    """The kind of each load, by its name."""
    agents: Sequence[Elsewhere] = ()
    """The agents of other products on hosts without an agent of that Consul."""
    rights: Mapping[Right, Sequence[str]] = field(default_factory=dict)
    """The needed rights, and who needs them."""
    needs_s: float = 0.0
    """The longest time that the run may take, in seconds."""
    may_break_quorum: bool = False
    """Whether the experiment allows a broken quorum."""
    breaks_quorum: bool = False
    """Whether the command allows a broken quorum."""
    sets_clock: bool = False
    """Whether a fault sets an agent's clock: then Consul's and this machine's are compared only before the run."""


class Guard:
    """The interlocks of one datacenter. `calls` sends requests to each of its products, by name."""

    def __init__(
        self,
        settings: InterlockSettings,
        calls: Mapping[str, Calls],
        *,
        lacking: Mapping[str, Lacking],
        down: Down,
        now: Callable[[], dt.datetime],
        redactor: Redactor,
        folder: Path,
        post: Post | None = None,
    ) -> None:
        """`folder` holds a relative arming file. Raises InterlockError if there is no Consul for the lock."""
        if CONSUL not in calls:
            raise InterlockError(
                "the lock, the stop button and the audit are kept in Consul, but the attach file names no Consul:"
                " add it under `datacenter`"
            )
        self.settings, self.consul, self.now = settings, calls[CONSUL], now
        self._calls, self._lacking, self._down = calls, lacking, down
        self._redactor, self._folder, self._post = redactor, folder, post
        self._kv = Kv(self.consul)
        self._newest = 0
        self.armed = ""
        """The text of the last arming that was read."""

    async def check(self, subject: Subject) -> None:
        """Reads, and raises InterlockError for the first reason not to run."""
        names = [*subject.names, *await self._tags()]
        written = self.settings.production
        deny = DenyList.of(written.words, written.names, written.not_production)
        production.check(deny, names, subject.metas, f"{subject.attach_file}: {subject.datacenter}")
        await anchor.check(self._kv, self.settings, subject.datacenter, subject.attach_file)
        await self._check_named(subject)
        armed = (await self._armed(subject))[1]
        await stop.check_released(self._kv, self.settings.stop.key)
        await lock.check_free(self._kv, self.settings.lock.key)
        blast_radius.check(
            subject.windows,
            await self.groups(subject),
            breaks_quorum=_all(subject, armed),
            said=_missing(subject, armed),
        )
        await self._check_rights(subject)

    @asynccontextmanager
    async def held(
        self, subject: Subject, tell: Callable[[str], None], recording: Path | None = None, key: LineKey = UNSIGNED
    ) -> AsyncIterator[Held]:
        """Surrounds the whole run, whose audit lines go into `recording` too, signed with `key`.

        Raises InterlockError before any write if the run is not allowed.
        """
        await self.check(subject)
        found, armed = await self._armed(subject)
        holder = lock.Holder(subject.who, subject.run, subject.experiment, _shown(self.now()))
        settings, written = self.settings, self.settings.audit
        tell = _clean(tell, self._redactor)
        async with lock.held(self._kv, settings.lock.key, settings.lock.ttl, holder, tell) as locked:
            audit = Audit(
                self._kv,
                written.prefix,
                subject.run,
                subject.experiment,
                subject.who,
                now=self.now,
                tell=tell,
                redactor=self._redactor,
                file=recording and recording / AUDIT_NAME,
                key=key,
                webhook=written.webhook,
                post=self._post,
            )
            try:
                async with beside(audit.keep):
                    await audit.prune(written.runs)
                    await _begin(audit, subject)
                    held = Held(self, subject, audit, locked=locked, until=found.until, armed=armed, tell=tell)
                    try:
                        yield held
                    finally:
                        await held.stays_stopped()
            finally:
                audit.note("end", subject.experiment)
                await audit.finish()

    async def armed_now(self, subject: Subject, kv: Kv) -> str:
        """Why the run is no longer armed; "" while it is armed. Raises SilentError if that is unknown."""
        try:
            await self._armed(replace(subject, needs_s=0.0), kv, clocks=not subject.sets_clock)
        except SilentError:
            raise
        except InterlockError as error:
            return str(error)
        return ""

    async def _armed(
        self, subject: Subject, kv: Kv | None = None, *, clocks: bool = True
    ) -> tuple[arming.Arming, arming.Armed]:
        """The arming, and the part of it that concerns this run. Raises InterlockError."""
        kv = kv or self._kv
        where, entry = await operate.arming_in(kv, self.settings, self._folder)
        found = arming.read(None if entry is None else entry.value, where, self.settings.arming.public_key)
        if found.nonce in await operate.taken_back(kv, self.now()):
            raise InterlockError(f"not armed: the arming at {where} was revoked; arm it again")
        said = self.settings.arming
        if clocks:
            arming.check_clocks(self.now(), kv.date, float(said.clock_skew), "Consul")
        wanted = arming.Wanted(
            subject.experiment,
            subject.digest,
            subject.datacenter,
            self.now(),
            subject.needs_s,
            float(said.longest),
            float(said.clock_skew),
        )
        armed = arming.check(found, wanted, where)
        self._check_newest(entry, where)
        self.armed = entry.value if entry is not None else ""
        return found, armed

    def _check_newest(self, entry: Entry | None, where: str) -> None:
        """Raises InterlockError for an arming that was already replaced, because Consul's state was reset since."""
        if entry is None or entry.modified < self._newest:
            raise InterlockError(
                f"Consul's state was reset: the arming at {where} is older than the one seen before; arm it again"
            )
        self._newest = entry.modified

    async def _tags(self) -> list[Named]:
        found = await self._listed("services")
        names = [Named("service", str(name)) for name in found]
        return [*names, *(Named("tag", str(tag)) for tags in found.values() for tag in tags or ())]

    async def _check_named(self, subject: Subject) -> None:
        """Raises InterlockError for a Nomad or a Vault that this Consul does not list: it arms only what it lists."""
        named: dict[str, set[str]] = {}
        for product in {one.product for one in subject.agents}:
            found = [name for name in await self._listed("services") if product in name.lower()]
            instances = [one for name in found for one in await self._listed(f"service/{quote(name)}")]
            named[product] = {str(one.get(key)) for one in instances for key in ("Address", "ServiceAddress")}
        strange = [one for one in subject.agents if one.address not in named[one.product]]
        if strange:
            products = " and ".join(sorted({one.product for one in strange}))
            raise InterlockError(
                f"{', '.join(f'{one.host} ({one.address})' for one in strange)}: the Consul that arms"
                f" {subject.datacenter} does not list this {products}: it has no node at that address, and no service"
                f" `{strange[0].product}` with it; correct the address of {products} in"
                f" {subject.attach_file}, or have that Consul's operators register the service"
            )

    async def _listed(self, what: str) -> Any:
        """The contents of Consul's catalog. Raises InterlockError."""
        try:
            answer = await self.consul.request("GET", f"/v1/catalog/{what}")
            found = answer.json() if answer.status == 200 else None
        except FaultError as error:
            raise InterlockError(f"Consul did not list its services: {error}") from None
        if not isinstance(found, dict if what == "services" else list):
            raise InterlockError(f"Consul did not list its services: HTTP {answer.status}; may its token read them?")
        return found

    async def groups(self, subject: Subject) -> list[Group]:
        """The groups of agents, with those that are down now."""
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
                f"the token is too weak for {subject.experiment}; it lacks {'; '.join(missing)};"
                f" `hashidrill staging acl {services.split(' ')[0]} {subject.experiment}` prints the policy"
            )


class Held:
    """The interlocks of an admitted run, while it is in progress."""

    def __init__(
        self,
        guard: Guard,
        subject: Subject,
        audit: Audit,
        *,
        locked: Lock,
        until: dt.datetime,
        armed: arming.Armed,
        tell: Callable[[str], None],
    ) -> None:
        self._guard, self._subject, self._audit, self._lock = guard, subject, audit, locked
        self.armed = guard.armed
        self._until, self._armed, self._tell = until, armed, tell
        self._disturbed = Disturbed((), breaks_quorum=_all(subject, armed))
        self._why, self._stops, self._setting_back, self._set_back = "", anyio.Event(), 0, False

    async def stopped(self) -> str:
        """Returns why the run must stop, once it must."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            await self._stops.wait()
            group.cancel_scope.cancel()
        self._audit.note("stop", self._subject.experiment, note=self._why)
        return self._why

    async def _watch(self) -> None:
        settings = self._guard.settings.stop
        within_s = float(settings.within)
        self._stop(
            await stop.watch(
                Kv(self._guard.consul, within_s=within_s / 2),
                settings.key,
                within_s,
                self._lock,
                disarmed=self._disarmed,
                until=self._until,
                now=self._guard.now,
                tell=self._tell,
            )
        )

    async def _disarmed(self, kv: Kv) -> str:
        return await self._guard.armed_now(self._subject, kv)

    def _stop(self, why: str) -> None:
        """Remembers the reason, even if Consul forgets it."""
        self._why = self._why or why
        self._set_back = self._set_back or self._setting_back > 0
        self._stops.set()

    async def _look(self, within_s: float) -> str:
        """Why the run must stop now; retries until Consul answers. Raises SilentError after `within_s`."""
        gives_up_s = anyio.current_time() + within_s
        while True:
            try:
                return await stop.look(Kv(self._guard.consul), self._guard.settings.stop.key, self._disarmed)
            except SilentError:
                if anyio.current_time() >= gives_up_s:
                    raise
            await pause(_LOOK_EVERY_S)

    @asynccontextmanager
    async def _setting(self, label: str) -> AsyncIterator[None]:
        """Surrounds a fault that resets the shared state, and with it any stop or disarming made meanwhile.

        It looks for a stop right before the fault, and every _LOOK_EVERY_S while the fault is in force; afterwards it
        presses again every stop that it saw. `operate` repeats a stop or a disarming while a run is in progress, so a
        stop that no look saw comes back too.
        """
        if why := await self._look(_SEEN_WITHIN_S):
            self._stop(why)
            await pause(_LOOK_EVERY_S)  # the run is stopped; if not, the fault is still not applied
            raise InterlockError(f"{label}: nothing was applied: {why}")

        async def closely() -> None:
            while not self._why:
                with suppress(SilentError):
                    if why := await self._look(0.0):
                        self._stop(why)
                await pause(_LOOK_EVERY_S)

        self._setting_back += 1
        try:
            async with beside(closely):
                yield
        finally:
            self._lock.doubted.set()
            self._setting_back -= 1
            await self.stays_stopped()

    async def stays_stopped(self) -> None:
        """Presses the button again if a stop that was seen may have been reset."""
        if not self._set_back:
            return
        key, why = self._guard.settings.stop.key, f"{self._why} (reset by {self._subject.run}, and pressed again)"
        pressed = stop.Pressed(self._subject.who, _shown(self._guard.now()), why)
        with anyio.move_on_after(_SEEN_WITHIN_S, shield=True):
            try:
                again = await operate.pressed_again(Kv(self._guard.consul), key, pressed)
            except InterlockError as error:
                self._tell(f"the stop button may have been reset, and could not be pressed again: {error}; press it")
                return
            if again:
                self._audit.note("stop", self._subject.experiment, note="pressed again")
                self._tell(f"the stop button is pressed again ({key}), as it may have been reset: {self._why}")

    async def mine(self) -> bool:
        """Whether the lock was never lost, and no other run holds it now. Raises FaultError if that is unknown."""
        if self._lock.lost.is_set():
            return False
        key = self._guard.settings.lock.key
        try:
            return not await lock.held_by_others(Kv(self._guard.consul), key, self._subject.run)
        except InterlockError as error:
            raise FaultError(str(error)) from None

    def note(self, verb: str, what: str = "", where: str = "", note: str = "") -> None:
        """Adds an audit line. Neither waits nor raises."""
        self._audit.note(verb, what, where, note=note)

    @asynccontextmanager
    async def admits(self, acting: Any) -> AsyncIterator[None]:
        """Surrounds one fault (hashidrill.core.engine.run_state.Acting). Raises InterlockError if it is not allowed.

        An interlock neither refuses nor delays a revert.
        """
        planned = next((one for one in self._subject.windows if one.step == acting.step), None)
        at_a_time = planned.at_a_time if planned is not None else None
        host = acting.target.host
        window = Window(acting.step, f"{acting.kind} on {host}", frozenset({host}), 0.0, acting.for_s, 1, at_a_time)
        if sets_back := planned is not None and planned.sets_back:
            window = replace(window, hosts=planned.hosts, most=planned.most, sets_back=True)
        await self._has_room(acting.fault_id, window)
        self._disturbed.begins(acting.fault_id, window)
        try:
            line = self._audit.note("apply", acting.kind, host, lasts_s=acting.for_s)
            if not await self._audit.written(line, _WRITTEN_WITHIN_S) and self._disturbed.only(acting.fault_id):
                raise InterlockError(
                    f"{window.label}: nothing was applied: Consul did not store the audit line within"
                    f" {_WRITTEN_WITHIN_S:g}s"
                )
            try:
                async with self._setting(window.label) if sets_back else nullcontext():
                    yield
            except RevertError as error:
                self._audit.note("stuck", acting.kind, host, note=str(error))
                raise
            self._audit.note("gone", acting.kind, host)
        finally:
            self._disturbed.ended(acting.fault_id)

    async def _has_room(self, fault_id: str, window: Window) -> None:
        """Returns once the fault may be applied: one that follows a role must first have left its previous host."""
        self._disturbed.groups = await self._guard.groups(self._subject)
        with anyio.move_on_after(_MOVED_WITHIN_S):
            while self._disturbed.trouble(fault_id, window) and self._disturbed.has_step(window.step):
                await pause(_LOOK_EVERY_S)
        if trouble := self._disturbed.trouble(fault_id, window):
            raise InterlockError(
                f"{window.label}: nothing was applied: the method {trouble}; {_missing(self._subject, self._armed)}"
            )


async def _begin(audit: Audit, subject: Subject) -> None:
    """Raises InterlockError if the first line cannot be written, because the rest would leave no trace."""
    line = audit.note("begin", subject.experiment, lasts_s=subject.needs_s)
    for name, kind in subject.loads.items():
        audit.note("load", kind, note=name)
    if not await audit.written(line, _WRITTEN_WITHIN_S):
        raise InterlockError(
            f"Consul did not store the first audit line within {_WRITTEN_WITHIN_S:g}s: nothing was begun"
        )


def _all(subject: Subject, armed: arming.Armed) -> bool:
    return subject.may_break_quorum and subject.breaks_quorum and armed.breaks_quorum


def _missing(subject: Subject, armed: arming.Armed) -> str:
    wanted = []
    if not subject.may_break_quorum:
        wanted.append("the experiment must say `breaks_quorum: true`")
    if not subject.breaks_quorum:
        wanted.append("the command must say --breaks-quorum")
    if not armed.breaks_quorum:
        wanted.append("the arming must say so (`hashidrill staging arm --breaks-quorum`)")
    return f"if that is what you want, {' and '.join(wanted)}" if wanted else "all of them allow it"


def _clean(tell: Callable[[str], None], redactor: Redactor) -> Callable[[str], None]:
    return lambda text: tell(redactor.text(text))


def _shown(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
