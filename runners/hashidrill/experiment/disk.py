"""The disk of the hosts of a local datacenter."""

from __future__ import annotations

from pydantic import Field, field_validator

from hashidrill.experiment.strict import Strict
from hashidrill.units import Size

LEAST_DISK = Size("1MB")


class Disk(Strict):
    """The disk of each host. With a size, it is a small file system in memory that can really fill up."""

    size: Size | None = Field(default=None, description="Size of the file system, like 64MiB; at least 1MB")

    @field_validator("size")
    @classmethod
    def _limited(cls, value: Size | None) -> Size | None:
        if value is not None and value < LEAST_DISK:
            raise ValueError(f"a disk needs at least {LEAST_DISK} (to the kernel, a size of 0 means no limit)")
        return value
