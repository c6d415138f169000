"""The keys of one Vault: who has them can read everything in it.

They are made when it is initialised, and kept in one private file of the sandbox, which ends with it. Nothing else ever
holds them: no command line, no environment of an agent, no recording, no log.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import DatacenterError
from hashidrill.core.util.files import write_whole

_FILE = "keys.json"


@dataclass(frozen=True)
class Keys:
    """`unseal` opens a sealed server, `root` may do everything, and `load` is the token of our own loads."""

    unseal: str
    root: str
    load: str

    def __repr__(self) -> str:  # a traceback or an assertion may show it
        return "Keys(...)"


def new_load_token() -> str:
    """Of our own choice: so that it can be made again as it was, after somebody revoked it."""
    return f"hashidrill-{secrets.token_hex(16)}"


class KeyRing:
    """Keeps the keys of one Vault in a folder, and has them hidden before anybody can read them anywhere."""

    def __init__(self, folder: Path, hide: Callable[..., None]) -> None:
        self._path = folder / _FILE
        self._hide = hide

    def keep(self, keys: Keys) -> None:
        """Before any of them is used."""
        self._hide(*asdict(keys).values())
        write_whole(self._path, json.dumps(asdict(keys)) + "\n")

    @property
    def keys(self) -> Keys:
        """Raises DatacenterError before there are any."""
        try:
            written: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            raise DatacenterError("Vault is not initialised yet: it has no keys") from None
        return Keys(**written)
