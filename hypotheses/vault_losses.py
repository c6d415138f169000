"""Does Vault still have what it acknowledged: secrets, and the leases of tokens?"""

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from hashidrill import Held, HypothesisInvalidError, Operations, Recording, hypothesis, measure, require
from hashidrill.core.hypothesis import needs_fault
from hashidrill.core.judging.checkable import ENOUGH, Coverage, Reset, coverage, find_reset
from hashidrill.core.judging.linearizability import Registers, check_registers, seen_at_the_end
from hashidrill.core.judging.measure import SECOND, when
from hashidrill.core.recording.reader import Bools
from hashidrill.products.vault.loads.tokens import Lease

_NAMED = 10
_SHOWN = 3
AtLeast = Annotated[int, Field(ge=0)]


@hypothesis(needs_valid_run=False, timed=False, never=needs_fault)
def no_secret_lost(
    recording: Recording,
    *,
    load: str,
    fault: str | None = None,
    snapshot: str | None = None,
    rolled_back_at_least: AtLeast = 0,
) -> Held:
    """Each secret whose write Vault acknowledged is readable afterwards, and Vault's storage lists it.

    Losses, phantoms and checkable writes are defined as in `no_acknowledged_write_lost`. Vault's active server still
    answers from memory when its storage has lost a secret. So a `vault.kv.write` load also makes the storage list its
    secrets: a secret that is not listed is lost, even if it could be read.

    `snapshot` names a snapshot that was restored in this run: a secret acknowledged between its save and its restore
    may be gone, and counts as rolled back. INVALID if fewer than `rolled_back_at_least` secrets were rolled back.
    """
    ops, finals = recording.operations(load), recording.final_reads(load)
    if not ops.ok.any():
        raise HypothesisInvalidError(f"no secret of {load} was acknowledged, so there was nothing to lose")
    if not finals:
        raise HypothesisInvalidError(f"the final reads of {load} are missing: the run ended before the load made them")
    unlisted = _unlisted(recording, load)
    undone = _undone(recording, ops, snapshot)
    owed = ops.with_outcomes(np.where(undone, "unknown", ops.outcome))
    found, without = check_registers(owed, finals), check_registers(ops, finals)
    rolled_back = sorted(without.lost.keys() - found.lost.keys())
    figures = {
        "acknowledged": int(ops.ok.sum()),
        "read": len(finals),
        "unlisted": unlisted,
        "lost": len(found.lost),
        "phantoms": len(found.phantoms),
        "rolled_back": len(rolled_back),
        "secrets_lost": list(found.lost),
        "secrets_phantom": list(found.phantoms),
        "secrets_rolled_back": rolled_back,
    }
    require(not found.lost and not found.phantoms, _secrets(recording, load, ops, found, unlisted), **figures)
    if found.unread:
        raise HypothesisInvalidError(
            f"the final reads of {load} miss {len(found.unread)} acknowledged secrets: {_names(found.unread)}"
        )
    _enough_rolled_back(len(rolled_back), rolled_back_at_least, snapshot)
    seen = seen_at_the_end(ops, finals)
    covered = coverage(recording, ops, seen, excused=undone & ~seen, fault=fault)
    covered.hold(load)
    return Held(f"{covered}: no secret was lost{_and(len(rolled_back), snapshot)}", **figures, **covered.figures)


def _unlisted(recording: Recording, load: str) -> int:
    """How many secrets were read but not listed. Raises HypothesisInvalidError if the load listed nothing."""
    signal = f"{load}.unlisted"
    if signal not in recording.signals:
        raise HypothesisInvalidError(
            f"{load} has no list from Vault's storage, and Vault answers from memory what storage may have lost: this"
            " needs a load of vault.kv.write or vault.token.churn that ran to its end"
        )
    return int(recording.series(signal).value[-1])


