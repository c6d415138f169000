"""Commands of a runbook really run in a shell: what they say, how they end, and what they hide."""

import anyio
import pytest

from hashidrill.gamedays.runbooks.attendant import _PRELUDE, in_shell


def ran(text, *, within_s=10.0, environment=None, folder="/tmp"):
    async def main():
        shell = ["bash", "-e", "-o", "pipefail", "-c", _PRELUDE + text]
        return await in_shell(shell, {"PATH": "/usr/bin:/bin", **(environment or {})}, within_s, folder=folder)

    return anyio.run(main)


def test_it_says_what_it_printed_and_how_it_ended():
    one = ran("echo $leader; echo no >&2; exit 3", environment={"leader": "consul-2"})
    assert (one.code, one.output, one.errors, one.hidden) == (3, "consul-2\n", "no\n", ())


@pytest.mark.parametrize("text", ["false; echo on", "false | cat; echo on", "x=$(false); echo on"])
def test_a_command_that_fails_ends_the_block(text):
    assert (ran(text).code, ran(text).output) == (1, "")


@pytest.mark.lie
@pytest.mark.parametrize("text", ["false || echo on", "false && echo off; echo on"])
def test_one_that_fails_unnoticed_is_told(text):
    one = ran(text)
    assert (one.code, one.output) == (0, "on\n")
    assert one.hidden == ("1 false",)


def test_a_condition_is_an_answer():
    assert ran("if ! false; then echo on; fi").hidden == ()


def test_nothing_is_told_of_what_went_well():
    assert ran("for n in 1 2; do test $n -gt 0 && echo $n; done; true").hidden == ()


def test_what_does_not_end_is_killed_with_all_that_it_started(tmp_path):
    one = ran(f"(sleep 60; touch {tmp_path}/late) & sleep 60", within_s=0.5)
    assert one.code is None
    assert one.took_s < 10


def test_what_it_left_in_the_background_holds_nobody_up():
    one = ran("sleep 60 & echo done")
    assert (one.code, one.output) == (0, "done\n")
    assert one.took_s < 10


def test_it_reads_nothing_from_a_terminal():
    assert ran("cat").code == 0
