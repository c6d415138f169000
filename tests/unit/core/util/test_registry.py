"""Products and kinds are found by their entry points, without importing those that are not named."""

import itertools
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from hashidrill.core.errors import UnknownNameError, UsageError
from hashidrill.core.faults.noop import Noop
from hashidrill.core.hypothesis import files as hypothesis_files
from hashidrill.core.hypothesis import getter
from hashidrill.core.protocols import registry


def test_kinds_are_found_in_the_text_of_a_package_without_an_import(tmp_path, monkeypatch):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger/__init__.py").touch()
    (tmp_path / "ledger/losses.py").write_text(
        'raise RuntimeError\nclass Lose:\n    kind: ClassVar[str] = "ledger.lose"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.kinds_in("ledger") == {"ledger.lose": "ledger.losses"}
    with pytest.raises(UsageError, match=r"there is no module ledger.gone, which an entry point names"):
        registry.kinds_in("ledger.gone")


def test_every_class_of_a_room_that_has_a_kind_is_found():
    """By the text of its module: what a class declares in another way would be missed."""
    for group in (registry.FAULTS, registry.LOADS):
        modules = registry._kinds(group)
        rooms = {module.rpartition(".")[0] for module in modules.values()}
        paths = [(room, path) for room in rooms for path in Path(import_module(room).__path__[0]).glob("*.py")]
        members = [vars(import_module(f"{room}.{path.stem}")).values() for room, path in paths if path.stem[0] != "_"]
        classes = [each for each in itertools.chain(*members) if isinstance(each, type) and "kind" in vars(each)]
        assert {cls.kind for cls in classes if isinstance(cls.kind, str)} - {registry.CLIENT} == set(modules)


def test_a_product_is_imported_when_it_is_looked_up(installed):
    read = []
    installed("hashidrill.services", "ledger:Ledger", lambda: read.append("ledger"))
    assert [*registry.services()] == ["theirs"]
    assert read == []
    with pytest.raises(UsageError, match="lacks Spec"):
        registry.services()["theirs"]
    assert read == ["ledger"]


def test_an_installation_without_entry_points_says_so(installed):
    installed("hashidrill.faults", "ledger:Lose", None)
    with pytest.raises(UsageError, match="installed without its entry points: run `uv sync`"):
        list(registry.services())


def test_faults_of_a_product_are_those_of_the_entry_point_of_its_name():
    found = {kind: registry.product_of(kind) for kind in ("consul.config", "disk.latency", "chaos_mesh.pod_kill")}
    assert found == {"consul.config": "consul", "disk.latency": "", "chaos_mesh.pod_kill": ""}


def test_every_kind_is_found_by_its_name():
    assert {kind: cls.kind for kind, cls in registry.faults().items()} == {
        kind: kind for kind in registry.fault_kinds()
    }
    assert {kind: cls.kind for kind, cls in registry.loads().items()} == {kind: kind for kind in registry.load_kinds()}


def test_near_names_are_those_of_all_kinds():
    with pytest.raises(UnknownNameError, match=r"there is no fault 'disk.latensy': did you mean disk.latency"):
        registry.fault("disk.latensy")
    with pytest.raises(UnknownNameError, match=r"there is no load 'consul.kv.writes': did you mean consul.kv.write"):
        registry.load("consul.kv.writes")


def test_a_class_of_another_package_goes_before_a_built_in_one(installed):
    class Other(Noop):
        pass

    installed("hashidrill.faults", "theirs:Other", lambda: Other, "hashidrill.core.faults.noop")
    assert registry.fault("noop") is Other


@pytest.fixture
def installed(monkeypatch):
    """Plants the entry points of another package, and those of ours that are named."""
    caches = (registry.entries, registry.plugin, registry._kinds, registry._by_entry, registry._checked)

    def plant(group, value, load, *ours):
        found = [SimpleNamespace(group=group, name="theirs", value=value, load=load)]
        found += [SimpleNamespace(group=group, name=each, value=each) for each in ours]
        monkeypatch.setattr(
            registry, "_installed", lambda: SimpleNamespace(select=lambda group: [e for e in found if e.group == group])
        )
        for each in caches:
            each.cache_clear()

    yield plant
    monkeypatch.undo()
    for each in caches:
        each.cache_clear()


def raises(error):
    raise error


def test_a_plug_in_that_cannot_be_imported_is_named_in_one_message(installed):
    installed("hashidrill.services", "ledger:Ledger", lambda: raises(ModuleNotFoundError("No module named 'ledger'")))
    with pytest.raises(
        UsageError, match=r"the plug-in ledger:Ledger .* cannot be imported: .*No module named 'ledger'"
    ):
        registry.services()["theirs"]
    installed("hashidrill.faults", "theirs:Fault", lambda: raises(ZeroDivisionError("division by zero")))
    with pytest.raises(UsageError, match=r"theirs:Fault .*of hashidrill.faults.* ZeroDivisionError: .*uninstall it"):
        registry.fault("disk.latency")


def test_a_service_without_what_every_service_has_is_refused(installed):
    installed("hashidrill.services", "ledger:Ledger", lambda: type("Ledger", (), {"name": "ledger"}))
    with pytest.raises(UsageError, match=r"lacks Spec, agent, binaries, places, roles, wait_ready; build it on"):
        registry.services()["theirs"]


def test_a_kind_that_its_module_does_not_have_is_one_message(monkeypatch):
    monkeypatch.setattr(registry, "_kinds", lambda _: {"ledger.lose": "ledger_faults"})
    monkeypatch.setitem(sys.modules, "ledger_faults", SimpleNamespace())
    with pytest.raises(UsageError, match=r"ledger.lose should be a class of the module ledger_faults, but is not"):
        registry.fault("ledger.lose")


def test_shipped_hypotheses_are_found_by_the_text_of_their_files_as_by_importing_them():
    for path in hypothesis_files._files(hypothesis_files._shipped()):
        version = hypothesis_files._version(path)
        imported = {each.name for each in hypothesis_files._in_file(path, *version)}
        assert hypothesis_files._names_in(path, *version) == imported, path


def test_a_hypothesis_of_the_shipped_folder_that_two_files_have_is_refused_as_before(tmp_path, monkeypatch):
    """To find one of them early would hide the other."""
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(
            "from hashidrill.core.hypothesis import hypothesis\n@hypothesis\ndef same(recording): ...\n"
        )
    monkeypatch.setattr(hypothesis_files, "_shipped", lambda: tmp_path)
    assert hypothesis_files._find_early("same", [tmp_path.resolve()]) is None


def test_for_all_that_one_experiment_names_the_folders_are_looked_at_once(tmp_path, monkeypatch):
    """What a file defines by the time of the next experiment is found then."""
    monkeypatch.chdir(tmp_path)
    looked = []
    versions = hypothesis_files._versions
    monkeypatch.setattr(hypothesis_files, "_versions", lambda folder: looked.append(folder) or versions(folder))
    monkeypatch.setattr(hypothesis_files, "_shipped", lambda: tmp_path)
    (tmp_path / "a.py").write_text(
        "from hashidrill.core.hypothesis import hypothesis\n@hypothesis\ndef one(recording): ...\n"
        "@hypothesis\ndef two(recording): ...\n"
    )
    get = getter(tmp_path)
    assert [get("one").name, get("two").name, get("one").name] == ["one", "two", "one"]
    assert looked == [tmp_path]

    (tmp_path / "b.py").write_text(
        "from hashidrill.core.hypothesis import hypothesis\n@hypothesis\ndef three(recording): ...\n"
    )
    assert getter(tmp_path)("three").name == "three"


def test_only_the_file_that_has_a_shipped_hypothesis_is_imported(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(
        "from hashidrill.core.hypothesis import hypothesis\n@hypothesis(\n    timed=False\n)\ndef one(recording): ...\n"
    )
    (tmp_path / "b.py").write_text("# hashidrill\nraise RuntimeError('imported')\n")
    monkeypatch.setattr(hypothesis_files, "_shipped", lambda: tmp_path)
    assert hypothesis_files._find_early("one", [tmp_path.resolve()]).name == "one"
