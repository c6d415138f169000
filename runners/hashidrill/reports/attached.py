"""What a report says of a run against a datacenter that stood already: which one, and what could not be seen of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hashidrill.reports.markup import Html, el
from hashidrill.reports.sections import definitions, section

if TYPE_CHECKING:
    from hashidrill.core.recording.reader import Recording

SEEN = (
    "It was reached by the addresses of its APIs alone: what is measured is what loads got for their requests, and "
    "what the products say of themselves. Logs, and figures of disks and processes, are not recorded. Each fault was "
    "proven through the observer that stands beside its proof."
)


def attached_to(recording: Recording) -> str:
    """The name of the datacenter that was attached; "" for one of ours."""
    return str(_said(recording).get("name") or "")


def attached_datacenter(recording: Recording) -> Html | None:
    """Its section of the report; None for a run in a datacenter of ours."""
    said = _said(recording)
    if not said:
        return None
    names = {"name": said.get("name"), "title": said.get("title"), "file": said.get("file")}
    products = {
        str(product): " ".join(filter(None, (str(_map(said, "versions").get(product) or ""), f"at {address}")))
        for product, address in _map(said, "addresses").items()
    }
    notes = [el("li", str(note)) for note in said.get("notes") or []]
    return section(
        "Attached datacenter",
        definitions([(name, str(value)) for name, value in {**names, **products}.items() if value]),
        el("p", SEEN, class_="note"),
        el("ul", *notes) if notes else None,
    )


def _said(recording: Recording) -> Mapping[str, Any]:
    said = recording.run.get("attached")
    return said if isinstance(said, Mapping) else {}


def _map(said: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = said.get(key)
    return value if isinstance(value, Mapping) else {}
