"""The keeper of a game and the game's page (hashidrill.gamedays.warroom). Only the trainer's page shows the secrets.

Everyone else sees the output of `hashidrill say users`, and the state of the game. Only `--serve` serves the page.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hashidrill.core.errors import UsageError
from hashidrill.core.judging.judge import write_verdict
from hashidrill.core.protocols.events import Bus, Event, Note, Phase, Steady, Tick
from hashidrill.core.recording.journal import Entry
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.files import private_folder, write_whole
from hashidrill.core.util.processes import python_path
from hashidrill.core.util.safe_json import parse
from hashidrill.gamedays.training.campaign import remember_result
from hashidrill.gamedays.training.card import card_of, drawn_of, headline, write_pages
from hashidrill.gamedays.training.course import Course, chosen, course_of
from hashidrill.gamedays.training.game_log import OVER, OVERRULED, Desk
from hashidrill.gamedays.training.games import CARD_NAME, DOOR, HOSTS_NAME, CpuUse, Game, remember
from hashidrill.gamedays.training.scenario import read_scenario
from hashidrill.gamedays.training.seal import Key
from hashidrill.gamedays.training.sealed_recording import SealedRecording
from hashidrill.lab.runs.launch import Engine, prepare, record
from hashidrill.lab.sandbox.rpc import Server
from hashidrill.lab.sandbox.sandbox import Sandbox, sandbox
from hashidrill.reports.write import judged

if TYPE_CHECKING:
    from hashidrill.core.protocols.events import Judged
    from hashidrill.gamedays.training.card import Card
    from hashidrill.gamedays.warroom.room import Room


TRAINER = "for the trainer"
_ON_CALL = {"load", "steady", "method"}
"""Phases that look alike to the on-call engineer, who must not learn when the method, and so the fault, begins."""
_TOLD_TO_ALL = {
    "detected": "says: I see that something is wrong",
    "done": "says: users are back",
    "give-up": "gives the game up",
    "hint": "buys a hint",
    "ready": "has looked around, and is ready",
}


@dataclass
class Onlookers:
    """What is shown of a game. Its methods may be called in any thread; they never wait for a browser or raise."""

    room: Room | None = None
    _state: str = ""
    """quiet, paged or watched: the game's state, shown instead of the run's phase."""

    def begins(self, course: Course) -> None:
        """The game can be stopped from now on."""
        if self.room is not None:
            self.room.begins(f"{course.name}, seed {course.choice.seed}: {course.truth.title}")
        for what, text in (("is hidden", course.truth.diagnosis.exact), ("repairs it", course.truth.repair)):
            self._note(TRAINER, f"what {what}: {text.replace('${host}', 'the host of the fault')}")

    def _note(self, who: str, text: str, *, watchers: bool = False) -> None:
        if self.room is not None:
            self.room.note(who, text, watchers=watchers)

    def event(self, event: Event) -> None:
        """An event of the run."""
        if self.room is not None and (shown := self._shown(event)) is not None:
            self.room.tell(shown)

    def stands(self, state: str, t_ns: int) -> None:
        """The game is quiet, paged or watched from now on."""
        self._state = state
        if self.room is not None:
            self.room.tell(Phase(phase=state, t_ns=t_ns))

    def pager(self, text: str, hosts: Sequence[str]) -> None:
        """The pager went off; the hosts of the hidden fault are known by now."""
        self._note("pager", text, watchers=True)
        self._note(TRAINER, f"the hidden fault is in force on {', '.join(hosts) or 'no host'}")

    def said(self, who: str, what: str, words: str, answer: str, *, right: bool) -> None:
        """The trainee said something. Only the trainer sees words, hints, and whether a diagnosis is right."""
        if what in _TOLD_TO_ALL:
            self._note(who, _TOLD_TO_ALL[what], watchers=True)
        if what == "hint":
            self._note(who, f"got the hint: {answer}")
        elif what == "diagnosis":
            self._note(who, "says a diagnosis", watchers=True)
            self._note(who, f"diagnosis, {'right' if right else 'not right'}: {words}")

    def overruled(self, text: str) -> None:
        """The trainer decided about a diagnosis."""
        self._note(TRAINER, text)

    def did(self, who: str, what: str, host: str, text: str) -> None:
        """A command line of a shell (`typed`), or a change of an agent (`acted`): `restart consul`."""
        self._note(who, f"{host}$ {text}" if what == "typed" else f"agent on {host}: {text}")

    def over(self, card: Card, verdict: Judged) -> None:
        """The game was judged."""
        if self.room is not None:
            self.room.tell(verdict)
        self._note("score card", f"{card.trainee}: {headline(card)}", watchers=True)
        for text in (*card.reasons, *(harm.text for harm in card.harm)):
            self._note("score card", text)

    def _shown(self, event: Event) -> Event | None:
        """Removes times that reveal the hidden fault's start or planned end."""
        match event:
            case Phase():
                return None if event.phase in _ON_CALL else replace(event, ends_ns=None)
            case Tick():
                phase = (self._state or "ready") if event.phase in _ON_CALL else event.phase
                return replace(event, phase=phase, phase_ends_ns=None)
            case Steady() if event.held:
                return Note(t_ns=event.t_ns, text=f"the steady state held ({event.evidence})")
            case _:
                return event


