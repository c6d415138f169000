"""requests with `max_retries=3`: urllib3 then retries errors of the connection, at once, and no status.

Except that a 413, 429 or 503 *with* a Retry-After is retried too: urllib3 respects that header on its own.
"""

import sys

import requests
from requests.adapters import HTTPAdapter

session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=3))
session.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry", timeout=1).raise_for_status()
