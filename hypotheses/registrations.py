"""Which instances of a service does Consul's catalog show wrongly, and does it correct itself?"""

from typing import Annotated

import numpy as np
from pydantic import Field

from hashidrill import Duration, Held, HypothesisInvalidError, Operations, Recording, hypothesis, measure, require
from hashidrill.core.hypothesis import room
from hashidrill.core.judging.measure import SECOND, in_force, seconds, when
from hashidrill.products.consul.loads.registrations import ASK_WITHIN_S, DEREGISTER, GHOST, MISSING, REGISTER

AtLeast = Annotated[int, Field(ge=1)]
_NAMED = 10


@hypothesis(never=room(since="start"))
def registrations_heal(
    recording: Recording, *, load: str, within: Duration, fault: str | None = None, wrong_at_least: AtLeast = 1
) -> Held:
    """Errors that a fault made in Consul's catalog are corrected in at most `within`.

    The load has the kind `consul.service.registrations`. An error is an instance that is missing, or a deregistered
    instance that is back; its time starts when it is seen. At the end the catalog, read consistently, must show each
    instance as it was last registered or deregistered. INVALID if the fault made fewer than `wrong_at_least` errors, if
    looks at the catalog failed long enough that an error may have lasted longer unseen, or if an error still had time
    left when the loads stopped.
    """
    found = _Found(recording, load, fault, wrong_at_least)
    took = measure.lasted_s(recording, found.wrong, within, f"instances of {load}")
    late = int((took > float(within)).sum())
    longest_s = float(took.max())
    figures = {**found.figures, "longest_s": longest_s}
    require(
        not late and not found.at_the_end,
        f"{late} of {len(took)} instances of {load} were not right in the catalog within {within}; the longest took"
        f" {seconds(longest_s)}, and {len(found.at_the_end)} are wrong at the end: {found.names}\n{found.story}",
        **figures,
    )
    measure.nothing_longer_unseen(recording, load, found.span, longest_s=longest_s, within=within)
    return Held(f"{found.story}; all were right again after {seconds(longest_s)} (within {within})", **figures)


@hypothesis(never=room("for_at_least", since="start"))
def registrations_stay_wrong(
    recording: Recording, *, load: str, for_at_least: Duration, fault: str | None = None, wrong_at_least: AtLeast = 1
) -> Held:
    """Errors that a fault made in Consul's catalog stay until the loads stop: a person has to fix them.

    Use it for services registered from outside. Errors are counted as in `registrations_heal`, and by the consistent
    read at the end. INVALID if the loads ran for less than `for_at_least` after the fault was applied.
    """
    found = _Found(recording, load, fault, wrong_at_least)
    if found.watched_s < for_at_least:
        raise HypothesisInvalidError(
            f"{load} was watched for only {seconds(found.watched_s)} after the fault, less than {for_at_least}:"
            " give the experiment a longer `recovery: {for: ...}`"
        )
    healed = int(found.wrong.ok.sum())
    lasting = found.wrong.picked(~found.wrong.ok)
    figures = {**found.figures, "healed": healed, "watched_s": found.watched_s}
    require(
        not healed and set(lasting.keys) <= set(found.at_the_end),
        f"{max(healed, len(found.wrong) - len(found.at_the_end))} of {len(found.wrong)} instances of {load} that the"
        f" fault made wrong were right again without help\n{found.story}",
        **figures,
    )
    return Held(
        f"{found.story}; all {len(found.wrong)} were still wrong {seconds(found.watched_s)} later: they do not heal by"
        " themselves",
        **figures,
    )


class _Found:
    """The errors that a load saw from a fault on, and the result of the consistent read at the end."""

    def __init__(self, recording: Recording, load: str, fault: str | None, wrong_at_least: int) -> None:
        """Raises HypothesisInvalidError if too little went wrong, or the final reads are missing."""
        ops = recording.operations(load, unknown="what was wrong stays wrong")
        finals = recording.final_reads(load)
        start_ns = min(in_force(recording, one)[0] for one in measure.faults(recording, fault))
        end_ns = measure.loads_end_ns(recording)
        changes = ops.picked(np.isin(np.asarray(ops.values), (REGISTER, DEREGISTER)))
        drift = np.isin(np.asarray(ops.values), (MISSING, GHOST))
        # a look that began before the fault may show the fault's effect if it was answered later
        since_ns = start_ns - int(ASK_WITHIN_S * SECOND)
        self.wrong: Operations = ops.picked(drift & (ops.intended_ns >= since_ns) & (ops.end_ns >= start_ns))
        self.span = start_ns, end_ns
        self.watched_s = (end_ns - start_ns) / SECOND
        if not finals:
            raise HypothesisInvalidError(f"the final reads of {load} are missing: the run ended before they were made")
        if len(self.wrong) < wrong_at_least:
            raise HypothesisInvalidError(
                f"the fault made {len(self.wrong)} instances of {load} wrong, expected at least {wrong_at_least}: it"
                " did not have the intended effect"
            )
        self.at_the_end = sorted(key for key, step in _last(changes, finals).items() if finals.get(key, step) != step)
        missing = self.wrong.values.count(MISSING)
        self.figures = {
            "missing": missing,
            "ghosts": len(self.wrong) - missing,
            "wrong_at_the_end": len(self.at_the_end),
            "changes": int(changes.ok.sum()),
        }
        first = when(int(self.wrong.intended_ns.min()))
        self.story = (
            f"from {first} on the catalog lacked {missing} instances of {load} and had {len(self.wrong) - missing} that"
            f" had been deregistered, after {int(changes.ok.sum())} changes that it had shown"
        )

    @property
    def names(self) -> str:
        more = f" and {len(self.at_the_end) - _NAMED} more" if len(self.at_the_end) > _NAMED else ""
        return (", ".join(self.at_the_end[:_NAMED]) + more) or "none"


def _last(changes: Operations, finals: dict[str, str | None]) -> dict[str, str]:
    """The right state of each instance after its last change that was shown; those registered beforehand exist."""
    should = dict.fromkeys(finals, REGISTER)
    uncertain = {changes.keys[i] for i in np.flatnonzero(~changes.ok).tolist()}
    for i in np.argsort(changes.start_ns).tolist():
        if changes.ok[i]:
            should[changes.keys[i]] = changes.values[i]
    return {key: step for key, step in should.items() if key not in uncertain}
