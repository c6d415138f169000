"""Looks for tokens wherever a run against somebody else's datacenter may leave or show them.

Each secret has a name, which is what is reported: (place, name of the secret).
"""

import base64
import contextlib
import json
import re
import threading
import zlib
from functools import cache
from pathlib import Path
from urllib.parse import quote


def _base64(decode):
    """With what its last group has, padded or not."""
    return lambda text: decode(text[: len(text) - (len(text) % 4 == 1)] + b"=" * (-len(text) % 4))


_CODED = (
    (re.compile(rb"[A-Za-z0-9+/]{20,}"), _base64(base64.b64decode), 4),
    (re.compile(rb"[A-Za-z0-9_-]{20,}"), _base64(base64.urlsafe_b64decode), 4),
    (re.compile(rb"[0-9a-fA-F]{32,}"), lambda text: bytes.fromhex(text[: len(text) // 2 * 2].decode()), 2),
)
"""What a coded text looks like, what decodes it, and into groups of how many characters it is divided."""
_ANYWHERE = 64
"""From this length on, a text is also decoded from its second character on, and so on: its first may be another's."""
_GZIP, _ZLIB = re.compile(rb"\x1f\x8b\x08"), re.compile(rb"\x78[\x01\x5e\x9c\xda]")
_DEEPEST, _LARGEST = 6, 8 << 20


def forms(secret):
    """How it might stand somewhere."""
    yield from (secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], secret.replace("/", "\\/"))
    yield from (secret.encode().hex(), secret.upper())
    for offset in range(3):
        for coded in (base64.b64encode, base64.urlsafe_b64encode):
            text = coded(bytes(offset) + secret.encode()).decode()
            yield text[(0, 2, 3)[offset] : 8 * (offset + len(secret)) // 6]


@cache
def _decoded(text, number):
    _, decode, group = _CODED[number]
    found = []
    for start in range(group if len(text) >= _ANYWHERE else 1):
        with contextlib.suppress(ValueError):
            found.append(decode(text[start:]))
    return found


def _inflated(content):
    """What is compressed in it, from wherever that begins."""
    for pattern, wbits in ((_ZLIB, 15), (_GZIP, 31)):
        for match in pattern.finditer(content):
            with contextlib.suppress(zlib.error):
                yield zlib.decompressobj(wbits).decompress(memoryview(content)[match.start() :], _LARGEST)


def unpacked(content, deep=_DEEPEST):
    """What is packed in it, and in that, and so on: Base64, hexadecimal digits, zlib and gzip in any order.

    So are programs in Nomad's jobs and their command lines, and compressed files.
    """
    texts = [(text, number) for number, (form, *_) in enumerate(_CODED) for text in {*form.findall(content)}]
    found = [each for text, number in texts for each in _decoded(text, number)]
    for each in dict.fromkeys([*found, *_inflated(content)]):
        if each and deep:
            yield each
            yield from unpacked(each, deep - 1)


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
