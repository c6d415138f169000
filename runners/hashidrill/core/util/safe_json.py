"""JSON from others: a client under test, an agent's API, a recording, a cached file."""

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """Parses JSON. Raises ValueError if the text is not JSON, or is nested too deeply for Python.

    json.loads raises RecursionError for a kilobyte of `[`, which is not a ValueError and would end the caller.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None
