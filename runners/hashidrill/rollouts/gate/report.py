"""A gate's result in every form: JSON, JUnit and SARIF for machines; lines, Markdown and pages for people."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from hashidrill import __version__
from hashidrill.clients.audit.report import SARIF_SCHEMA, json_text, location, sarif_result, xml, xml_text
from hashidrill.clients.audit.run import RULES
from hashidrill.core.compare.comparison import Compared, difference
from hashidrill.core.compare.statistics import MOST_ROUNDS, Decision
from hashidrill.core.errors import HashidrillError, UsageError
from hashidrill.core.recording.reader import Recording
from hashidrill.core.util.files import write_whole
from hashidrill.lab.runs.rounds import AT_MOST
from hashidrill.reports.document import (
    Badge,
    Bullets,
    Cell,
    Code,
    Folded,
    Html,
    Section,
    Table,
    el,
    plain,
    to_html,
    to_markdown,
)
from hashidrill.reports.html import page, timeline_frame, verdict_banner
from hashidrill.reports.text import human_duration, printable
from hashidrill.reports.timeline import two_timelines
from hashidrill.rollouts.gate.differences import Change, LeftOut
from hashidrill.rollouts.gate.verdict import GateVerdict, PlayedRound, Ran, Result, Slo, SloState, figure_line, needed

FORMAT = 1


def as_document(result: Result) -> dict[str, Any]:
    """Plain data. In a figure, null means not measured, and "never" stands for infinity."""
    return {
        "format": FORMAT,
        "hashidrill": __version__,
        "verdict": result.verdict.value,
        "exit_code": result.verdict.exit_code,
        "reasons": result.reasons,
        "product": result.differences.product,
        "sides": {
            side: {"name": result.names[index], "version": result.versions[index] or result.version or None}
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
        "figures": [each.as_dict() | {"text": figure_line(each)} for each in outcome.figures],
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


REGRESSION, CANNOT_TELL = "gate/regression", "gate/cannot-tell"
_LONGEST = 4000
MOST_ROUNDS_ASKED = 50
"""The largest value that `--rounds` accepts."""
_SPARE = 1.1
"""The factor by which a proposed time budget exceeds the expected time, because rounds differ in length."""
_SLOW = 1.25


# JUnit


def as_junit(result: Result) -> str:
    """A regression is a failure; an undecided result is an error. A case passes only if it was measured."""
    root = Element("testsuites", name="hashidrill gate")
    whole = [_change_case(result)]
    if result.verdict is GateVerdict.CANNOT_TELL:
        untold = Element("testcase", name="verdict")
        said = ["cannot tell", *result.reasons, *advice(result)]
        SubElement(untold, "error", message=_xml("; ".join(said)))
        whole.append(untold)
    _add(root, "hashidrill gate", whole, result.seconds)
    for ran in result.ran:
        figures = ran.outcome.figures if ran.outcome.rounds else ()
        cases = [*map(_slo_case, ran.outcome.slos), *map(_figure_case, figures)]
        if ran.outcome.no_change:
            cases.append(Element("testcase", name=GateVerdict.NO_CHANGE.value))
        elif ran.outcome.doubts or not cases:
            told = Element("testcase", name="rounds")
            SubElement(told, "error", message=_xml("; ".join(ran.outcome.doubts or ran.outcome.unsure)))
            cases.append(told)
        _add(root, ran.member.name, cases, ran.seconds)
    return xml_text(root)


def _add(root: Element, name: str, cases: Sequence[Element], seconds: float) -> None:
    counted = {what: sum(case.find(what) is not None for case in cases) for what in ("failure", "error", "skipped")}
    suite = SubElement(
        root,
        "testsuite",
        name=_xml(name),
        tests=str(len(cases)),
        failures=str(counted["failure"]),
        errors=str(counted["error"]),
        skipped=str(counted["skipped"]),
        time=f"{seconds:.1f}",
    )
    for case in cases:
        case.set("classname", _xml(f"hashidrill.rollouts.gate.{name}"))
        suite.append(case)


def _change_case(result: Result) -> Element:
    case = Element("testcase", name="audit of the changed files")
    if failing := result.audit.failing:
        failure = SubElement(case, "failure", message=_xml("; ".join(f"{f.rule_id} {f.message}" for f in failing)))
        failure.text = _xml("\n".join(RULES[each.rule_id].fix for each in failing))
    nothing = "nothing that can be compared differs"
    said = [*map(str, result.differences.changes), *(line for ran in result.ran for line in ran.outcome.without)]
    SubElement(case, "system-out").text = _xml("\n".join(dict.fromkeys(said)) or nothing)
    return case


def _slo_case(slo: Slo) -> Element:
    case = Element("testcase", name=_xml(slo.title))
    held = f"held in {slo.counted(0)} rounds of the baseline and {slo.counted(1)} of the candidate"
    if slo.state is SloState.BROKEN:
        SubElement(case, "failure", message=_xml(f"broken by the candidate: {held}")).text = _xml(slo.text)
    elif slo.state is not SloState.HELD:
        SubElement(case, "error", message=_xml(f"{slo.state.value}: {held}")).text = _xml(slo.text)
    return case


def _figure_case(each: Compared) -> Element:
    case = Element("testcase", name=_xml(f"{each.figure.name} is not worse"))
    if each.decision is Decision.WORSE:
        SubElement(case, "failure", message=_xml(figure_line(each)))
    elif each.decision is Decision.CANNOT_TELL:
        kind = "error" if each.is_open else "skipped"
        SubElement(case, kind, message=_xml(f"cannot tell: {figure_line(each)}{needed(each)}"))
    SubElement(case, "system-out").text = _xml(figure_line(each))
    return case


def _xml(text: str) -> str:
    return xml(printable(text, _LONGEST))


# SARIF


def as_sarif(result: Result) -> str:
    """The audit's findings in the changed files, and each regression at the keys that may have caused it."""
    used = sorted({each.rule_id for each in result.audit.findings})
    results = [sarif_result(each, used.index(each.rule_id) + 1) for each in result.audit.findings]
    for ran in result.ran:
        if ran.outcome.verdict is GateVerdict.REGRESSION:
            results += [_regression(result, ran, line) for line in ran.outcome.regressions]
    if result.verdict is GateVerdict.CANNOT_TELL:
        results.append(_untold(result))
    run = {
        "tool": {
            "driver": {
                "name": "hashidrill gate",
                "version": __version__,
                "rules": [
                    _OWN_RULE,
                    *({"id": rule, "shortDescription": {"text": RULES[rule].what}} for rule in used),
                    _UNTOLD_RULE,
                ],
            }
        },
        "results": results,
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": result.verdict is not GateVerdict.CANNOT_TELL}],
        "properties": {"verdict": result.verdict.value, "reasons": result.reasons},
    }
    return json_text({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


_OWN_RULE = {
    "id": REGRESSION,
    "name": "GateRegression",
    "shortDescription": {"text": "With this change the datacenter does worse in an experiment than without it."},
    "fullDescription": {
        "text": "hashidrill ran the experiment with the baseline and with the candidate, in turn, under the same load."
    },
    "defaultConfiguration": {"level": "error"},
}


_UNTOLD_RULE = {
    "id": CANNOT_TELL,
    "name": "GateCannotTell",
    "shortDescription": {"text": "The gate cannot tell whether this change makes the datacenter worse."},
    "defaultConfiguration": {"level": "warning"},
}


def _untold(result: Result) -> dict[str, Any]:
    """A SARIF result at the first changed key, so that a code scan shows that nothing was proven."""
    located = [_of_change(change) for change in result.differences.changes if change.place]
    said = "; ".join(["cannot tell", *result.reasons, *advice(result)])
    found: dict[str, Any] = {"ruleId": CANNOT_TELL, "level": "warning", "message": {"text": printable(said, _LONGEST)}}
    return found | {"locations": located[:1]}


def _regression(result: Result, ran: Ran, line: str) -> dict[str, Any]:
    changes = result.blamed(ran)
    keys = "; ".join(map(str, changes)) or f"version {result.versions[0]} -> {result.versions[1]}"
    located = [_of_change(change) for change in changes if change.place]
    found: dict[str, Any] = {
        "ruleId": REGRESSION,
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": printable(f"{ran.member.name}: {line}. Changed: {keys}", _LONGEST)},
        "locations": located[:1],
    }
    return found | ({"relatedLocations": located[1:]} if located[1:] else {})


def _of_change(change: Change) -> dict[str, Any]:
    assert change.place is not None
    return location(change.place.file, change.place.line, change.place.column)


_TONES = dict(zip(GateVerdict, ("fail", "invalid", "pass", "pass", "pass"), strict=True))
SYMBOLS = {verdict: {"fail": "✗", "invalid": "?", "pass": "✓"}[tone] for verdict, tone in _TONES.items()}


# the terminal


def change_lines(result: Result) -> Iterator[str]:
    """Printed before anything runs: the keys that differ, and the keys that are left out on both sides."""
    found = result.differences
    one, other = result.names
    ran = "" if result.versions[0] != result.versions[1] else f" {result.version}"
    yield f"{found.product.capitalize()}{ran.rstrip()}: {one} against {other}"
    if result.versions[0] != result.versions[1]:
        yield f"  version: {result.versions[0]} -> {result.versions[1]}"
    for change in found.changes:
        yield f"  {change}" + (f"  ({change.place})" if change.place else "")
    yield from left_out_lines(found.left_out)
    yield from (f"{each}; so this gate can only find a regression or be undecided" for each in result.untested)
    for each in result.audit.findings:
        new = "new: " if each in result.audit.new else ""
        yield f"audit: {new}{each.path}:{each.place.line}: {each.severity.word} {each.rule_id} {each.message}"


def left_out_lines(left_out: Sequence[LeftOut]) -> Iterator[str]:
    for why, group in groupby(sorted(left_out, key=lambda each: each.why), key=lambda each: each.why):
        keys = ", ".join(f"{each.shown}{' (differs)' if each.differs else ''}" for each in group)
        yield f"left out on both sides: {keys}: {why}"


def plan_lines(result: Result) -> Iterator[str]:
    """The chosen experiments, and the reasons."""
    picked = result.picked
    for member in picked.members:
        why = f": matters for {', '.join(member.mattering)}: {member.why}" if member.mattering else ""
        yield f"runs {member.name} (about {human_duration(member.run_s)} a run){why}"
    if picked.left:
        names = ", ".join(member.name for member in picked.left)
        yield f"if time is left: {names}; a longer --time-budget is sure to run them"
    if picked.unmapped:
        yield f"no experiment is known to test {', '.join(picked.unmapped)}; --key-map can name experiments"


def verdict_lines(result: Result) -> Iterator[str]:
    """Printed at the end: the verdict, its reasons, and the measurements."""
    for ran in result.ran:
        yield f"{ran.member.name}: {ran.outcome.verdict}, {_rounds(ran)}"
        yield from (f"  {each.title}: {_slo_words(each)}" for each in ran.outcome.slos)
        figures = ran.outcome.figures if ran.outcome.rounds else ()
        yield from (f"  {figure_line(each)}: {_figure_words(each)}" for each in figures)
    if result.not_run:
        known = result.tested in {GateVerdict.REGRESSION, GateVerdict.NO_CHANGE}
        why = "the answer was known" if known else "there was no time"
        yield f"not run, {why}: {', '.join(member.name for member in result.not_run)}"
    yield f"{result.verdict.value.upper()} after {human_duration(result.seconds)}"
    yield from (f"  {line}" for line in [*result.reasons, *tested_lines(result), *advice(result)])


def _rounds(ran: Ran) -> str:
    many = ran.outcome.rounds
    text = "1 round counts" if many == 1 else f"{many} rounds count"
    if lost := len(ran.rounds) - many:
        text += f", {lost} did not"
    return f"{text} ({ran.stopped})" if ran.stopped else text


def _slo_words(slo: Slo) -> str:
    state = slo.state
    return state.value if state is SloState.HELD else f"{state.value} (held in {slo.counted(0)} and {slo.counted(1)})"


def _figure_words(each: Compared) -> str:
    return f"{each.decision.value}{needed(each) if each.decision is Decision.CANNOT_TELL else ''}"


# for people: Markdown and pages


def as_markdown(result: Result) -> str:
    """For a GitHub step summary or a comment: the verdict first, then why, then the figures."""
    verdict = result.verdict
    blocks = [
        f"### {SYMBOLS[verdict]} {verdict.value}: {plain(result.names[0])} against {plain(result.names[1])}",
        "\n".join(f"- {plain(line)}" for line in [*result.reasons, *tested_lines(result), *advice(result)]),
        *to_markdown([*(_member(ran) for ran in result.ran), _changes(result)]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def pages(result: Result) -> dict[str, Html]:
    """Maps file names to pages: `report.html` for the gate, and one page per experiment, with both sides' timeline."""
    made = {_file(ran): _experiment_page(result, ran) for ran in result.ran}
    sections = [*(_member(ran, _file(ran)) for ran in result.ran), _changes(result)]
    made["report.html"] = page(_title(result), [_banner(result), *to_html(sections)])
    return made


def _file(ran: Ran) -> str:
    return f"{ran.member.name.strip('/').replace('/', '-').removesuffix('.yaml')}.html"


def _title(result: Result) -> str:
    return f"{result.verdict.value}: {result.names[0]} against {result.names[1]}"


def _banner(result: Result) -> Html:
    verdict, what_now = result.verdict, advice(result)
    return verdict_banner(
        (SYMBOLS[verdict], verdict.value, _TONES[verdict]),
        f"{result.names[0]} against {result.names[1]}",
        el("ul", [el("li", reason) for reason in result.reasons], class_="reasons") if result.reasons else None,
        *(el("p", line) for line in tested_lines(result)),
        el("div", [el("p", line) for line in what_now], class_="next") if what_now else None,
    )


def _changes(result: Result) -> Section:
    rows: list[tuple[Cell, ...]] = [
        (Code(each.named), *map(Code, each.shown()), Code(str(each.place or ""))) for each in result.differences.changes
    ]
    if result.versions[0] != result.versions[1]:
        rows.insert(0, ("version", *map(Code, result.versions), ""))
    plan = [line for line in plan_lines(result) if not line.startswith("runs ")]
    table = Table(("key", "baseline", "candidate", "where"), rows)
    lines = [*left_out_lines(result.differences.left_out), *plan]
    return Section("What differs", [table if rows else "No key differs.", Bullets(lines)])


_OF_STATES = {SloState.HELD: "held", SloState.BROKEN: "broken"}
_OF_DECISIONS = {Decision.WORSE: "broken", Decision.BETTER: "held", Decision.NO_WORSE: "held"}


def _member(ran: Ran, file: str = "") -> Section:
    """The deciding figures come first; rows that decide nothing are folded. `file`: the linked experiment's page."""
    slos, figures = ran.outcome.slos, ran.outcome.figures if ran.outcome.rounds else ()
    open_counts = ran.outcome.verdict is not GateVerdict.REGRESSION  # open figures cannot change a regression
    decided = {Decision.WORSE, Decision.BETTER}
    deciding = [each for each in figures if (each.is_open and open_counts) or each.decision in decided]
    parts = [
        _slos([each for each in slos if each.state is not SloState.HELD]),
        _figures(deciding),
    ]
    rest = [
        _slos([each for each in slos if each.state is SloState.HELD]),
        _figures([each for each in figures if each not in deciding]),
    ]
    calm = sum(len(table.rows) for table in rest)
    return Section(
        f"{ran.member.name}: {ran.outcome.verdict}",
        [
            _rounds(ran),
            *parts,
            Folded(f"{calm} row{'' if calm == 1 else 's'} that do{'es' if calm == 1 else ''} not decide", rest),
            _PAIRED if figures else "",
            Folded("The pairs of runs by which figures are compared", [_pairs(figures)]),
            (Code("Both sides on one timeline", file),) if file else "",
        ],
    )


_PAIRED = (
    "A pair is the baseline and the candidate of one round. A difference is the geometric mean of the pairs' ratios. It"
    " may differ from the quotient of the two medians next to it, and is left out if it contradicts them. A pair's"
    " ratio is computed from its seconds, after the figure's smallest size that counts is added to both sides."
)


def _pairs(figures: Sequence[Compared]) -> Table:
    shown = [each for each in figures if each.pairs and (each.figure.decides or each.decision is Decision.WORSE)]
    rounds = sorted({pair.round for each in shown for pair in each.pairs})
    rows = [(each.figure.name, *(_pair(each, number) for number in rounds)) for each in shown]
    return Table(("figure", *(f"round {number}" for number in rounds)), rows)


def _pair(of: Compared, number: int) -> str:
    pair = next((each for each in of.pairs if each.round == number), None)
    if pair is None:
        return "not measured"
    much, _ = difference(of.figure, pair.baseline, pair.candidate, pair.ratio)
    sides = f"{of.figure.shown(pair.baseline)} -> {of.figure.shown(pair.candidate)}"
    return f"{sides}: {much}" if much else sides


def _slos(slos: Sequence[Slo]) -> Table:
    rows = [
        (
            Badge(each.state.value, _OF_STATES.get(each.state, "invalid")),
            Code(each.title),
            each.counted(0),
            each.counted(1),
            "" if each.state is SloState.HELD else each.text,
        )
        for each in slos
    ]
    return Table(("verdict", "expectation", "baseline held", "candidate held", "why"), rows)


def _figures(figures: Sequence[Compared]) -> Table:
    rows = []
    for each in figures:
        shown, (much, bounds) = each.figure.shown, each.difference
        tone = _OF_DECISIONS.get(each.decision, "invalid" if each.is_open else "known")
        rows.append(
            (
                Badge(each.decision.value, tone),
                each.figure.name,
                shown(each.baseline),
                shown(each.candidate),
                much if bounds else "",
                bounds,
                f"{each.margin:g} times",
                each.why or needed(each).removeprefix("; "),
            )
        )
    headings = ("verdict", "figure", "baseline", "candidate", "difference", "95 % sure", "allowed", "what is needed")
    return Table(headings, rows)


def tested_lines(result: Result) -> list[str]:
    """The version that both sides ran, and how to test another version."""
    product = result.differences.product
    if result.versions[0]:
        return []
    ran = {
        str(version)
        for member in result.ran
        for each in member.rounds
        if each.candidate and (version := _version_of(each.candidate, product))
    }
    if not ran:
        return []
    which = f"Both sides ran {product.capitalize()} {', '.join(sorted(ran))}, which the experiments name."
    return [f"{which} If you run another version, test that: --baseline-version VERSION"]


def _version_of(path: Path, product: str) -> object:
    try:
        versions = Recording(path).run.get("versions")
    except HashidrillError:
        return None
    return versions.get(product) if isinstance(versions, dict) else None


def advice(result: Result) -> list[str]:
    """What to do if the gate is undecided; empty otherwise."""
    if result.verdict is not GateVerdict.CANNOT_TELL:
        return []
    if result.interrupted:
        return ["Run it again: it was interrupted."]
    said = list[str]()
    outcomes = [ran.outcome for ran in result.ran]
    if result.differences.untested:
        said.append(
            "Test by hand the keys that no gate tests; --key-map FILE names experiments for keys that a gate can set."
        )
    open_ = [each for outcome in outcomes for each in outcome.figures if each.is_open]
    noisy = [each for each in open_ if not each.why and each.more_rounds >= MOST_ROUNDS]
    if noisy:
        said.append(
            f"{noisy[0].figure.name} is too noisy here: use a quieter machine (`hashidrill gate --calibrate` says which"
            f" difference it can show), or allow a larger one: --margin {noisy[0].figure.name}=PERCENT"
        )
    sick = any(slo.state is SloState.SICK for outcome in outcomes for slo in outcome.slos)
    more = [ran for ran in result.ran if ran.more_rounds]
    if sick:  # more rounds would not help
        said.append("Fix what breaks with today's configuration, or choose experiments that hold with it: --suite")
    elif more:
        said.append(_more_rounds(result, more))
    elif result.not_run and not noisy:
        said.append("Use a longer --time-budget, so that the other experiments run too.")
    if any(outcome.invalid for outcome in outcomes):
        said.append("Look at the rounds that do not count: `hashidrill check RUN` says what to fix.")
    return said


def _more_rounds(result: Result, more: Sequence[Ran]) -> str:
    """How long a round takes here, and the time and rounds that would probably decide the gate."""
    most = max(more, key=lambda ran: ran.more_rounds * _round_s(ran))
    expected_s, took_s = 2 * most.member.run_s, _round_s(most)
    total = max(len(ran.rounds) + ran.more_rounds for ran in more)
    rounds = f" --rounds {min(total, MOST_ROUNDS_ASKED)}" if total > AT_MOST or most.ended == "rounds" else ""
    # each experiment gets a share of the time in proportion to the length of its runs
    shares = {each.name: each.run_s for each in result.picked.members} or {most.member.name: 1.0}
    every = sum(shares.values())
    needed_s = max(
        result.seconds + sum(ran.more_rounds * _round_s(ran) for ran in more),
        *(
            (len(ran.rounds) + ran.more_rounds) * _round_s(ran) * every / shares.get(ran.member.name, every)
            for ran in more
        ),
    )
    budget = math.ceil(_SPARE * needed_s / 60)
    took = "takes about" if not most.rounds else "took"
    said = (
        f"One round of {most.member.name} {took} {human_duration(took_s)}, and about {most.more_rounds} more"
        f" {'is' if most.more_rounds == 1 else 'are'} needed:{rounds} --time-budget {budget}m"
    )
    quieter = f"; on a quieter machine a round takes about {human_duration(expected_s)}"
    return said + (f"{quieter}." if took_s > _SLOW * expected_s else ".")


def _round_s(ran: Ran) -> float:
    return ran.seconds / len(ran.rounds) if ran.rounds else 2 * ran.member.run_s


def _experiment_page(result: Result, ran: Ran) -> Html:
    parts = [_banner(result)]
    shown = _telling(ran.rounds)
    data = None
    if shown is not None and shown.baseline is not None and shown.candidate is not None:
        try:
            data = two_timelines({"baseline": Recording(shown.baseline), "candidate": Recording(shown.candidate)})
        except HashidrillError as error:
            parts.append(el("p", f"No timeline: {error}"))
        else:
            parts += [el("p", f"{shown.baseline.name} against {shown.candidate.name}:"), timeline_frame()]
    return page(f"{ran.member.name}: {_title(result)}", [*parts, *to_html([_member(ran)])], data)


def _telling(rounds: Sequence[PlayedRound]) -> PlayedRound | None:
    """The last round that counts; if none counts, the last one that ran on both sides."""
    whole = [each for each in rounds if each.baseline and each.candidate]
    return next((each for each in reversed(whole) if not each.invalid), whole[-1] if whole else None)


FILES = ("gate.json", "junit.xml", "gate.sarif", "summary.md", "report.html")
"""The files that are always written; each experiment that ran also gets a page."""


def write_all(result: Result, folder: Path) -> list[Path]:
    """Writes all forms of the result and returns their files. Raises UsageError if a file cannot be written."""
    texts = {
        "gate.json": as_text(result),
        "junit.xml": as_junit(result),
        "gate.sarif": as_sarif(result),
        "summary.md": as_markdown(result),
        **{name: str(page) for name, page in pages(result).items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: cannot be written: {(error.strerror or '').lower()}") from None
    return [folder / name for name in texts]


def clear(folder: Path) -> None:
    """Removes the result of an earlier gate: a gate that ends without a result must not leave an old one.

    Raises UsageError if a file cannot be removed.
    """
    try:
        if folder.is_dir():
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be cleared: {(error.strerror or '').lower()}") from None


def check_writable(folder: Path) -> None:
    """Raises UsageError before anything runs if the folder cannot be written, rather than after ten minutes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be written: {(error.strerror or '').lower()}") from None
