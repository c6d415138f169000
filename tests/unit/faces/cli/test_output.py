"""What a command prints fails no command: no encoding, closed pipe, full disk, or terminal that is gone does.

In this process, with real file descriptors. A new command joins by itself, with its help; WORDS has what prints more.
"""

import errno
import io
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import leaves
from hashidrill.core.judging import judge
from hashidrill.faces import cli
from hashidrill.faces.cli import listing, output, runs
from hashidrill.reports import write
from hashidrill.reports.live import display as live
from hashidrill.testing.recordings import RecordingBuilder
from places import GOOD, PLAYBOOKS, ROOT
from tasks import raising

WORDS = {
    "staging acl": ["consul", GOOD],
    "staging arm": ["--attach", "staging.yaml", "--for", "2h"],
    "audit": [ROOT / "playbooks/reference-keys.md", "consul.hcl", "-v"],
    "bisect": ["--experiment", GOOD, "--good", "nosuch", "--bad", "nosuch"],
    "capacity": [GOOD, "--vary", "load.nosuch.rate", "--until", "x"],
    "check": ["last", "--json"],
    "staging disarm": ["--attach", "staging.yaml"],
    "doctor": ["--attach", "staging.yaml"],
    "lab down": ["nosuch"],
    "convert export": ["chaos-mesh", GOOD],
    "gameday report": ["last"],
    "gameday resume": [],
    "gameday run": ["odd\udcff.yaml"],
    "gate": ["--schema"],
    "heal": [],
    "history list": [],
    "convert import": ["odd\udcff.yaml"],
    "list": [],
    "new": ["mine.yaml"],
    "rehearse": ["odd\udcff.md"],
    "retry": ["--list"],
    "run": ["odd\x1b[31m.yaml"],
    "say": ["detected"],
    "schedule": ["--cron", "0 9 * * 1", "--nomad", GOOD],
    "schema": ["scenario"],
    "lab shell": ["consul-1"],
    "show": ["last"],
    "lab status": ["--json"],
    "staging stop": ["--attach", "staging.yaml"],
    "staging proxies": ["--attach", "staging.yaml"],
    "train": ["--list"],
    "validate": [PLAYBOOKS / "first-game-day.yaml", "odd\udcff.yaml"],
}


CALLS = [*((name, ["-h"]) for name in sorted(dict(leaves()))), *sorted(WORDS.items())]


class Stream(io.TextIOWrapper):
    """Standard output on a real file descriptor, as Python opens it; what is left in it may not be written either."""

    def __init__(self, target, encoding="utf-8", errors="strict"):
        super().__init__(open(target, "wb", closefd=True), encoding, errors)  # noqa: SIM115, PTH123 - it is a number


def closed_pipe():
    read_end, write_end = os.pipe()
    os.close(read_end)
    return Stream(write_end)


def closed_terminal():
    outer, inner = pty.openpty()
    os.close(outer)
    return Stream(inner)


