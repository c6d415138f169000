"""Looks for tokens wherever a run against somebody else's datacenter may leave or show them.

Each secret has a name, which is what is reported: (place, name of the secret).
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import threading
import zlib
from functools import cache
from pathlib import Path
from urllib.parse import quote

_PACKED = re.compile(rb"[A-Za-z0-9+/]{200,}")
_GZIP = b"\x1f\x8b"


def forms(secret):
    """How it might stand somewhere."""
    yield from (secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], secret.replace("/", "\\/"))
    yield from (secret.encode().hex(), secret.upper())
    for offset in range(3):
        for coded in (base64.b64encode, base64.urlsafe_b64encode):
            text = coded(bytes(offset) + secret.encode()).decode()
            yield text[(0, 2, 3)[offset] : 8 * (offset + len(secret)) // 6]


@cache
def _decoded(text):
    """What a run of base64 holds, as it is and inflated."""
    found = []
    with contextlib.suppress(ValueError):
        found.append(base64.b64decode(text + b"=" * (-len(text) % 4)))
        with contextlib.suppress(zlib.error):
            found.append(zlib.decompress(found[0]))
    return found


def unpacked(content):
    """What is packed in it: programs as Nomad's jobs and their command lines have them, and compressed files."""
    for text in dict.fromkeys(_PACKED.findall(content)):
        yield from _decoded(text)
    if content.startswith(_GZIP):
        with contextlib.suppress(OSError, EOFError, zlib.error):
            yield gzip.decompress(content)


class Hunt:
    """`secrets`: by name. `found` has what was seen; `looked` how many places were looked at, by their kind."""

    def __init__(self, secrets):
        assert all(len(secret) >= 16 for secret in secrets.values()), "what is shorter stands anywhere by chance"
        self._forms = {name: [form.encode() for form in {*forms(secret)}] for name, secret in secrets.items()}
        self.found: set[tuple[str, str]] = set()
        self.looked: dict[str, int] = {}

    def look(self, kind, place, content):
        """In bytes, text, or anything that JSON can hold."""
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.looked[kind] = self.looked.get(kind, 0) + 1
        for each in (content, *unpacked(content)):
            self.found |= {
                (str(place), name) for name, forms_of in self._forms.items() if any(one in each for one in forms_of)
            }

    def files(self, kind, *folders):
        for folder in folders:
            for path in Path(folder).rglob("*"):
                if path.is_file():
                    self.look(kind, path, path.read_bytes())

    def keys(self, entries):
        """Of Consul's KV store, as its API lists them."""
        for entry in entries:
            self.look("key", entry["Key"], entry["Key"].encode() + b"\n" + base64.b64decode(entry["Value"] or ""))

    @contextlib.contextmanager
    def watching_processes(self, folder=None):
        """Every command line and every environment that this user may read, again and again while the block goes on.

        And the files below `folder`, which are gone at the end.
        """
        ended = threading.Event()

        def watch():
            while True:
                self.processes()
                if folder is not None:
                    with contextlib.suppress(OSError):  # a file that has just gone
                        self.files("file while it goes on", folder)
                if ended.wait(0.1):
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def processes(self):
        for home in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                command = (home / "cmdline").read_bytes()
                self.look("process", f"command {command.decode(errors='replace')[:200]}", command)
                environ = (home / "environ").read_bytes()
                self.look("process", f"environment of {command.decode(errors='replace')[:200]}", environ)
