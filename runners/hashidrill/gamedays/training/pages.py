"""The score card and the debrief, as Markdown, as HTML and for a terminal."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from hashidrill.core.util.files import write_whole
from hashidrill.gamedays.training.card import NOT_COUNTED, Card, Line, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARKDOWN_NAME, HTML_NAME = "card.md", "card.html"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;"
    "background:#fff}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #bbb;padding:.3rem .5rem;text-align:left;"
    "vertical-align:top;overflow-wrap:anywhere}tr.truth td{background:#fff1d6}tr.expert td{background:#e7f0ff}"
)
_SECTIONS = (("What it was", "exact"), ("What repairs it", "repair"), ("Why it looked like that", "debrief"))
_WHO = {"trainee": "you", "truth": "truth", "expert": "an expert could see", "trainer": "the trainer"}


def write_pages(card: Card, folder: Path) -> None:
    """card.md and card.html. Raises OSError."""
    write_whole(folder / MARKDOWN_NAME, markdown(card))
    write_whole(folder / HTML_NAME, html_page(card))


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
    times = [
        ("pager", card.paged_s),
        ("detected", card.detected_s),
        ("diagnosed", card.diagnosed_s),
        ("users back", card.mitigated_s),
    ]
    yield f"  after the fault: {', '.join(f'{what} {seconds(value_s)}' for what, value_s in times)}"
    if card.truth.get("runbook"):
        yield f"  runbook         {card.truth['runbook']}"


def markdown(card: Card) -> str:
    """The whole debrief."""
    who = f"{_plain(card.trainee)}, scenario `{card.scenario}`, level {card.level}, seed {card.seed}."
    lines = [f"# {_plain(card.title)}: {headline(card)}", "", who, ""]
    lines += [f"- {_plain(reason)}" for reason in card.reasons]
    lines += ["", "| | points | |", "| --- | --- | --- |"]
    lines += [f"| {each.title} | {_score(each)} | {_plain(each.why)} |" for each in card.lines]
    if card.harm:
        lines += ["", "## Harm", "", *(f"- {_plain(harm.text)}" for harm in card.harm)]
    for heading, key in _SECTIONS:
        lines += ["", f"## {heading}", "", _plain(card.truth[key])]
    if card.truth.get("runbook"):
        lines += ["", f"Runbook: {card.truth['runbook']}"]
    lines += ["", "## The game, second by second", "", "| after the fault | who | what |", "| --- | --- | --- |"]
    lines += [f"| {seconds_of(row)} | {_WHO[row['who']]} | {_plain(words_of(row))} |" for row in card.timeline]
    return "\n".join(lines) + "\n"


def html_page(card: Card) -> str:
    """The same as one file without anything from elsewhere."""
    e = html.escape
    rows = "".join(
        f"<tr><td>{e(x.title)}<td>{x.points}{f' of {x.of}' if x.of else ''}<td>{e(x.why)}" for x in card.lines
    )
    reasons = "".join(f"<li>{e(reason)}" for reason in card.reasons)
    harm = "".join(f"<li>{e(each.text)}" for each in card.harm)
    line = "".join(
        f"<tr class={row['who']}><td>{e(seconds_of(row))}<td>{e(_WHO[row['who']])}<td>{e(words_of(row))}"
        for row in card.timeline
    )
    runbook = f"<p>Runbook: {e(card.truth['runbook'])}</p>" if card.truth.get("runbook") else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{e(card.title)}: {e(headline(card))}</title><style>{_STYLE}</style>"
        f"<h1>{e(card.title)}: {e(headline(card))}</h1><p>{e(card.trainee)}, scenario {e(card.scenario)}, level"
        f" {card.level}, seed {card.seed}</p><ul>{reasons}</ul><table>{rows}</table>"
        f"{f'<h2>Harm</h2><ul>{harm}</ul>' if harm else ''}<h2>What it was</h2><p>{e(card.truth['exact'])}</p>"
        f"<h2>What repairs it</h2><p>{e(card.truth['repair'])}</p><h2>Why it looked like that</h2>"
        f"<p>{e(card.truth['debrief'])}</p>{runbook}<h2>The game, second by second</h2>"
        f"<table><tr><th>after the fault<th>who<th>what{line}</table></html>\n"
    )


def _score(line: Line) -> str:
    return f"{line.points} of {line.of}" if line.of else str(line.points)


def seconds_of(row: dict[str, object]) -> str:
    """`+12.5s`, counted from the fault."""
    return f"{float(str(row['at_s'])):+.1f}s"


def words_of(row: dict[str, object]) -> str:
    """`diagnosis: the leader's disk`, and `consul-1$ consul info` for what was typed."""
    if row["what"] == "typed":
        return f"{row['host']}$ {row['text']}"
    where = f" on {row['host']}" if row["host"] else ""
    return f"{row['what']}{where}: {row['text']}" if row["text"] else f"{row['what']}{where}"


def _plain(text: object) -> str:
    """One line of Markdown that formats nothing: what a trainee typed may hold anything."""
    one = " ".join(str(text).split())
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in one)
