"""What must hold before an attached datacenter is touched, and while it is.

Two moments: `check`, which reads alone and refuses before there is a recording; and `hold`, around the whole run in the
engine's process, before the first write. Around each fault, `Held.admits` is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from hashidrill.errors import InterlockError

if TYPE_CHECKING:
    from hashidrill.datacenter.attach.estate import Estate
    from hashidrill.datacenter.attach.plan import Plan
    from hashidrill.datacenter.attach.target import AttachTarget
    from hashidrill.datacenter.attach.wire import Wire


class Held(Protocol):
    """Interlocks that said yes, for as long as a run goes on."""

    async def stopped(self) -> str:
        """Returns why the run must stop, if ever."""

    def admits(self, acting: Any) -> AbstractAsyncContextManager[None]:
        """Around each fault (engine.run_state.Acting). Raises InterlockError: nothing is applied then."""


class Interlocks(Protocol):
    """Whoever has to say yes."""

    async def check(self, plan: Plan) -> None:
        """Reads, and raises InterlockError where this run must not be."""

    def hold(
        self, plan: Plan, tell: Callable[[str], None], recording: Path | None = None
    ) -> AbstractAsyncContextManager[Held]:
        """Around the whole run, before anything is written. Raises InterlockError where it must not be.

        `tell` says something to whoever watches the run; `recording` is the folder of the run.
        """


class Refusing:
    """Says no to everything."""

    async def check(self, plan: Plan) -> None:
        self._refuse(plan)

    def hold(
        self,
        plan: Plan,
        tell: Callable[[str], None],  # noqa: ARG002 - as above
        recording: Path | None = None,  # noqa: ARG002 - the protocol's
    ) -> AbstractAsyncContextManager[Held]:
        self._refuse(plan)

    @staticmethod
    def _refuse(plan: Plan) -> NoReturn:
        raise InterlockError(
            f"{plan.target.name}: this version of hashidrill only looks at an attached datacenter (`hashidrill doctor"
            " --attach`); it has no interlocks yet, and touches nothing without them"
        )


def open_interlocks(target: AttachTarget, estate: Estate, wires: Mapping[str, Wire]) -> Interlocks:  # noqa: ARG001 - until they are there
    """The interlocks of that datacenter."""
    return Refusing()
