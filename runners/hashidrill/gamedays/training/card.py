"""The score card of a game: a pure function of its recording and its timeline.

| result | users back | nothing lost | quorum kept | diagnosis, and healthy agents that were stopped or restarted |
|---|---|---|---|---|
| passed | yes | yes | yes | right, and at most one |
| partly | yes | yes | yes | wrong or none, or more than one |
| failed | anything else | | | |
| not counted | the fault was not proven, or the machine was too busy to say | | | |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hashidrill.core.judging import measure
from hashidrill.core.judging.verdict import Finding, Judgement, RunVerdict
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import write_whole
from hashidrill.gamedays.training.course import Course
from hashidrill.gamedays.training.game_log import CANCELLED, OVERRULED, Desk, Entry, S
from hashidrill.gamedays.training.harm import Harm, harms
from hashidrill.gamedays.training.scenario import ANY, HOST
from hashidrill.reports.document import Badge, Bullets, Cell, Section, Table, plain, to_html, to_markdown
from hashidrill.reports.html import page, timeline_frame, verdict_banner
from hashidrill.reports.text import one_line
from hashidrill.reports.timeline import timeline as run_timeline

PASSED, PARTLY, FAILED, NOT_COUNTED = "passed", "partly", "failed", "not counted"
DETECT, DIAGNOSE, MITIGATE, NO_HARM = 10, 30, 40, 20
WRONG_PRICE, HARM_PRICE = 5, 10
MOST_HARM = 1
"""A trainee who restarts one healthy agent after the other did not know what was sick."""
_SAID_BY = {"pager": "truth", "limit": "truth", OVERRULED: "trainer", CANCELLED: "trainer"}
_IN_TIME = 1 / 3
"""Full points are given up to this share of the time, and half of them at the end of the time."""


@dataclass(frozen=True)
class Line:
    """Points for one thing, with the reason in a sentence."""

    title: str
    points: int
    of: int
    why: str


@dataclass(frozen=True)
class Card:
    """The result of a game. Times are seconds after the hidden fault came into force; None: never."""

    scenario: str
    title: str
    level: int
    seed: int
    trainee: str
    result: str
    points: int
    lines: list[Line]
    reasons: list[str]
    """Why it failed, or was not counted."""
    harm: list[Harm]
    detected_s: float | None
    diagnosed_s: float | None
    mitigated_s: float | None
    paged_s: float | None
    truth: Mapping[str, Any] = field(default_factory=dict)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    """The trainee's actions next to the truth: `at_s`, `who` (trainee, truth, expert or trainer), `what`, `text`,
    `host`.
    """

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Card:
        """Raises TypeError or KeyError if the value did not come from `data`."""
        return cls(
            **{
                **data,
                "lines": [Line(**each) for each in data["lines"]],
                "harm": [Harm(**each) for each in data["harm"]],
            }
        )


def card_of(course: Course, desk: Desk, recording: Recording, verdict: RunVerdict, *, trainee: str) -> Card:
    """Judges a game that is over."""
    entries = sorted(desk.timeline, key=lambda each: each.t_ns)
    judgements = verdict.judgements[: len(course.resolved.experiment.expect)]
    back = [judgements[number] for number in course.back]
    kept = [each for number, each in enumerate(judgements) if number not in course.back]
    end_ns = _watched_to(recording, desk)
    damage = _harm(course, desk, recording, entries, end_ns)
    reasons, result = _result(desk, verdict, back, kept, damage)
    right = _right(desk, entries)
    if result == PASSED and len(damage) > MOST_HARM:
        reasons, result = [f"you stopped or restarted {len(damage)} healthy agents"], PARTLY
    if result == PASSED and right is None:
        result = PARTLY
    wrong = [entry for entry in entries if entry.what == "diagnosis" and _is_wrong(desk, entry)]
    users_back = all(each.finding is Finding.HELD for each in back)
    not_back = "you gave up" if desk.gave_up else "" if users_back else _not_back(back)
    if result == NOT_COUNTED:
        not_back = "cannot be judged: the game is not counted"
    lines = _lines(course, desk, entries, right, wrong, damage=damage, not_back=not_back)
    points = 0 if result == NOT_COUNTED else max(0, sum(line.points for line in lines))
    return Card(
        course.name,
        course.title,
        course.level,
        course.choice.seed,
        trainee,
        result,
        points,
        lines,
        reasons,
        damage,
        _after(desk, _first(entries, "detected", "diagnosis")),
        _after(desk, right),
        _after(desk, desk.done_ns if users_back and not desk.gave_up else None),
        _after(desk, desk.page_ns),
        _truth(course, desk),
        timeline(course, desk, entries, damage),
    )


def _result(
    desk: Desk, verdict: RunVerdict, back: Sequence[Judgement], kept: Sequence[Judgement], damage: Sequence[Harm]
) -> tuple[list[str], str]:
    """Why the result is not better, and the result if the diagnosis is right. Proven failures count first."""
    broken = [each for each in [*back, *kept] if each.finding is Finding.BROKEN]
    grave = [harm.text for harm in damage if harm.grave]
    if desk.cancelled:
        return ["the trainer ended the game"], NOT_COUNTED
    if desk.page_ns is None or desk.fault_ns is None:
        return [*verdict.invalid, desk.failed][:1] or ["the hidden fault was never in force"], NOT_COUNTED
    if desk.gave_up:
        return ["you gave up"], FAILED
    if broken or grave:
        return [*(_first_line(each.text) for each in broken), *grave], FAILED
    unjudged = [each for each in [*back, *kept] if each.finding is Finding.INVALID]
    if verdict.invalid or unjudged:
        return [*verdict.invalid, *(_first_line(each.text) for each in unjudged)][:2], NOT_COUNTED
    return [], PASSED


def _lines(
    course: Course,
    desk: Desk,
    entries: Sequence[Entry],
    right: int | None,
    wrong: Sequence[Entry],
    *,
    damage: Sequence[Harm],
    not_back: str,
) -> list[Line]:
    detected, limit_s = _first(entries, "detected", "diagnosis"), course.limit_s
    lines = [
        Line("detected", _points(DETECT, desk, detected, limit_s), DETECT, _when(desk, detected, "you never said it")),
        Line("diagnosed", _points(DIAGNOSE, desk, right, limit_s), DIAGNOSE, _diagnosed(desk, entries, right)),
        Line(
            "users back",
            0 if not_back else _points(MITIGATE, desk, desk.done_ns, limit_s),
            MITIGATE,
            not_back or _when(desk, desk.done_ns, ""),
        ),
    ]
    lost = NO_HARM if any(harm.grave for harm in damage) else min(NO_HARM, HARM_PRICE * len(damage))
    lines.append(Line("no harm", NO_HARM - lost, NO_HARM, damage[0].text if damage else "none"))
    hints = [entry for entry in entries if entry.what == "hint"]
    if hints:
        lines.append(Line("hints", -sum(hint.price for hint in hints), 0, f"{len(hints)} bought"))
    if wrong:
        lines.append(Line("wrong diagnoses", -WRONG_PRICE * len(wrong), 0, f"{len(wrong)} that contradict the truth"))
    return lines


def _not_back(back: Sequence[Judgement]) -> str:
    """The users' latency after `done`, compared with its limit."""
    each = next(each for each in back if each.finding is not Finding.HELD)
    if "worst_p50_s" not in each.figures:
        return _first_line(each.text)
    worst, limit = (measure.seconds(float(str(each.figures[name]))) for name in ("worst_p50_s", "p50_below_s"))
    return f"after you were done, p50 was {worst}, but the limit is {limit}"


