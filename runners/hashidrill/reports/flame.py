"""Flame graphs of a run's Go profiles, and the differences between a sick and a healthy one.

Plain SVG without a script. Its widths are shares of the page's width, and a name is cut where its box ends, so that the
graph can be read on a phone as well. The root is at the top.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import HypothesisInvalidError
from hashidrill.core.recording.profiles import (
    HEALTHY,
    KINDS,
    Profile,
    Taken,
    amount,
    compared,
    grown,
    missed,
    profile_of,
    short_name,
    taken,
)
from hashidrill.core.units import counted
from hashidrill.reports.document import Html, el, joined, section, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hashidrill.core.recording.reader import Recording

MOST_BOXES, MOST_DEPTH = 900, 60
NARROWEST, LABELLED, ON_PHONES = 0.003, 0.02, 0.08
"""Shares of the graph's width: a narrower box cannot be seen, has no room for a name, or has none on a phone."""
ROW = 17
MOST_GREW, MOST_LISTED, MOST_COMPARED = 14, 100, 40
_TITLES = {"cpu": "CPU", "goroutine": "Goroutines", "mutex": "Mutexes", "block": "Blocking"}
_USUALLY_EMPTY = ("mutex", "block")
"""Consul, Nomad and Vault never switch these profiles on."""
_STEPS = (0.005, 0.03, 0.1)
"""Changes, as shares of the whole sick profile, from which a box has the next stronger colour."""


@dataclass
class _Box:
    sick: float = 0.0
    healthy: float = 0.0
    below: dict[str, _Box] = field(default_factory=dict)


def profiles_section(recording: Recording) -> Html | None:
    """The report's section about profiles; None if the run took none."""
    every, lacking = taken(recording), missed(recording)
    if not every:
        return None
    graphs, unread = _graphs(recording, [one for one in every if one.why != HEALTHY])
    listed = [
        (one.host, one.agent, one.kind, f"{one.began_ns / 1e9:.1f} s", one.why, el("code", one.file))
        for one in every[:MOST_LISTED]
    ]
    folded = el(
        "details",
        el("summary", f"{counted(len(every), 'profile')} in the recording"),
        el("p", "Open one with `go tool pprof`, or all with `hashidrill convert export speedscope`.", class_="note"),
        table(("host", "agent", "kind", "taken at", "why", "file"), listed),
        el("ul", [el("li", text) for text in [*unread, *lacking][:MOST_LISTED]]) if unread or lacking else None,
    )
    healthy = None if graphs else el("p", "No promise was broken, so only the steady state was profiled.")
    return section("Profiles", healthy, *graphs, folded)


