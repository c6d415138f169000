"""The names that Kubernetes has for kinds, and for whoever brings them. Light to import: `validate` does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    """Who brings kinds of objects to a cluster, and injects what they say."""

    name: str
    group: str
    version: str
    closed: bool = False
    """Whether its definitions keep fields that they do not know, which nobody then reads: each of those is an error."""

    @property
    def api(self) -> str:
        return f"{self.group}/{self.version}"


def plural_of(kind: str) -> str:
    """As Chaos Mesh names its resources (PodChaos: podchaos), and others theirs (Pod: pods)."""
    return kind.lower() if kind.endswith("Chaos") else f"{kind.lower()}s"
