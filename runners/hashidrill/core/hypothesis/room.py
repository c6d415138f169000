"""Refuses an experiment that leaves a hypothesis less time than it allows: such a run could never say FAIL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hashidrill.core.units import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hashidrill.core.hypothesis.marked import Never

Since = Literal["end", "start"]


def room(
    key: str = "within", *, since: Since = "end", until: Literal["loads", "fault"] = "loads", window: bool = True
) -> Never:
    """For `@hypothesis(never=room())`: the parameter `key` is a time that must be over before the loads stop.

    It counts from the end of the last step that `fault` names (all faults, where it names none), or from the start of
    the first one; a parameter `since` of the hypothesis decides, if it has one. A parameter `window` is measured after
    it, so it takes that much more, unless `window=False`. With `until="fault"` the longest such step itself must last
    for it.
    """

    def never(params: Any, draft: Any) -> Iterator[tuple[str, str]]:
        wanted = getattr(params, key)
        spans = _spans(draft)
        named = _spans(draft, getattr(params, "fault", None))
        recovery = draft.durations.get(("recovery", "for"))
        if wanted is None or not named or not spans or recovery is None:
            return
        wanted = float(wanted) + (float(getattr(params, "window", 0.0)) if window else 0.0)
        if until == "fault":
            lasts = max(end - start for start, end in named)
            if lasts < wanted:
                yield key, f"the fault lasts {Duration(lasts)}, less than {Duration(wanted)}; make its `for` longer"
            return
        ends = getattr(params, "since", since) == "end"
        began = max(end for _, end in named) if ends else min(start for start, _ in named)
        left = max(end for _, end in spans) + recovery - began
        if left < wanted:
            edge = "end" if ends else "start"
            text = f"the loads stop {Duration(left)} after the {edge} of the fault, before {Duration(wanted)} are over"
            yield key, f"{text}; make `recovery` longer"

    return never


def _spans(draft: Any, name: str | None = "") -> list[tuple[float, float]]:
    """When the faults begin and end of that name or kind, or the marks of that name; None: all faults, "": all steps.

    Empty where one of them could not be read.
    """
    steps = [((each.kind, each.name), each.at, each.for_) for each in draft.steps if each is not None]
    marks = [((each.name,), each.at, each.for_) for each in draft.marks.values()]
    picked = steps if name is None else [each for each in (*steps, *marks) if not name or name in each[0]]
    known = [(float(at), float(at + lasts)) for _, at, lasts in picked if at is not None and lasts is not None]
    whole = len(steps) + len(marks) == len(draft.steps)
    return known if whole and len(known) == len(picked) else []
