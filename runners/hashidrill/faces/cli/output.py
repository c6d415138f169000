"""Standard output and error that cannot fail a command: neither an encoding, a closed pipe, a full disk nor a closed
terminal makes it fail. A failed write is reported at the end, and never in place of a verdict.
"""

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from hashidrill.reports.text import for_encoding

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTROLS = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r)|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""The escape sequences that rich itself writes to a terminal: colours, and cursor movements."""


class Output:
    """A stream in place of standard output or error: its writes never raise.

    Replaces control characters, and characters that its encoding lacks. `failed` is the first error; later output is
    discarded. All other attributes come from the stream.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.failed = None if stream is not None else OSError(errno.EBADF, "closed")
        self._stream = stream or io.TextIOWrapper(io.BytesIO(), "utf-8")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if self.failed is None:
            try:
                self._stream.write(for_encoding(_CONTROLS.sub(self._shown, text), self.encoding or "ascii"))
            except (OSError, ValueError) as error:  # ValueError: a stream that was closed
                self._fail(error)
        return len(text)

    def flush(self) -> None:
        """Never raises."""
        if self.failed is None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._fail(error)

    def _shown(self, found: re.Match[str]) -> str:
        coloured = found[1] and (self._stream.isatty() or "FORCE_COLOR" in os.environ)
        return found[0] if coloured else _REPLACEMENT

    def _fail(self, error: Exception) -> None:
        """Discards Python's buffer: otherwise Python would fail to write it at exit, and exit with 120."""
        self.failed = error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
        with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextlib.contextmanager
def standing_in() -> Iterator[tuple[Output, Output]]:
    """Replaces stdout and stderr within the block. Opens closed descriptors first: otherwise the next opened file gets
    their number, and our output.
    """
    for _ in range(3):
        if (null := os.open(os.devnull, os.O_RDWR)) > 2:  # the lowest number that is free
            os.close(null)
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 - as long as the process
    out, err = Output(sys.stdout), Output(sys.stderr)
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        yield out, err
    finally:
        out.flush()
        err.flush()
        sys.stdin, sys.stdout, sys.stderr = before


def lost() -> str:
    """Why the output did not arrive; "" if it did, or if its reader closed it."""
    sys.stdout.flush()
    failed = getattr(sys.stdout, "failed", None)
    return "" if failed is None or failed.errno == errno.EPIPE else f"standard output: {failed.strerror or failed}"


def kept(error: BaseException) -> str:
    """The file that holds an error's traceback; the traceback itself if no file can be written."""
    import tempfile  # noqa: PLC0415 - few commands end so
    import traceback  # noqa: PLC0415 - as above

    text = "".join(traceback.format_exception(error))
    try:
        fd, name = tempfile.mkstemp(prefix="hashidrill-traceback-", suffix=".txt")
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return f"its traceback:\n{text}"
    return f"its traceback is in {name}"