FILES = ("verdict.json", "report.html", "summary.md")
WAYS = {
    "closed": lambda: None,
    "terminal": closed_terminal,
    "full": lambda: Stream("/dev/full"),
    "pipe": closed_pipe,
    "latin-1": lambda: Stream(os.devnull, "latin-1"),
    "ascii": lambda: Stream(os.devnull, "ascii"),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with odd names in it, and a recording. Nothing is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(runs, "run_experiment", lambda *_, **__: pytest.fail("a run was started"))
    builder = RecordingBuilder(tmp_path / ".hashidrill/runs/20260101-000000-odd", name="odd").load("kv-writes")
    builder.expect("writes_recover", load="kv-writes", p50_below="300ms", within="10s").end("complete")
    builder.build()
    text = GOOD.read_text()
    for name in ("odd\udcff.yaml", "experiments/odd\udcff.yaml", "experiments/odd\x1b]0;x\x07.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("title: The Raft", "title: '[/x] ✓ é'  # The Raft"))
    (tmp_path / "odd\udcff.md").write_text("# no runbook\n")
    (tmp_path / "consul.hcl").write_text('datacenter = "é"\nserver = true\n')
    (tmp_path / "staging.yaml").write_text("kind: Attach\n")
    return tmp_path


def called(words, monkeypatch, out):
    """Exit code, and what was said on standard error."""
    monkeypatch.setattr(sys, "argv", ["hashidrill", *map(str, words)])
    err = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as end:
            cli.main()
    if out is not None:
        out.close()  # as Python does at its end
    err.flush()
    return end.value.code or 0, err.buffer.getvalue().decode()


@pytest.mark.long
@pytest.mark.parametrize(("name", "words"), CALLS, ids=[f"{name} {words[0] if words else ''}" for name, words in CALLS])
def test_no_command_fails_by_what_becomes_of_its_output(name, words, here, monkeypatch):
    words = [*name.split(), *words]
    before = {path for path in here.rglob("*") if path.is_file()}
    usual, _ = called(words, monkeypatch, Stream(os.devnull))
    for way, make in WAYS.items():
        for path in {path for path in here.rglob("*") if path.is_file()} - before:
            path.unlink()
        code, said = called(words, monkeypatch, make())
        assert not re.search(r"Traceback|bug|[\x00-\x08\x0b-\x1f\x7f-\x9f]", said), way
        lost = way in {"closed", "full", "terminal"} and usual == 0 and "cannot write to standard output" in said
        assert code == usual or (lost and code == 74), way


@pytest.mark.long
@pytest.mark.parametrize(("name", "words"), sorted(WORDS.items()), ids=sorted(WORDS))
def test_where_nothing_can_be_written_no_command_ends_as_if_an_slo_had_failed(name, words, here, monkeypatch):
    words = [str(here / word) if isinstance(word, str) and (here / word).exists() else word for word in words]
    usual, _ = called([*name.split(), *words], monkeypatch, Stream(os.devnull))
    monkeypatch.chdir("/sys")  # not even root may write there
    code, said = called([*name.split(), *words], monkeypatch, Stream(os.devnull))
    assert "Traceback" not in said
    assert "bug" not in said
    assert code in {usual, 2}


def test_new_in_a_folder_that_cannot_be_written_says_so(monkeypatch, here):
    code, said = called(["new", "/sys/mine.yaml"], monkeypatch, Stream(os.devnull))
    assert code == 2
    assert re.fullmatch(r"hashidrill: /sys/mine.yaml: .+\n", said)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_names_and_titles_reach_a_terminal_without_their_control_characters(here, monkeypatch, encoding):
    monkeypatch.setattr(Stream, "isatty", lambda _: True)
    assert called(["list"], monkeypatch, Stream(here / "shown", encoding))[0] == 0
    shown = (here / "shown").read_bytes()
    assert b"\x1b]" not in shown
    assert b"\x07" not in shown
    assert shown.count(b"[/x]") == 2  # and none of it is markup


@pytest.mark.long
def test_a_finished_verdict_is_the_exit_code_whatever_became_of_the_terminal(here, monkeypatch):
    usual, _ = called(["check", "last"], monkeypatch, Stream(os.devnull))
    for way in WAYS.values():
        assert called(["check", "last"], monkeypatch, way())[0] == usual
        assert (here / ".hashidrill/runs/20260101-000000-odd/report.html").is_file()
        (here / ".hashidrill/runs/20260101-000000-odd/report.html").unlink()


def closing(original):
    """The terminal is closed as this begins."""

    def closes(*words, **more):
        signal.raise_signal(signal.SIGHUP)
        return original(*words, **more)

    return closes


@pytest.fixture
def hung_up(monkeypatch):
    """Call it: from then on the terminal is closed before the verdict, each report and the last lines are written."""
    places = ((judge, "stored"), (write, "write_html"), (write, "write_markdown"), (live, "final_summary"))
    return lambda: [monkeypatch.setattr(module, name, closing(getattr(module, name))) for module, name in places]


@pytest.mark.lie
def test_a_terminal_that_closes_takes_no_verdict_with_it(here, monkeypatch, hung_up):
    recording = here / ".hashidrill/runs/20260101-000000-odd"
    usual, _ = called(["check", "last"], monkeypatch, Stream(os.devnull))
    for name in FILES:
        (recording / name).unlink()
    hung_up()
    assert called(["check", "last"], monkeypatch, closed_terminal())[0] == usual
    assert all((recording / name).is_file() for name in FILES)


@pytest.mark.lie
def test_nor_of_a_run_that_has_ended_and_no_other_run_begins(here, monkeypatch, hung_up):
    recording, begun = here / ".hashidrill/runs/20260101-000000-odd", []

    def run(resolved, **_more):
        begun.append(resolved.name)
        return recording

    monkeypatch.setattr(runs, "run_experiment", run)
    usual, _ = called(["run", GOOD], monkeypatch, Stream(os.devnull))
    begun.clear()
    hung_up()
    code, _ = called(["run", GOOD, GOOD], monkeypatch, closed_terminal())
    assert (code, len(begun)) == (130, 1), "the second one was not run"
    assert all((recording / name).is_file() for name in FILES)
    assert called(["run", GOOD], monkeypatch, closed_terminal())[0] == usual


def test_elsewhere_a_terminal_that_closes_interrupts_as_ctrl_c_does(here, monkeypatch):
    monkeypatch.setattr(listing, "rows_of", lambda *_: signal.raise_signal(signal.SIGHUP))
    assert called(["list"], monkeypatch, Stream(os.devnull))[0] == 130


@pytest.mark.lie
def test_a_package_that_is_missing_is_no_verdict(tmp_path):
    program = "import sys; sys.modules['typer'] = None\nfrom hashidrill.faces.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 70
    assert "Traceback" not in done.stderr


def test_a_bug_is_no_verdict_and_says_where_its_traceback_is(here, monkeypatch):
    monkeypatch.setattr(listing, "rows_of", lambda *_: {}["x"])
    code, said = called(["list"], monkeypatch, Stream(os.devnull))
    assert code == 70
    [line] = said.splitlines()
    found = re.fullmatch(r"hashidrill: this is a bug .*KeyError: .*; its traceback is in (\S+)", line)
    assert "KeyError" in Path(found[1]).read_text()
    assert Path(found[1]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokenPipeError(errno.EPIPE, "of a socket"), 70),
        (ConnectionResetError(errno.ECONNRESET, "of a socket"), 70),
        (EOFError(), 2),
        (PermissionError(errno.EACCES, "Permission denied", "/some/file\x1b"), 2),
        (OSError(errno.ENOSPC, "No space left on device", "/some/file"), 2),
        (UnicodeEncodeError("latin-1", "✓", 0, 1, "no"), 70),
        (RecursionError(), 70),
        (MemoryError(), 70),
        (KeyboardInterrupt(), 130),
        (BaseExceptionGroup("of tasks", [KeyboardInterrupt()]), 130),
        (BaseExceptionGroup("of tasks", [GeneratorExit()]), 70),
        (GeneratorExit(), 70),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_error_ends_with_1(here, monkeypatch, error, code):
    monkeypatch.setattr(listing, "rows_of", raising(error))
    ended, said = called(["list"], monkeypatch, Stream(os.devnull))
    assert ended == code
    assert "\x1b" not in said


def test_what_is_closed_is_opened_so_that_no_file_of_ours_becomes_standard_output():
    program = (
        "import os, sys; os.closerange(0, 3); sys.stdin = sys.stdout = sys.stderr = None\n"
        "from hashidrill.faces.cli.output import standing_in\n"
        "with standing_in():\n    os._exit(os.open('/dev/null', os.O_RDONLY) < 3)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        (">&-", 74, "hashidrill: cannot write to standard output: closed\n"),
        ("> /dev/full", 74, "hashidrill: cannot write to standard output: No space left on device\n"),
        ("| head -1; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_a_process_of_its_own_ends_likewise(redirected, code, said, tmp_path):
    """Python itself writes what is left at its end, and would exit with 120."""
    command = f"{sys.executable} -c 'from hashidrill.faces.cli import main; main()' list loads {redirected}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_only_one_place_of_the_command_line_writes_to_the_streams():
    for path in Path(cli.__file__).parent.glob("*.py"):
        if path.name not in {"__init__.py", "common.py", "gameday_words.py", "output.py"}:
            assert not re.search(
                r"sys\.std(out|err)\.write|(?m:^ +print\()|typer\.(secho|confirm|prompt)", path.read_text()
            ), path
    assert output.Output(None).write("gone") == 4
