"""The events of a run as lines of JSON, for programs that watch it: playbooks/reference-events.md has their fields."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, TextIO

from hashidrill.core.protocols.events import encode

if TYPE_CHECKING:
    from hashidrill.core.protocols.events import Event


class JsonLines:
    """Subscribes to the events of a run, and writes one JSON object a line as each comes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def event(self, event: Event) -> None:
        """Raises OSError when nobody reads any more, or the disk is full; the bus leaves it out then."""
        try:
            self._out.write(encode(event) + "\n")
            self._out.flush()
        except OSError:
            _forget(self._out)
            raise


def _forget(out: TextIO) -> None:
    """What is still to be written goes nowhere: else Python fails to write it at its end, and exits with 120."""
    try:
        fd = out.fileno()
    except io.UnsupportedOperation:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)