def _graphs(recording: Recording, sick: Sequence[Taken]) -> tuple[list[Html], list[str]]:
    """For each kind, the profile that grew most, with its healthy one; and why others could not be compared."""
    best: dict[str, tuple[float, Taken, Profile, Profile]] = {}
    unread = []
    # the first and the last sets: reading all of a long run would take as long as the rest of its report
    few = sick if len(sick) <= MOST_COMPARED else [*sick[: MOST_COMPARED // 2], *sick[-MOST_COMPARED // 2 :]]
    for one in few:
        try:
            profiles = compared(recording, one)
        except HypothesisInvalidError as error:
            if one.kind not in _USUALLY_EMPTY:
                unread.append(str(error))
            continue
        grew = profiles[0].total - profiles[1].total
        if one.kind in KINDS and (one.kind not in best or grew > best[one.kind][0]):
            best[one.kind] = grew, one, *profiles
    return [_graph(*best[kind][1:]) for kind in KINDS if kind in best], unread


def _graph(one: Taken, sick: Profile, healthy: Profile) -> Html:
    unit = sick.unit
    rows = [
        (
            el("code", short_name(each.function)),
            amount(each.grew, unit, sign=True),
            amount(each.sick, unit),
            amount(each.healthy, unit),
            amount(each.grew_self, unit, sign=True),
        )
        for each in grown(sick, healthy, MOST_GREW)
    ]
    said = f"{one.agent} on {one.host}, {one.began_ns / 1e9:.1f} s into the run: {one.why}."
    note = (
        f"{amount(sick.total, unit)} here, {amount(healthy.total, unit)} in the steady state. The width of a box is"
        " its share of this profile; red boxes grew since the steady state, blue ones shrank. A box is called by the"
        " one above it."
    )
    return joined(
        [
            el("h3", _TITLES[one.kind]),
            el("p", said),
            flame_graph(sick, healthy),
            el("p", note, class_="note"),
            el("p", "What grew most:") if rows else el("p", "Nothing in this profile grew."),
            table(("function", "grew by", "sick", "healthy", "by itself"), rows, numbers_from=1) if rows else None,
        ]
    )


def flame_graph(sick: Profile, healthy: Profile) -> Html:
    """An SVG of the sick profile, coloured by its difference from the healthy one."""
    root = _Box()
    for side, profile in (("sick", sick), ("healthy", healthy)):
        for stack, weight in profile.weights.items():
            box = root
            setattr(box, side, getattr(box, side) + weight)
            for name in stack[:MOST_DEPTH]:
                box = box.below.setdefault(name, _Box())
                setattr(box, side, getattr(box, side) + weight)
    graph = _Graph(sick.unit, root.sick or 1.0)
    deepest = graph.draw("all", root, 0.0, 0)
    title = f"flame graph: {amount(root.sick, sick.unit)}"
    return el(
        "svg", graph.boxes, class_="flame", width="100%", height=str((deepest + 1) * ROW), role="img", aria_label=title
    )


class _Graph:
    """The visible boxes of one graph."""

    def __init__(self, unit: str, whole: float) -> None:
        self._unit, self._whole = unit, whole
        self.boxes: list[Html] = []

    def draw(self, name: str, box: _Box, at: float, row: int) -> int:
        """Draws a box and those below it, the widest first. Returns the last row."""
        wide = box.sick / self._whole
        if wide < NARROWEST or len(self.boxes) >= MOST_BOXES:
            return row - 1
        self.boxes.append(self._drawn(name, box, at, row))
        deepest = row
        for below, part in sorted(box.below.items(), key=lambda each: -each[1].sick):
            deepest = max(deepest, self.draw(below, part, at, row + 1))
            at += part.sick / self._whole
        return deepest

    def _drawn(self, name: str, box: _Box, at: float, row: int) -> Html:
        wide, change = box.sick / self._whole, (box.sick - box.healthy) / self._whole
        tone = sum(abs(change) >= step for step in _STEPS)
        sick, healthy = amount(box.sick, self._unit), amount(box.healthy, self._unit)
        return el(
            "svg",
            el("title", f"{name}: {sick}, {wide:.1%} of all; {healthy} in the steady state"),
            el("rect", width="100%", height=str(ROW - 1)),
            el("text", short_name(name), x="3", y="12", class_="fine" if wide < ON_PHONES else None)
            if wide > LABELLED
            else None,
            class_=f"{'grew' if change > 0 else 'shrank'}-{tone}" if tone else "same",
            x=f"{at:.3%}",
            y=str(row * ROW),
            width=f"{wide:.3%}",
            height=str(ROW),
        )


def speedscope(recording: Recording) -> tuple[dict[str, Any], list[str]]:
    """All profiles of a recording in one file for https://www.speedscope.app, and why some are left out."""
    frames: dict[str, int] = {}
    profiles, lost = [], []
    for one in taken(recording):
        try:
            read = profile_of(recording, one)
        except HypothesisInvalidError as error:
            if one.kind not in _USUALLY_EMPTY:
                lost.append(str(error))
            continue
        profiles.append(_sampled(f"{one} ({one.why})", read, frames))
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "hashidrill",
        "name": recording.path.name,
        "shared": {"frames": [{"name": name} for name in frames]},
        "profiles": profiles,
    }
    return document, [*lost, *missed(recording)]


def _sampled(name: str, profile: Profile, frames: dict[str, int]) -> Mapping[str, Any]:
    weights = [values[-1] for values in profile.stacks.values()]
    unit = profile.types[-1][1]
    return {
        "type": "sampled",
        "name": name,
        "unit": unit if unit == "nanoseconds" else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [[frames.setdefault(each, len(frames)) for each in stack] for stack in profile.stacks],
        "weights": weights,
    }
