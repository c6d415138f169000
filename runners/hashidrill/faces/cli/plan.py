"""`hashidrill run --plan`: what a run would touch, and whether the interlocks would let it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hashidrill.core.errors import InterlockError
from hashidrill.faces.cli.common import print_json, print_line
from hashidrill.reports.plan import plan_data, plan_lines
from hashidrill.staging.attach.consent import digest_of
from hashidrill.staging.interlocks.settings import settings_of

if TYPE_CHECKING:
    from hashidrill.core.experiment.resolved import ResolvedExperiment
    from hashidrill.staging.runs.launch_attached import Attached

_REFUSED = InterlockError.exit_code


def show(there: Sequence[Attached | None], resolved: Sequence[ResolvedExperiment], *, as_json: bool) -> int:
    """Prints the plans, and what the interlocks say. Returns 0, or 2 where they would refuse one. Touches nothing."""
    told: list[dict[str, Any]] = []
    code = 0
    for place, each in zip(there, resolved, strict=True):
        if place is None:
            continue
        plan, refused = place.plan(each), ""
        try:
            place.allowed(each)
        except InterlockError as error:
            code, refused = _REFUSED, str(error)
        digest = digest_of(plan.experiment, settings_of(place.target.interlocks, place.target.path))
        told.append({**plan_data(plan), "digest": digest, "refused": refused})
        if not as_json:
            for line in plan_lines(plan):
                print_line(line)
            print_line(f"What `hashidrill arm` allows of it: {digest}")
            print_line(f"The interlocks refuse it: {refused}" if refused else "The interlocks let it run.")
    if as_json:
        print_json(told)
    sys.stdout.flush()
    return code
