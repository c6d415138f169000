"""Hears from tasks themselves that they begin and end: an account of work that no server of Nomad has a say in."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter

from hashidrill.core.errors import DatacenterError

_BASH = "/bin/bash"
_BEGINS, _ENDS = "begins", "ends"
_LINE_LIMIT, _HEARD_WITHIN_S = 1_000, 5.0
_SCRIPT = """\
say() {{
  for try in 1 2 3; do
    {{ exec 3<>/dev/tcp/{host}/{port} && echo "$1 $NOMAD_META_HASHIDRILL" >&3 && exec 3>&-; }} 2>/dev/null && return
    /bin/sleep 1
  done
}}
say {begins}
/bin/sleep {seconds:g}
say {ends}
exit 0
"""
"""bash has TCP of its own, so a node needs nothing else. What could not be said is left unsaid: the work goes on."""


class Witness:
    """`began` and `ended`: how often the work of each key said so."""

    def __init__(self) -> None:
        self.began: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._at = ("", 0)

    async def listen(self, host: str | None) -> None:
        """On a port of that address, which nodes reach. Raises DatacenterError."""
        if host is None or shutil.which(_BASH) is None:
            what = "its load generator has no address that nodes reach" if host is None else f"there is no {_BASH}"
            raise DatacenterError(f"the work of nomad.dispatch cannot say that it ran: {what}; leave `witness` out")
        self._server = await asyncio.start_server(self._heard, host, 0)
        self._at = (host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def command(self, runs_for_s: float) -> tuple[str, str, str]:
        """What a task runs that says when it begins and ends."""
        host, port = self._at
        script = _SCRIPT.format(host=host, port=port, begins=_BEGINS, ends=_ENDS, seconds=runs_for_s)
        return _BASH, "-c", script

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEARD_WITHIN_S):
                self.hear((await reader.read(_LINE_LIMIT)).decode(errors="replace"))
        except (TimeoutError, OSError):
            return  # whoever it was has said nothing
        finally:
            writer.close()

    def hear(self, line: str) -> None:
        """One line of a task. Anything else is passed over."""
        what, _, key = line.strip().partition(" ")
        heard = {_BEGINS: self.began, _ENDS: self.ended}.get(what)
        if heard is not None and key:
            heard[key] += 1

    def account(self, key: str) -> tuple[int, str]:
        """(how often it began, `ended`, `began` or `silent`)."""
        return self.began[key], "ended" if self.ended[key] else "began" if self.began[key] else "silent"
