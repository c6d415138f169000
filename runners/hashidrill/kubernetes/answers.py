"""How a fault that changes what an agent answers is seen: by its own answers, from this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hashidrill.core.errors import FaultError
from hashidrill.core.protocols.abc import Evidence, Hosts, Target, Undo
from hashidrill.core.protocols.capabilities import AgentApi, ApiAnswer
from hashidrill.kubernetes.observing import ANSWERS_S
from hashidrill.staging.attach.product import attachables

OF_ANSWERS = "the agent's own answers, asked for from this machine"
_TRIALS = 3


@dataclass(frozen=True)
class Changed:
    """Each answer has something that none had before."""

    what: str
    """Like `the status 503`."""
    has: Callable[[ApiAnswer], bool]

    async def before(self, hosts: Hosts, target: Target) -> Mapping[str, Any]:
        """Raises FaultError where an answer has it as it is, or there is none."""
        if self.has(await _asked(hosts, target.host, target.agent)):
            raise FaultError(
                f"{target.agent} on {target.host} answers with {self.what} as it is: the fault would not show"
            )
        return {}

    async def look(self, hosts: Hosts, undo: Undo, *, present: bool) -> Evidence:
        asked = f"{'each' if present else 'no'} answer has {self.what}"
        having = 0
        for _ in range(_TRIALS):
            try:
                having += self.has(await _asked(hosts, undo["host"], undo["agent"]))
            except FaultError as error:
                return Evidence(False, asked, str(error))
        measured = f"{having} of {_TRIALS} answers have it"
        return Evidence(having == (_TRIALS if present else 0), asked, measured, {"having": having, "asked": _TRIALS})


async def _asked(hosts: Hosts, host: str, agent: str) -> ApiAnswer:
    path = attachables([agent])[agent].health
    return await hosts.host(host).use(AgentApi).api("GET", path, agent=agent, timeout_s=ANSWERS_S)
