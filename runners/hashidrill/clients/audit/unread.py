"""Files that an audit sees but cannot read: relevant configuration in a language that it does not know.

What goes by in silence is taken for judged. So these are named, where they speak of Consul, Nomad or Vault at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

_LOOKED_AT_BYTES = 256 * 1024
SPEAKS_OF_US = re.compile(rb"consul|nomad|vault", re.IGNORECASE)
_GO = re.compile(rb"hashicorp/(consul|nomad|vault)/api")
_JOB = re.compile(rb"^\s*job\s+(\"|\[\[)", re.MULTILINE)

_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compose file", ("docker-compose*.yml", "docker-compose*.yaml", "compose*.yml", "compose*.yaml")),
    ("template", ("*.tpl", "*.tmpl", "*.ctmpl", "*.tftpl", "*.j2", "*.jinja", "*.erb", "*.levant")),
    ("shell script", ("*.sh", "*.bash", "*.zsh", "*.ksh")),
    ("Dockerfile", ("Dockerfile*", "*.dockerfile", "Containerfile*")),
    ("Terraform file", ("*.tf", "*.tf.json")),
    ("Go file", ("*.go",)),
)
_HELM, _YAML = ("values*.yaml", "values*.yml"), ("*.yaml", "*.yml")


@dataclass(frozen=True, order=True)
class Unread:
    """A file, and what it seems to be: `Nomad Pack template`, `compose file`, ..."""

    path: str
    what: str


def unread_kind(path: Path) -> str:
    """What this file seems to be; an empty string for one that is none of our business."""
    kind = next((what for what, patterns in _KINDS if _matches(path, patterns)), "")
    if not kind and _matches(path, _YAML):
        helm = _matches(path, _HELM) or any((above / "Chart.yaml").is_file() for above in list(path.parents)[:3])
        kind = "Helm chart file" if helm else "YAML file"
    if not kind:
        return ""
    try:
        if not path.is_file():  # opening a FIFO would wait for ever
            return ""
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT_BYTES)
    except OSError:
        return ""
    if not (_GO if kind == "Go file" else SPEAKS_OF_US).search(head + path.name.encode()) and not _JOB.search(head):
        return ""
    if kind == "template" and any((above / "metadata.hcl").is_file() for above in path.parents):
        return "Nomad Pack template"
    return "job template" if kind == "template" and _JOB.search(head) else kind


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def counted(unread: Sequence[Unread]) -> list[tuple[str, list[str]]]:
    """(`61 Nomad Pack templates`, their paths), the most numerous first."""
    kinds: dict[str, list[str]] = {}
    for each in sorted(unread):
        kinds.setdefault(each.what, []).append(each.path)
    ordered = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[0]))
    return [(f"{len(paths)} {what}{'' if len(paths) == 1 else 's'}", paths) for what, paths in ordered]
