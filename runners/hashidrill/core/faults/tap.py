"""`tap.fail`: the tap in front of a client fails its attempts. The target is `client:NAME`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from hashidrill.core.errors import FaultError, UsageError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases, patient
from hashidrill.core.faults.significance import counts, trials_for
from hashidrill.core.protocols.abc import Evidence, Observer, Target, Undo
from hashidrill.core.tap.catalogue import FAULTS
from hashidrill.core.tap.plans import UNSEEN, check_fault
from hashidrill.core.units import Percent

_LEAST = Percent("5%")


def _of_a_connection(name: str) -> str:
    if name in UNSEEN:
        raise ValueError(
            f"{name}: a tap sees only connections, and here none would be made; use network.block with action: reject"
            " on the agents instead"
        )
    try:
        return check_fault(name)
    except UsageError as unknown:
        raise ValueError(str(unknown)) from None


def _some(percent: Percent) -> Percent:
    if percent <= 0:
        raise ValueError("0% of the attempts means no fault; write a higher percentage")
    if percent < _LEAST:
        raise ValueError(f"percent must be at least {_LEAST}: less takes too many exchanges to prove")
    return percent


class FailParams(Strict):
    """The failure class, and the share of the attempts it affects."""

    fault: Annotated[str, AfterValidator(_of_a_connection)] = Field(
        description="A class of failure: " + ", ".join(name for name in FAULTS if name not in UNSEEN)
    )
    percent: Annotated[Percent, AfterValidator(_some)] = Percent("100%")
    """Random share of the attempts that it affects; from 5%."""
    seed: int = Field(default=0, description="Seed of the random choice: the same seed makes the same choices")


class TapFail(BaseFault[FailParams]):
    """Fails a client's attempts at its tap, all or a random share, with one failure class.

    Limits: a failure between tap and agents reaches the client as a 502 of the tap, as from any gateway. A stopped
    agent looks like `hang` to the observer too. The tap speaks HTTP/1.1 without TLS.
    """

    kind: ClassVar[str] = "tap.fail"
    observer: ClassVar[Observer] = Observer(
        "hashidrill's own exchanges through a tap that is opened like the client's",
        "the tap's code and its plan of failures; it does not ask the client",
    )
    Params: ClassVar[type[Strict]] = FailParams
    observed_within_s = 20.0
    on_client: ClassVar[bool] = True
    cases: ClassVar[Cases] = Cases(
        each=({"fault": "503"}, {"fault": "reset-after-fresh", "percent": "30%", "seed": 7}),
        overlaps="it targets a client, and these runs have none",
    )

    async def apply(self, undo: Undo) -> None:
        asked = self.params
        await self.hosts.tap(undo["host"]).fail(undo["fault_id"], asked.fault, float(asked.percent), asked.seed)

    @property
    def _tries(self) -> int:
        return trials_for(float(self.params.percent))

    def _failed(self, seen: Sequence[str]) -> int:
        return sum(one == self.params.fault for one in seen)

    @patient
    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if exchanges already fail this way without the fault."""
        failed = self._failed(await self.hosts.tap(target.host).look(self.params.fault, self._tries))
        if failed:
            raise FaultError(
                f"{failed} of {self._tries} exchanges through the tap of {target.host} end in {self.params.fault} "
                "even without the fault: find out why, or use another class of failure"
            )
        return {"failed": 0, "exchanges": self._tries}

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        share, tries = float(self.params.percent), self._tries
        seen = await self.hosts.tap(undo["host"]).look(self.params.fault, tries)
        failed = self._failed(seen)
        needed = counts(tries, share, 0)
        measured = ", ".join(f"{count} of {tries} exchanges: {what}" for what, count in Counter(seen).most_common())
        return Evidence(
            (needed is not None and needed.shows(failed)) if present else not failed,
            f"{self.params.fault} on {self.params.percent} of the attempts" if present else f"no {self.params.fault}",
            measured,
            {"asked_share": share if present else 0.0, "measured_share": failed / tries, "exchanges": tries},
        )

    async def revert(self, undo: Undo) -> None:
        await self.hosts.tap(undo["host"]).let_pass(undo["fault_id"])
