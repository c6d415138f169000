"""Recordings that earlier versions made are judged as they were judged then.

Those of tests/support/old_recordings were made by the code of commit 3880a35, with RecordingBuilder, and judged by it:
their verdict.json is that verdict, but for what was wrong in it: a Retry-After without its baseline (`clients`).
`unmarked` is one as hashidrill made them until 0.1.0: no format, no seal.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from hashidrill.core.judging.judge import judge
from hashidrill.core.recording.reader import Recording
from hashidrill.core.recording.seal import damage
from places import SUPPORT

OLD = sorted(path for path in (SUPPORT / "old_recordings").iterdir() if path.is_dir())
FORMATS = {"clients": 2, "locks": 2, "overloaded": 2, "unmarked": 1}


def test_there_is_one_of_each_older_format():
    assert {path.name: Recording(path).format for path in OLD} == FORMATS


@pytest.mark.lie
@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_an_old_recording_gets_the_verdict_that_it_got_then(path):
    then = json.loads((path / "verdict.json").read_text())
    now = judge(Recording(path))
    assert _findings({"verdict": now.verdict, **json.loads(json.dumps(dataclasses.asdict(now)))}) == _findings(then)


def _findings(verdict):
    """All but the words: a sentence may be put better, while every finding and figure stays."""
    judgements = [{key: value for key, value in each.items() if key != "text"} for each in verdict["judgements"]]
    counts = {key: len(verdict[key]) for key in ("invalid", "notes")}
    return {"verdict": verdict["verdict"], "judgements": judgements, **counts}


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_an_old_recording_is_whole(path):
    assert damage(Recording(path)) == []