def _points(of: int, desk: Desk, at_ns: int | None, limit_s: float) -> int:
    if at_ns is None or desk.page_ns is None:
        return 0
    late = ((at_ns - desk.page_ns) / S / limit_s - _IN_TIME) / (1 - _IN_TIME)
    return round(of * (1 - min(1.0, max(0.0, late)) / 2))


def _when(desk: Desk, at_ns: int | None, otherwise: str) -> str:
    return otherwise if at_ns is None else f"{desk.since_page(at_ns)} after the pager"


def _last(entries: Sequence[Entry]) -> Entry | None:
    return next((entry for entry in reversed(entries) if entry.what == "diagnosis"), None)


def _right(desk: Desk, entries: Sequence[Entry]) -> int | None:
    """The time of the last diagnosis, if it is right; the trainer's ruling decides if there is one."""
    last = _last(entries)
    if last is None:
        return None
    decided = desk.decided(last)
    right = desk.judged(last.text).right if decided is None else decided.right
    return last.t_ns if right else None


def _is_wrong(desk: Desk, diagnosis: Entry) -> bool:
    decided = desk.decided(diagnosis)
    return bool(desk.judged(diagnosis.text).wrong) if decided is None else not decided.right


def _diagnosed(desk: Desk, entries: Sequence[Entry], right: int | None) -> str:
    """When the diagnosis was right, or why it was not, and whether the trainer decided."""
    last = _last(entries)
    decided = None if last is None else desk.decided(last)
    if decided is None:
        return _when(desk, right, _why_not(desk, entries))
    judged = "right" if decided.right else "wrong"
    by_words = "right" if last is not None and desk.judged(last.text).right else "not right"
    when = _when(desk, right, "not counted")
    return f"{when}: the trainer says that it is {judged} (its words were judged {by_words}): {decided.text}"


