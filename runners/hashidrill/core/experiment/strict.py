"""The base model of everything that a user writes; it imports nothing, so that services can use it."""

from pydantic import BaseModel, ConfigDict

VERSION_PATTERN = r"^[0-9]+\.[0-9]+\.[0-9]+$"


class Strict(BaseModel):
    """Base of everything that a user writes: unknown keys are errors, and models are immutable.

    pydantic builds a model's validator when it first validates: a command pays only for the models that it uses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)
