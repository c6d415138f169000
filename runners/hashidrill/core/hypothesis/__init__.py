"""Hypotheses: plain functions of a recording, found by the name that an experiment uses under `expect`.

    from hashidrill.core.hypothesis import Held, hypothesis, require
    from hashidrill.core.units import Duration

    @hypothesis
    def writes_are_quick(recording, *, load: str, p50_below: Duration = Duration("300ms")):
        p50 = recording.operations(load).percentile_s(50)
        require(p50 < p50_below, f"p50 of {load} was {p50:.3f}s, expected under {p50_below}", p50_s=p50)
        return Held(f"p50 of {load} was {p50:.3f}s", p50_s=p50)

YAML may set the keyword-only parameters; their annotations say how YAML's text is read. A plain `assert` works as
well as `require`. A hypothesis never looks at the clock or the network: it is a pure function of the recording.

`comparison` does the same for a function of several recordings, which an experiment with variants names under
`compare`.
"""

from hashidrill.core.hypothesis.files import all_comparisons, all_hypotheses, get, getter, looking_up, near
from hashidrill.core.hypothesis.marked import (
    Broken,
    Figures,
    Held,
    Hypothesis,
    comparison,
    hypothesis,
    marked_in,
    needs_fault,
    plain,
    require,
    room,
)

__all__ = [
    "Broken",
    "Figures",
    "Held",
    "Hypothesis",
    "all_comparisons",
    "all_hypotheses",
    "comparison",
    "get",
    "getter",
    "hypothesis",
    "looking_up",
    "marked_in",
    "near",
    "needs_fault",
    "plain",
    "require",
    "room",
]
