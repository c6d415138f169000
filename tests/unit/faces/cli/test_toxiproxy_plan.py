"""`hashidrill staging proxies` prints a populate file, and nothing else."""

import json
from types import SimpleNamespace

import pytest

from attached_estates import FakeEstate, consul_target
from hashidrill.core.errors import UsageError
from hashidrill.faces.cli import toxiproxy as command
from virtual_time import run


@pytest.fixture
def there(tmp_path, monkeypatch):
    target = consul_target(tmp_path)
    estate = run(FakeEstate().found(target))
    monkeypatch.setattr(command, "attached", lambda _: SimpleNamespace(estate=estate))
    return tmp_path / "staging.yaml"


def test_it_is_what_toxiproxy_takes_as_its_config(there, capsys):
    command.proxies(attach=there, listen="127.0.0.1", first_port=30000)
    proxies = json.loads(capsys.readouterr().out)
    assert [sorted(one) for one in proxies] == [["enabled", "listen", "name", "upstream"]] * 7
    assert proxies[0]["listen"] == "127.0.0.1:30000"


@pytest.mark.parametrize("port", [65_535, 0])
def test_what_cannot_be_is_refused(there, capsys, port):
    with pytest.raises(UsageError, match="proxies need as many ports"):
        command.proxies(attach=there, listen="127.0.0.1", first_port=port)
    assert capsys.readouterr().out == ""