def _why_not(desk: Desk, entries: Sequence[Entry]) -> str:
    last = _last(entries)
    if last is None:
        return "you gave no diagnosis"
    said = desk.judged(last.text)
    if said.wrong:
        return f"your last diagnosis contradicts the truth: {', '.join(said.wrong)}"
    return f"your last diagnosis does not say {', nor '.join(said.short)}" if said.short else "it is a list of guesses"


def _first(entries: Sequence[Entry], *what: str) -> int | None:
    return next((entry.t_ns for entry in entries if entry.what in what), None)


def _after(desk: Desk, t_ns: int | None) -> float | None:
    return None if t_ns is None or desk.fault_ns is None else round((t_ns - desk.fault_ns) / S, 1)


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else "no reason was given"


def _watched_to(recording: Recording, desk: Desk) -> int:
    """The end of the time in which the trainee's actions count: the end of `watch`, before any fault is reverted."""
    ends = [mark.end_ns for mark in recording.marks if mark.end_ns is not None]
    return ends[-1] if ends else desk.done_ns or 0


def _harm(course: Course, desk: Desk, recording: Recording, entries: Sequence[Entry], end_ns: int) -> list[Harm]:
    if desk.page_ns is None:
        return []
    allowed = course.truth.allowed
    hosts = None if allowed == ANY else {h for each in allowed for h in (desk.hosts if each == HOST else [each])}
    return harms(recording, entries, allowed=hosts, from_ns=desk.page_ns, to_ns=end_ns)


def _truth(course: Course, desk: Desk) -> dict[str, Any]:
    host = ", ".join(desk.hosts) or "no host"
    truth = course.truth
    return {
        "name": course.choice.truth,
        "title": truth.title,
        "exact": truth.diagnosis.exact.replace("${host}", host),
        "repair": truth.repair.replace("${host}", host),
        "debrief": truth.debrief.replace("${host}", host),
        "runbook": truth.runbook,
        "hosts": list(desk.hosts),
        "choices": dict(course.choice.values),
    }


def timeline(course: Course, desk: Desk, entries: Sequence[Entry], damage: Sequence[Harm]) -> list[dict[str, Any]]:
    """The trainee's actions, the truth, and what an expert could see, with times in seconds after the fault."""
    if desk.fault_ns is None:
        return []
    host = ", ".join(desk.hosts)
    rows = [_row(desk, desk.fault_ns, "truth", "fault", course.truth.diagnosis.exact.replace("${host}", host))]
    for look in course.truth.expert:
        text = f"{look.look} shows: {look.shows}".replace("${host}", host)
        rows.append(_row(desk, desk.fault_ns + round(look.after * S), "expert", "visible", text))
    rows += [_row(desk, e.t_ns, _SAID_BY.get(e.what, "trainee"), e.what, _said(e), host=e.host) for e in entries]
    rows += [_row(desk, harm.t_ns, "truth", "harm", harm.text) for harm in damage]
    return sorted(rows, key=lambda row: row["at_s"])


def _said(entry: Entry) -> str:
    return entry.text if entry.right is None else f"{'right' if entry.right else 'wrong'}: {entry.text}"


def _row(desk: Desk, t_ns: int, who: str, what: str, text: str, *, host: str = "") -> dict[str, Any]:
    return {"at_s": _after(desk, t_ns), "who": who, "what": what, "text": text, "host": host}


MARKDOWN_NAME, HTML_NAME = "card.md", "card.html"
_WHO: dict[str, Cell] = {
    "trainee": "you",
    "truth": Badge("truth", "invalid"),
    "expert": Badge("an expert could see", "known"),
    "trainer": "the trainer",
}


_TONES = {PASSED: ("✓", "pass"), PARTLY: ("~", "known"), FAILED: ("✗", "fail"), NOT_COUNTED: ("!", "invalid")}


