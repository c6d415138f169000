"""`hashidrill retry`: what is typed wrong is named, and verdicts become a card, JSON and an exit code."""

import json
from dataclasses import replace

import pytest

from command_line import command_line
from hashidrill.clients.retry import battery
from hashidrill.clients.retry.battery import Measured, Settings
from hashidrill.clients.retry.verdicts import Judged
from hashidrill.core.judging.verdict import Verdict
from hashidrill.core.tap import catalogue
from hashidrill.core.tap.command import Ended
from hashidrill.faces.cli import retry
from retry_runs import attempt, run

GOOD = Judged("present", "503", Verdict.PASS, "tried again", {"attempts": 2})
BAD = Judged("jitter", "503", Verdict.FAIL, "gaps vary by 0.10%")
UNKNOWN = Judged("present", "refused", Verdict.INVALID, "needs CAP_NET_RAW")
NOT_FOR_IT = Judged("idempotent_only", "hang", Verdict.INVALID, "no write was sent", applies=False)


@pytest.fixture
def hashidrill(monkeypatch, capsys, tmp_path):
    """The command line in this process, with a battery that finds what it is told; nothing can be started."""
    asked, call = {}, command_line(monkeypatch, capsys, tmp_path)

    def go(*arguments, finds=(GOOD,), real_programs=False):
        async def battery(command, upstream, settings, **_):
            asked.update(command=command, upstream=type(upstream).__name__, settings=settings)
            return list(finds)

        monkeypatch.setattr(retry, "run_battery", battery)
        monkeypatch.setattr(retry, "private_consul", lambda _: pytest.fail("consul was started"))
        monkeypatch.setattr(retry.binaries, "ensure", lambda *_, **__: pytest.fail("consul was built"))
        if not real_programs:
            monkeypatch.setattr(retry, "unrunnable", lambda _: "")
        return call("retry", *arguments)

    go.asked = asked
    return go


@pytest.mark.parametrize(
    ("finds", "code"),
    [
        ([GOOD], 0),
        ([GOOD, NOT_FOR_IT], 0),
        ([GOOD, BAD], 1),
        ([GOOD, UNKNOWN], 3),
        ([UNKNOWN, BAD], 1),
        ([NOT_FOR_IT], 3),
    ],
    ids=["pass", "pass-and-nothing-of-the-kind", "fail", "invalid", "fail-over-invalid", "nothing-judged"],
)
def test_the_exit_code_is_that_of_the_worst_verdict_that_applies(hashidrill, finds, code):
    assert hashidrill("--no-upstream", "--", "curl", "{url}", finds=finds)[0] == code


def test_json_is_what_scripts_were_promised(hashidrill):
    _, out, _ = hashidrill("--json", "--no-upstream", "--", "curl", "-s", "{url}", finds=[GOOD, NOT_FOR_IT])
    assert json.loads(out) == {
        "command": ["curl", "-s", "{url}"],
        "verdicts": [
            {"name": "present", "fault": "503", "verdict": "PASS", "evidence": {"text": "tried again", "attempts": 2}},
            {
                "name": "idempotent_only",
                "fault": "hang",
                "verdict": "n/a",
                "evidence": {"text": "no write was sent", "applies": False},
            },
        ],
    }


def test_the_card_begins_with_what_failed_and_its_fix_and_ends_with_a_sum(hashidrill):
    _, out, _ = hashidrill("--no-upstream", "--", "curl", "{url}", finds=[NOT_FOR_IT, GOOD, UNKNOWN, BAD])
    lines = out.splitlines()
    assert [line.split()[:3] for line in (lines[1], *lines[3:6])] == [
        ["FAIL", "jitter", "503"],
        ["INVALID", "present", "refused"],
        ["PASS", "present", "503"],
        ["n/a", "idempotent_only", "hang"],
    ]
    assert lines[2].strip() == "fix: make the waits random, between 0 and the backoff"
    assert lines[6] == "FAIL: 1 PASS, 1 FAIL, 1 INVALID; 1 say nothing about this command"


