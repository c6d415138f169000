"""A folder that only this process and its children can see: it holds the recording of a running game.

It is a file system in memory, in a separate mount namespace. An ordinary user may enter the engine's namespace, which
that user owns, so what the engine writes there is encrypted until the end, for a key that only the keeper has. Only
root can read the keeper's memory and files (the keeper is not dumpable, and began outside that user namespace). The
engine's memory is not hidden: playbooks/training.md says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hashidrill.core.errors import MachineError
from hashidrill.core.util import syscalls as sc

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

_SIZE = "512m"
_KEY_BYTES = 32
_NONCE = bytes(12)
"""Each message has its own key, so a constant is safe."""


def seal(folder: Path) -> None:
    """Keeps files below `folder` in memory from now on, visible only to this process. Call it with one thread.

    Raises MachineError if the kernel refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        if uid == 0:
            sc.unshare(sc.CLONE_NEWNS)
        else:  # under the same user id: its children run as the same user
            sc.unshare(sc.CLONE_NEWNS | sc.CLONE_NEWUSER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        sc.mount("none", "/", "", sc.MS_REC | sc.MS_PRIVATE)
        sc.close_memory()
        sc.mount("game", str(folder), "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, f"mode=700,size={_SIZE}")
    except OSError as error:
        raise MachineError(
            f"the kernel refuses to create a mount that the trainee cannot see: {error.strerror}; `hashidrill "
            f"doctor` shows what"
            " a sandbox needs"
        ) from None


class Key:
    """Decrypts the messages of a `Sealer`. The private key exists only in this process's memory."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415 - see `sealed`

        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def opened(self, sealed: bytes) -> bytes:
        """Raises ValueError for bytes that were not sealed for this key, or were changed."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415 - as above

        try:
            sender = X25519PublicKey.from_public_bytes(sealed[:_KEY_BYTES])
            return _cipher(self._private, sender, sealed[:_KEY_BYTES] + self.public).decrypt(
                _NONCE, sealed[_KEY_BYTES:], None
            )
        except InvalidTag:
            raise ValueError("not sealed for this key") from None


class Sealer:
    """Encrypts messages, and cannot decrypt them."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def __call__(self, message: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.x25519 import (  # noqa: PLC0415 - as above
            X25519PrivateKey,
            X25519PublicKey,
        )

        once = X25519PrivateKey.generate()
        public = once.public_key().public_bytes_raw()
        cipher = _cipher(once, X25519PublicKey.from_public_bytes(self._public), public + self._public)
        return public + cipher.encrypt(_NONCE, message, None)


def _cipher(own: X25519PrivateKey, other: X25519PublicKey, both: bytes) -> ChaCha20Poly1305:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - as above

    return ChaCha20Poly1305(HKDF(SHA256(), _KEY_BYTES, both, b"hashidrill game").derive(own.exchange(other)))
