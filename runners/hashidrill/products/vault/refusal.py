"""What Vault itself says against a configuration: the part of `vault operator diagnose` that parses it.

Vault 1.21 warns of a key that it does not know, and goes on without it. Here that is a refusal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hashidrill.core.util.commands import ask
from hashidrill.core.util.foreign import parse

_REACHES_OUT = ("ha_storage", "seal", "service_registration", "backend", "ha_backend")
"""What `diagnose` would go on to try: to parse a configuration, nothing of yours is to be opened or called."""
_PARSED = "Parse Configuration"
_STAND_INS: dict[str, Any] = {"storage": {"inmem": {}}, "disable_mlock": True}


def refusal(binary: Path, files: Sequence[Path], settings: Mapping[str, Any], work: Path) -> str:
    """The words with which Vault refuses these files, in this order, or the keys that it ignores; "" for neither.

    The last of the files that it gets, below `work`, keeps it from opening the storage that the others name.
    """
    if any(key in settings for key in _REACHES_OUT):
        kept = work / "kept.json"
        kept.write_text(json.dumps({key: value for key, value in settings.items() if key not in _REACHES_OUT}))
        files = [kept]
    more = work / "stand-ins.json"
    more.write_text(json.dumps(_STAND_INS))
    skip = [f"-skip={part}" for part in ("listener", "storage", "autounseal")]
    configs = [f"-config={file}" for file in [*files, more]]
    answer = ask([str(binary), "operator", "diagnose", "-format=json", *skip, *configs])
    try:
        found = parse(answer.output)
        [parsed] = [part for part in found["children"] if part["name"] == _PARSED]
    except (ValueError, KeyError, TypeError):
        return answer.words or f"vault operator diagnose ended with code {answer.code} and said nothing"
    said = [*([parsed["message"]] if parsed.get("status") == "fail" else []), *(parsed.get("warnings") or [])]
    return "\n".join(re.sub(r"^Could not parse configuration: ", "", line) for line in said)
