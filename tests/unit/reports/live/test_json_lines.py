"""JSON lines: what is written to a pipe, and what becomes of it when nobody reads any more."""

from __future__ import annotations

import json
import os

import pytest

from hashidrill.core.protocols.events import Phase
from hashidrill.reports.live.sentences import JsonLines


@pytest.fixture
def pipe():
    """Both ends: the reading one as a file descriptor, the writing one as text, as standard output is."""
    read_end, write_end = os.pipe()
    out = os.fdopen(write_end, "w")
    yield read_end, out
    out.close()


def test_a_line_is_there_as_soon_as_its_event_was_seen(pipe):
    read_end, out = pipe
    JsonLines(out).event(Phase(phase="method", t_ns=5))
    line = os.read(read_end, 1000)
    os.close(read_end)
    assert line.endswith(b"\n")
    assert json.loads(line) == {"event": "phase", "t_ns": 5, "phase": "method", "ends_ns": None}


@pytest.mark.lie
def test_once_nobody_reads_the_rest_is_dropped_and_closing_it_is_no_error(pipe):
    """Python closes standard output at its end; a line that cannot be written then makes the exit code 120."""
    read_end, out = pipe
    lines = JsonLines(out)
    os.close(read_end)
    with pytest.raises(BrokenPipeError):
        lines.event(Phase(phase="method"))
    out.write("more")
    out.close()