def write_pages(card: Card, folder: Path, drawn: Mapping[str, Any] | None = None) -> None:
    """Writes card.md and card.html; `drawn` (from `drawn_of`) is the page's timeline. Raises OSError."""
    write_whole(folder / MARKDOWN_NAME, markdown(card))
    write_whole(folder / HTML_NAME, html_page(card, drawn))


def drawn_of(card: Card, desk: Desk, recording: Recording) -> dict[str, Any]:
    """The game's run as the page draws it, with a lane of messages and commands, each drawn until the next one."""
    drawn = run_timeline(recording, reads=recording.loads)
    mine = [row for row in card.timeline if row["who"] in {"trainee", "trainer"} or row["what"] == "pager"]
    starts = [(desk.fault_ns or 0) / S + row["at_s"] for row in mine]
    segments = [
        {"start": start, "end": end, "label": one_line(_words_of(row), 120), "style": "phase"}
        for row, start, end in zip(mine, starts, [*starts, drawn["end"]][1:], strict=True)
    ]
    return drawn | {"lanes": [*drawn["lanes"], {"title": "you", "segments": segments}]}


def headline(card: Card) -> str:
    """`passed: 87 of 100 points`."""
    return card.result if card.result == NOT_COUNTED else f"{card.result}: {card.points} of 100 points"


def text_lines(card: Card) -> Iterator[str]:
    """For a terminal: the score, the truth, and what to read."""
    yield f"{card.scenario} (level {card.level}, seed {card.seed}), {card.trainee}: {headline(card)}"
    yield from (f"  because: {reason}" for reason in card.reasons)
    yield ""
    for line in card.lines:
        of = f"/{line.of}" if line.of else ""
        yield f"  {line.title:<16}{line.points:>4}{of:<4} {line.why}"
    for harm in card.harm:
        yield f"  harm: {harm.text}"
    yield ""
    yield f"  what it was     {card.truth['exact']}"
    yield f"  what repairs it {card.truth['repair']}"
    times = list[str]()
    for what, value_s in (
        ("pager", card.paged_s),
        ("detected", card.detected_s),
        ("diagnosed", card.diagnosed_s),
        ("users back", card.mitigated_s),
    ):
        times.append(f"{what} {'never' if value_s is None else measure.seconds(value_s)}")
    yield f"  after the fault: {', '.join(times)}"
    if card.truth.get("runbook"):
        yield f"  runbook         {card.truth['runbook']}"


def markdown(card: Card) -> str:
    """The whole debrief."""
    blocks = [f"# {plain(card.title)}: {headline(card)}", *to_markdown(_sections(card))]
    return "\n\n".join(blocks) + "\n"


def html_page(card: Card, drawn: Mapping[str, Any] | None = None) -> str:
    """The score card as one self-contained file."""
    symbol, tone = _TONES[card.result]
    top = verdict_banner((symbol, headline(card), tone), card.title)
    sections = [top, *([] if drawn is None else [timeline_frame()]), *to_html(_sections(card))]
    return str(page(f"{card.title}: {headline(card)}", sections, drawn))


def _sections(card: Card) -> Iterator[Section]:
    points = [
        (each.title, f"{each.points} of {each.of}" if each.of else str(each.points), each.why) for each in card.lines
    ]
    who = f"{card.trainee}, scenario {card.scenario}, level {card.level}, seed {card.seed}"
    yield Section("Score", [who, Bullets(card.reasons), Table(("", "points", ""), points)])
    yield Section("Harm", [Bullets([harm.text for harm in card.harm])])
    for heading, key in (
        ("What it was", "exact"),
        ("What repairs it", "repair"),
        ("Why it looked like that", "debrief"),
    ):
        yield Section(heading, [card.truth[key]])
    yield Section("Runbook", [card.truth.get("runbook") or ""])
    rows = [(f"{row['at_s']:+.1f}s", _WHO[row["who"]], _words_of(row)) for row in card.timeline]
    yield Section("The game, second by second", [Table(("after the fault", "who", "what"), rows)])


def _words_of(row: Mapping[str, Any]) -> str:
    """`diagnosis: the leader's disk`, or `consul-1$ consul info` for typed text."""
    if row["what"] == "typed":
        return f"{row['host']}$ {row['text']}"
    where = f" on {row['host']}" if row["host"] else ""
    return f"{row['what']}{where}: {row['text']}" if row["text"] else f"{row['what']}{where}"
