"""Reads a runbook, and reports everything that is wrong with it: file, line, what to do."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from hashidrill.core.errors import ExperimentError, UsageError
from hashidrill.core.experiment.documents import Document, wrapped
from hashidrill.core.experiment.model import NAME_PATTERN as DIAGNOSIS_PATTERN
from hashidrill.core.experiment.pydantic_messages import validated
from hashidrill.core.protocols.registry import near
from hashidrill.core.units import Duration
from hashidrill.gamedays.runbooks.model import (
    NAME_PATTERN,
    Block,
    FrontMatter,
    Kind,
    Runbook,
    check_place,
    named_in,
    parse_line,
)

Complain = Callable[[int, str], None]
MOST_BYTES = 1_000_000
MARKDOWN = ".md"
KINDS = ("observe", "decide", "act", "confirm")
SHELLS = ("sh", "bash")
_FENCE = re.compile(r"(?P<mark>```+|~~~+)\s*(?P<info>[^`]*)")
_WITHIN_S = 30.0
_FLAGS = {"observe": {"number", "fails"}, "confirm": {"throughout"}, "act": {"fails"}, "decide": set()}
_KEYS = {
    "observe": {"on", "for", "number", "timeout"},
    "confirm": {"on", "for", "within"},
    "act": {"on", "for", "timeout"},
    "decide": {"for"},
}
_BORDER = "---"


def read_runbook(path: Path) -> Runbook:
    """Reads a runbook. Raises UsageError for a missing file, and ExperimentError with the line of every mistake."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path}: not a runbook: larger than {MOST_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_runbook(path, text)


def parse_runbook(path: Path, text: str) -> Runbook:
    """Like `read_runbook`, for a text that is already read."""
    lines = text.splitlines()
    front, begin = _front(path, lines)
    wrong: list[tuple[int, str]] = []

    def complain(line: int, text: str) -> None:
        wrong.append((line, text))

    read = [_block(fenced, complain) for fenced in _fenced(lines, begin, complain)]
    blocks = [block for block in read if block is not None]
    title = next((line.removeprefix("# ").strip() for line in lines[begin:] if line.startswith("# ")), front.runbook)
    runbook = Runbook(path, front, title, tuple(blocks), text)
    if not wrong:  # an unreadable block cannot be followed either: one message for one mistake
        check(runbook, complain)
    if wrong:
        raise ExperimentError("\n".join(wrapped(f"{path}:{line}: {text}") for line, text in sorted(set(wrong))))
    return runbook


def _front(path: Path, lines: list[str]) -> tuple[FrontMatter, int]:
    """The front matter, and the line where the page begins. Raises ExperimentError."""
    if lines[:1] != [_BORDER] or _BORDER not in lines[1:]:
        raise ExperimentError(
            f"{path}:1: no front matter: a runbook that can be rehearsed begins with a line `---`, its name, pager,"
            " experiments and look_alikes, and another `---` (playbooks/reference-runbooks.md)"
        )
    end = lines.index(_BORDER, 1)
    document = Document(str(path), "\n" + "\n".join(lines[1:end]) + "\n")  # keeps the file's line numbers
    document.raise_problems()
    front = validated(document, FrontMatter)
    if path.stem != f"runbook-{front.runbook}" and path.stem.startswith("runbook-"):
        document.problem(("runbook",), f"the file is called {path.name}, so its name is {path.stem[8:]}")
    for name in front.look_alikes:
        if name in front.experiments:
            document.problem(("look_alikes", name), "it is among the experiments too: it cannot be both", key=True)
    document.raise_problems()
    return front, end + 1


@dataclass(frozen=True)
class _Fenced:
    line: int
    info: str
    text: str


def _fenced(lines: list[str], begin: int, complain: Complain) -> Iterator[_Fenced]:
    open_at, mark, info, body = 0, "", "", list[str]()
    for number, line in enumerate(lines[begin:], start=begin + 1):
        found = _FENCE.fullmatch(line.strip())
        if not open_at and found is not None:
            open_at, mark, info, body = number, found["mark"], found["info"].strip(), []
        elif open_at and line.strip() == mark:
            yield _Fenced(open_at, info, "\n".join(body))
            open_at = 0
        elif open_at:
            body.append(line)
    if open_at:
        complain(open_at, f"this block never ends: a line {mark} is missing")


