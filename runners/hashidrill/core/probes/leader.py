"""Who leads, by the word of a majority."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import anyio

from hashidrill.core.probes.base import BaseProbe, SickError
from hashidrill.core.protocols.abc import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MajorityProbe(BaseProbe):
    """The one of its `signals`, with an empty host: value 1 and the leader's host name as a majority of all servers
    sees it, else failed with value 0.

    One server's word is not enough: a frozen or cut-off leader goes on believing in itself. The sample is there as
    soon as a majority agrees, so that a hung server does not delay it.
    """

    hosts: Mapping[str, str]

    async def _leader_of(self, address: str, names: Mapping[str, str]) -> str:
        """The host name of the leader as the agent at `address` knows it. Raises SickError when it knows none."""
        raise NotImplementedError

    async def measure(self) -> Sequence[Sample]:
        names = {address: name for name, address in self.hosts.items()}
        votes: Counter[str] = Counter()
        said = dict.fromkeys(self.hosts, f"no answer within {self.timeout_s:g}s")

        async def ask(name: str, address: str) -> None:
            try:
                said[name] = await self._leader_of(address, names)
            except SickError as error:
                said[name] = str(error)
                return
            votes[said[name]] += 1
            if self._majority(votes):
                tasks.cancel_scope.cancel()

        # just under the probe's own deadline, after which nothing that was said would be reported
        with anyio.move_on_after(self.timeout_s * 0.9):
            async with anyio.create_task_group() as tasks:
                for name, address in self.hosts.items():
                    tasks.start_soon(ask, name, address)
        leader = self._majority(votes)
        if leader:
            return [Sample(self.signals[0], 1.0, leader)]
        return self.failed("no majority: " + "; ".join(f"{name}: {word}" for name, word in said.items()))

    def _majority(self, votes: Counter[str]) -> str:
        return next((leader for leader, count in votes.items() if count * 2 > len(self.hosts)), "")

    def failed(self, reason: str) -> Sequence[Sample]:
        return [Sample(self.signals[0], 0.0, reason, ok=False)]
