"""JSON that others wrote: however it is nested, whoever reads it goes on."""

import ast
from pathlib import Path

import pytest

import hashidrill
from hashidrill.core.errors import FaultError, HashidrillError, HypothesisInvalidError
from hashidrill.core.judging.judge import read_verdict
from hashidrill.core.loads import clients
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.clients import from_operations, reported
from hashidrill.core.protocols.abc import ApiAnswer
from hashidrill.core.util.safe_json import parse
from hashidrill.products.consul.loads import cas, kv, locks, views
from hashidrill.testing.recordings import RecordingBuilder

DEEP = ["[" * 60_000, '{"a":' * 12_000, "[" * 60_000 + "]" * 60_000]
_OURS = """
products/sample/store.py products/sample/store_program.py clients/audit/report.py clients/audit/tree.py
clients/retry/timed_taps.py core/engine/load_generator.py core/loads/in_generator.py core/protocols/events.py
core/recording/journal.py core/recording/writer.py core/util/processes.py core/util/enter.py core/util/safe_json.py
core/util/redaction.py gamedays/training/inside/cell.py gamedays/training/inside/client.py
gamedays/training/inside/own.py gamedays/training/inside/rotation.py gamedays/warroom/serving.py lab/local/hosts.py
lab/local/inside/diskd.py lab/local/inside/hostd.py lab/local/inside/systemctl.py lab/provision/machine.py
lab/provision/machine_trials.py lab/runs/in_sandbox.py lab/runs/launch.py lab/sandbox/init.py lab/sandbox/janitor.py
lab/sandbox/rpc.py lab/sandbox/sandbox.py lab/up/keeper.py lab/up/running.py products/sample/program.py
products/vault/operator.py staging/carriers/shell.py staging/carriers/inside/agent.py
staging/carriers/inside/armed.py staging/carriers/inside/observers.py staging/carriers/inside/host_faults.py
staging/carriers/inside/notes.py staging/carriers/inside/restart.py staging/carriers/inside/slowdown.py
staging/generators/conductor.py staging/generators/worker.py testing/consul.py testing/faults.py testing/nomad.py
testing/vault.py
"""
OURS = set(_OURS.split())
"""Modules whose json.loads reads what another process of ours wrote, or that catch RecursionError by themselves.

Those of `carriers/inside` run on hosts that have no hashidrill, and read what nft, tc and they themselves print."""


@pytest.mark.parametrize("text", DEEP)
def test_what_is_nested_too_deeply_is_no_json(text):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse(text)


@pytest.mark.parametrize("text", ["[1", "", "nothing", '{"a": 1}}'])
def test_what_is_no_json_stays_a_value_error(text):
    with pytest.raises(ValueError, match="line 1 column"):
        parse(text)


@pytest.mark.lie
@pytest.mark.parametrize("text", DEEP)
def test_a_client_that_prints_brackets_is_still_listened_to(text):
    report = b'{"start_ns": 10, "end_ns": 20, "ok": true}'
    for line in (text.encode(), b'{"start_ns": 10, "end_ns": 20, "ok": true, "key": ' + text.encode()):
        assert reported("hasty", line, origin_ns=0, now_ns=100) is None
    assert reported("hasty", report, origin_ns=0, now_ns=100).outcome == "ok"


def test_a_key_that_is_no_text_is_a_report_that_is_wrong():
    with pytest.raises(HashidrillError, match="key and error are text"):
        reported("hasty", b'{"start_ns": 10, "end_ns": 20, "ok": true, "key": [[[]]]}', origin_ns=0, now_ns=100)


@pytest.mark.parametrize("text", DEEP)
def test_an_agent_that_answers_brackets_is_an_answer_like_any_other(text):
    answer = Answer(200, text.encode(), {})
    assert kv._entries(answer) is None
    assert cas._seen(answer) is None
    assert locks._session_id(answer) is None
    assert locks._fence_reply(locks.Action("fence", "a"), answer).outcome == "fail"
    assert len(views._instances(answer.body)) == 12
    with pytest.raises(FaultError, match="HTTP 200, not JSON"):
        ApiAnswer(200, text.encode()).json()


@pytest.mark.parametrize("text", DEEP)
def test_a_recording_full_of_brackets_is_refused_like_any_other_that_does_not_read(tmp_path, text):
    run = RecordingBuilder(tmp_path / "run")
    run.write("hasty.attempts", start=1, end=1.1, key="GET /", value=text)
    with pytest.raises(HypothesisInvalidError, match="is not an attempt at a tap"):
        from_operations(run.build().operations("hasty.attempts"))
    (tmp_path / "run" / "verdict.json").write_text(text)
    with pytest.raises(HashidrillError, match="unreadable"):
        read_verdict(tmp_path / "run")


@pytest.mark.parametrize("text", DEEP)
def test_a_tap_that_is_told_brackets_says_that_it_does_not_understand(text):
    class Tapped:
        faults = clients.Faults()

    assert "error" in clients.ClientLoad._answer(Tapped(), text.encode(), "http://127.0.0.1:1")


@pytest.mark.long
@pytest.mark.lie
def test_no_other_module_reads_json_in_a_way_that_brackets_end():
    """Planted long ago, in clients.py. A new place reads with `safe_json.parse`, or joins the list."""
    package = Path(hashidrill.__file__).parent
    bare = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = isinstance(node, ast.Attribute) and node.attr in {"loads", "load"}
            if called and isinstance(node.value, ast.Name) and node.value.id == "json":
                bare.add(str(file.relative_to(package)))
    assert bare - OURS == set()