def _secrets(recording: Recording, load: str, ops: Operations, found: Registers, unlisted: int) -> str:
    lines = [
        f"{len(found.lost)} of {int(ops.ok.sum())} acknowledged secrets of {load} are lost: {_names([*found.lost])}"
    ]
    for key, (index, value) in list(found.lost.items())[:_SHOWN]:
        acked = when(int(ops.end_ns[index]))
        now = "is gone" if value is None else f"is the older {value!r}"
        lines.append(f"  {key}: {ops.values[index]!r} was acknowledged {acked}, and {now} at the end")
    if unlisted:
        lines.append(f"{unlisted} secrets were still read, from the memory of Vault: its storage does not list them")
    if found.phantoms:
        lines.append(f"{len(found.phantoms)} secrets are not what was written: {_names([*found.phantoms])}")
        lines += [f"  {key}: {held!r}, {why}" for key, (held, why) in list(found.phantoms.items())[:_SHOWN]]
    return "\n".join([*lines, f"hint: {measure.restored(recording)}"])


@hypothesis(needs_valid_run=False, timed=False, never=needs_fault)
def no_lease_lost(
    recording: Recording,
    *,
    load: str,
    fault: str | None = None,
    snapshot: str | None = None,
    rolled_back_at_least: AtLeast = 0,
) -> Held:
    """Each lease that Vault granted, and whose time has not run out, exists afterwards; each revoked one stays revoked.

    The load has the kind `vault.token.churn`: each token is a lease. At the end the load looks each lease up, and also
    lists the storage, because Vault answers lookups from memory. A token that Vault does not know, or does not list,
    although its time had not run out, is lost. A revoked token that is valid is worse, and breaks this too.

    INVALID unless, for each fault, at least half (or 500) of the leases granted while it was in force can be checked,
    and as many of the leases granted in the 5 s before it. `snapshot` works as in `no_secret_lost`: a lease granted
    between the save and the restore may be gone, and a lease revoked between them may be valid.
    """
    ops, finals = recording.operations(load), recording.final_reads(load)
    if not ops.ok.any():
        raise HypothesisInvalidError(f"{load} was granted no lease, so there was nothing to lose")
    if not finals:
        raise HypothesisInvalidError(f"the final reads of {load} are missing: the run ended before the look-ups")
    granted, unlisted = _Leases(recording, load, ops), _unlisted(recording, load)
    undone = _undone(recording, ops, snapshot)
    held = np.array([finals.get(key) == value for key, value in zip(ops.keys, ops.values, strict=True)], np.bool_)
    read = np.array([key in finals for key in ops.keys], np.bool_)
    gone, back = granted.due & read & ~held, granted.revoked & read & ~held
    lost, valid = gone & ~undone, back & ~undone
    rolled_back = int(((gone | back) & undone).sum())
    figures = {
        "granted": int(ops.ok.sum()),
        "to_last": int(granted.kept.sum()),
        "due": int(granted.due.sum()),
        "checked": int((granted.due & read).sum()),
        "unlisted": unlisted,
        "lost": int(lost.sum()),
        "revoked": int(granted.revoked.sum()),
        "revoked_and_valid": int(valid.sum()),
        "rolled_back": rolled_back,
        "leases_lost": [ops.keys[i] for i in np.flatnonzero(lost)],
        "leases_valid_again": [ops.keys[i] for i in np.flatnonzero(valid)],
    }
    require(not lost.any() and not valid.any(), _leases(load, granted, lost, valid, unlisted=unlisted), **figures)
    if not granted.due.any():
        raise HypothesisInvalidError(
            f"none of the {int(granted.kept.sum())} leases of {load} that were not revoked should have lasted until the"
            " look-up: give the load a longer `ttl`, or revoke fewer"
        )
    _enough_rolled_back(rolled_back, rolled_back_at_least, snapshot)
    excused = undone[granted.kept] & ~held[granted.kept]
    checkable = (granted.due & read & held)[granted.kept]
    covered = coverage(recording, measure.pick(ops, granted.kept), checkable, excused=excused, fault=fault)
    _hold(load, covered, int((granted.due & ~read).sum()))
    return Held(
        f"{_covered(covered)}: none was lost; {figures['revoked']} revoked ones stayed revoked"
        + _and(rolled_back, snapshot),
        **figures,
        **covered.figures,
    )