@contextlib.contextmanager
def page_of(
    asked: Mapping[str, Any] | None, trainee: str, say: Callable[[Mapping[str, Any]], None]
) -> Iterator[Onlookers]:
    """Serves a page during the block if `asked` requests it, on its `port`; its `to` receives the trainer's address.

    `say` receives the watchers' address, and `to`. Raises UsageError before anything is served.
    """
    if asked is None:
        yield Onlookers()
        return
    from hashidrill.gamedays.warroom.serving import serve  # noqa: PLC0415 - a web server, which most games go without

    to = Path(asked["to"])
    with _for_trainer(to) as out, serve(int(asked["port"])) as room:
        out.write(f"page for the trainer of {trainee}   {room.lead_url}\r\n" if out.isatty() else f"{room.lead_url}\n")
        out.flush()
        say({"page": room.watch_url, "trainer": str(to)})
        yield Onlookers(room)


@contextlib.contextmanager
def _for_trainer(to: Path) -> Iterator[IO[str]]:
    """Opens a terminal, or a new private file that is removed with the page. Raises UsageError."""
    refused = f"{to}: the address of the trainer's page cannot be written here"
    how = "name a new file, or the trainer's terminal (`tty` prints its name)"
    try:
        terminal = to.exists() and stat.S_ISCHR(to.stat().st_mode)
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_NOCTTY if terminal else os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        descriptor = os.open(to, flags, 0o600)
    except OSError as error:
        raise UsageError(f"{refused}: {error.strerror}; {how}") from None
    with os.fdopen(descriptor, "w", newline="") as out:
        if terminal and not out.isatty():
            raise UsageError(f"{refused}: it is not a terminal; {how}")
        try:
            yield out
        finally:
            if not terminal:
                to.unlink(missing_ok=True)


DONE, READY = "done", "ready"
"""The files that the engine waits for."""


def play(request: Mapping[str, Any], sealed: Path) -> None:
    """Plays the whole game; the folder `sealed` holds its secrets. Raises HashidrillError."""
    written = read_scenario(Path(request["scenario"]))
    course = course_of(written, chosen(written, int(request["seed"])))
    with page_of(request.get("serve"), request["trainee"], _say) as onlookers:
        Keeper(course, request, sealed, onlookers).play()