@pytest.mark.lie
@pytest.mark.parametrize(
    ("path", "key"), [("/v1/kv/x", "an idempotency key or cas"), ("/v1/agent/service/register", "an idempotency key")]
)
def test_a_write_is_not_told_to_try_again_after_what_idempotent_only_forbids(hashidrill, path, key):
    """Planted: the fix of all clients, whose timeout and 500 leave open whether a write was carried out."""
    usual = run(attempt(method="PUT", path=path, status=200))
    given = run(attempt(method="", path="", fault="refused"), ok=False)
    found = battery._present(Measured([], Settings(), plain=usual, once={"refused": given}), "refused")
    _, out, _ = hashidrill("--no-upstream", "--", "curl", "{url}", finds=[found])
    told = " ".join(out.split())
    assert f"after any other fault only with {key} " in f"{told} "
    assert "a timeout" not in told
    lost = run(attempt(method="PUT", path=path, fault="hang"), ok=False)
    assert (
        f"has no {key.removeprefix('an ')}: sending it again"
        in battery._present(Measured([], Settings(), plain=usual, once={"hang": lost}), "hang").text
    )


def test_what_is_declared_arrives(hashidrill):
    hashidrill(
        "--timeout",
        "5s",
        "--attempts",
        "7",
        "--jitter-clients",
        "40",
        "--fault",
        "503",
        "--fault",
        "hang",
        "--no-upstream",
        "--",
        "my-client",
        "--fault",
        "x",
    )
    settings = hashidrill.asked["settings"]
    assert (settings.deadline_s, settings.most_retries, settings.jitter_clients) == (5, 7, 40)
    assert settings.faults == ("503", "hang")
    assert hashidrill.asked["command"] == ["my-client", "--fault", "x"]


def test_a_command_that_cannot_be_run_is_said_before_anything_is_started_for_it(hashidrill, tmp_path):
    script = tmp_path / "client.sh"
    script.write_text("#!/bin/sh\n")
    for program, reason in (
        ("no-such-command-here", "no-such-command-here: there is no such command; is it installed, and on PATH?"),
        (str(script), "it is not executable; `chmod +x"),
    ):
        code, out, err = hashidrill("--", program, "{url}", real_programs=True)
        assert (code, out) == (2, "")
        assert reason in " ".join(err.split())


def test_a_server_of_ones_own(hashidrill):
    hashidrill("--upstream", "http://127.0.0.1:8500", "--", "curl", "{url}")
    assert hashidrill.asked["upstream"] == "HttpUpstream"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeout", "5", "--", "curl"], "--timeout: '5' has no unit"),
        (["--timeout", "0s", "--", "curl"], "the deadline must be above zero"),
        (["--fault", "530", "--", "curl"], "there is no fault '530': did you mean"),
        (["--upstream", "x", "--no-upstream", "--", "curl"], "exclude each other"),
        (["--upstream", "consul:8500", "--", "curl"], "write it like http://127.0.0.1:8500"),
        (["--jitter-clients", "2", "--", "curl"], "--jitter-clients"),
        (["--no-upstream"], "Missing argument"),
    ],
)
def test_what_is_typed_wrong_is_named(hashidrill, arguments, message):
    code, _, err = hashidrill(*arguments)
    assert code == 2
    assert message in err


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    int(date)\n'
ADMITTED = "ValueError: invalid literal for int() with base 10: 'Thu, 26 Nov 2026 12:00:00 GMT'"


@pytest.mark.parametrize(
    ("status", "output", "crash"),
    [
        (1, TRACEBACK + ADMITTED, ADMITTED),
        (1, f"{TRACEBACK}requests.exceptions.HTTPError: 503 Server Error", ""),
        (1, f"{TRACEBACK}ConnectionResetError: [Errno 104]", ""),
        (0, TRACEBACK + ADMITTED, ""),
        (1, ADMITTED, ""),
        (None, TRACEBACK + ADMITTED, ""),
    ],
)
def test_a_mistake_in_the_clients_code_is_told_from_its_word_about_the_answer(status, output, crash):
    assert Ended(status, "" if status is not None else "after 5s", 0, 1, output).crash == crash


@pytest.mark.lie
def test_a_client_that_crashes_on_a_date_fails_and_does_not_just_not_retry():
    """It reads Retry-After as a number of seconds."""
    told = run(attempt(fault="503-retry-after-date", status=503, retry_after_s=2.0), ok=False)
    measured = Measured([], Settings(), once={"503-retry-after-date": replace(told, crash=ADMITTED)})
    judged = battery._retry_after(measured, "503-retry-after-date")
    assert (judged.verdict, judged.text) == ("FAIL", f"the answer made it crash: {ADMITTED}")
    other = Measured([], Settings(), once={"503-retry-after-date": told})
    assert battery._retry_after(other, "503-retry-after-date").applies is False


def test_each_verdict_of_the_battery_has_a_fix():
    assert set(catalogue.FIXES) == {name for name, _ in catalogue.BATTERY_PAIRS}
