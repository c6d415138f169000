"""JSON that others wrote: a client under test, an agent's API, a recording, a file in a cache."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """Raises ValueError for what is not JSON, which includes what is nested so deeply that Python cannot read it.

    json.loads raises RecursionError for a kilobyte of `[`. That is no ValueError, and would end whoever reads.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None
