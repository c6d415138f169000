"""What an agent of Nomad shows of its configuration is compared with what was asked for."""

import pytest

from hashidrill.core.util.go_durations import seconds
from hashidrill.products.nomad import settings

ABOUT = {"LogLevel": "INFO", "Server": {"HeartbeatGrace": 3_000_000_000, "RaftMultiplier": 1}, "Client": None}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("log_level",), "INFO"),
        (("server", "heartbeat_grace"), 3_000_000_000),
        (("server", "start_timeout"), None),
        (("client", "meta", "rack"), None),
    ],
)
def test_a_key_is_found_under_its_name_in_go(path, expected):
    assert settings.shown(ABOUT, path) == expected


@pytest.mark.parametrize(
    ("asked", "seen", "expected"),
    [
        ("3s", 3_000_000_000, True),
        ("4s", 3_000_000_000, False),
        ("1m", "60s", True),
        (5, 5, True),
        (5, 4, False),
        (True, True, True),
        (True, 1, None),
        ("debug", "DEBUG", True),
        ("debug", "INFO", False),
        ("debug", None, None),
        (["a"], ["a"], None),
    ],
)
def test_what_cannot_be_compared_is_neither_right_nor_wrong(asked, seen, expected):
    assert settings.agrees(asked, seen) is expected


@pytest.mark.parametrize(
    ("text", "expected"), [("1m2.5s", 62.5), ("250ms", 0.25), ("0s", 0.0), ("soon", None), ("", None)]
)
def test_lengths_of_time_as_go_writes_them(text, expected):
    assert seconds(text) == expected
