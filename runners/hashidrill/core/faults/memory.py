"""Takes memory away from a host's agents: by a cgroup limit, or by a neighbour process that holds it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hashidrill.core.errors import FaultError
from hashidrill.core.experiment.strict import Strict
from hashidrill.core.faults.base import BaseFault, Cases
from hashidrill.core.protocols.abc import Claim, Evidence, Observer, Place, Requires, Target, Undo
from hashidrill.core.protocols.capabilities import MemoryCanary, MemoryControl, ProcessControl, Processes
from hashidrill.core.protocols.claims import AGENT, ANSWERS, LISTENER, MEMORY, PROCESS, START, needs, spoils, takes
from hashidrill.core.units import Percent, Size

_SPARE_BYTES = 32 << 20
"""The observer tries to take this much more than the limit: if the kernel kills all agents, the whole limit is free."""
_ANSWER_S, _WHOLE = 0.5, ~0xFFF
_SAFE_SHARE, _MOST_BESIDE_NEIGHBOUR = Percent("10%"), Percent("99%")


class PressureParams(Strict):
    """The share of their memory that the agents keep, and what takes the rest."""

    leave: Percent = Field(default=Percent("80%"), le=1.0, ge=_SAFE_SHARE)
    """Share of the memory that the processes hold just before the fault (not counting files and page cache); at least
    10%.
    """
    by: Literal["limit", "neighbour"] = "limit"
    """`limit`: a lower limit for the agents' cgroup; `neighbour`: another process there, which leaves at most 99%."""

    @model_validator(mode="after")
    def _neighbour_takes_something(self) -> Self:
        if self.by == "neighbour" and self.leave > _MOST_BESIDE_NEIGHBOUR:
            raise ValueError(
                f"a neighbour that leaves {self.leave} takes nothing: leave at most {_MOST_BESIDE_NEIGHBOUR}, or"
                " write `by: limit`"
            )
        return self


class MemoryPressure(BaseFault[PressureParams]):
    """Leaves the host's agents `leave` of their memory: the kernel reclaims the rest from files, or kills agents.

    `by: limit` limits the agents' cgroup to less than they use. `by: neighbour` limits the group to the memory in use,
    and starts another process in it that takes part of that memory. The revert starts agents that the kernel has
    killed. A machine without cgroups (v1 or v2) refuses the fault.

    The observer starts a process in that cgroup that takes 32 MiB more than the limit. In force, the kernel kills it
    and counts a refusal, and the cgroup holds no more than the limit; before and after, the process gets its memory.
    """

    kind: ClassVar[str] = "memory.pressure"
    capabilities: ClassVar[frozenset[type[Any]]] = frozenset({MemoryCanary, MemoryControl, ProcessControl, Processes})
    observer: ClassVar[Observer] = Observer(
        "memory that a new process of the canary gets, the agents' own in /proc, and the kernel's count of refusals",
        "the name of the agents' cgroup",
    )
    Params: ClassVar[type[Strict]] = PressureParams
    ends_its_agent: ClassVar[bool] = True
    holds_down: ClassVar[bool] = True
    observed_within_s = 20.0
    cases: ClassVar[Cases] = Cases(
        each=({"leave": "80%"}, {"leave": "60%", "by": "neighbour"}),
        space=({"leave": "10%..100%", "by": ["limit"]}, {"leave": "10%..99%", "by": ["neighbour"]}),
    )

    def requires(self) -> Requires:
        return replace(super().requires(), memory_groups=True)

    def uses(self, place: Place) -> Sequence[Claim]:
        why = "the kernel may end the agent, or refuse it memory when it starts"
        return (
            *super().uses(place),
            takes(MEMORY),
            takes(AGENT),
            takes(PROCESS),
            needs(START),
            *(spoils(thing, why) for thing in (ANSWERS, LISTENER)),
        )

    async def prior(self, target: Target) -> Mapping[str, Any]:
        """Raises FaultError if the agents cannot be limited, or are limited already."""
        host = self.hosts.host(target.host)
        held, own = await host.use(MemoryControl).memory_in_use()
        less = int(own * (1 - self.params.leave)) & _WHOLE
        limit = (held - less if self.params.by == "limit" else held) & _WHOLE
        trial = limit + _SPARE_BYTES
        taken = await host.use(MemoryCanary).canary_take(trial)
        if taken < trial:
            raise FaultError(
                f"{target.host}: without the fault a process can take {Size(taken)} of {Size(trial)}, so the fault"
                " would not show: find out what limits it"
            )
        running = [one for one in host.roles if await host.use(Processes).agent_process(one) is not None]
        return {
            "limit_bytes": limit,
            "neighbour_bytes": less if self.params.by == "neighbour" else 0,
            "agents": {one: await host.use(MemoryCanary).own_bytes(one) for one in running},
            "refusals": await host.use(MemoryCanary).memory_refusals(),
        }

    async def apply(self, undo: Undo) -> None:
        control, prior = self._host(undo).use(MemoryControl), undo["prior"]
        await control.limit_memory(undo["fault_id"], prior["limit_bytes"])
        if prior["neighbour_bytes"]:
            await control.take_memory(undo["fault_id"], prior["neighbour_bytes"])

    async def verify(self, undo: Undo, *, present: bool) -> Evidence:
        canary, prior = self._host(undo).use(MemoryCanary), undo["prior"]
        trial = prior["limit_bytes"] + _SPARE_BYTES
        taken = await canary.canary_take(trial)
        refusals = await canary.memory_refusals() - prior["refusals"]
        own = {agent: await canary.own_bytes(agent) for agent in prior["agents"]}
        neighbour = await canary.own_bytes(undo["fault_id"])
        said = [
            f"{agent} holds {Size(now)}, {Size(prior['agents'][agent])} before" if now else f"{agent} was ended"
            for agent, now in own.items()
        ]
        if present:
            # count only what the neighbour took: its interpreter shares pages with processes outside of the cgroup
            within = taken + sum(own.values()) + prior["neighbour_bytes"] <= prior["limit_bytes"]
            ok = taken < trial and within and refusals > 0 and neighbour >= prior["neighbour_bytes"]
        else:
            processes = self._host(undo).use(Processes)
            silent = [agent for agent in own if not await processes.agent_answers(agent, _ANSWER_S)]
            ok = taken == trial and not silent and not neighbour
        return Evidence(
            ok,
            f"the agents have {Size(prior['limit_bytes'])}, less {Size(prior['neighbour_bytes'])} for a neighbour"
            if present
            else f"a process can take {Size(trial)}, the agents answer, and no neighbour is left",
            f"a process took {Size(taken)} of {Size(trial)}, {refusals} refusals; "
            + "; ".join([*said, *([f"the neighbour holds {Size(neighbour)}"] if neighbour else [])]),
            {"limit_bytes": prior["limit_bytes"], "taken_bytes": taken, "agents_bytes": sum(own.values())},
        )

    async def revert(self, undo: Undo) -> None:
        host = self._host(undo)
        await host.use(MemoryControl).free_memory(undo["fault_id"])
        for agent in undo.get("prior", {}).get("agents", ()):
            if await host.use(Processes).agent_process(agent) is None:
                await host.use(ProcessControl).start_agent(agent)
