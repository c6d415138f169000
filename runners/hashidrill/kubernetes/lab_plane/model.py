"""Chaos Mesh's part of `datacenter:`."""

from __future__ import annotations

from pydantic import Field

from hashidrill.core.experiment.strict import VERSION_PATTERN, Strict


class ChaosMesh(Strict):
    """Chaos Mesh with the control plane it needs, and its chaosd on every host: for `chaos_mesh.physical.*`."""

    chaosd: str = Field(default="1.4.0", pattern=VERSION_PATTERN, description="chaosd version, like 1.4.0")
    kubernetes: str = Field(default="1.34.4", pattern=VERSION_PATTERN, description="Version of its kube-apiserver")
