"""Does each key of a `consul.kv.cas` load behave like one register, whichever agent a client asks?"""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from hashidrill import Held, HypothesisInvalidError, Operations, Recording, hypothesis, measure, require
from hashidrill.core.hypothesis import needs_fault
from hashidrill.core.judging.checkable import BEFORE_S, spans_in_force
from hashidrill.core.judging.linearizability import DEFAULT_BUDGET, Answer, Op, check, core
from hashidrill.core.judging.measure import SECOND, when
from hashidrill.products.consul.loads.cas import Step

_KEYS_EXPLAINED = 2
_OPERATIONS_SHOWN = 12


@hypothesis(needs_valid_run=False, timed=False, never=needs_fault)
def linearizable(recording: Recording, *, load: str, configurations: int = DEFAULT_BUDGET) -> Held:
    """Each key's reads, writes and compare-and-sets fit one order that agrees with all answers.

    Each operation must take effect at one moment between its start and its answer, as in Jepsen. Each key is searched
    alone, by Wing and Gong's search with Lowe's memory. An operation without an answer may have taken effect at any
    later time, or never. A compare-and-set that Consul answered with `false` means that the key had another index. The
    final reads count too. Consul promises linearizability for `?consistent` reads and for `?cas`, but not across a
    snapshot that is restored during the run. INVALID if no operation was answered while a fault was in force or in the
    5 s before it, or if a key is undecided after `configurations` steps of the search (200,000 take some seconds).
    Judged even in an INVALID run.
    """
    ops = recording.operations(load)
    steps = _steps(ops, load)
    histories = registers(ops, steps)
    _add_final_reads(histories, recording, load, ops)
    kinds = Counter(op.kind for history in histories.values() for op in history if op.certain)
    if not (kinds["write"] or kinds["cas"]) or not kinds["read"]:
        raise HypothesisInvalidError(f"{load} has no acknowledged change, or no read, so there is nothing to judge")
    verdicts = {key: check(history, budget=configurations) for key, history in histories.items()}
    broken = {key: core(histories[key]) for key, (answer, _) in verdicts.items() if answer is Answer.NO}
    undecided = [key for key, (answer, _) in verdicts.items() if answer is Answer.UNDECIDED]
    inside, before = _under_faults(recording, ops)
    unknown = sum(not op.certain for history in histories.values() for op in history)
    figures = {
        "keys": len(histories),
        "reads": kinds["read"],
        "writes": kinds["write"],
        "cas": kinds["cas"],
        "cas_missed": kinds["miss"],
        "unknown": unknown,
        "answered_in_force": inside,
        "answered_before": before,
        "configurations": sum(looked for _, looked in verdicts.values()),
        "broken_keys": sorted(broken),
        "undecided_keys": sorted(undecided),
    }
    require(not broken, _why(recording, load, broken), **figures)
    if undecided:
        raise HypothesisInvalidError(
            f"undecided after {configurations} configurations: {', '.join(sorted(undecided))} ({unknown} operations of"
            f" {load} have an unknown outcome); let fewer operations time out, use more keys, or raise `configurations`"
        )
    if not inside and not before:
        raise HypothesisInvalidError(
            f"no operation of {load} was answered while a fault was in force, nor in the {BEFORE_S:g}s before one"
        )
    answered = sum(kinds.values())
    return Held(
        f"{load} is linearizable on {len(histories)} keys: {answered} answered operations, {inside} of them answered"
        f" while a fault was in force ({unknown} with an unknown outcome, {kinds['miss']} compare-and-sets refused)",
        **figures,
    )


def _under_faults(recording: Recording, ops: Operations) -> tuple[int, int]:
    """How many operations were answered while a fault was in force, and in the seconds before one began."""
    inside, before = np.zeros(len(ops), np.bool_), np.zeros(len(ops), np.bool_)
    for start_ns, end_ns in spans_in_force(recording):
        inside |= (ops.end_ns >= start_ns) & (ops.end_ns < end_ns)
        before |= (ops.end_ns >= start_ns - BEFORE_S * SECOND) & (ops.end_ns < start_ns)
    return int((ops.ok & inside).sum()), int((ops.ok & before).sum())


def registers(ops: Operations, steps: list[Step]) -> dict[str, list[Op]]:
    """The history of each key, without operations that certainly had no effect and reads without an answer."""
    histories: defaultdict[str, list[Op]] = defaultdict(list)
    ranks = {(key, step.value): step.index for key, step in zip(ops.keys, steps, strict=True) if step.op == "read"}
    outcomes, starts, ends = ops.outcome.tolist(), ops.start_ns.tolist(), ops.end_ns.tolist()
    for index, (key, step) in enumerate(zip(ops.keys, steps, strict=True)):
        outcome = outcomes[index]
        if outcome == "fail" or (outcome == "unknown" and step.op in {"read", "miss"}):
            continue
        end_ns = ends[index] if outcome == "ok" else None
        hint = 0 if step.op == "read" else ranks.get((key, step.value), 0)
        histories[key].append(Op(step.op, step.value, starts[index], end_ns, step.expected, hint))
    return dict(histories)


def _steps(ops: Operations, load: str) -> list[Step]:
    try:
        return [Step.of(detail) for detail in ops.details]
    except ValueError as error:
        raise HypothesisInvalidError(f"{load} is not a consul.kv.cas load: {error}") from None


def _add_final_reads(histories: dict[str, list[Op]], recording: Recording, load: str, ops: Operations) -> None:
    """Adds the final reads, which the load makes after every operation has ended or was given up."""
    if "quiesce" not in recording.phases:
        return
    start_ns, end_ns = recording.phases["quiesce"]
    start_ns = max(start_ns, int(ops.end_ns.max()))
    for key, value in recording.final_reads(load).items():
        histories.setdefault(key, []).append(Op("read", value, start_ns, max(start_ns, end_ns)))


def _why(recording: Recording, load: str, broken: dict[str, list[Op]]) -> str:
    lines = [f"{load} is not linearizable on {len(broken)} keys: {', '.join(sorted(broken))}"]
    for key, found in sorted(broken.items())[:_KEYS_EXPLAINED]:
        lines.append(f"  {key}: no order explains these {len(found)} operations:")
        lines += [f"    {_told(op)}" for op in found[:_OPERATIONS_SHOWN]]
        if len(found) > _OPERATIONS_SHOWN:
            lines.append(f"    and {len(found) - _OPERATIONS_SHOWN} more")
    lines.append(f"hint: {measure.restored(recording)}")
    return "\n".join(lines)


def _told(op: Op) -> str:
    shown = replace(op, value=_short(op.value), expected=_short(op.expected))
    what = {
        "read": f"read {shown.value}",
        "write": f"write {shown.value}",
        "cas": f"cas {shown.expected} -> {shown.value}",
        "miss": f"cas {shown.expected} -> {shown.value}, refused: the key did not hold {shown.expected}",
    }[op.kind]
    until = "" if op.return_ns is None else f", {(op.return_ns - op.call_ns) / 1e6:.1f}ms long"
    return f"{what} ({when(op.call_ns)}{until})"


def _short(value: str | None) -> str:
    """The part after the last dot: the run's id before it is the same in every value."""
    return "nothing" if value is None else "#" + value.rpartition(".")[2]
