"""gate.json: all that a gate found, for machines. `gate.schema.json` says what is in it."""

from __future__ import annotations

import json
from typing import Any

from hashidrill import __version__
from hashidrill.core.compare.comparison import Compared
from hashidrill.rollouts.gate.result import Ran, Result
from hashidrill.rollouts.gate.verdict import Slo, figure_line

FORMAT = 1


def as_document(result: Result) -> dict[str, Any]:
    """Plain data. Of a figure, null is what was not measured, and "never" stands for infinity."""
    return {
        "format": FORMAT,
        "hashidrill": __version__,
        "verdict": result.verdict.value,
        "exit_code": result.verdict.exit_code,
        "reasons": result.reasons,
        "product": result.differences.product,
        "sides": {
            side: {"name": result.names[index], "version": result.versions[index] or None}
            for index, side in enumerate(("baseline", "candidate"))
        },
        "changes": [
            {
                "key": change.key,
                "role": change.role or None,
                "baseline": change.shown()[0],
                "candidate": change.shown()[1],
                "file": change.place.file if change.place else None,
                "line": change.place.line if change.place else None,
            }
            for change in result.differences.changes
        ],
        "left_out": [
            {"key": each.key, "why": each.why, "differs": each.differs} for each in result.differences.left_out
        ],
        "audit": [
            {
                "rule": each.rule_id,
                "severity": each.severity.word,
                "file": each.path,
                "line": each.place.line,
                "message": each.message,
                "new": each in result.audit.new,
            }
            for each in result.audit.findings
        ],
        "experiments": [_experiment(each) for each in result.ran],
        "not_run": [member.name for member in result.not_run],
        "unmapped_keys": list(result.picked.unmapped),
        "seconds": round(result.seconds, 1),
    }


def as_text(result: Result) -> str:
    return json.dumps(as_document(result), indent=2, allow_nan=False) + "\n"


def _experiment(ran: Ran) -> dict[str, Any]:
    outcome = ran.outcome
    return {
        "experiment": ran.member.name,
        "verdict": outcome.verdict.value,
        "regressions": outcome.regressions,
        "improvements": outcome.improvements,
        "unsure": [] if outcome.no_change else outcome.unsure,
        "without_effect": list(outcome.without),
        "mattering": list(ran.member.mattering),
        "expectations": [_slo(each) for each in outcome.slos],
        "figures": [_figure(each) for each in outcome.figures],
        "rounds": [
            {
                "baseline": str(each.baseline) if each.baseline else None,
                "candidate": str(each.candidate) if each.candidate else None,
                "invalid": each.invalid,
            }
            for each in ran.rounds
        ],
        "stopped": ran.stopped,
        "seconds": round(ran.seconds, 1),
    }


def _slo(slo: Slo) -> dict[str, Any]:
    sides = {side: [pair[index] for pair in slo.pairs] for index, side in enumerate(("baseline", "candidate"))}
    return {"title": slo.title, "state": slo.state.value, "held": sides, "text": slo.text}


def _figure(each: Compared) -> dict[str, Any]:
    return each.as_dict() | {"text": figure_line(each)}
