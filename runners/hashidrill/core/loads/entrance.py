"""What an agent wants of whoever asks it, where that is more than an address: TLS, a token, a namespace.

Loads hand their context's entrances to their HTTP client; without any, agents are asked in plain HTTP.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from hashidrill.core.util.tls import Tls


@dataclass(frozen=True)
class Entrance:
    """Of one agent, by the start of its URL. `tls` is None for plain HTTP; `head` and `query` go into each request."""

    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """The name that its certificate must have; None: that of its address."""
    head: str = field(default="", repr=False)
    query: str = ""


def opened(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Entrance]:
    """Entrances by URL, from plain data: `tls` (fields of Tls), `headers` and `params` of each request.

    Raises TlsFileError.
    """
    contexts: dict[Tls, ssl.SSLContext] = {}
    found = {}
    for url, one in given.items():
        tls, context = Tls(**one["tls"]), None
        if url.startswith("https://"):
            if tls not in contexts:
                contexts[tls] = tls.context()
            context = contexts[tls]
        head = "".join(f"{name}: {value}\r\n" for name, value in one["headers"].items())
        found[url] = Entrance(context, tls.server_name or None, head, urlencode(one["params"]))
    return found