class _Leases:
    """Masks over the operations. `kept`: granted and not revoked; `due`: kept, and with time left at the end."""

    def __init__(self, recording: Recording, load: str, ops: Operations) -> None:
        self.ops = ops
        try:
            details = ops.details or [None] * len(ops)
            leases = [Lease.of(detail) if ok else None for detail, ok in zip(details, ops.ok, strict=True)]
        except ValueError as error:
            raise HypothesisInvalidError(
                f"{load} did not record for how long its leases were granted ({error}): this needs a load of"
                " vault.token.churn"
            ) from None
        self.ttl_s = np.array([lease.ttl_s if lease else 0.0 for lease in leases], np.float64)
        self.revoked: Bools = np.array([bool(lease and lease.revoked) for lease in leases], np.bool_)
        self.kept: Bools = ops.ok & ~self.revoked
        looked_up_ns = recording.phases["quiesce"][1]
        self.due: Bools = self.kept & (ops.start_ns + self.ttl_s * SECOND > looked_up_ns)


def _leases(load: str, granted: _Leases, lost: Bools, valid: Bools, *, unlisted: int) -> str:
    ops, lines = granted.ops, []
    if lost.any():
        lines.append(f"{int(lost.sum())} of {int(granted.due.sum())} leases of {load} that had time left are lost:")
        lines += [
            f"  {ops.keys[i]}: granted {when(int(ops.end_ns[i]))} for {granted.ttl_s[i]:g}s, and unknown at the end"
            for i in np.flatnonzero(lost)[:_SHOWN]
        ]
    if unlisted:
        lines.append(f"{unlisted} tokens were still known, from the memory of Vault: its storage does not list them")
    if valid.any():
        lines.append(f"{int(valid.sum())} of {int(granted.revoked.sum())} revoked tokens of {load} are valid:")
        lines += [f"  {ops.keys[i]}: revoked {when(int(ops.end_ns[i]))}" for i in np.flatnonzero(valid)[:_SHOWN]]
    return "\n".join([*lines, "hint: search the servers' logs for `lease` and `restore`"])


def _covered(covered: Coverage) -> str:
    text = f"{covered.whole[0]} of {covered.whole[1]} leases that were not revoked could be checked, "
    if not covered.in_force[1]:
        return text + "none was granted while a fault was in force"
    return text + f"{covered.in_force[0]} of them granted while a fault was in force (of {covered.in_force[1]})"


def _hold(load: str, covered: Coverage, unread: int) -> None:
    """Raises HypothesisInvalidError if a fault could have lost leases that the check could not see."""
    for step in covered.steps:
        for (seen, of), where in ((step.inside, "while it was in force"), (step.before, "in the 5s before it")):
            needed = min(math.ceil(of / 2), ENOUGH)
            if seen < needed:
                raise HypothesisInvalidError(
                    f"{step.step}: {of} leases of {load} were granted {where}, and only {seen} of them could be checked"
                    f" (needed: {needed}); {unread} were not looked up, the others had run out: give the load a longer"
                    " `ttl`, or a lower rate"
                )
    if not any(step.inside[1] or step.before[1] for step in covered.steps) and not covered.excused:
        raise HypothesisInvalidError(
            f"no lease of {load} was granted while a fault was in force, nor in the 5s before one: none could be lost"
        )


def _undone(recording: Recording, ops: Operations, snapshot: str | None) -> Bools:
    """The acknowledged operations that a restore may have undone."""
    if snapshot is None:
        return np.zeros(len(ops), np.bool_)
    reset: Reset = find_reset(recording, snapshot)
    return reset.may_have_undone(ops)


def _enough_rolled_back(number: int, at_least: int, snapshot: str | None) -> None:
    """Raises HypothesisInvalidError if the restore undid too little to show anything."""
    if number < at_least:
        raise HypothesisInvalidError(
            f"the restore of {snapshot!r} rolled back {number}, expected at least {at_least}: too little was written"
            " between the save and the restore, or the restore did not reach Vault"
        )


def _and(rolled_back: int, snapshot: str | None) -> str:
    return "" if snapshot is None else f"; {rolled_back} from after the snapshot {snapshot!r} were rolled back"


def _names(keys: list[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more
