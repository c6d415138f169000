"""Is everything that was acknowledged still there?"""

from hashidrill import Held, HypothesisInvalidError, Operations, Recording, hypothesis, measure, require
from hashidrill.core.hypothesis import needs_fault
from hashidrill.core.judging.checkable import coverage
from hashidrill.core.judging.linearizability import Registers, check_registers, seen_at_the_end
from hashidrill.core.judging.measure import when

_NAMED = 10


@hypothesis(needs_valid_run=False, timed=False, never=needs_fault)
def no_acknowledged_write_lost(recording: Recording, *, load: str, fault: str | None = None) -> Held:
    """No acknowledged write is lost: each key ends with a value that could be its last write.

    Each key is checked as a register, as Jepsen does: the final value v is possible unless an acknowledged write of
    that key began after v was acknowledged. A write with an unknown outcome may have taken effect at any time after it
    started. A missing key is a loss if any write of it was acknowledged. A value that no client wrote, or whose write
    was certainly refused, is a phantom.

    An overwritten write cannot be checked. INVALID unless at least half (or 500) of the writes acknowledged while each
    fault was in force can be checked, and as many of the writes acknowledged in the 5 s before that fault. With
    `fault`, only that kind, step or mark counts; a mark counts only when `fault` names it.

    Judged even in an INVALID run.
    """
    ops = recording.operations(load)
    finals = recording.final_reads(load)
    acknowledged = int(ops.ok.sum())
    if not acknowledged:
        raise HypothesisInvalidError(f"no write of {load} was acknowledged, so there was nothing to lose")
    if not finals:
        raise HypothesisInvalidError(f"the final reads of {load} are missing: the run ended before the load made them")
    found = check_registers(ops, finals)
    figures = {
        "acknowledged_writes": acknowledged,
        "keys_read": len(finals),
        "lost": len(found.lost),
        "phantoms": len(found.phantoms),
        "lost_keys": list(found.lost),
        "phantom_keys": list(found.phantoms),
    }
    require(not found.lost and not found.phantoms, _why(recording, load, ops, found), **figures)
    if found.unread:
        raise HypothesisInvalidError(
            f"the final reads of {load} miss {len(found.unread)} keys with acknowledged writes: {_names(found.unread)}"
        )
    covered = coverage(recording, ops, seen_at_the_end(ops, finals), fault=fault)
    covered.hold(load)
    return Held(f"{covered}: none was lost", **figures, **covered.figures)


def _why(recording: Recording, load: str, ops: Operations, found: Registers) -> str:
    lines = []
    if found.lost:
        lines.append(f"{load} lost acknowledged writes on {len(found.lost)} keys: {_names(list(found.lost))}")
        for key, (index, value) in list(found.lost.items())[:3]:
            acked = when(int(ops.end_ns[index]))
            now = "is absent" if value is None else f"holds the older {_short(value)!r}"
            lines.append(
                f"  {key}: {_short(ops.values[index])!r} was acknowledged {acked}, but the key {now} at the end"
            )
    if found.phantoms:
        lines.append(f"{len(found.phantoms)} keys of {load} hold phantom values: {_names(list(found.phantoms))}")
        lines += [f"  {key}: holds {_short(held)!r}, {why}" for key, (held, why) in list(found.phantoms.items())[:3]]
    lines.append(f"hint: {measure.restored(recording)}")
    return "\n".join(lines)


def _names(keys: list[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more


def _short(value: str) -> str:
    return value if len(value) <= 40 else value[:37] + "..."
