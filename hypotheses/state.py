"""What a reset of Consul's state took away, and what a bloated raft.db costs each commit."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hashidrill import measure
from hashidrill.errors import HypothesisInvalidError
from hashidrill.hypothesis import Held, hypothesis, require
from hashidrill.measure import SECOND, seconds, share, when
from hashidrill.recording import Recording
from hashidrill.resets import Fate, Judged, Reset, find_reset, judge
from hashidrill.snapshots import identify_all
from hashidrill.units import Duration, Percent

Since = Literal["end", "start"]
_NAMED = 10
_SHOWN = 3


@hypothesis
def no_write_lost_but_rolled_back(
    recording: Recording, *, load: str, snapshot: str | None = None, at_most: Annotated[int, Field(ge=0)] | None = None
) -> Held:
    """After a snapshot reset only what was written since the snapshot is gone, and nothing of that comes back.

    Every acknowledged write gets one fate. *Kept*: it is there at the end. *Overwritten*: a later write took its
    place, as writes do. *Rolled back*: it was acknowledged after the snapshot was taken and before it was restored, and
    is not there after that: the price of the reset, named with its keys. *Lost*: it was in the snapshot, or was
    acknowledged after the restore, and is gone. *Resurrected*: it had been overwritten before the snapshot, or was
    rolled back, and is there again. *In flight*: it was on its way at the save or at the restore, and nothing says
    on which side it took effect.

    Lost and resurrected writes break it, and so does a state right after the restore that is not the snapshot's, key by
    key, value and indexes alike, as far as no later write touched it. Rolled-back writes are figures, unless there
    are more than `at_most`.
    """
    ops, finals = recording.operations(load), recording.final_reads(load)
    if not ops.ok.any():
        raise HypothesisInvalidError(f"no write of {load} was acknowledged, so none could be lost")
    if not finals:
        raise HypothesisInvalidError(f"the final reads of {load} are missing: the run ended before they could be made")
    reset = find_reset(recording, snapshot)
    others = [name for name, spec in recording.experiment.load.items() if spec.kind != "consul.kv.read"]
    judged = judge(ops, finals, reset, load, others)
    rolled_back = sorted({ops.keys[i] for i, fate in judged.fates.items() if fate is Fate.ROLLED_BACK})
    figures = {
        "acknowledged": int(ops.ok.sum()), **{fate.name.lower(): judged.count(fate) for fate in Fate},
        "keys_rolled_back": rolled_back, "keys_lost": list(judged.lost), "keys_resurrected": list(judged.resurrected),
        "keys_phantom": list(judged.phantoms), "keys_not_as_saved": list(judged.differs),
        "keys_in_snapshot": len(reset.saved.kv),
    }  # fmt: skip
    counts = ", ".join(f"{judged.count(fate)} {fate}" for fate in Fate)
    what = f"{int(ops.ok.sum())} acknowledged writes of {load}: {counts}"
    broken = judged.lost or judged.resurrected or judged.phantoms or judged.differs
    require(not broken, f"{what}\n{_why(judged)}", **figures)
    if judged.unread:
        raise HypothesisInvalidError(f"{len(judged.unread)} keys were not read at the end: {_names(judged.unread)}")
    count = judged.count(Fate.ROLLED_BACK)
    too_many = f"{count} acknowledged writes were rolled back, and {at_most} at most may be, on {_names(rolled_back)}"
    require(at_most is None or count <= at_most, f"{too_many}\n{what}", **figures)
    return Held(f"{what}; right after the restore the state was the snapshot's{_and_rolled_back(rolled_back)}", **figures)


def _and_rolled_back(keys: list[str]) -> str:
    return f"; rolled back on {len(keys)} keys: {_names(keys)}" if keys else ""


def _why(judged: Judged) -> str:
    lines = []
    for what, found in (
        ("keys lost a write", judged.lost), ("keys hold a resurrected write", judged.resurrected),
        ("keys hold phantoms", judged.phantoms),
        ("keys were not as in the snapshot right after the restore", judged.differs),
    ):  # fmt: skip
        if found:
            lines.append(f"{len(found)} {what}: {_names(list(found))}")
            lines += [f"  {key}: {why}" for key, why in list(found.items())[:_SHOWN]]
    lines.append("hint: both snapshot files are in the recording, under artifacts/")
    return "\n".join(lines)


def _names(keys: list[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more
