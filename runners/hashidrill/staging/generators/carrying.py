"""TLS files that loads need, on their way to a worker: their paths mean nothing on another machine."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hashidrill.core.errors import DatacenterError

_FILES = ("ca_file", "cert_file", "key_file")
_FOLDER = "ca_path"


def packed(entrances: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The files that the entrances name, by path, in Base64. Raises DatacenterError for one that cannot be read."""
    paths = {one["tls"].get(key) for one in entrances.values() for key in _FILES}
    folders = {one["tls"].get(_FOLDER) for one in entrances.values()}
    try:
        found = [Path(path) for path in sorted(filter(None, paths))]
        for folder in sorted(filter(None, folders)):
            found += [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
        return {str(path): base64.b64encode(path.read_bytes()).decode() for path in found}
    except OSError as error:
        raise DatacenterError(f"{error.filename}: cannot be read, and workers need it: {error.strerror}") from None


def unpacked(
    entrances: Mapping[str, Mapping[str, Any]], files: Mapping[str, str], folder: Path
) -> dict[str, dict[str, Any]]:
    """The same entrances, with the files written below `folder`, which is ours alone. Raises OSError."""
    places: dict[str, str] = {}
    for number, path in enumerate(sorted({str(Path(path).parent) for path in files})):
        (folder / str(number)).mkdir(mode=0o700)
        places[path] = str(folder / str(number))
    for path, content in files.items():
        place = Path(places[str(Path(path).parent)]) / Path(path).name
        place.touch(mode=0o600)
        place.write_bytes(base64.b64decode(content))

    def moved(key: str, value: Any) -> Any:
        if key in _FILES and value:
            return f"{places[str(Path(value).parent)]}/{Path(value).name}"
        return places[str(Path(value))] if key == _FOLDER and value else value

    return {
        url: {**one, "tls": {key: moved(key, value) for key, value in one["tls"].items()}}
        for url, one in entrances.items()
    }
