"""A package that only some commands need may be missing: they say which extra brings it, and nothing else breaks."""

import importlib
import sys

import pytest

from hashidrill.core.util.extras import MissingExtraError, extra

NEEDS = {
    "kubernetes": ("lightkube", "hashidrill.kubernetes.client", "services.kubernetes"),
    "metrics": ("prometheus_client", "hashidrill.reports.live.metrics", "--metrics"),
    "otel": ("opentelemetry", "hashidrill.reports.live.traces", "OTEL_TRACES_EXPORTER=otlp"),
    "page": ("uvicorn", "hashidrill.gamedays.warroom.serving", "the page of --serve"),
    "ssh": ("asyncssh", "hashidrill.staging.carriers.ssh", "carriers.ssh"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_missing_extra_is_one_message_that_says_where_what_and_what_to_do(name, monkeypatch):
    package, module, where = NEEDS[name]
    for hidden in [one for one in sys.modules if one.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, hidden)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Hiding(package), *sys.meta_path])
    with pytest.raises(MissingExtraError) as told:
        importlib.import_module(module)
    assert str(told.value) == (
        f"{where} needs the package {package}, which is not installed: pip install 'hashidrill[{name}]'"
    )


class Hiding:
    """An import of `package` finds nothing."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.lie
def test_a_module_of_our_own_that_is_missing_is_no_missing_extra():
    with pytest.raises(ModuleNotFoundError), extra("ssh", "carriers.ssh"):
        importlib.import_module("hashidrill.no_such_module")