def _block(fenced: _Fenced, complain: Complain) -> Block | None:
    """Reads a block; None if the follower ignores it, or if it has a mistake."""
    try:
        words = shlex.split(fenced.info)
    except ValueError as error:
        complain(fenced.line, f"the words after the ``` cannot be parsed: {error}")
        return None
    if words[:1] == ["decide"]:
        words = ["", *words]
    if len(words) < 2:
        return None
    language, kind, *rest = words
    if kind not in KINDS:
        complain(fenced.line, f"{kind!r} is not a kind of block: {near(kind, KINDS)}")
        return None
    if kind != "decide" and language not in SHELLS:
        complain(fenced.line, f"{kind}: its language is {language!r}; write ```sh {kind} ... (a shell runs it)")
        return None
    try:
        return _read(cast("Kind", kind), fenced, rest)
    except _AtError as error:
        complain(error.line, str(error))
    except ValueError as error:
        complain(fenced.line, f"{kind}: {error}")
    return None


class _AtError(ValueError):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


def _read(kind: Kind, fenced: _Fenced, words: list[str]) -> Block:
    name = words.pop(0) if kind == "observe" and words and "=" not in words[0] else ""
    given: dict[str, str] = {}
    flags: set[str] = set()
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and key in _FLAGS[kind]:
            flags.add(key)
        elif equals and key in _KEYS[kind]:
            if key in given:
                raise ValueError(f"{key}= is given twice")
            given[key] = value
        else:
            known = sorted({f"{each}=" for each in _KEYS[kind]} | _FLAGS[kind])
            raise ValueError(f"{word!r} is not valid here; use one of: {', '.join(known)}")
    if kind == "observe" and not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(
            f"an observation needs a name, not {name!r}: use lower case, digits and _, like `observe commit_ms`"
        )
    if not fenced.text.strip():
        raise ValueError("it is empty")
    lines = tuple(_decisions(fenced)) if kind == "decide" else ()
    if kind != "decide":
        check_place(given.get("on", ""))
    return Block(
        kind,
        fenced.line,
        fenced.text,
        name,
        given.get("on", ""),
        _diagnoses(given.get("for")),
        _number(given, flags),
        "fails" in flags,
        "throughout" in flags,
        _seconds(given.get("timeout") or given.get("within")),
        lines,
    )


def _decisions(fenced: _Fenced) -> Iterator[Any]:
    for number, line in enumerate(fenced.text.splitlines(), start=fenced.line + 1):
        if line.strip() and not line.strip().startswith("#"):
            try:
                yield parse_line(line, number)
            except ValueError as error:
                raise _AtError(number, f"decide: {error}") from None


def _diagnoses(text: str | None) -> tuple[str, ...]:
    found = tuple(text.split(",")) if text is not None else ()
    for each in found:
        if not re.fullmatch(DIAGNOSIS_PATTERN, each):
            raise ValueError(f"for={text}: {each!r} is not a diagnosis: use lower case, digits and hyphens")
    return found


def _number(given: dict[str, str], flags: set[str]) -> Literal["", "max", "min"]:
    if "number" not in given:
        return "max" if "number" in flags else ""
    if given["number"] not in {"max", "min"}:
        raise ValueError("number= must be max or min: which of several hosts counts")
    return "max" if given["number"] == "max" else "min"


def _seconds(text: str | None) -> float:
    if text is None:
        return _WITHIN_S
    seconds = float(Duration(text))
    if not 0 < seconds <= 600:
        raise ValueError(f"{text}: must be more than 0s and at most 10m")
    return seconds


_HIDES = re.compile(r"\|\|\s*(?:true\b|:(?:\s|$)|echo\b)|;\s*true\s*$|\bset \+e\b|\bset \+o\b", re.MULTILINE)
_HOLDS_ALWAYS = re.compile(r"\s*(?:true|:|exit 0|echo\b[^|&;]*|sleep\b[^|&;]*)\s*")


