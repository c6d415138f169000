"""What `hashidrill up` tells to type next can be typed."""

from __future__ import annotations

import pytest
import typer

from hashidrill.faces.cli.app import app
from hashidrill.faces.cli.datacenter import how_to_end


@pytest.mark.parametrize("name", ["default", "old"])
def test_the_command_that_ends_a_datacenter_is_one_and_names_it(name):
    """It said `down --name old`, which is an error."""
    _, command, *arguments = how_to_end(name).split()
    down = typer.main.get_command(app).commands[command]
    context = down.make_context(command, arguments)
    assert context.params["name"] == (name if name != "default" else None)
