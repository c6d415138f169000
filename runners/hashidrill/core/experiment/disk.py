"""The disk of the hosts of a local datacenter."""

from __future__ import annotations

from pydantic import Field, field_validator

from hashidrill.core.experiment.strict import Strict
from hashidrill.core.units import Size

LEAST_DISK, LARGEST_DISK = Size("1MB"), Size("64GB")
"""It lies in memory: no machine for drills has more of it for one host."""


class Disk(Strict):
    """The disk of each host. With a size, it is a small file system in memory that can really fill up."""

    size: Size | None = Field(default=None, description="Size of the file system, like 64MiB; 1MB to 64GB")

    @field_validator("size")
    @classmethod
    def _limited(cls, value: Size | None) -> Size | None:
        if value is not None and value < LEAST_DISK:
            raise ValueError(f"a disk needs at least {LEAST_DISK} (to the kernel, a size of 0 means no limit)")
        if value is not None and value > LARGEST_DISK:
            raise ValueError(f"a disk of limited size lies in memory: give it at most {LARGEST_DISK}")
        return value
