"""requests with a urllib3 Retry that is told not to respect Retry-After: it comes back on its own schedule."""

import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

retry = Retry(total=3, backoff_factor=0.2, status_forcelist=[429, 503], respect_retry_after_header=False)
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
session.get(f"{sys.argv[1]}/v1/kv/hashidrill/retry", timeout=1).raise_for_status()