def check(runbook: Runbook, complain: Complain) -> None:
    """Reports every mistake with its line."""
    if not runbook.blocks:
        complain(1, "there is nothing to follow: mark blocks with observe, decide, act and confirm")
        return
    _names(runbook, complain)
    _check_decisions(runbook, complain)
    for block in runbook.blocks:
        if block.kind in {"act", "confirm"}:
            _doing(block, complain)
    _acting(runbook, complain)
    _promises(runbook, complain)


def _names(runbook: Runbook, complain: Complain) -> None:
    known: dict[str, Block] = {}
    for block in runbook.blocks:
        if named := named_in(block.on):
            _known(named, known, block.line, complain)
        for line in block.lines:
            for condition in line.conditions:
                for name in condition.names:
                    _known(name, known, line.line, complain)
        if block.kind == "observe":
            if block.name in known and not set(block.diagnoses) - set(known[block.name].diagnoses):
                complain(block.line, f"{block.name} is observed in line {known[block.name].line} already")
            known[block.name] = block


def _known(name: str, known: dict[str, Block], line: int, complain: Complain) -> None:
    if name not in known:
        what = near(name, known) if known else "nothing is"
        complain(line, f"{name} is not observed before this line: {what}")


def _check_decisions(runbook: Runbook, complain: Complain) -> None:
    """Reports each diagnosis that no decide block makes, and each misplaced `otherwise`."""
    made = {line.diagnosis for block in runbook.blocks for line in block.lines}
    if not made:
        complain(runbook.blocks[0].line, "nothing is ever decided: a decide block is missing")
        return
    for block in runbook.blocks:
        for each in block.diagnoses:
            if each not in made:
                complain(block.line, f"for={each}: no decide block leads to it: {near(each, made)}")
        for line in block.lines[:-1]:
            if not line.conditions:
                complain(line.line, "`otherwise` holds always: it belongs at the end of the block")
    front = runbook.front
    for what, against in [*front.experiments.items(), *front.look_alikes.items()]:
        if against.diagnosis not in made:
            complain(
                _line_of(runbook, what),
                f"{what}: no decide block leads to {against.diagnosis}: {near(against.diagnosis, made)}",
            )


def _doing(block: Block, complain: Complain) -> None:
    if not block.diagnoses:
        complain(block.line, f"{block.kind}: for which diagnosis? Write for=DIAGNOSIS")
    if _HIDES.search(block.text) and not block.fails:
        complain(block.line, f"{block.kind}: it hides a command that fails (`|| true`, `set +e`): let it fail")
    if block.kind == "confirm" and _HOLDS_ALWAYS.fullmatch(block.text):
        complain(block.line, "confirm: it always succeeds, so it confirms nothing")


def _acting(runbook: Runbook, complain: Complain) -> None:
    for line in [line for block in runbook.blocks for line in block.lines]:
        if line.diagnosis in runbook.acting and not any(one.positive for one in line.conditions):
            complain(
                line.line, f"{line.diagnosis} is acted on, but no observation supports it: compare an observed value"
            )
    for diagnosis in sorted(runbook.acting):
        acts = runbook.of("act", diagnosis)
        confirms = [block.line for block in runbook.of("confirm", diagnosis) if not block.throughout]
        if not confirms:
            complain(acts[0].line, f"act: nothing confirms that {diagnosis} is over: a confirm block is missing")
        for act in acts:
            if act.fails and confirms and max(confirms) < act.line:
                complain(act.line, "act: it may fail, and no confirm block follows it: add one")


def _promises(runbook: Runbook, complain: Complain) -> None:
    for name, against in runbook.front.look_alikes.items():
        if against.diagnosis in runbook.acting:
            what = f"{against.diagnosis} is acted on, but a look-alike must be left unchanged"
            complain(_line_of(runbook, name), f"{name}: {what}")
    for name, against in runbook.front.experiments.items():
        if against.diagnosis not in runbook.acting:
            what = f"nothing is done about {against.diagnosis}: an act block is missing"
            complain(_line_of(runbook, name), f"{name}: {what}")


def _line_of(runbook: Runbook, experiment: str) -> int:
    lines = runbook.text.splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.strip().startswith(f"{experiment}:")), 1)
