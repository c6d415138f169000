"""The small commands of a trainee's shell: say, hint, users, on, rotation, systemctl, journalctl, hashidrill.

This file is copied into the shell's file system and runs there alone, with the standard library: it knows nothing but
the door of its shell. It is one program with several names.
"""

import json
import os
import signal
import socket
import sys

DOOR = "/run/game/door"


def main(name: str, words: list) -> int:  # type: ignore[type-arg]  # any Python 3 runs it
    """The exit code."""
    if name == "hashidrill":  # as on the machine outside
        if words[:1] != ["say"]:
            sys.stderr.write("in here there is `hashidrill say detected | diagnosis WORDS | done | hint | give-up`\n")
            return 2
        name, words = "say", words[1:]
    if name in ("hint", "users"):
        name, words = "say", [name, *words]
    if name == "say" and not words:
        sys.stderr.write("say detected | diagnosis WORDS | done | hint | give-up\n")
        return 2
    if name == "on" and len(words) < 2:
        sys.stderr.write("on HOST COMMAND...\n")
        return 2
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.connect(DOOR)
        except OSError:
            sys.stderr.write("the game is over\n")
            return 1
        request = json.dumps({"name": name, "words": words}).encode() + b"\n"
        socket.send_fds(door, [request], [0, 1, 2])
        answer = door.makefile("rb").readline()
    if not answer:
        sys.stderr.write("the game is over\n")
        return 1
    told = json.loads(answer)
    if told.get("text"):
        sys.stdout.write(told["text"] + "\n")
    if told.get("error"):
        sys.stderr.write(told["error"] + "\n")
    return int(told.get("code", 1 if told.get("error") else 0))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as commands of a shell end
    sys.exit(main(os.path.basename(sys.argv[0]), sys.argv[1:]))  # noqa: PTH119 - it starts in 20 ms
