"""Messages are folded to a screen, and where depends on how long the path of the file is: a test must not."""

import re


def across_lines(text: str) -> str:
    """A pattern for `text` on one line or on several, for `pytest.raises(..., match=...)`."""
    return r"\s+".join(re.escape(word) for word in text.split())


def unfolded(message: str) -> str:
    """`message` on one line."""
    return " ".join(message.split())
