"""The command line. `main` is the one place where errors become messages and exit codes."""

from __future__ import annotations

import sys

from hashidrill.cli.app import app
from hashidrill.errors import HashidrillError

_INTERRUPTED = 130


def main() -> None:
    """Run the command line, and exit: 0 PASS, 1 FAIL, 2 usage, 3 INVALID, 4 not reverted, 130 interrupted."""
    try:
        app(prog_name="hashidrill")  # however it was started: help is to be typed
    except HashidrillError as error:
        sys.stderr.write(f"hashidrill: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("hashidrill: interrupted\n")
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(_INTERRUPTED)
