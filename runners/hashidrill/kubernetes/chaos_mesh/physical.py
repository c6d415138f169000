"""Faults on a machine by Chaos Mesh, through the chaosd that runs there: for agents on hosts that are no pods."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import Cases, P
from hashidrill.core.protocols.abc import Observer
from hashidrill.core.protocols.capabilities import AgentApi, ChaosMachine
from hashidrill.kubernetes.chaos_mesh.fault import ChaosMeshFault
from hashidrill.kubernetes.observing import OF_AGENT, Effect, Silent

_NAME = r"^[A-Za-z0-9_.+-]{1,64}$"


class OnMachine(ChaosMeshFault[P]):
    """A fault through the chaosd of the host."""

    injector: ClassVar[type[Any]] = ChaosMachine

    @property
    def object_kind(self) -> str:
        return "PhysicalMachineChaos"


class ProcessParams(Strict):
    """Which processes get which signal."""

    signal: Literal["STOP", "KILL", "TERM"] = "STOP"
    """`STOP`, which chaosd takes back by CONT; `KILL` or `TERM`, which need `restart`."""
    process: Annotated[str, Field(pattern=_NAME)] | None = None
    """Name of the executable; none: that of the product. chaosd signals every process of that name on the machine."""
    restart: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """The command by which chaosd starts it again, like `systemctl start consul`."""

    @model_validator(mode="after")
    def _comes_back(self) -> ProcessParams:
        if self.signal != "STOP" and self.restart is None:
            raise ValueError(
                f"{self.signal} ends the process, and chaosd starts it again only by `restart`: the command, like"
                " `systemctl start consul`"
            )
        if self.signal == "STOP" and self.restart is not None:
            raise ValueError("a process that was stopped goes on by itself; `restart` is for KILL and TERM")
        return self


class PhysicalProcess(OnMachine[ProcessParams]):
    """Signals the agent's process through the chaosd on its machine: stops it, or ends it.

    Limits: a service manager that restarts a killed agent ends the fault early: the run is INVALID. Two agents of one
    product on a machine are both signalled.
    """

    kind: ClassVar[str] = "chaos_mesh.physical.process"
    observer: ClassVar[Observer] = Observer(OF_AGENT)
    Params: ClassVar[type[Strict]] = ProcessParams
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({ChaosMachine, AgentApi})
    holds_down: ClassVar[bool] = True
    cases: ClassVar[Cases] = Cases(each=({}, {"signal": "KILL", "restart": "systemctl start consul"}))

    def spec(self, agent: str) -> Mapping[str, Any]:
        """By the name of its executable, as chaosd looks for processes: it gets all of that name on the machine."""
        given: dict[str, Any] = {
            "process": self.params.process or agent,
            "signal": int(signal.Signals[f"SIG{self.params.signal}"]),
        }
        if self.params.restart is not None:
            given["recoverCmd"] = self.params.restart
        return {"action": "process", "process": given}

    def effect(self, agent: str) -> Effect:
        return Silent()
