"""Who may ask the page's server for what. It listens on the loopback, where every program and every web page of this
machine can reach it: a browser sends requests there for any site that is open in it.

- Without a token of this server, every address is unknown.
- A request names the server as we do (`Host`): a site whose name was made to resolve to the loopback (DNS rebinding)
  has its own name there.
- What another site sends is refused (`Origin`, `Sec-Fetch-Site`), and what changes anything comes as JSON, from our
  page alone.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from hashidrill.core.protocols.events import Audience

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
"""With every answer. The page can load, and run, nothing but its own files; no text of a cluster becomes markup."""
LONGEST_BODY = 16_384


@dataclass(frozen=True)
class Guard:
    """Of a server on that port. The tokens are in the addresses of the page, and nowhere else."""

    port: int
    tokens: Mapping[Audience, str] = field(
        default_factory=lambda: {audience: secrets.token_urlsafe(24) for audience in Audience}, repr=False
    )

    def url(self, audience: Audience) -> str:
        """The address of that page."""
        return f"http://127.0.0.1:{self.port}/{self.tokens[audience]}/"

    def who(self, token: str) -> Audience | None:
        """Whose token it is. Every token is compared, in constant time."""
        given = token.encode(errors="replace")
        same = [audience for audience, each in self.tokens.items() if hmac.compare_digest(each.encode(), given)]
        return same[0] if same else None

    def refuses(self, method: str, headers: Mapping[str, str]) -> str:
        """Why a request is refused, whatever it asks for; empty where it is not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        reads = method in {"GET", "HEAD"}
        kind = headers.get("content-type", "").partition(";")[0].strip()
        site = headers.get("sec-fetch-site", "none")
        rules = (
            (host not in self._hosts, "this server answers to 127.0.0.1 and localhost alone, with its own port"),
            (origin not in {None, f"http://{host}"}, "a page of another site asked for this"),
            (site not in {"same-origin", "none"}, "a page of another site asked for this"),
            (not reads and method != "POST", "there is no such method here"),
            (not reads and origin is None, "only the page itself may send this, and it names its origin"),
            (not reads and kind != "application/json", "only JSON is read"),
        )
        return next((why for broken, why in rules if broken), "")

    @property
    def _hosts(self) -> frozenset[str]:
        return frozenset({f"127.0.0.1:{self.port}", f"localhost:{self.port}"})
