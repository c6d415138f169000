"""A gate's result for people: lines for a terminal, Markdown for a pull request, and pages with both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from hashidrill.core.compare.comparison import Compared
from hashidrill.core.compare.statistics import Decision
from hashidrill.core.errors import HashidrillError
from hashidrill.core.recording.reader import Recording
from hashidrill.reports.html import page
from hashidrill.reports.markdown import code, plain, row_table
from hashidrill.reports.markup import Html, el
from hashidrill.reports.sections import section, timeline_frame
from hashidrill.reports.sections import table as html_table
from hashidrill.reports.text import human_duration
from hashidrill.reports.two_timelines import two_timelines
from hashidrill.rollouts.gate.differences import LeftOut
from hashidrill.rollouts.gate.result import PlayedRound, Ran, Result
from hashidrill.rollouts.gate.verdict import GateVerdict, Slo, SloState, figure_line, needed

SYMBOLS = {
    GateVerdict.REGRESSION: "✗",
    GateVerdict.CANNOT_TELL: "?",
    GateVerdict.IMPROVEMENT: "✓",
    GateVerdict.NO_REGRESSION: "✓",
    GateVerdict.NO_CHANGE: "✓",
}
_TONES = {
    GateVerdict.REGRESSION: "fail",
    GateVerdict.CANNOT_TELL: "invalid",
    GateVerdict.IMPROVEMENT: "pass",
    GateVerdict.NO_REGRESSION: "pass",
    GateVerdict.NO_CHANGE: "pass",
}
_FIGURES = ("figure", "baseline", "candidate", "difference", "95 %", "margin", "verdict")
_SLOS = ("expectation", "baseline held", "candidate held", "verdict")


# the terminal


def change_lines(result: Result) -> Iterator[str]:
    """Before anything runs: what differs, and what nobody gets."""
    found = result.differences
    one, other = result.names
    yield f"{found.product.capitalize()}: {one} against {other}"
    if result.versions[0] != result.versions[1]:
        yield f"  version: {result.versions[0]} -> {result.versions[1]}"
    for change in found.changes:
        yield f"  {change}" + (f"  ({change.place})" if change.place else "")
    yield from left_out_lines(found.left_out)
    yield from (f"{each}; so this gate finds a regression, or cannot tell" for each in result.untested)
    for each in result.audit.findings:
        new = "new: " if each in result.audit.new else ""
        yield f"audit: {new}{each.path}:{each.place.line}: {each.severity.word} {each.rule_id} {each.message}"


def left_out_lines(left_out: Sequence[LeftOut]) -> Iterator[str]:
    for why, group in groupby(sorted(left_out, key=lambda each: each.why), key=lambda each: each.why):
        keys = ", ".join(f"{each.shown}{' (differs)' if each.differs else ''}" for each in group)
        yield f"left out on both sides: {keys}: {why}"


def plan_lines(result: Result) -> Iterator[str]:
    """Which experiments run, and why those."""
    picked = result.picked
    for member in picked.members:
        why = f": matters for {', '.join(member.mattering)}: {member.why}" if member.mattering else ""
        yield f"runs {member.name} (about {human_duration(member.run_s)} a run){why}"
    if picked.left:
        names = ", ".join(member.name for member in picked.left)
        yield f"if time is left: {names}; a longer --time-budget runs them for sure"
    if picked.unmapped:
        yield f"no experiment is known to matter for {', '.join(picked.unmapped)}; --key-map can name some"


def verdict_lines(result: Result) -> Iterator[str]:
    """At the end: the verdict, its reasons, and what was measured."""
    for ran in result.ran:
        yield f"{ran.member.name}: {ran.outcome.verdict}, {_rounds(ran)}"
        yield from (f"  {each.title}: {_slo_words(each)}" for each in ran.outcome.slos)
        yield from (f"  {figure_line(each)}: {_figure_words(each)}" for each in ran.outcome.figures)
    if result.not_run:
        known = result.tested in {GateVerdict.REGRESSION, GateVerdict.NO_CHANGE}
        why = "the answer was known" if known else "there was no time"
        yield f"not run, {why}: {', '.join(member.name for member in result.not_run)}"
    yield f"{result.verdict.value.upper()} after {human_duration(result.seconds)}"
    yield from (f"  {reason}" for reason in result.reasons)


def _rounds(ran: Ran) -> str:
    many = ran.outcome.rounds
    text = f"{many} round{'' if many == 1 else 's'} count"
    if lost := len(ran.rounds) - many:
        text += f", {lost} did not"
    return f"{text} ({ran.stopped})" if ran.stopped else text


def _slo_words(slo: Slo) -> str:
    state = slo.state
    return state.value if state is SloState.HELD else f"{state.value} (held in {slo.counted(0)} and {slo.counted(1)})"


def _figure_words(each: Compared) -> str:
    return f"{each.decision.value}{needed(each) if each.decision is Decision.CANNOT_TELL else ''}"


# Markdown


def as_markdown(result: Result) -> str:
    """For a GitHub step summary or a comment: the verdict first, then why, then the figures."""
    verdict = result.verdict
    changes = [
        (code(change.named), code(change.shown()[0]), code(change.shown()[1]), code(str(change.place or "")))
        for change in result.differences.changes
    ]
    if result.versions[0] != result.versions[1]:
        changes.insert(0, ("version", code(result.versions[0]), code(result.versions[1]), ""))
    blocks = [
        f"### {SYMBOLS[verdict]} {verdict.value}: {plain(result.names[0])} against {plain(result.names[1])}",
        "\n".join(f"- {plain(reason)}" for reason in result.reasons),
        row_table(("key", "baseline", "candidate", "where"), changes),
        *(block for ran in result.ran for block in _member_markdown(ran)),
        "\n".join(f"- {plain(line)}" for line in left_out_lines(result.differences.left_out)),
        "\n".join(f"- {plain(line)}" for line in plan_lines(result) if not line.startswith("runs ")),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _member_markdown(ran: Ran) -> list[str]:
    slos = [[plain(cell) for cell in row] for row in _slo_rows(ran)]
    figures = [[plain(cell) for cell in row] for row in _figure_rows(ran)]
    return [
        f"#### {SYMBOLS[ran.outcome.verdict]} {plain(ran.member.name)}: {ran.outcome.verdict}, {plain(_rounds(ran))}",
        row_table(_SLOS, slos),
        row_table(_FIGURES, figures, numbers_from=1),
    ]


def _slo_rows(ran: Ran) -> list[tuple[str, ...]]:
    return [(slo.title, slo.counted(0), slo.counted(1), slo.state.value) for slo in ran.outcome.slos]


def _figure_rows(ran: Ran) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in ran.outcome.figures:
        shown = each.figure.shown
        much, bounds = each.difference
        rows.append(
            (
                each.figure.name,
                shown(each.baseline),
                shown(each.candidate),
                much if bounds else "",
                bounds,
                f"{each.margin:g}",
                _figure_words(each),
            )
        )
    return rows


# pages


def pages(result: Result) -> dict[str, Html]:
    """File name to page: `report.html` for the whole, and one for each experiment, with both sides on one timeline."""
    made = {_file(ran): _experiment_page(result, ran) for ran in result.ran}
    made["report.html"] = page(_title(result), [_banner(result), _changes(result), *map(_member_section, result.ran)])
    return made


def _file(ran: Ran) -> str:
    return f"{ran.member.name.strip('/').replace('/', '-').removesuffix('.yaml')}.html"


def _title(result: Result) -> str:
    return f"{result.verdict.value}: {result.names[0]} against {result.names[1]}"


def _banner(result: Result) -> Html:
    verdict = result.verdict
    return el(
        "header",
        el(
            "p", el("span", SYMBOLS[verdict], class_="symbol", aria_hidden="true"), " ", verdict.value, class_="verdict"
        ),
        el("h1", f"{result.names[0]} against {result.names[1]}"),
        el("ul", [el("li", reason) for reason in result.reasons], class_="reasons") if result.reasons else None,
        class_=f"banner {_TONES[verdict]}",
    )


def _changes(result: Result) -> Html:
    rows = [(change.named, *change.shown(), str(change.place or "")) for change in result.differences.changes]
    return section(
        "What differs",
        html_table(("key", "baseline", "candidate", "where"), rows) if rows else el("p", "No key differs."),
        *(el("p", line, class_="note") for line in left_out_lines(result.differences.left_out)),
        *(el("p", line, class_="note") for line in plan_lines(result) if not line.startswith("runs ")),
    )


def _member_section(ran: Ran, *, link: bool = True) -> Html:
    return section(
        f"{ran.member.name}: {ran.outcome.verdict}",
        el("p", _rounds(ran)),
        el("p", el("a", "Both sides on one timeline", href=_file(ran))) if link else None,
        el("ul", [el("li", slo.text) for slo in ran.outcome.slos if slo.state is SloState.BROKEN and slo.text]),
        html_table(_SLOS, _slo_rows(ran)) if ran.outcome.slos else None,
        html_table(_FIGURES, _figure_rows(ran), numbers_from=1) if ran.outcome.figures else None,
    )


def _experiment_page(result: Result, ran: Ran) -> Html:
    parts = [_banner(result), _member_section(ran, link=False)]
    shown = _telling(ran.rounds)
    data = None
    if shown is not None and shown.baseline is not None and shown.candidate is not None:
        try:
            data = two_timelines({"baseline": Recording(shown.baseline), "candidate": Recording(shown.candidate)})
        except HashidrillError as error:
            parts.append(el("p", f"No timeline: {error}"))
        else:
            parts += [el("p", f"{shown.baseline.name} against {shown.candidate.name}:"), timeline_frame()]
    return page(f"{ran.member.name}: {_title(result)}", parts, data)


def _telling(rounds: Sequence[PlayedRound]) -> PlayedRound | None:
    """The last round that counts; one that does not, where there is no other."""
    whole = [each for each in rounds if each.baseline and each.candidate]
    return next((each for each in reversed(whole) if not each.invalid), whole[-1] if whole else None)
