"""Packages that only some commands need; the wheel declares them as extras."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from hashidrill.core.errors import UsageError

Extra = Literal["kubernetes", "metrics", "otel", "page", "ssh"]


class MissingExtraError(UsageError):
    """A package is not installed; the message names what needs it, and the extra that installs it."""


@contextmanager
def extra(name: Extra, where: str) -> Iterator[None]:
    """Wraps imports of the extra's packages; `where` is what needs them, a key of a file or an option.

    Raises MissingExtraError if a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "hashidrill":
            raise
        raise MissingExtraError(
            f"{where} needs the package {package}, which is not installed: pip install 'hashidrill[{name}]'"
        ) from None
