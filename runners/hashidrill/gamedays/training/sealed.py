"""The first steps of a game's keeper: `python -m hashidrill.gamedays.training.sealed`, with the request on standard
input.

They come before other imports: an ordinary user gets a mount namespace only in a process with one thread, and numpy
starts threads.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from hashidrill.core.errors import HashidrillError
from hashidrill.core.util import syscalls as sc
from hashidrill.core.util.files import private_folder
from hashidrill.gamedays.training.seal import seal
from hashidrill.lab.sandbox.sandbox import read_given


def main() -> None:
    """Plays the game of the request; returns when the game ends."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the game continues if the terminal that began it is closed
    request = read_given()
    folder = Path(request["sealed"]) / f"sealed-{os.getpid()}"
    try:
        private_folder(folder)
        seal(folder)
        from hashidrill.gamedays.training.keeper import play  # noqa: PLC0415 - not before the seal

        play(request, folder)
    except HashidrillError as error:
        sys.stdout.write(json.dumps({"error": str(error), "exit_code": error.exit_code}) + "\n")
        sys.exit(error.exit_code)
    finally:
        with contextlib.suppress(OSError):
            sc.detach(str(folder))
            folder.rmdir()  # the folder below the mount; remaining processes of the game keep their own mount


if __name__ == "__main__":
    main()
