"""Shared by all commands: consoles, JSON output, and paths of runs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hashidrill.core.errors import UsageError
from hashidrill.core.units import Duration
from hashidrill.core.util.files import COMPARISON_NAME, JOURNAL_NAME
from hashidrill.reports.text import plain_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType


_ONLY_JSON: ContextVar[bool] = ContextVar("only_json", default=False)


def only_json(value: bool) -> bool:
    """While a command runs with this option, only JSON goes to standard output: `console()` and other text
    go to standard error.
    """
    if value:
        _ONLY_JSON.set(True)
    return value


Json = Annotated[bool, typer.Option("--json", callback=only_json, help="Print JSON, for scripts.")]
RunsDir = Annotated[
    Path, typer.Option("--runs", envvar="HASHIDRILL_RUNS", help="Directory of recordings.", show_default=True)
]

Hypotheses = Annotated[
    Path | None,
    typer.Option("--hypotheses", metavar="DIR", help="Folder of your hypotheses, whose Python this command may run."),
]


class FailOn(StrEnum):
    """The lowest severity at which a finding fails the command; `never`: no finding does."""

    error = "error"
    warning = "warning"
    info = "info"
    never = "never"


Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines, as without a terminal.")]
AttachFile = Annotated[
    Path, typer.Option("--attach", metavar="FILE", help="The existing datacenter (a file of `kind: Attach`).")
]
Install = Annotated[
    bool, typer.Option("--install", help="Install missing system packages with apt without asking, as CI=true does.")
]


def examples(*commands: str) -> str:
    """The end of a command's help. The first line keeps each command on a separate line."""
    title = "Example" if len(commands) == 1 else "Examples"
    return "\n".join(["\b", f"{title}:", *(f"  hashidrill {command}" for command in commands)])


def options_given(ctx: typer.Context) -> list[str]:
    """The options that the command line or the environment sets, as typed, in the order of `--help`."""
    sources = {each.opts[0]: ctx.get_parameter_source(each.name or "") for each in ctx.command.params}
    return [option for option, source in sources.items() if source is not None and source.name != "DEFAULT"]


def own_program() -> str | None:
    """The path of the running hashidrill; None if it is not installed as a program."""
    beside = Path(sys.executable).with_name("hashidrill")
    return str(beside) if beside.is_file() else shutil.which("hashidrill")


def duration_s(option: str, text: str) -> float:
    """The value of an option in seconds. Raises UsageError."""
    try:
        return float(Duration(text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


@contextlib.contextmanager
def on_interrupt(did: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C in the block ends the command with a message: what is undone, what is kept, how to resume."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(did())
        raise


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; 120 columns without a terminal, so that logs and tests do not depend
    on one.
    """
    stderr = stderr or _ONLY_JSON.get()
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 120
    return plain_console(stderr=stderr, width=width)


def plain_console(**how: Any) -> Console:
    """A rich console that prints text literally."""
    from rich.console import Console  # noqa: PLC0415 - 50 ms, which commands that print plain lines need not spend
    from rich.segment import Segment  # noqa: PLC0415 - as above

    class Plain(Console):
        """Text is printed literally, also in table cells: no markup is interpreted and no escape sequence passes."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for each in super().render(renderable, options):
                plain = each.control or each.text.isprintable()
                yield each if plain else Segment(printable(each.text, len(each.text)), each.style)

    return Plain(**how, highlight=False, markup=False, emoji=False)


def print_line(line: str) -> None:
    """Prints one plain line, like `live.say`, without rich."""
    print_text(plain_line(line) + "\n")


def print_text(text: str, *, stderr: bool = False) -> None:
    """Prints the text without control characters that a terminal would obey."""
    (sys.stderr if stderr or _ONLY_JSON.get() else sys.stdout).write(printable(text, len(text)))


def folded(text: str, indent: str = "") -> str:
    """A paragraph wrapped to the terminal's width, with later lines indented; unchanged if the output is a pipe."""
    if not sys.stdout.isatty():
        return text
    import textwrap  # noqa: PLC0415 - few commands print paragraphs

    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, clip: bool = False) -> None:
    """Prints one line per row, below the headings if there are any. `clip`: cuts lines to the terminal's width."""
    lines = [[plain_line(cell) for cell in row] for row in ([columns] if columns else []) + list(rows)]
    widths = [max(map(len, column)) for column in itertools.zip_longest(*lines, fillvalue="")]
    width = shutil.get_terminal_size().columns if clip and sys.stdout.isatty() else None
    texts = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    if width is not None:
        texts = [text if len(text) <= width else f"{text[: width - 1]}…" for text in texts]
    print_text("".join(f"{text}\n" for text in texts))


def print_json(value: Any) -> None:
    """The JSON document that a command with --json prints, once, at its end."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def recordings(runs_dir: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(runs_dir))  # noqa: PTH208 - reading only names stays quick with thousands of runs
    except OSError:
        return []
    return [runs_dir / name for name in names if os.path.isfile(f"{runs_dir}/{name}/{JOURNAL_NAME}")]  # noqa: PTH113


def recordings_below(folder: Path) -> Iterator[Path]:
    """All recordings, including recordings of comparisons, rehearsals and game days, in the order of their folders."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - as above
    except OSError:
        return
    for name in names:
        path = f"{folder}/{name}"
        if os.path.isfile(f"{path}/{JOURNAL_NAME}"):  # noqa: PTH113 - as above
            yield Path(path)
        elif os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 - as above
            yield from recordings_below(Path(path))


def is_comparison(path: Path) -> bool:
    """Whether the folder belongs to a comparison of several recordings."""
    return (path / COMPARISON_NAME).is_file()


def find_recording(name: str, runs_dir: Path, *, comparisons: bool = False) -> Path:
    """A recording (with `comparisons`, or a comparison) by path, directory name or `last`. Raises UsageError."""
    known = recordings(runs_dir)
    if name == "last":
        if known:
            return known[-1]
        games = runs_dir.parent / "training"
        kept = f"; training keeps its own in {games}/GAME/recording" if games.is_dir() else ""
        raise UsageError(f"{runs_dir}: no recordings yet; make one with `hashidrill run EXPERIMENT`{kept}")
    for path in (Path(name), runs_dir / name):
        if (path / JOURNAL_NAME).is_file() or (comparisons and is_comparison(path)):
            return path
    raise UsageError(f"there is no recording {name!r}; `hashidrill list runs` shows those in {runs_dir}")
