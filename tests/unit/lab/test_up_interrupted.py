"""Ctrl-C at the moment in which the keeper of a datacenter is started: what nobody has a handle of is ended too."""

import io
import signal
from types import SimpleNamespace

import pytest

from hashidrill.core.experiment.model import DatacenterSpec
from hashidrill.lab.up import running
from tasks import raising


@pytest.mark.lie
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_keeper_that_is_being_started_is_told_to_end(number, monkeypatch, tmp_path):
    def started(*_, **__):
        signal.raise_signal(number)
        ends = {"terminate": lambda: told.append("ends"), "wait": lambda _: told.append("has ended")}
        return SimpleNamespace(pid=4711, stdout=io.BytesIO(b""), **ends)

    told = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(running.binaries, "ensure", lambda *_, **__: SimpleNamespace(path="/consul", version="1.22.2"))
    monkeypatch.setattr(running.subprocess, "Popen", started)
    before = signal.signal(number, raising(KeyboardInterrupt))
    try:
        with pytest.raises(KeyboardInterrupt):
            running.up(
                "x", DatacenterSpec.model_validate({"consul": {"servers": 1}}), expose={}, say=lambda *_, **__: None
            )
    finally:
        signal.signal(number, before)
    assert told == ["ends", "has ended"]
