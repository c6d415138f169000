"""Webhooks of other products: a JSON template defines the headers and the body, filled with a message's fields.

`{name}` is a field of the message, `{env:NAME}` a secret from the environment. There are templates for PagerDuty and
Opsgenie.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hashidrill.core.errors import UsageError
from hashidrill.core.util.safe_json import parse

_FOLDER = Path(__file__).with_name("templates")
_PLACE = re.compile(r"\{(env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Template:
    """A template's JSON text, in which `{...}` stands for parts of the message; without a text, the message itself
    is the body.
    """

    text: str = ""

    def filled(self, message: Mapping[str, Any]) -> tuple[dict[str, str], Any]:
        """Headers and body for one message."""
        if not self.text:
            return {}, message

        def value(found: re.Match[str]) -> str:
            said = os.environ[found[2]] if found[1] else message.get(found[2], "")
            return json.dumps("; ".join(map(str, said)) if isinstance(said, list) else str(said))[1:-1]

        whole = parse(_PLACE.sub(value, self.text))
        return whole.get("headers", {}), whole["body"]


def template(variable: str, fields: Collection[str]) -> Template:
    """The template that a variable names: a shipped one, or a file. Raises UsageError if it cannot be filled."""
    name = os.environ.get(variable, "")
    if not name:
        return Template()
    shipped = {path.stem: path for path in sorted(_FOLDER.glob("*.json"))}
    try:
        text = shipped.get(name, Path(name)).read_text(encoding="utf-8")
        written = parse(text)
    except OSError as error:
        raise UsageError(f"{variable}={name}: {error.strerror}; name a file, or {', '.join(shipped)}") from None
    except ValueError as error:
        raise UsageError(f"{variable}={name}: not JSON: {error}") from None
    headers = written.get("headers", {}) if isinstance(written, dict) else None
    whole = isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values())
    if not whole or "body" not in written or written.keys() - {"headers", "body"}:
        raise UsageError(f'{variable}={name}: expected {{"headers": {{NAME: TEXT}}, "body": ...}}')
    for secret, field in _PLACE.findall(text):
        value = os.environ.get(field, "")
        if secret and not (value and value.isprintable()):
            raise UsageError(f"{variable}={name}: it needs the variable {field}, with one line of text")
        if not secret and field not in fields:
            raise UsageError(f"{variable}={name}: there is no field {{{field}}}; there are {', '.join(sorted(fields))}")
    return Template(text)
