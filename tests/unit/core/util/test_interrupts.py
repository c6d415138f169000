"""Interrupts that are put off come once, when they may; nothing else of a signal changes."""

import signal
import threading

import pytest

from hashidrill.core.util.interrupts import PutOff, hangups_interrupt, interrupt, when_hung_up


@pytest.fixture
def handled():
    """What came by SIGTERM, with a handler of ours."""
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    yield came
    signal.signal(signal.SIGTERM, before)


@pytest.mark.lie
@pytest.mark.parametrize("explicit", [True, False])
def test_an_interrupt_comes_when_it_may(explicit):
    steps = []

    def begin():
        with PutOff() as interrupts:
            signal.raise_signal(signal.SIGINT)
            steps.append("started")
            if explicit:
                interrupts.now()
                steps.append("it went on")

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_each_signal_has_its_own_handler_again_and_comes_once(handled):
    with PutOff() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert handled == []
        interrupts.now()
        assert handled == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert handled == [signal.SIGTERM] * 2
    assert handled == [signal.SIGTERM] * 2


def test_without_an_interrupt_nothing_happens(handled):
    with PutOff() as interrupts:
        interrupts.now()
    assert handled == []


def test_what_is_ignored_stays_so_for_a_process_that_is_started():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with PutOff():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_it_changes_nothing():
    seen = []

    def inside():
        with PutOff():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_closed_terminal_interrupts_until_something_else_is_said():
    before, came = signal.getsignal(signal.SIGHUP), []
    with hangups_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        when_hung_up(lambda: came.append("closed"))
        with PutOff(signal.SIGHUP):
            signal.raise_signal(signal.SIGHUP)
            assert came == []
        assert came == ["closed"]
    assert signal.getsignal(signal.SIGHUP) == before


def test_under_nohup_it_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with hangups_interrupt():
            when_hung_up(interrupt)
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
