"""The command line. `main` is the one place where errors become messages and exit codes."""

import gc
import sys

from hashidrill.core.errors import HashidrillError
from hashidrill.core.util.interrupts import finish, hangups_interrupt, when_hung_up
from hashidrill.faces.cli.output import kept, lost, standing_in
from hashidrill.reports.text import printable

_USAGE, _BUG, _INTERRUPTED = 2, 70, 130
_OBJECTS = 50_000
"""New objects after which Python collects garbage: at Python's default of 700, that takes 7 % of a command's start."""


def main() -> None:
    """Run the command line, and exit: 0 PASS, 1 FAIL, 2 usage, 3 INVALID, 4 not reverted, 130 interrupted.

    70: hashidrill has a bug. 74: the output could not be written, and there is no verdict whose code takes precedence.
    """
    gc.set_threshold(_OBJECTS)
    with standing_in(), hangups_interrupt():
        code, said = _called()
        when_hung_up(finish)
        if lacks := lost():
            said = said or f"cannot write to {lacks}"
        if said:
            sys.stderr.write(f"hashidrill: {printable(said)}\n")
    sys.exit(code)


def _called() -> tuple[int, str]:  # noqa: PLR0911 - one return for each way to end
    """Returns (exit code, message for the user or "")."""
    try:
        from hashidrill.faces.cli.app import app  # noqa: PLC0415 - a package that is missing must not look like a verdict

        app(prog_name="hashidrill")  # even if it was started under another name: users type what help shows
    except SystemExit as end:
        if isinstance(stop := getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            return _INTERRUPTED, _interrupted(stop)  # typer turns an interrupt into SystemExit
        return (end.code, "") if isinstance(end.code, int) else (0, "") if end.code is None else (_USAGE, str(end.code))
    except HashidrillError as error:
        return error.exit_code, str(error)
    except KeyboardInterrupt as early:
        return _INTERRUPTED, _interrupted(early)
    except OSError as error:
        if error.filename is not None:
            return _USAGE, f"{error.filename!s}: {error.strerror}"
        return _BUG, _unexpected(error)
    except BaseException as error:  # noqa: BLE001 - a bug must not look like a verdict
        if isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is not None:
            return _INTERRUPTED, _interrupted(error)
        return _BUG, _unexpected(error)
    return 0, ""


def _interrupted(stop: BaseException) -> str:
    """Includes the notes of the blocks that the interrupt ended: what they undid, what is kept, how to continue."""
    return "; ".join(["interrupted", *getattr(stop, "__notes__", [])])


def _unexpected(error: BaseException) -> str:
    return f"this is a bug in hashidrill, please report it: {type(error).__name__}: {error}; {kept(error)}"
