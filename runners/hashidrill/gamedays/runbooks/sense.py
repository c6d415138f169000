"""Does a runbook make sense? What is wrong with one that reads: names nobody observes, branches to nowhere, acts that
hide their failures, diagnoses that rest on nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hashidrill.core.protocols.registry import near
from hashidrill.gamedays.runbooks.model import Block, Runbook
from hashidrill.gamedays.runbooks.places import named_in

Complain = Callable[[int, str], None]
_HIDES = re.compile(r"\|\|\s*(?:true\b|:(?:\s|$)|echo\b)|;\s*true\s*$|\bset \+e\b|\bset \+o\b", re.MULTILINE)
_HOLDS_ALWAYS = re.compile(r"\s*(?:true|:|exit 0|echo\b[^|&;]*|sleep\b[^|&;]*)\s*")


def check(runbook: Runbook, complain: Complain) -> None:
    """Says everything that is wrong, with its line."""
    if not runbook.blocks:
        complain(1, "there is nothing to follow: mark blocks with observe, decide, act and confirm")
        return
    _names(runbook, complain)
    _decisions(runbook, complain)
    for block in runbook.blocks:
        if block.kind in {"act", "confirm"}:
            _doing(block, complain)
    _acting(runbook, complain)
    _promises(runbook, complain)


def _names(runbook: Runbook, complain: Complain) -> None:
    """What is used was observed before."""
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


def _decisions(runbook: Runbook, complain: Complain) -> None:
    """Every diagnosis is made somewhere, and those that must be are."""
    made = {line.diagnosis for block in runbook.blocks for line in block.lines}
    if not made:
        complain(runbook.blocks[0].line, "nothing is ever decided: a decide block is missing")
        return
    for block in runbook.blocks:
        for each in block.diagnoses:
            if each not in made:
                complain(block.line, f"for={each}: no decide block leads here: {near(each, made)}")
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
    """Every act rests on something, and something confirms it."""
    for line in [line for block in runbook.blocks for line in block.lines]:
        if line.diagnosis in runbook.acting and not any(one.positive for one in line.conditions):
            complain(
                line.line, f"{line.diagnosis} is acted on, and rests on nothing that was observed: compare something"
            )
    for diagnosis in sorted(runbook.acting):
        acts = runbook.of("act", diagnosis)
        confirms = [block.line for block in runbook.of("confirm", diagnosis) if not block.throughout]
        if not confirms:
            complain(acts[0].line, f"act: nothing confirms that {diagnosis} is over: a confirm block is missing")
        for act in acts:
            if act.fails and confirms and max(confirms) < act.line:
                complain(act.line, "act: it may fail, and nothing after it confirms anything: add a confirm block")


def _promises(runbook: Runbook, complain: Complain) -> None:
    """What the front matter says is possible."""
    for name, against in runbook.front.look_alikes.items():
        if against.diagnosis in runbook.acting:
            what = f"{against.diagnosis} is acted on, but in a look-alike nothing may be done"
            complain(_line_of(runbook, name), f"{name}: {what}")
    for name, against in runbook.front.experiments.items():
        if against.diagnosis not in runbook.acting:
            what = f"nothing is done about {against.diagnosis}: an act block is missing"
            complain(_line_of(runbook, name), f"{name}: {what}")


def _line_of(runbook: Runbook, experiment: str) -> int:
    """Where the front matter names it."""
    lines = runbook.text.splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.strip().startswith(f"{experiment}:")), 1)
