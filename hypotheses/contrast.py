"""Two clients in one run, one of them bad on purpose: the expectation must hold for one and break for the other."""

from typing import Any

from pydantic import ValidationError

from hashidrill import Broken, Held, HypothesisInvalidError, Recording, hypothesis
from hashidrill.core import hypothesis as hypotheses
from hashidrill.core.experiment.model import contrast_side
from hashidrill.core.hypothesis import Hypothesis


@hypothesis
def contrast(
    recording: Recording,
    *,
    of: str,
    good: str | dict[str, Any],
    bad: str | dict[str, Any],
    params: dict[str, Any] = {},  # noqa: B006 - never changed, and pydantic copies it
) -> Held:
    """A hypothesis holds for the good client and breaks for the bad one, so the client makes the difference.

    `of` is any other hypothesis, `params` the parameters that both sides share. `good` and `bad` say what differs: the
    name of a client (or load), or parameters such as `{client: hasty, fault: trigger}`. If the hypothesis holds for
    both sides, the contrast is broken. If the hypothesis is INVALID for one side, the contrast is INVALID too.
    """
    judged = hypotheses.get(of)
    held = _held(judged, recording, contrast_side(judged.Params, good, params), f"the good side ({_named(good)})")
    if isinstance(held, Broken):
        raise Broken(f"{of} is broken for the good side ({_named(good)}): {held.text}", **held.figures)
    broken = _held(judged, recording, contrast_side(judged.Params, bad, params), f"the bad side ({_named(bad)})")
    figures = {f"good_{name}": value for name, value in held.figures.items()}
    figures |= {f"bad_{name}": value for name, value in broken.figures.items()}
    if isinstance(broken, Held):
        raise Broken(
            f"{of} holds for the bad side too ({_named(bad)}): {broken.text}\n"
            f"so this run shows no difference from the good side ({_named(good)}): {held.text}",
            **figures,
        )
    return Held(f"{_named(good)} holds: {held.text}\n{_named(bad)} breaks, as expected: {broken.text}", **figures)


def _held(judged: Hypothesis, recording: Recording, params: dict[str, Any], which: str) -> Held | Broken:
    """Raises HypothesisInvalidError."""
    try:
        return judged.check(recording, params)
    except Broken as broken:
        return broken
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or judged.name
        raise HypothesisInvalidError(f"{judged.name} for {which}: {where}: {first['msg']}") from None
    except HypothesisInvalidError as invalid:
        raise HypothesisInvalidError(f"{judged.name} for {which}: {invalid}") from None


def _named(side: str | dict[str, Any]) -> str:
    if isinstance(side, str):
        return side
    return str(side.get("client") or side.get("load") or ", ".join(f"{key}={value}" for key, value in side.items()))
