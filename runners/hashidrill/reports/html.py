"""The report of a run: one HTML file that holds everything, asks the network for nothing, and stays under 2 MB.

A policy inside the page allows this page's own script and style by their hashes and nothing else, so that even markup
that got past the escaping could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hashidrill.core.util.files import write_whole
from hashidrill.reports import sections
from hashidrill.reports.attached import attached_datacenter
from hashidrill.reports.figures import experiment_title
from hashidrill.reports.markup import Html, data_script, el, joined, raw_script, raw_style
from hashidrill.reports.rehearsal import followed
from hashidrill.reports.timeline import timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hashidrill.core.judging.verdict import RunVerdict
    from hashidrill.core.recording.reader import Recording

REPORT_NAME = "report.html"


def write_html(recording: Recording, verdict: RunVerdict, into: Path) -> Path:
    """Write the report to `into` (a directory gets `report.html`) and return the file's path.

    Raises RecordingError when the recording cannot be read.
    """
    path = into / REPORT_NAME if into.is_dir() else into
    write_whole(path, str(render_html(recording, verdict)))
    return path


def render_html(recording: Recording, verdict: RunVerdict) -> Html:
    """The whole page."""
    title = f"{verdict.verdict}: {experiment_title(recording)}"
    return page(title, _sections(recording, verdict), timeline(recording))


def page(title: str, content: Sequence[Html], timeline_data: Any = None) -> Html:
    """A whole page. With `timeline_data`, its script draws the timeline."""
    css, javascript = _asset("report.css"), _asset("report.js")
    policy = f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(javascript)}'; img-src data:"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        raw_style(css),
    )
    drawn = [] if timeline_data is None else [data_script("timeline-data", timeline_data), raw_script(javascript)]
    body = el("body", el("main", *content), *drawn)
    return joined([Html("<!doctype html>\n"), el("html", head, "\n", body, lang="en"), "\n"])


def _sections(recording: Recording, verdict: RunVerdict) -> list[Html]:
    attached, rehearsed = attached_datacenter(recording), followed(recording)
    return [
        sections.banner(recording, verdict),
        sections.expectations(verdict),
        *([rehearsed] if rehearsed is not None else []),
        sections.figures(recording),
        sections.timeline_frame(),
        sections.fault_proofs(recording),
        *([attached] if attached is not None else []),
        sections.how_to_reproduce(recording),
        sections.versions_and_machine(recording),
        sections.configuration(recording),
    ]


def _asset(name: str) -> str:
    return files("hashidrill.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