def _say(answer: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # no reader is left: the game continues
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


@dataclass
class Keeper:
    """One game, from its start to its score card."""

    course: Course
    request: Mapping[str, Any]
    sealed: Path
    onlookers: Onlookers = field(default_factory=Onlookers)
    desk: Desk = field(init=False)
    bus: Bus = field(init=False)
    """The bus of the run's events."""
    _key: Key = field(default_factory=Key, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _origin_ns: int = 0
    _root: Path | None = None
    _state_file: Path | None = None
    _timers: list[threading.Timer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desk = Desk(self.course, busy=CpuUse().warning)
        self.bus = Bus(self._event, self.onlookers.event)

    def play(self) -> None:
        """Plays the whole game. Raises HashidrillError if it could not begin."""
        found = prepare(self.course.resolved, lambda text: _say({"said": text}))
        private_folder(Path(self.request["out"]))
        engine = Engine(
            "hashidrill.gamedays.training.in_sandbox",
            self._starting,
            {"PYTHONPATH": python_path()},
            given={
                "done": str(self.sealed / DONE),
                "ready": str(self.sealed / READY),
                "quiet_s": self.course.quiet_s,
                "act_s": self.course.act_s,
                "sealed_for": self._key.public.hex(),
            },
            info={"undos": str(self.sealed / "undos")},
        )
        try:
            recording = record(
                self.course.resolved, engine, runs_dir=self.sealed / "runs", events=self.bus, found=found
            )
        except KeyboardInterrupt as stopped:
            recording = Path(stopped.args[0])
            self.desk.failed = "the game was interrupted"
        finally:
            for timer in self._timers:
                timer.cancel()
        self._judge(recording)

    @contextlib.contextmanager
    def _starting(self, command: Any, environment: Any, log: Path, *, given: Mapping[str, Any]) -> Iterator[Sandbox]:
        self._origin_ns = int(given["origin_ns"])
        opened: AbstractContextManager[Sandbox] = sandbox(command, environment, log, given=given)
        recording = SealedRecording(Path(given["recording"]), self._key)
        recording.hold()
        try:
            with self._served(opened) as box:
                yield box
        finally:
            recording.open(self._entries())

    @contextlib.contextmanager
    def _served(self, opened: AbstractContextManager[Sandbox]) -> Iterator[Sandbox]:
        with opened as box:
            self._root = box.root
            server = Server(str(box.root / DOOR), self.answer)
            threading.Thread(target=server.serve_forever, name="door", daemon=True).start()
            own = sc.process_state(os.getpid())
            game = Game(
                trainee=self.request["trainee"],
                scenario=self.course.name,
                pid=os.getpid(),
                start_time=own[1] if own else 0,
                root=str(box.root),
                out=self.request["out"],
            )
            self._state_file = remember(game)
            self.onlookers.begins(self.course)
            _say({"game": True})
            try:
                yield box
            finally:
                server.shutdown()
                server.server_close()

    def _entries(self) -> list[Entry]:
        """The keeper's own entries for the journal: the trainer's decisions."""
        with self._lock:
            decided = [entry for entry in self.desk.timeline if entry.what == OVERRULED]
        wall = time.time() - self._now_ns() / 1e9
        kept = [{"what": each.what, "text": each.text, "right": each.right} for each in decided]
        return [
            Entry(each.t_ns, wall + each.t_ns / 1e9, "attended.did", data)
            for each, data in zip(decided, kept, strict=True)
        ]

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    # the engine's side

    def _event(self, event: Event) -> None:
        now_ns = self._now_ns()
        with self._lock:
            before = self.desk.state
            due_s = self.desk.event(event, now_ns)
            state = self.desk.state
        if state != before:
            self.onlookers.stands(state, now_ns)
        if due_s is not None:
            self._later(due_s, self._page)

    def _page(self) -> None:
        now_ns = self._now_ns()
        with self._lock:
            self.desk.page(now_ns)
            state, went, hosts = self.desk.state, self.desk.page_ns == now_ns, list(self.desk.hosts)
        self._later(self.course.limit_s, self._limit)
        if went:
            self.onlookers.stands(state, now_ns)
            self.onlookers.pager(self.course.pager.text, hosts)

    def _limit(self) -> None:
        with self._lock:
            ends = self.desk.limit(self._now_ns())
        if ends:
            self._done()

    def _later(self, in_s: float, then: Callable[[], None]) -> None:
        timer = threading.Timer(in_s, then)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _done(self) -> None:
        write_whole(self.sealed / DONE, "")
        self.onlookers.stands(self.desk.state, self._now_ns())

    # the trainee's side

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers a request on the game's socket, from `hashidrill say` or a shell of the game."""
        asked = request.get("op")
        if asked == "state":
            self._learn_hosts()
            with self._lock:
                return self.desk.shown(self._now_ns())
        if asked == "say":
            return self._answer(str(request["what"]), str(request.get("words", "")))
        if asked == "overrule":  # the shells of the game only pass on statements
            return self._overrule(str(request["why"])[:2000], right=request["right"] is True)
        if asked == "cancel":  # as above
            return self._cancel()
        if asked in {"typed", "acted"}:
            at_ns = round(float(request["wall"]) * 1e9) - time.time_ns() + self._now_ns()
            with self._lock:
                note = self.desk.typed if asked == "typed" else self.desk.acted
                note(at_ns, str(request["host"]), str(request["text"])[:2000])
            self.onlookers.did(self.request["trainee"], asked, str(request["host"]), str(request["text"])[:2000])
            return {}
        return {"error": f"unknown request {asked!r}"}

    def _answer(self, what: str, words: str) -> dict[str, Any]:
        with self._lock:
            counted = len(self.desk.timeline)
            text, ends = self.desk.say(what, words, self._now_ns())
            noted = len(self.desk.timeline) > counted
            right = what == "diagnosis" and self.desk.judged(words).right
        if noted:
            self.onlookers.said(self.request["trainee"], what, words, text, right=right)
        if noted and what == "ready":
            write_whole(self.sealed / READY, "")
        if ends:
            self._done()
        return {"text": text, "ends": ends}

    def _overrule(self, why: str, *, right: bool) -> dict[str, Any]:
        try:
            with self._lock:
                text = self.desk.overrule(self._now_ns(), why, right=right)
        except UsageError as refused:
            return {"error": str(refused)}
        self.onlookers.overruled(text)
        return {"text": text}

    def _cancel(self) -> dict[str, Any]:
        try:
            with self._lock:
                text = self.desk.cancel(self._now_ns())
        except UsageError as refused:
            return {"error": str(refused)}
        self.onlookers.overruled(text)
        self._done()
        return {"text": text}

    def _learn_hosts(self) -> None:
        if self.desk.addresses or self._root is None:
            return
        with contextlib.suppress(OSError, ValueError):
            hosts = parse((self._root / HOSTS_NAME).read_bytes())["hosts"]
            self.desk.addresses = {name: host["address"] for name, host in hosts.items()}

    # the end

    def _judge(self, path: Path) -> None:
        recording = Recording(path)
        verdict = write_verdict(recording, near_to=Path.cwd())
        self.desk.addresses = self.desk.addresses or {
            host["name"]: host["address"] for host in recording.run.get("hosts", [])
        }
        card = card_of(self.course, self.desk, recording, verdict, trainee=self.request["trainee"])
        self.desk.state = OVER
        self.onlookers.over(card, judged(recording, verdict, None))
        out = Path(self.request["out"])
        shutil.copytree(path, out / "recording", dirs_exist_ok=True)
        write_whole(out / "timeline.json", json.dumps(self.desk.kept(), indent=2) + "\n")
        write_pages(card, out, drawn_of(card, self.desk, recording))
        write_whole(out / CARD_NAME, json.dumps(card.data(), indent=2) + "\n")
        remember_result(card)
        if self._state_file is not None:
            self._state_file.unlink(missing_ok=True)
        _say({"card": str(out / CARD_NAME)})
