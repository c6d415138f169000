"""The pytest plugin: collects experiments, runs each once, and judges one expectation per test.

pytest loads it on every machine that has hashidrill, so it imports everything else only if there is an experiment.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hashidrill.faces.pytest_plugin.session import RUNS, runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hashidrill.clients.retry.fixture import TapInThread
    from hashidrill.core.recording.reader import Recording

_SUFFIXES = {".yaml", ".yml"}
_HEAD_BYTES = 65536
_OURS = re.compile(rb"""^[\s{]*["']?apiVersion["']?\s*:\s*["']?hashidrill/""", re.MULTILINE)
_KIND = re.compile(rb"""^[\s{]*["']?kind["']?\s*:\s*["']?(?P<kind>\w+)""", re.MULTILINE)
_OTHER_KINDS = {b"Base", b"Playbook", b"Scenario", b"GameDay"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hashidrill", "hashidrill: chaos experiments")
    group.addoption(
        "--hashidrill-recording",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="judge this recording, or the recordings in this directory by experiment, without running anything",
    )
    group.addoption(
        "--hashidrill-runs", type=Path, metavar="DIR", help="where recordings go (default: .hashidrill/runs in rootdir)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "experiment(path, variant=None): run this experiment, or one variant of it, once, and have its recording in the"
        " `recording` fixture",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix not in _SUFFIXES or not _asked_for(file_path, parent.config) or not _is_ours(file_path):
        return None
    from hashidrill.faces.pytest_plugin.items import ExperimentFile  # noqa: PLC0415 - see the module's docstring

    collector: pytest.Collector = ExperimentFile.from_parent(parent, path=file_path)
    return collector


@pytest.fixture
def recording(request: pytest.FixtureRequest) -> Recording:
    """The recording of the experiment that `@pytest.mark.experiment(path)` names, which is run once per session.

    The path is relative to the test's file, or to rootdir. With `variant="NAME"`, that variant is run. An INVALID run
    is an error in the test's set-up.
    """
    from hashidrill.faces.pytest_plugin.shared_runs import NotJudgedError  # noqa: PLC0415 - see the module's docstring

    marker = request.node.get_closest_marker("experiment")
    if marker is None or len(marker.args) != 1:
        pytest.fail('the recording fixture needs @pytest.mark.experiment("path/of/experiment.yaml")', pytrace=False)
    places = [request.path.parent, request.config.rootpath, request.config.invocation_params.dir]
    found = [place / marker.args[0] for place in places if (place / marker.args[0]).is_file()]
    if not found:
        where = ", ".join(dict.fromkeys(map(str, places)))
        pytest.fail(f"there is no experiment {marker.args[0]} in any of: {where}", pytrace=False)
    try:
        return runs(request.config).valid(found[0], str(marker.kwargs.get("variant") or "")).recording
    except NotJudgedError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def tap() -> Iterator[TapInThread]:
    """An HTTP server that fails attempts by plan and records them, for tests of a client's retries."""
    from hashidrill.clients.retry.fixture import tap_in_thread  # noqa: PLC0415 - see the module's docstring

    with tap_in_thread() as made:
        yield made


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = list(_summary(config))
    if lines:
        terminalreporter.section("hashidrill")
        for line, markup in lines:
            terminalreporter.write_line(line, **markup)


def _summary(config: pytest.Config) -> Iterator[tuple[str, dict[str, bool]]]:
    if RUNS not in config.stash:
        return
    for line, passed in config.stash[RUNS].summaries():
        yield line, {"green" if passed else "red": True}


def _asked_for(path: Path, config: pytest.Config) -> bool:
    """Whether the command line names the file or a folder above it: chaos never starts otherwise."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return False
    named = [config.invocation_params.dir / str(arg).split("::", maxsplit=1)[0] for arg in config.args]
    return any(path == each or each in path.parents for each in map(Path.resolve, named))


def _is_ours(path: Path) -> bool:
    """Reads the first lines as text, so that an experiment with broken YAML still gets hashidrill's message."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    if not _OURS.search(head):
        return False
    kind = _KIND.search(head)
    return kind is None or kind["kind"] not in _OTHER_KINDS
