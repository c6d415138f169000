"""What can be said wrong on the command line of `hashidrill gate`: one message each, exit code 2, nothing started."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hashidrill.faces.cli.app import app


@pytest.fixture
def gate(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.hcl").write_text("use_streaming_backend = false")
    (tmp_path / "b.hcl").write_text("use_streaming_backend = true")
    (tmp_path / "broken.hcl").write_text("limits {")

    def started(*_words, **_more):
        raise AssertionError("something was started")

    monkeypatch.setattr("hashidrill.faces.cli.gate.play_all", started)
    monkeypatch.setattr("hashidrill.faces.cli.gate.check_taken", started)
    monkeypatch.setattr("hashidrill.faces.cli.gate.calibrate", started)
    return lambda *words: CliRunner().invoke(app, ["gate", *words])


@pytest.mark.lie
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to compare"),
        (["--candidate", "b.hcl"], "--candidate needs --baseline"),
        (["--candidate-version", "1.22.2"], "--candidate-version needs --baseline-version"),
        (["--baseline", "a.hcl", "--git", "a..b"], "--git names both sides"),
        (["--baseline", "a.hcl", "--path", "x"], "use it with --git"),
        (["--baseline", "a.hcl"], "--baseline needs --candidate"),
        (["--baseline-version", "1.22.2"], "--baseline-version needs --candidate-version"),
        (["--baseline", "none.hcl", "--candidate", "a.hcl"], "none.hcl: there is no such file or directory"),
        (["--baseline", "a.hcl", "--candidate", "broken.hcl"], "broken.hcl:1:9: a } is missing"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--product", "consl"], "there is no product 'consl'"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--suite", "nothing"], "nor is it a tag"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--suite", "retry/vault-503"], "has no Consul"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--time-budget", "10"], "--time-budget: "),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--role", "leaders"], "Consul has all, server, client"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--margin", "x=much"], "write it like"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--margin", "cpu=-200%"], "write it like"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--margin", "cpu=nan"], "write it like"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--margin", "kv-write.latency.p50=5%"], "has this figure"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--key-map", "none.yaml"], "none.yaml: cannot be read"),
        (["--calibrate", "--suite", "nothing"], "nor is it a tag"),
        (["--calibrate", "--baseline", "a.hcl", "--candidate", "b.hcl"], "against itself: leave out --baseline"),
        (["--baseline", "a.hcl", "--candidate", "b.hcl", "--time-budget", "0s"], "nothing can run in that"),
        (["--calibrate", "--dry-run"], "against itself: leave out --dry-run"),
        (["--calibrate", "--candidate-version", "1.10.3"], "against itself: leave out --candidate-version"),
    ],
)
def test_each_mistake_has_one_message(gate, words, said):
    done = gate(*words)
    assert done.exception.exit_code == 2, done.output
    assert said in str(done.exception)


def test_the_schema_of_its_document_is_printed(gate):
    done = gate("--schema")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["title"] == "hashidrill gate"
