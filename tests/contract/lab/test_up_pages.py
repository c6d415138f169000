"""Whether an agent has a UI is read from its own page, over a real connection."""

import anyio
import pytest

from hashidrill.lab.up import keeper
from http_scripts import Answer, Scripted

PAGES = {
    "nomad 1.10.5, built": (
        "<p>Nomad UI is not available in this binary. To get Nomad UI do one of the following:</p>",
        True,
    ),
    "vault 1.21.0, built": ("<h1>Vault UI is not available in this binary.</h1>", True),
    "a UI": ("<!DOCTYPE html><title>Consul by HashiCorp</title>", False),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_only_says_there_is_no_ui_is_none(name):
    text, lacks = PAGES[name]
    with Scripted(lambda _number, _request: Answer(body=text.encode())) as server:
        assert anyio.run(keeper._no_ui, f"{server.url}/ui/") == lacks


def test_an_agent_that_does_not_answer_is_said_to_lack_nothing():
    assert not anyio.run(keeper._no_ui, "http://127.0.0.1:1/ui/")
